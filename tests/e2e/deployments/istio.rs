//! What istiod makes of `envoy/istio`: the listener, route and cluster of a gateway's proxy, and the EnvoyFilters on
//! them. Written after Istio's sources; Istio itself does not run here.

use serde_json::{Value, json};

use super::manifests::{documents, kustomize_patch, merge, one};
use super::{HCM, ROUTER, previous_hosts, typed};

/// The configuration of a proxy. `remote`: of the folder whose proxies fetch the filter.
pub fn config(remote: bool) -> Value {
    let traffic = documents("istio/gateway.yaml");
    let mut filters = documents("istio/envoyfilter.yaml");
    if remote {
        let filter = filters.iter_mut().find(|d| d["metadata"]["name"] == "kvroute").unwrap();
        kustomize_patch(filter, "istio-remote/code.yaml");
    }
    let mut config = before(&traffic);
    for filter in &filters {
        let label = &filter["spec"]["workloadSelector"]["labels"]["app.kubernetes.io/name"];
        let pod = one(&traffic, "Deployment", "kvroute-gateway");
        let labels = &pod["spec"]["template"]["metadata"]["labels"];
        assert_eq!(&labels["app.kubernetes.io/name"], label, "the EnvoyFilter is for other proxies");
        apply(&mut config, filter);
    }
    config
}

