//! Why a request went where it went: the receipt in a header, the access log, the spans; and who may not see it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use kvroute::look::{EXPLAIN_PATH, SECRET_HEADER, STATE_PATH};
use serde_json::{Value, json};

use crate::harness::{Conversation, Gateway, MODEL, Setup, client, eventually, words};

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn setup(receipts: Value) -> Setup {
    let mut setup = Setup::default();
    setup.bootstrap.router["receipts"] = receipts;
    setup
}

/// The receipt that came with an answer, its replica, and what the engine found cached.
async fn ask(gateway: &Gateway, body: Vec<u8>, headers: &[(&str, &str)]) -> (Option<Value>, String, u64) {
    let mut request = client().post(gateway.url(CHAT)).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let header = |name: &str| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
    let receipt = header("x-kvroute-receipt").map(|text| serde_json::from_str(&text).unwrap());
    let replica = header("x-mock-replica").unwrap();
    let answer: Value = response.json().await.unwrap();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (receipt, replica, cached)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_is_for_whoever_has_the_secret() {
    let gateway = Gateway::start(setup(json!({"explain": true}))).await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let mut conversation = Conversation::with_system(&words(3, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    conversation.messages.push(json!({"role": "user", "content": "two"}));
    let wrong = format!("{secret}x");
    for headers in [
        vec![],
        vec![("x-kvroute-explain", "1")],
        vec![(SECRET_HEADER, secret.as_str())],
        vec![("x-kvroute-explain", "1"), (SECRET_HEADER, "")],
        vec![("x-kvroute-explain", "1"), (SECRET_HEADER, wrong.as_str())],
        vec![("x-kvroute-explain", "0"), (SECRET_HEADER, secret.as_str())],
    ] {
        let (receipt, _, _) = ask(&gateway, conversation.body(), &headers).await;
        assert_eq!(receipt, None, "{headers:?}");
    }
    let both = [("x-kvroute-explain", "1"), (SECRET_HEADER, secret.as_str())];
    let (receipt, replica, cached) = ask(&gateway, conversation.body(), &both).await;
    let receipt = receipt.unwrap();
    assert_eq!(replica, first.replica);
    let best = &receipt["candidates"][0];
    assert_eq!(
        (&receipt["v"], &receipt["mode"], &receipt["outcome"]),
        (&json!(1), &json!("steered"), &json!("routed"))
    );
    assert_eq!((&receipt["model"], &receipt["reason"]), (&json!(MODEL), &json!("cache")));
    let holder = gateway.replica(gateway.index_of(&replica)).http_addr().to_string();
    assert_eq!((&receipt["pick"], &best["address"]), (&json!(holder), &json!(holder)));
    assert_eq!((best["matched"].as_u64(), best["trust"].as_str()), (Some(cached), Some("exact")), "{receipt}");
    assert!(cached > 200 && receipt["prompt_tokens"].as_u64().unwrap() > cached, "{receipt}");
    let candidates = receipt["candidates"].as_array().unwrap();
    assert_eq!((candidates.len(), &receipt["compared"]), (3, &json!(3)));
    assert!(candidates.iter().all(|c| c["cost"].as_f64() >= best["cost"].as_f64()), "{receipt}");
    let us = receipt["us"].as_object().unwrap();
    let steps: u64 = us.iter().filter(|(name, _)| *name != "held").map(|(_, v)| v.as_u64().unwrap()).sum();
    // Each is cut to whole microseconds.
    assert!(steps > 0 && us["held"].as_u64().unwrap() >= steps, "{receipt}");

    // Without a key it says why.
    let body = json!({"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let request = client().post(gateway.url(CHAT)).body(body).headers(
        (&both.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<std::collections::HashMap<_, _>>())
            .try_into()
            .unwrap(),
    );
    let response = request.send().await.unwrap();
    let receipt: Value = serde_json::from_str(response.headers()["x-kvroute-receipt"].to_str().unwrap()).unwrap();
    assert_eq!((&receipt["mode"], &receipt["outcome"]), (&json!("passed"), &json!("unknown_model")));
    assert_eq!(receipt["detail"], "no model is called \"nobody\"");

    // Neither the question nor the secret reaches a replica.
    for replica in gateway.replicas.iter().flatten() {
        for seen in replica.faults().requests() {
            let all = format!("{:?}", seen.routing_headers);
            assert!(!all.contains("explain") && !all.contains("secret") && !all.contains(&secret), "{all}");
        }
    }
    assert_eq!(gateway.reloads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_does_not_allow_receipts_gives_none() {
    let gateway = Gateway::start(setup(json!({"explain": false, "sample": 1.0, "filter_state": true}))).await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let headers = [("x-kvroute-explain", "1"), (SECRET_HEADER, secret.as_str())];
    for _ in 0..3 {
        let (receipt, _, _) = ask(&gateway, Conversation::with_system(&words(3, 300)).body(), &headers).await;
        assert_eq!(receipt, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_is_for_the_networks_that_may_ask() {
    // For each listener the networks, and whether Envoy takes the address from the connection.
    let listeners =
        [(json!(["127.0.0.0/8", "::1"]), true), (json!(["10.0.0.0/8"]), true), (json!(["10.0.0.0/8"]), false)];
    let receipts = |n: usize| json!({"explain": true, "allow": listeners[n].0});
    let mut setup = setup(receipts(0));
    setup.bootstrap.public = vec![setup.bootstrap.public[0]; 3];
    setup.bootstrap.others = vec![setup.bootstrap.router.clone(); 2];
    for n in 1..3 {
        setup.bootstrap.others[n - 1]["receipts"] = receipts(n);
    }
    let direct = listeners.each_ref().map(|(_, direct)| *direct);
    setup.config = Box::new(move |bootstrap, dir| {
        let mut config = bootstrap.to_json(dir);
        let (mut public, manager) = (direct.iter(), "/filter_chains/0/filters/0/typed_config");
        for listener in config["static_resources"]["listeners"].as_array_mut().unwrap() {
            if listener["name"] != "kvroute_ingest" {
                listener.pointer_mut(manager).unwrap()["use_remote_address"] = (*public.next().unwrap()).into();
                continue;
            }
            let manager = listener.pointer_mut(manager).unwrap();
            manager["use_remote_address"] = true.into();
            let admin = &mut manager["http_filters"][1]["typed_config"]["config"]["configuration"]["value"];
            let mut own: Value = serde_json::from_str(admin.as_str().unwrap()).unwrap();
            assert_eq!(own["role"], "admin");
            own["receipts"] = json!({"allow": ["10.0.0.0/8"]});
            *admin = own.to_string().into();
        }
        config
    });
    let gateway = Gateway::start(setup).await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let body = Conversation::with_system(&words(3, 300)).body();
    // The listener, what X-Forwarded-For says, and whether that is to be told.
    for (listener, forwarded, told) in [
        (0, None, true),
        (0, Some("8.8.8.8"), true),
        (1, None, false),
        (1, Some("10.1.2.3"), false),
        // Why check-config wants use_remote_address: here a client writes its address itself.
        (2, Some("10.1.2.3"), true),
        (2, Some("8.8.8.8"), false),
    ] {
        let url = format!("http://{}{CHAT}", gateway.envoy.public_at(listener));
        let asked = |secret: &str| {
            let request = client().post(&url).body(body.clone()).header(SECRET_HEADER, secret);
            let request = request.header("x-kvroute-explain", "1");
            forwarded.into_iter().fold(request, |request, address| request.header("x-forwarded-for", address)).send()
        };
        let answer = asked(&secret).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers().contains_key("x-kvroute-receipt"), told, "{listener}, {forwarded:?}");
        // The address does not stand in for the secret.
        assert!(!asked("other").await.unwrap().headers().contains_key("x-kvroute-receipt"));
    }
    let inside = |path: &str| format!("http://{}{path}", gateway.envoy.ingest());
    let explain = client().post(inside(EXPLAIN_PATH)).body(body.clone()).header(SECRET_HEADER, &secret);
    let answer = explain.send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert!(answer.text().await.unwrap().contains("receipts.allow"));
    let state = client().get(inside(STATE_PATH)).header(SECRET_HEADER, &secret).send().await.unwrap();
    assert_eq!(state.status(), 200);
}

/// Takes spans as OTLP over HTTP.
async fn collector() -> (std::net::SocketAddr, Arc<Mutex<Vec<Bytes>>>) {
    let got: Arc<Mutex<Vec<Bytes>>> = Arc::default();
    let take = async |State(got): State<Arc<Mutex<Vec<Bytes>>>>, body: Bytes| got.lock().unwrap().push(body);
    let app = axum::Router::new().route("/v1/traces", axum::routing::post(take)).with_state(got.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (address, got)
}

/// Length-delimited fields of a protobuf message, by their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        while let Some((byte, rest)) = bytes.split_first() {
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        value
    }
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let skip = match key & 7 {
            0 => {
                varint(&mut bytes);
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        let (field, rest) = bytes.split_at(skip);
        if key & 7 == 2 {
            out.push((key >> 3, field));
        }
        bytes = rest;
    }
    out
}

fn under(message: &[u8], number: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(n, _)| *n == number).map(|(_, field)| field).collect()
}

/// Trace id and attributes of every span: ResourceSpans 1, ScopeSpans 2, Span 2, attributes 9, string value 1.
fn spans(export: &[u8]) -> Vec<(String, BTreeMap<String, String>)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = under(export, 1).into_iter().flat_map(|r| under(r, 2)).flat_map(|s| under(s, 2));
    let span = |span: &[u8]| {
        let trace = under(span, 1)[0].iter().map(|b| format!("{b:02x}")).collect();
        let pair = |kv: &[u8]| Some((text(under(kv, 1)[0]), text(under(under(kv, 2)[0], 1).first()?)));
        (trace, under(span, 9).into_iter().filter_map(pair).collect())
    };
    all.map(span).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_and_spans_have_the_decision() {
    let (address, exports) = collector().await;
    let log: PathBuf = std::env::temp_dir().join(format!("kvroute-access-{}.log", std::process::id()));
    let (path, mut setup) = (log.clone(), setup(json!({"sample": 1.0, "filter_state": true})));
    setup.config = Box::new(move |bootstrap, dir| {
        // What the example says, with the two addresses of this test.
        let mut example: Value = serde_norway::from_str(include_str!("../../envoy/observe.yaml")).unwrap();
        example["access_log"][0]["typed_config"]["path"] = json!(path);
        let uri = &mut example["tracing"]["provider"]["typed_config"]["http_service"]["http_uri"]["uri"];
        *uri = json!(format!("http://{address}/v1/traces"));
        let mut json = bootstrap.to_json(dir);
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let manager = json.pointer_mut(manager).unwrap().as_object_mut().unwrap();
        manager.extend(example.as_object().unwrap().clone());
        let at = json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
        json["static_resources"]["clusters"].as_array_mut().unwrap().push(json!({
            "name": "otel_collector", "type": "STATIC", "connect_timeout": "1s",
            "load_assignment": {"cluster_name": "otel_collector", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at}}]}]},
        }));
        json
    });
    let gateway = Gateway::start(setup).await;
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=kept")];
    let mut conversation = Conversation::with_system(&words(3, 300));
    let first = gateway.post_with(&client(), CHAT, conversation.body(), &headers).await;
    gateway.settled().await;
    conversation.messages.push(json!({"role": "user", "content": "two"}));
    let second = gateway.post_with(&client(), CHAT, conversation.body(), &headers).await;
    assert_eq!((second.status, &second.replica), (200, &first.replica));
    let passed = json!({"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    gateway.post_with(&client(), CHAT, passed.into(), &headers).await;
    let holder = gateway.replica(gateway.index_of(&first.replica)).http_addr().to_string();

    let lines: Vec<Value> = eventually("the access log has three chats", async || {
        let text = std::fs::read_to_string(&log).ok()?;
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let chats: Vec<Value> = all.filter(|line| line["path"] == CHAT).collect();
        (chats.len() == 3).then_some(chats)
    })
    .await;
    let _ = std::fs::remove_file(&log);
    let routed = &lines[1];
    assert_eq!((&routed["outcome"], &routed["model"]), (&json!("routed"), &json!(MODEL)), "{routed}");
    assert_eq!((&routed["replica"], &routed["upstream"]), (&json!(holder), &json!(holder)), "{routed}");
    assert_eq!((&routed["reason"], &routed["trace"]), (&json!("cache"), &json!(TRACE)), "{routed}");
    assert_eq!(routed["matched_tokens"], second.cached_tokens().to_string(), "{routed}");
    assert_eq!(routed["prompt_tokens"], second.prompt_tokens().to_string(), "{routed}");
    let receipt: Value = serde_json::from_str(routed["receipt"].as_str().unwrap()).unwrap();
    assert_eq!((&receipt["pick"], &receipt["mode"]), (&json!(holder), &json!("steered")));
    assert_eq!(lines[2]["outcome"], "unknown_model");
    assert!(lines[2].get("model").is_none(), "{}", lines[2]);

    let spans = eventually("the spans have come", async || {
        let exports = exports.lock().unwrap().clone();
        let spans: Vec<_> = exports.iter().flat_map(|export| spans(export)).filter(|(t, _)| t == TRACE).collect();
        let decided = spans.iter().filter(|(_, tags)| tags.contains_key("kvroute.outcome")).count();
        (decided >= 3).then_some(spans)
    })
    .await;
    let tagged = |name: &str, value: &str| spans.iter().find(|(_, tags)| tags.get(name).is_some_and(|v| v == value));
    let (_, tags) = tagged("kvroute.reason", "cache").unwrap_or_else(|| panic!("{spans:?}"));
    assert_eq!((tags["kvroute.outcome"].as_str(), tags["kvroute.replica"].as_str()), ("routed", holder.as_str()));
    assert_eq!(tags["kvroute.matched_tokens"], second.cached_tokens().to_string());
    assert!(tagged("kvroute.outcome", "unknown_model").is_some(), "{spans:?}");

    // The engine gets the same trace, and what else the client said of it.
    let seen = gateway.replica(gateway.index_of(&first.replica)).faults().requests();
    let of = |name: &str| seen[0].routing_headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    assert!(of("traceparent").is_some_and(|value| value.starts_with(&format!("00-{TRACE}-"))), "{seen:?}");
    assert_eq!(of("tracestate"), Some("vendor=kept"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_tracer_trace_context_goes_through_untouched() {
    let gateway = Gateway::start(Setup::default()).await;
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "a=1,b=2")];
    let mut conversation = Conversation::with_system(&words(3, 300));
    conversation.messages.push(json!({"role": "user", "content": "hi"}));
    let answer = gateway.post_with(&client(), CHAT, conversation.body(), &headers).await;
    assert!(answer.outcome.starts_with("routed"), "{}", answer.outcome);
    let seen = gateway.replica(gateway.index_of(&answer.replica)).faults().requests();
    for (name, value) in headers {
        assert!(seen[0].routing_headers.iter().any(|(n, v)| n == name && v == value), "{name}: {seen:?}");
    }
}
