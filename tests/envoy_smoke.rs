//! The filter in a real Envoy: it loads, lets through what is not its business, and never changes a byte.
//!
//! Needs Envoy (`ENVOY_BIN`, the PATH, or `.kvroute/envoy`) and the filter (`KVROUTE_WASM`, or what
//! `cargo build --release --lib --target wasm32-wasip1` left).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use kvroute::gateway::{Bootstrap, Envoy};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_128;

/// An upstream that says what it got: bytes, their hash, and the headers.
async fn echo() -> SocketAddr {
    let app = axum::Router::new()
        .route("/health", axum::routing::get(|| async { "ok" }))
        .fallback(|headers: HeaderMap, body: Bytes| async move {
            let headers: serde_json::Map<String, Value> = headers
                .iter()
                .map(|(k, v)| (k.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned().into()))
                .collect();
            axum::Json(json!({"bytes": body.len(), "hash": format!("{:032x}", xxh3_128(&body)), "headers": headers}))
        })
        .layer(axum::extract::DefaultBodyLimit::disable());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    at
}

/// A model that is known but switched off: its requests are buffered and parsed, and get no key.
fn router(replica: SocketAddr) -> Value {
    json!({
        "models": [{"name": "off", "enabled": false}],
        "replicas": [{"address": replica.to_string(), "model": "off"}],
        "limits": {"time_budget_ms": 60000},
        "selection": {"outcome_header": "x-kvroute-outcome"},
    })
}

async fn start(change: impl FnOnce(&mut Bootstrap)) -> (Envoy, SocketAddr) {
    let replica = echo().await;
    let mut bootstrap = Bootstrap { replicas: vec![replica], router: router(replica), ..Bootstrap::default() };
    change(&mut bootstrap);
    let envoy = tokio::task::spawn_blocking(move || Envoy::start(bootstrap, 2)).await.unwrap();
    (envoy.unwrap_or_else(|e| panic!("{e:#}")), replica)
}

/// A chat request whose body has about `bytes` bytes.
fn chat(bytes: usize) -> String {
    let text: String = ('a'..='z').cycle().take(bytes.saturating_sub(80)).collect();
    json!({"model": "off", "messages": [{"role": "user", "content": text}]}).to_string()
}

