use std::path::Path;

use serde_json::json;

use super::{Balancing, Bootstrap};
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
