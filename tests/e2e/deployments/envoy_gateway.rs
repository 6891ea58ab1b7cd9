//! What Envoy Gateway makes of `envoy/envoy-gateway`: the listener, route and cluster of its proxies, and the
//! EnvoyPatchPolicy on them. Written after its sources; Envoy Gateway itself does not run here.

use serde_json::{Value, json};

use super::manifests::{documents, ensure, locate, merge, one, operate};
use super::{HCM, HCM_TYPE, ROUTER, previous_hosts, typed};

/// The configuration of a proxy.
pub fn config() -> Value {
    let traffic = documents("envoy-gateway/gateway.yaml");
    let mut config = before(&traffic);
    let proxy = documents("envoy-gateway/proxy.yaml");
    let bootstrap = &one(&proxy, "EnvoyProxy", "kvroute")["spec"]["bootstrap"];
    assert_eq!(bootstrap["type"], "Merge");
    merge(&mut config, &serde_norway::from_str(bootstrap["value"].as_str().unwrap()).unwrap());
    let policy = documents("envoy-gateway/patch.yaml");
    apply(&mut config, one(&policy, "EnvoyPatchPolicy", "kvroute"));
    config
}

/// Without the EnvoyPatchPolicy.
fn before(traffic: &[Value]) -> Value {
    let gateway = one(traffic, "Gateway", "kvroute");
    let route = one(traffic, "HTTPRoute", "vllm");
    let client = one(traffic, "ClientTrafficPolicy", "kvroute");
    let backend = &one(traffic, "BackendTrafficPolicy", "vllm")["spec"];
    let listener = &gateway["spec"]["listeners"][0];
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let name = ["namespace", "name"].map(|field| text(&gateway["metadata"][field])).join("/");
    let name = format!("{name}/{}", text(&listener["name"]));
    // Ports below 1024 are moved up.
    let port = listener["port"].as_u64().unwrap() + 10_000;
    let cluster = ["namespace", "name"].map(|field| text(&route["metadata"][field])).join("/");
    let cluster = format!("httproute/{cluster}/rule/0");
    let rule = &route["spec"]["rules"][0];
    assert_eq!(rule["filters"][0]["type"], "RequestHeaderModifier");
    let triggers: Vec<String> = backend["retry"]["retryOn"]["triggers"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(route["spec"]["rules"].as_array().unwrap().len(), 1, "each rule would have a cluster of its own");
    let mut routes = Vec::new();
    for (index, wanted) in rule["matches"].as_array().unwrap().iter().enumerate() {
        let value = &wanted["path"]["value"];
        let mut matched = match wanted["path"]["type"].as_str().unwrap() {
            "PathPrefix" if value == "/" => json!({"prefix": "/"}),
            "RegularExpression" => json!({"safe_regex": {"regex": value}}),
            other => panic!("{other} {value} is not known here"),
        };
        if let Some(method) = wanted.get("method") {
            matched["headers"] = json!([{"name": ":method", "string_match": {"exact": method}}]);
        }
        routes.push(json!({
            "name": format!("{cluster}/match/{index}/*"),
            "match": matched,
            "request_headers_to_remove": rule["filters"][0]["requestHeaderModifier"]["remove"],
            "route": {
                "cluster": cluster,
                "timeout": rule["timeouts"]["request"],
                "upgrade_configs": [{"upgrade_type": "websocket"}],
                "retry_policy": {
                    "retry_on": triggers.join(","),
                    "num_retries": backend["retry"]["numRetries"],
                    "retry_host_predicate": previous_hosts(),
                    "host_selection_retry_max_attempts": "5",
                },
            },
        }));
    }
    // Regular expressions go before prefixes, wherever they stand.
    routes.sort_by_key(|route| route["match"]["safe_regex"].is_null());
    let removed = client["spec"]["headers"]["earlyRequestHeaders"]["remove"].as_array().unwrap();
    let early: Vec<Value> = removed.iter().map(|name| json!({"remove": name})).collect();
    let early = typed(
        "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        json!({"mutations": early}),
    );
    let manager = json!({
        "stat_prefix": format!("http-{port}"),
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "http2_protocol_options": {"initial_connection_window_size": 1_048_576, "initial_stream_window_size": 65_536, "max_concurrent_streams": 100},
        "early_header_mutation_extensions": [{"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": early}],
        "route_config": {"name": name, "ignore_port_in_host_matching": true, "virtual_hosts": [{"name": format!("{name}/*"), "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": ROUTER, "typed_config": typed("envoy.extensions.filters.http.router.v3.Router", json!({"suppress_envoy_headers": true}))}],
        "merge_slashes": true,
        "normalize_path": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": true,
    });
    let (active, passive) = (&backend["healthCheck"]["active"], &backend["healthCheck"]["passive"]);
    let breaker = &backend["circuitBreaker"];
    json!({
        "node": {"id": "envoy-gateway", "cluster": "envoy-gateway"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 19000}}},
        "static_resources": {
            "listeners": [{
                "name": name,
                "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
                "per_connection_buffer_limit_bytes": bytes(&text(&client["spec"]["connection"]["bufferLimit"])),
                "max_connections_to_accept_per_socket_event": 1,
                "default_filter_chain": {"name": name, "filters": [{"name": HCM, "typed_config": typed(HCM_TYPE, manager)}]},
            }],
            "clusters": [{
                "name": cluster,
                "connect_timeout": "10s",
                "dns_lookup_family": "V4_PREFERRED",
                "per_connection_buffer_limit_bytes": 32768,
                "ignore_health_on_host_removal": true,
                "circuit_breakers": {"thresholds": [{
                    "max_connections": breaker["maxConnections"],
                    "max_pending_requests": breaker["maxPendingRequests"],
                    "max_requests": breaker["maxParallelRequests"],
                    "max_retries": breaker["maxParallelRetries"],
                }]},
                "load_balancing_policy": {"policies": [{"typed_extension_config": {
                    "name": "envoy.load_balancing_policies.least_request",
                    "typed_config": typed("envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
                        json!({"locality_lb_config": {"locality_weighted_lb_config": {}}})),
                }}]},
                "health_checks": [{
                    "timeout": active["timeout"],
                    "interval": active["interval"],
                    "unhealthy_threshold": active["unhealthyThreshold"],
                    "healthy_threshold": active["healthyThreshold"],
                    "http_health_check": {"host": "*", "path": active["http"]["path"]},
                }],
                "outlier_detection": {
                    "consecutive_5xx": passive["consecutive5XxErrors"],
                    "interval": passive["interval"],
                    "base_ejection_time": passive["baseEjectionTime"],
                    "max_ejection_percent": passive["maxEjectionPercent"],
                },
            }],
        },
    })
}