async fn await_stat(envoy: &Envoy, name: &str, at_least: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let value = envoy.stat(name).unwrap();
        if value >= at_least {
            return;
        }
        assert!(Instant::now() < deadline, "{name} is {value}:\n{}", envoy.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_byte_arrives_and_every_outcome_is_counted() {
    let (envoy, _) = start(|b| b.buffer_limit = Some(32 << 20)).await;
    let url = |path: &str| format!("http://{}{path}", envoy.public());
    let client = reqwest::Client::new();

    let plain: Value = client.get(url("/v1/models")).send().await.unwrap().json().await.unwrap();
    assert_eq!(plain["bytes"], 0);

    for (path, body, outcome) in [
        ("/v1/chat/completions", chat(1 << 10), "model_off"),
        ("/v1/chat/completions", chat(1 << 20), "model_off"),
        ("/v1/chat/completions", chat(20 << 20), "body_too_large"),
        ("/v1/chat/completions", "{\"model\": \"off\"".to_owned(), "not_json"),
        ("/v1/completions", json!({"model": "other", "prompt": "x"}).to_string(), "unknown_model"),
        ("/v1/embedding%73", chat(1 << 20), "not_our_path"),
    ] {
        for chunked in [false, true] {
            let request = client.post(url(path)).header("content-type", "application/json");
            let request = match chunked {
                false => request.body(body.clone()),
                true => {
                    let pieces: Vec<_> =
                        body.as_bytes().chunks(60_000).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect();
                    request.body(reqwest::Body::wrap_stream(futures::stream::iter(pieces)))
                }
            };
            let what = format!("{path}, {} bytes, chunked {chunked}", body.len());
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 200, "{what}");
            let said = response.headers().get("x-kvroute-outcome").map(|v| v.to_str().unwrap().to_owned());
            assert_eq!(said.as_deref(), Some(outcome), "{what}");
            let got: Value = response.json().await.unwrap();
            assert_eq!(got["bytes"], body.len(), "{what}");
            assert_eq!(got["hash"], format!("{:032x}", xxh3_128(body.as_bytes())), "{what}");
        }
    }
    for (outcome, count) in [("model_off", 4), ("body_too_large", 2), ("not_json", 2), ("unknown_model", 2)] {
        await_stat(&envoy, &format!("wasmcustom.kvroute_requests_total.outcome.{outcome}"), count).await;
    }
    let prometheus = envoy.admin_get("/stats/prometheus").unwrap();
    let line = prometheus.lines().find(|l| l.starts_with("kvroute_requests_total{") && l.contains("model_off"));
    assert!(line.is_some_and(|l| l.contains("outcome=\"model_off\"")), "{line:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_envoys_default_limit_a_large_body_is_not_held() {
    let (envoy, _) = start(|b| b.router["limits"] = json!({"max_inspect_bytes": 512 << 10})).await;
    let client = reqwest::Client::new();
    for body in [chat(400 << 10), chat(5 << 20)] {
        for chunked in [false, true] {
            let request = client.post(format!("http://{}/v1/chat/completions", envoy.public()));
            let request = match chunked {
                false => request.body(body.clone()),
                true => {
                    let pieces: Vec<_> =
                        body.as_bytes().chunks(10_000).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect();
                    request.body(reqwest::Body::wrap_stream(futures::stream::iter(pieces)))
                }
            };
            let got: Value = request.send().await.unwrap().json().await.unwrap();
            assert_eq!(got["hash"], format!("{:032x}", xxh3_128(body.as_bytes())));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_send_the_headers_that_steer() {
    let (envoy, _) = start(|_| {}).await;
    let mut request = reqwest::Client::new().post(format!("http://{}/v1/models", envoy.public())).body("x");
    let steering = [
        "x-kvroute-replica",
        "x-kvroute-fallback",
        "x-gateway-destination-endpoint",
        "x-data-parallel-rank",
        "x-prefiller-host-port",
    ];
    for name in steering {
        request = request.header(name, "MTI3LjAuMC4xOjE=");
    }
    let got: Value = request.send().await.unwrap().json().await.unwrap();
    for name in steering {
        assert!(got["headers"][name].is_null(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_traps_comes_back() {
    let (envoy, _) = start(|b| b.router["test"] = json!({"trap_header": "x-trap"})).await;
    let url = format!("http://{}/v1/chat/completions", envoy.public());
    let client = reqwest::Client::new();
    let trapped = client.post(&url).header("x-trap", "1").body(chat(1000)).send().await.unwrap();
    assert_eq!(trapped.status(), 503);
    let deadline = Instant::now() + Duration::from_secs(30);
    // Both workers answer again: many connections reach both.
    let mut good = 0;
    while good < 20 {
        let answer = reqwest::Client::new().post(&url).body(chat(1000)).send().await.unwrap();
        good = if answer.status() == 200 { good + 1 } else { 0 };
        assert!(Instant::now() < deadline, "{}", envoy.log());
    }
    assert!(envoy.stat("wasm.kvroute_router.vm_reload_success").unwrap() >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_stops_envoy_and_names_the_field() {
    let replica = echo().await;
    let mut bootstrap = Bootstrap { replicas: vec![replica], router: router(replica), ..Bootstrap::default() };
    bootstrap.router["limits"] = json!({"max_jobs": 0});
    let started = tokio::task::spawn_blocking(move || Envoy::start(bootstrap, 1)).await.unwrap();
    let error = format!("{:#}", started.err().unwrap());
    assert!(error.contains("limits.max_jobs must be a whole number from 1 to 10000, not 0"), "{error}");
}
