use std::path::Path;

use serde_json::json;

use super::{Balancing, Bootstrap, Tls};
use crate::config::Config;

fn bootstrap() -> Bootstrap {
    Bootstrap {
        replicas: vec!["127.0.0.1:8001".parse().unwrap()],
        bridge: Some("127.0.0.1:7000".parse().unwrap()),
        router: json!({"models": [{"name": "m"}]}),
        ..Bootstrap::default()
    }
}

#[test]
fn the_router_configuration_is_completed_and_valid() {
    let config = Config::from_value(&bootstrap().router_config()).unwrap();
    assert_eq!(config.secret, bootstrap().secret);
    assert_eq!(config.bridge.unwrap().cluster, "kvroute_bridge");
}

#[test]
fn selection_headers_are_stripped_before_the_filter() {
    let json = bootstrap().to_json(Path::new("/d"));
    let filters = &json["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let names: Vec<&str> =
        filters["http_filters"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["strip_selection_headers", "kvroute", "envoy.filters.http.stateful_session", "envoy.filters.http.router"]
    );
}

#[test]
fn a_baseline_has_neither_filter_nor_ingest() {
    let baseline = Bootstrap { balancing: Balancing::RoundRobin, ..bootstrap() };
    let text = baseline.to_json(Path::new("/d")).to_string();
    assert!(!text.contains("wasm.v3"));
    assert!(!text.contains("kvroute_ingest"));
    assert!(text.contains("RoundRobin"));
}

/// `envoy/mtls.yaml` shows what a gateway with a bridge on another host runs with.
#[test]
fn the_example_of_certificates_is_what_runs() {
    let example: serde_json::Value = serde_norway::from_str(include_str!("../../envoy/mtls.yaml")).unwrap();
    let tls = Tls {
        ingest: "0.0.0.0:10101".parse().unwrap(),
        ca: "/etc/kvroute/tls/ca.pem".into(),
        cert: "/etc/kvroute/tls/envoy.pem".into(),
        key: "/etc/kvroute/tls/envoy.key".into(),
        bridge_name: "kvroute-bridge".into(),
    };
    let json = Bootstrap { tls: Some(tls), ..bootstrap() }.to_json(Path::new("/d"));
    let listeners = json["static_resources"]["listeners"].as_array().unwrap();
    let ingest = listeners.iter().find(|l| l["name"] == "kvroute_ingest_tls").unwrap();
    assert_eq!(ingest["filter_chains"][0]["transport_socket"], example["kvroute_ingest_tls"]);
    let port = &example["address"]["socket_address"];
    assert_eq!(&ingest["address"]["socket_address"], port);
    let clusters = json["static_resources"]["clusters"].as_array().unwrap();
    let bridge = clusters.iter().find(|c| c["name"] == "kvroute_bridge").unwrap();
    assert_eq!(bridge["transport_socket"], example["kvroute_bridge"]);
}

/// The text of a plugin's configuration is JSON of its own: what it says counts, not how it is written.
fn read_texts(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(map) => map.values_mut().for_each(read_texts),
        serde_json::Value::Array(list) => list.iter_mut().for_each(read_texts),
        serde_json::Value::String(text) if text.starts_with('{') => *value = serde_json::from_str(text).unwrap(),
        _ => {}
    }
}

/// `envoy/envoy.yaml` documents what `kvroute up` and `kvroute demo` run with.
#[test]
fn the_example_is_what_runs() {
    let mut example: serde_json::Value = serde_norway::from_str(include_str!("../../envoy/envoy.yaml")).unwrap();
    let bootstrap = Bootstrap {
        wasm: "/etc/kvroute/model.wasm".into(),
        ingest_wasm: Some("/etc/kvroute/kvroute.wasm".into()),
        public: vec!["0.0.0.0:10000".parse().unwrap()],
        ingest: "127.0.0.1:10100".parse().unwrap(),
        admin: "127.0.0.1:9901".parse().unwrap(),
        replicas: (1..=3).map(|n| format!("10.0.0.{n}:8000").parse().unwrap()).collect(),
        bridge: Some("127.0.0.1:7070".parse().unwrap()),
        secret: "change-me".into(),
        router: json!({"models": [{"name": "my-model", "pack": "my-model", "block_size": 16}]}),
        buffer_limit: Some(16 << 20),
        ..Bootstrap::default()
    };
    let mut runs = bootstrap.to_json(Path::new("/d"));
    read_texts(&mut example);
    read_texts(&mut runs);
    assert_eq!(example, runs);
    // The secret out of the environment is the only other way.
    let text =
        Bootstrap { secret_env: Some("KVROUTE_SECRET".into()), ..bootstrap }.to_json(Path::new("/d")).to_string();
    assert!(!text.contains("change-me"));
    assert_eq!(text.matches(r#""host_env_keys":["KVROUTE_SECRET"]"#).count(), 3);
}