/// A quantity of Kubernetes, of bytes.
fn bytes(quantity: &str) -> u64 {
    let number = |end| quantity.strip_suffix(end).map(|n: &str| n.parse::<u64>().unwrap());
    number("Mi").map(|n| n << 20).or_else(|| number("Ki").map(|n| n << 10)).unwrap_or_else(|| quantity.parse().unwrap())
}

fn apply(config: &mut Value, policy: &Value) {
    for patch in policy["spec"]["jsonPatches"].as_array().unwrap() {
        let list = match patch["type"].as_str().unwrap() {
            "type.googleapis.com/envoy.config.listener.v3.Listener" => "listeners",
            "type.googleapis.com/envoy.config.cluster.v3.Cluster" => "clusters",
            // A resource of its own there, here in the listener of the same name.
            "type.googleapis.com/envoy.config.route.v3.RouteConfiguration" => "listeners",
            other => panic!("{other} is not known here"),
        };
        let resources = config["static_resources"][list].as_array_mut().unwrap();
        let operation = &patch["operation"];
        let (op, value) = (operation["op"].as_str().unwrap(), &operation["value"]);
        let (name, path) = (&patch["name"], operation["path"].as_str().unwrap_or_default());
        let places = match operation["jsonPath"].as_str() {
            None if op == "add" && path.is_empty() => {
                assert_eq!(name, &value["name"], "a resource has the name of its patch");
                resources.push(value.clone());
                continue;
            }
            None => vec![path.to_owned()],
            Some(json_path) => {
                let resource = resources.iter().find(|r| &r["name"] == name).unwrap_or_else(|| panic!("no {name}"));
                locate(resource, json_path).into_iter().map(|pointer| format!("{pointer}{path}")).collect()
            }
        };
        assert!(!places.is_empty(), "{operation} finds nothing");
        let resource = resources.iter_mut().find(|r| &r["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        for place in places {
            // Envoy Gateway makes what is missing on the way.
            if op == "add" {
                ensure(resource, &place);
            }
            operate(resource, op, &place, Some(value));
        }
    }
}
