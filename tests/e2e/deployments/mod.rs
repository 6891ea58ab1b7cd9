//! The deployments under `envoy/`, as far as they can run without a cluster: the configuration that each gives to Envoy,
//! with its addresses and files replaced by those of the test, and nothing else.
//!
//! Each passes `kvroute check-config` and `envoy --mode validate`, and then the same test of routing on a real Envoy.

mod envoy_gateway;
mod istio;
mod manifests;
mod pods;
mod schemas;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kvroute::gateway::{Bootstrap, default_wasm, envoy_binary};
use serde_json::{Value, json};

use crate::harness::{
    Conversation, Gateway, MODEL, Setup, client, eventually, free_address, packed_wasm, sha256, words,
};
use manifests::documents;

const HCM: &str = "envoy.filters.network.http_connection_manager";
const HCM_TYPE: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "envoy.filters.http.router";

fn typed(name: &str, mut value: Value) -> Value {
    value["@type"] = format!("type.googleapis.com/{name}").into();
    value
}

fn previous_hosts() -> Value {
    let config = typed("envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate", json!({}));
    json!([{"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": config}])
}

fn kubernetes() -> Value {
    documents("kubernetes/envoy.yaml").remove(0)
}

/// Puts the test's addresses and files into a configuration. Everything else stays as the deployment has it.
fn place(mut config: Value, bootstrap: &Bootstrap) -> Value {
    let router = first_route(&config).clone();
    let listener = config["static_resources"]["listeners"][0]["name"].clone();
    let route = router["route"]["cluster"].as_str().unwrap().to_owned();
    let own = |address: SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    config["admin"]["address"] = own(bootstrap.admin);
    for listener in config["static_resources"]["listeners"].as_array_mut().unwrap() {
        let ingest = listener["name"] == "kvroute_ingest";
        if ingest {
            assert_eq!(listener["address"]["socket_address"]["address"], "127.0.0.1", "ingest must be on loopback");
        }
        listener["address"] = own(if ingest { bootstrap.ingest } else { bootstrap.public[0] });
    }
    let endpoints = |name: &str, all: &[SocketAddr]| {
        let all: Vec<Value> = all.iter().map(|a| json!({"endpoint": {"address": own(*a)}})).collect();
        json!({"cluster_name": name, "endpoints": [{"lb_endpoints": all}]})
    };
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        let name = cluster["name"].as_str().unwrap().to_owned();
        let hosts = match name.as_str() {
            "kvroute_bridge" => vec![bootstrap.bridge.unwrap()],
            "envoy_admin" => vec![bootstrap.admin],
            name if name == route => bootstrap.replicas.clone(),
            _ => continue,
        };
        cluster["load_assignment"] = endpoints(&name, &hosts);
        // By DNS or EDS in the cluster.
        cluster.as_object_mut().unwrap().remove("cluster_type");
        cluster["type"] = "STATIC".into();
    }
    let files = [
        ("/etc/kvroute/model.wasm", bootstrap.wasm.to_str().unwrap()),
        ("/etc/kvroute/kvroute.wasm", bootstrap.ingest_wasm.as_ref().unwrap().to_str().unwrap()),
    ];
    // By the names that the harness knows.
    let names = [(listener.as_str().unwrap(), "public"), (route.as_str(), "replicas")];
    rename(&mut config, &[&files[..], &names[..]].concat());
    config
}

/// The route of the public listener.
fn first_route(config: &Value) -> &Value {
    let listener = &config["static_resources"]["listeners"][0];
    let chain = listener.get("default_filter_chain").unwrap_or_else(|| &listener["filter_chains"][0]);
    &chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"][0]
}

/// Replaces texts that are one of these, and the model's name in the filter's configuration.
fn rename(at: &mut Value, names: &[(&str, &str)]) {
    match at {
        Value::String(text) => {
            if let Some((_, new)) = names.iter().find(|(old, _)| old == text) {
                *text = (*new).to_owned();
            }
            *text = text.replace("\"my-model\"", &format!("\"{MODEL}\""));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, names)),
        Value::Object(map) => map.values_mut().for_each(|value| rename(value, names)),
        _ => {}
    }
}