/// Without EnvoyFilters.
fn before(traffic: &[Value]) -> Value {
    let gateway = one(traffic, "Gateway", "kvroute");
    let service = one(traffic, "VirtualService", "kvroute");
    let port = gateway["spec"]["servers"][0]["port"]["number"].as_u64().unwrap();
    let rules = service["spec"]["http"].as_array().unwrap();
    let destination = &rules[0]["route"][0]["destination"];
    let host = destination["host"].as_str().unwrap();
    let cluster = format!("outbound|{}||{host}", destination["port"]["number"]);
    let rule = one(traffic, "DestinationRule", "vllm");
    assert_eq!(rule["spec"]["host"], host);
    let policy = &rule["spec"]["trafficPolicy"];
    // Else common_lb_config gets locality_weighted_lb_config where the mesh has failover or distribution by locality.
    assert_eq!(policy["loadBalancer"]["localityLbSetting"]["enabled"], false);
    let outlier = &policy["outlierDetection"];
    let routes: Vec<Value> = rules
        .iter()
        .map(|http| {
            assert_eq!(&http["route"][0]["destination"], destination);
            json!({
                "name": http["name"],
                "match": route_match(http),
                "request_headers_to_remove": http["headers"]["request"]["remove"],
                "route": {"cluster": cluster, "timeout": http["timeout"], "retry_policy": {
                    "retry_on": http["retries"]["retryOn"],
                    "num_retries": http["retries"]["attempts"],
                    "retry_host_predicate": previous_hosts(),
                    "host_selection_retry_max_attempts": "5",
                }},
            })
        })
        .collect();
    let plain = |name: &str, message: &str| {
        let config = typed(&format!("envoy.extensions.filters.http.{name}.v3.{message}"), json!({}));
        json!({"name": format!("envoy.filters.http.{name}"), "typed_config": config})
    };
    let manager = json!({
        "stat_prefix": format!("outbound_0.0.0.0_{port}"),
        "route_config": {"name": format!("http.{port}"), "virtual_hosts": [{"name": format!("*:{port}"), "domains": ["*"], "routes": routes}]},
        "http_filters": [plain("cors", "Cors"), plain("fault", "HTTPFault"), plain("router", "Router")],
        "use_remote_address": true,
        "normalize_path": true,
    });
    json!({
        "node": {"id": "router~10.0.0.1~kvroute-gateway.llm", "cluster": "kvroute-gateway.llm"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
        "stats_config": {"use_all_default_tags": false, "stats_tags": [{"tag_name": "cluster_name", "regex": "^cluster\\.((.+?(\\..+?\\.svc\\.cluster\\.local)?)\\.)"}]},
        "static_resources": {
            "listeners": [{
                "name": format!("0.0.0.0_{port}"),
                "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
                "per_connection_buffer_limit_bytes": 32768,
                "traffic_direction": "OUTBOUND",
                "filter_chains": [{"filters": [{"name": HCM, "typed_config": typed(super::HCM_TYPE, manager)}]}],
            }],
            "clusters": [{
                "name": cluster,
                "connect_timeout": "10s",
                "lb_policy": policy["loadBalancer"]["simple"],
                "common_lb_config": {},
                "circuit_breakers": {"thresholds": [{"max_connections": 4_294_967_295u32, "max_pending_requests": 4_294_967_295u32, "max_requests": 4_294_967_295u32, "max_retries": 4_294_967_295u32, "track_remaining": true}]},
                "outlier_detection": {
                    "consecutive_5xx": outlier["consecutive5xxErrors"],
                    "interval": outlier["interval"],
                    "base_ejection_time": outlier["baseEjectionTime"],
                    "max_ejection_percent": outlier["maxEjectionPercent"],
                    "enforcing_success_rate": 0,
                },
            }],
        },
    })
}

/// Of one rule of a VirtualService: all requests, or those of a method by a regular expression of paths.
fn route_match(http: &Value) -> Value {
    let Some(matches) = http.get("match") else { return json!({"prefix": "/"}) };
    let [only] = matches.as_array().unwrap().as_slice() else {
        panic!("a rule with several matches is not known here")
    };
    json!({
        "safe_regex": {"regex": only["uri"]["regex"]},
        "headers": [{"name": ":method", "string_match": {"exact": only["method"]["exact"]}}],
    })
}

/// An EnvoyFilter. Listeners and clusters that it adds are not touched by its other patches.
fn apply(config: &mut Value, filter: &Value) {
    let mut added = Vec::new();
    for patch in filter["spec"]["configPatches"].as_array().unwrap() {
        let (apply_to, matched) = (patch["applyTo"].as_str().unwrap(), &patch["match"]);
        let (operation, value) = (patch["patch"]["operation"].as_str().unwrap(), &patch["patch"]["value"]);
        assert_eq!(matched["context"], "GATEWAY");
        let resources = &mut config["static_resources"];
        match (apply_to, operation) {
            ("BOOTSTRAP", "MERGE") => merge(config, value),
            ("LISTENER", "ADD") => added.push(("listeners", value.clone())),
            ("CLUSTER", "ADD") => added.push(("clusters", value.clone())),
            ("LISTENER", "MERGE") => merge(listener(resources, &matched["listener"]), value),
            ("CLUSTER", "MERGE") => merge(cluster(resources, &matched["cluster"]), value),
            ("HTTP_ROUTE", "MERGE") => {
                let wanted = &matched["routeConfiguration"];
                let name = &wanted["vhost"]["route"]["name"];
                let manager = &mut listener(resources, wanted)["filter_chains"][0]["filters"][0]["typed_config"];
                let routes = manager["route_config"]["virtual_hosts"][0]["routes"].as_array_mut().unwrap();
                let route = routes.iter_mut().find(|route| &route["name"] == name);
                merge(route.unwrap_or_else(|| panic!("no route is {wanted}")), value);
            }
            ("HTTP_FILTER", "INSERT_BEFORE") => {
                let wanted = &matched["listener"];
                let chain = &wanted["filterChain"]["filter"];
                assert_eq!((chain["name"].as_str(), chain["subFilter"]["name"].as_str()), (Some(HCM), Some(ROUTER)));
                let listener = listener(resources, wanted);
                let filters = &mut listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"];
                let filters = filters.as_array_mut().unwrap();
                let at = filters.iter().position(|f| f["name"] == ROUTER).unwrap();
                filters.insert(at, value.clone());
            }
            other => panic!("{other:?} is not known here"),
        }
    }
    for (list, value) in added {
        config["static_resources"][list].as_array_mut().unwrap().push(value);
    }
}

fn listener<'a>(resources: &'a mut Value, wanted: &Value) -> &'a mut Value {
    let all = resources["listeners"].as_array_mut().unwrap();
    let found = all.iter_mut().find(|l| l["address"]["socket_address"]["port_value"] == wanted["portNumber"]);
    found.unwrap_or_else(|| panic!("no listener is {wanted}"))
}

fn cluster<'a>(resources: &'a mut Value, wanted: &Value) -> &'a mut Value {
    let name = format!("outbound|{}||{}", wanted["portNumber"], wanted["service"].as_str().unwrap());
    let all = resources["clusters"].as_array_mut().unwrap();
    all.iter_mut().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no cluster is {name}"))
}