/// `kvroute check-config` finds neither an error nor a warning, and Envoy takes it.
fn judge(config: &Value, secret: &str) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("kvroute-deployment-{}-{count}.json", std::process::id()));
    std::fs::write(&file, config.to_string()).unwrap();
    let report = Command::new(env!("CARGO_BIN_EXE_kvroute"))
        .args(["check-config", "--strict", file.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&report.stdout);
    assert!(report.status.success(), "kvroute check-config --strict:\n{said}");
    eprintln!("{}", said.lines().last().unwrap_or_default());
    let envoy = Command::new(envoy_binary().unwrap())
        .args(["--mode", "validate", "--log-level", "error", "-c"])
        .arg(&file)
        .env("KVROUTE_SECRET", secret)
        .output()
        .unwrap();
    assert!(envoy.status.success(), "envoy --mode validate:\n{}", String::from_utf8_lossy(&envoy.stderr));
    std::fs::remove_file(&file).unwrap();
}

/// A gateway on this configuration, judged first.
async fn start(config: impl FnOnce(&Bootstrap) -> Value + Send + 'static) -> Gateway {
    let judged = |bootstrap: &Bootstrap, _: &Path| {
        let config = config(bootstrap);
        judge(&config, &bootstrap.secret);
        config
    };
    let mut setup = Setup { config: Box::new(judged), ..Setup::default() };
    setup.bootstrap.admin = free_address();
    Gateway::start(setup).await
}

/// What a gateway is for, and what it must not do.
async fn routes(gateway: &Gateway) {
    let mut conversations: Vec<Conversation> =
        (0..12).map(|i| Conversation::with_system(&words(2000 + i, 150))).collect();
    let mut first = Vec::new();
    for (i, conversation) in conversations.iter_mut().enumerate() {
        let answer = gateway.turn(conversation, &words(i as u64, 60)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        first.push(answer);
    }
    gateway.settled().await;
    let homes: BTreeSet<&str> = first.iter().map(|a| a.replica.as_str()).collect();
    assert!(homes.len() > 1, "all first turns went to {homes:?}");
    // Every second turn goes where the first one went, also where the client would like another replica.
    for (i, conversation) in conversations.iter_mut().enumerate() {
        let home = gateway.index_of(&first[i].replica);
        let other = gateway.replica((home + 1) % 3).http_addr().to_string();
        let encoded = STANDARD.encode(&other);
        let headers = [("x-kvroute-replica", encoded.as_str()), ("x-kvroute-fallback", other.as_str())];
        conversation.messages.push(json!({"role": "user", "content": words(500 + i as u64, 30)}));
        let answer = gateway.post_with(&client(), "/v1/chat/completions", conversation.body(), &headers[..i % 3]).await;
        assert_eq!(answer.replica, first[i].replica, "conversation {i}");
        assert!(answer.cached_tokens() + 16 > first[i].prompt_tokens(), "conversation {i}: {answer:?}");
    }
    // A replica that fails is passed over, and its address stays inside.
    let home = gateway.index_of(&first[0].replica);
    gateway.replica(home).faults().fail(1, 503);
    let request = client().post(gateway.url("/v1/chat/completions")).header("content-type", "application/json");
    let response = request.body(conversations[0].body()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_ne!(response.headers()["x-mock-replica"], first[0].replica.as_str());
    assert!(!response.headers().contains_key("x-kvroute-replica"), "{:?}", response.headers());
    // Above Envoy's own limit of 1 MiB.
    let large = json!({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "user": "u".repeat(2 << 20)});
    assert_eq!(gateway.post("/v1/chat/completions", large.to_string().into()).await.status, 200);
    // The tags make labels.
    eventually("the metrics have labels", async || {
        let page = gateway.envoy.admin_get("/stats/prometheus").unwrap();
        let labelled = |family: &str, label: &str| page.lines().any(|l| l.starts_with(family) && l.contains(label));
        let all = labelled("kvroute_requests_total{", "outcome=\"routed\"")
            && labelled("kvroute_picks_total{", "reason=\"")
            && labelled("kvroute_synced{", "slot=\"");
        all.then_some(())
    })
    .await;
}

/// What cannot be a prompt does not enter the filter. All by one connection, so that one worker counts them: what came
/// before is told by the time that the last one is.
async fn keeps_others_out(gateway: &Gateway) {
    let client = client();
    let others = gateway.outcome("not_our_path");
    let asked = client.get(gateway.url("/v1/models")).send().await.unwrap();
    assert_eq!(asked.status(), 200);
    asked.bytes().await.unwrap();
    let asked = client.get(gateway.url("/v1/chat/completions")).send().await.unwrap();
    asked.bytes().await.unwrap();
    assert_eq!(gateway.post_with(&client, "/v1/embeddings", b"{}".to_vec(), &[]).await.status, 404);
    for path in ["/v1/chat/complet%69ons?x=1", "/v1/completions/"] {
        gateway.post_with(&client, path, b"{".to_vec(), &[]).await;
    }
    eventually("what may be a prompt is counted", async || (gateway.outcome("not_json") == 2).then_some(())).await;
    assert_eq!(gateway.outcome("not_our_path"), others);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_routes_and_drains() {
    let gateway = start(|bootstrap| place(kubernetes(), bootstrap)).await;
    routes(&gateway).await;
    keeps_others_out(&gateway).await;
    pods::metrics_and_readiness(&gateway).await;
    pods::the_pre_stop_hook_waits_for_answers(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istio_routes() {
    let gateway = start(|bootstrap| place(istio::config(false), bootstrap)).await;
    routes(&gateway).await;
    keeps_others_out(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn istio_routes_with_a_filter_that_is_fetched() {
    let server = FileServer::start().await;
    let gateway = start(move |bootstrap| {
        let mut config = place(istio::config(true), bootstrap);
        server.stand_in(&mut config, bootstrap);
        config
    })
    .await;
    routes(&gateway).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateway_routes() {
    let gateway = start(|bootstrap| place(envoy_gateway::config(), bootstrap)).await;
    routes(&gateway).await;
    keeps_others_out(&gateway).await;
}

/// The HTTP server of `envoy/istio-remote`.
struct FileServer(SocketAddr);

impl FileServer {
    async fn start() -> FileServer {
        let files = Router::new()
            .route("/model.wasm", get(|| async { std::fs::read(packed_wasm()).unwrap() }))
            .route("/kvroute.wasm", get(|| async { std::fs::read(default_wasm()).unwrap() }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, files).await.unwrap() });
        FileServer(address)
    }

    /// Istio makes a cluster for the service that has the files. Their hashes are marked CHANGE.
    fn stand_in(&self, config: &mut Value, bootstrap: &Bootstrap) {
        let mut clusters = BTreeSet::new();
        let hash = |file: &Path| sha256(&std::fs::read(file).unwrap());
        let (model, plain) = (hash(&bootstrap.wasm), hash(bootstrap.ingest_wasm.as_ref().unwrap()));
        each_object(config, &mut |object| {
            let Some(uri) = object.get("http_uri") else { return };
            clusters.insert(uri["cluster"].as_str().unwrap().to_owned());
            let of_model = uri["uri"].as_str().unwrap().ends_with("/model.wasm");
            object.insert("sha256".into(), if of_model { model.clone() } else { plain.clone() }.into());
        });
        assert_eq!(clusters.len(), 1, "{clusters:?}");
        for name in clusters {
            let at = json!({"socket_address": {"address": self.0.ip().to_string(), "port_value": self.0.port()}});
            let assignment =
                json!({"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at}}]}]});
            let cluster =
                json!({"name": name, "type": "STATIC", "connect_timeout": "10s", "load_assignment": assignment});
            config["static_resources"]["clusters"].as_array_mut().unwrap().push(cluster);
        }
    }
}

fn each_object(at: &mut Value, visit: &mut impl FnMut(&mut serde_json::Map<String, Value>)) {
    match at {
        Value::Array(items) => items.iter_mut().for_each(|item| each_object(item, visit)),
        Value::Object(map) => {
            visit(map);
            map.values_mut().for_each(|value| each_object(value, visit));
        }
        _ => {}
    }
}
