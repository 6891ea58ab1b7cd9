//! Where requests go after the filter: buffer limits, routes, the cluster of the replicas and that of the bridge.

use super::envoy::{Envoy, Manager};
use super::instance::Instance;
use super::tree::At;
use super::{Findings, Level};
use crate::config::{Config, SelectionMode};

/// What Envoy holds of a body where nothing else is said.
pub const ENVOYS_LIMIT: u64 = 1 << 20;
/// Of a body without a content-length so much less is held (see the filter's `router_http`).
const HEADROOM: u64 = 8 << 20;

/// Checks the routes and clusters of a router.
pub fn check(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, envoy: &Envoy<'_>, findings: &mut Findings) {
    let mut limits = Vec::new();
    let base = base_limit(one, manager);
    for host in envoy.virtual_hosts(manager) {
        for route in host.list(&["routes"]) {
            let Some(action) = route.get("route") else { continue };
            let own = route.number(&["request_body_buffer_limit"]);
            let own = own.or_else(|| host.number(&["request_body_buffer_limit"])).map(|n| (n, route.path.clone()));
            limits.push(own.unwrap_or_else(|| base.clone()));
            check_route(one, config, &route, &action, &[&host, &route], findings);
            if let Some(cluster) = action.text(&["cluster"]).and_then(|name| envoy.cluster(name)) {
                check_cluster(one, config, cluster, findings);
            }
        }
    }
    let smallest = limits.into_iter().min_by_key(|(n, _)| *n).unwrap_or(base);
    check_limit(one, config, smallest, findings);
    if let Some(bridge) = &config.bridge
        && envoy.is_whole
        && !envoy.more_clusters
        && envoy.cluster(&bridge.cluster).is_none()
    {
        let what = format!(
            "bridge.cluster is \"{}\", and Envoy has no such cluster: no worker ever gets a snapshot",
            bridge.cluster
        );
        let mend = "add a cluster of this name with the address of the bridge's --listen";
        findings.add(Level::Error, &one.place, &format!("{}.configuration", one.plugin.path), what, mend);
    }
}

/// The limit of the listener, or of a buffer filter before kvroute, and where it stands.
fn base_limit(one: &Instance<'_>, manager: &Manager<'_>) -> (u64, String) {
    let before = manager.filters.iter().take(one.index).rev();
    let buffer = before
        .filter_map(|f| f.of_type("http.buffer.v3.Buffer"))
        .find_map(|b| Some((b.number(&["max_request_bytes"])?, format!("{}.max_request_bytes", b.path))));
    buffer.unwrap_or_else(|| {
        let field = "per_connection_buffer_limit_bytes";
        let listener = manager.listener.as_ref();
        let limit = listener.and_then(|l| l.number(&[field])).unwrap_or(ENVOYS_LIMIT);
        (limit, listener.map_or_else(|| manager.at.path.clone(), |l| format!("{}.{field}", l.path)))
    })
}

fn check_limit(one: &Instance<'_>, config: &Config, (envoys, path): (u64, String), findings: &mut Findings) {
    let ours = config.limits.buffer_limit_bytes as u64;
    let inspected = config.limits.max_inspect_bytes as u64;
    let place = one.place.as_str();
    if ours > envoys {
        let what = format!(
            "limits.buffer_limit_bytes is {ours}, Envoy holds at most {envoys} bytes here: larger bodies that the filter holds get 413"
        );
        let mend = format!(
            "set limits.buffer_limit_bytes to {envoys}, or raise per_connection_buffer_limit_bytes of the listener to {ours}"
        );
        findings.add(Level::Error, place, &path, what, mend);
    } else if ours < envoys.min(inspected) {
        let what = format!(
            "limits.buffer_limit_bytes is {ours}, though Envoy holds {envoys} bytes here: larger bodies get no key"
        );
        let mend = format!("set limits.buffer_limit_bytes to {envoys}");
        findings.add(Level::Warning, place, &path, what, mend);
    } else if ours < inspected {
        let what = format!("bodies above {ours} bytes (limits.buffer_limit_bytes) get no key");
        let mend = "raise per_connection_buffer_limit_bytes of the listener and limits.buffer_limit_bytes alike";
        findings.add(Level::Note, place, &path, what, mend);
    }
    if ours <= HEADROOM {
        let what = format!(
            "bodies without a content-length get no key: limits.buffer_limit_bytes is {ours}, no more than the 8 MiB that may arrive at once"
        );
        let mend = "raise per_connection_buffer_limit_bytes of the listener and limits.buffer_limit_bytes to 16777216";
        findings.add(Level::Note, place, &path, what, mend);
    }
}

fn check_route(
    one: &Instance<'_>,
    config: &Config,
    route: &At<'_>,
    action: &At<'_>,
    removers: &[&At<'_>],
    findings: &mut Findings,
) {
    let (place, selection) = (one.place.as_str(), &config.selection);
    let removes = |name: &str| {
        let lists = removers.iter().flat_map(|at| at.list(&["request_headers_to_remove"]));
        lists.into_iter().any(|n| n.value.as_str().is_some_and(|n| n.eq_ignore_ascii_case(name)))
    };
    let path = format!("{}.request_headers_to_remove", route.path);
    match selection.mode {
        SelectionMode::OverrideHost if removes(&selection.header) => {
            let what = format!(
                "the route removes {}, which override_host looks for later: the choice is lost",
                selection.header
            );
            findings.add(Level::Error, place, &path, what, "do not remove it");
        }
        SelectionMode::StatefulSession if removes(&selection.fallback_header) => {
            let what = format!(
                "the route removes {}, which override_host looks for later: retries go anywhere",
                selection.fallback_header
            );
            findings.add(Level::Warning, place, &path, what, "do not remove it");
        }
        _ => {}
    }
    if let Some(header) = action.text(&["cluster_header"]) {
        let what = format!(
            "the route takes its cluster from the header {header}: a request without it, as every one without a key is, gets 503"
        );
        findings.add(Level::Error, place, &action.path, what, "name one cluster with all replicas");
    }
    if action.get("timeout").is_none() {
        let what = "the route has Envoy's default timeout of 15 s: longer answers are cut off with 504";
        findings.add(
            Level::Warning,
            place,
            &format!("{}.timeout", action.path),
            what,
            "set timeout: 0s, or the longest answer",
        );
    }
    let retry = action.get("retry_policy").or_else(|| removers.iter().find_map(|at| at.get("retry_policy")));
    match retry {
        None => {
            let what = "the route has no retry_policy: a request whose replica dies fails, though the filter named the next ones";
            let mend =
                "retry_on: connect-failure,refused-stream,reset-before-request,gateway-error with previous_hosts";
            findings.add(Level::Note, place, &action.path, what, mend);
        }
        Some(retry) => {
            let predicates = retry.list(&["retry_host_predicate"]);
            if !predicates.iter().any(|p| p.get("typed_config").is_some_and(|c| c.is_a("PreviousHostsPredicate"))) {
                let what = "the retry_policy has no previous_hosts predicate: a retry goes to the replica that failed";
                let mend = "add retry_host_predicate: envoy.retry_host_predicates.previous_hosts";
                findings.add(Level::Warning, place, &retry.path, what, mend);
            }
        }
    }
}

fn check_cluster(one: &Instance<'_>, config: &Config, cluster: &At<'_>, findings: &mut Findings) {
    let (place, selection) = (one.place.as_str(), &config.selection);
    let name = cluster.text(&["name"]).unwrap_or_default();
    if cluster.text(&["type"]) == Some("ORIGINAL_DST") {
        let what = format!("cluster {name} is of type ORIGINAL_DST: a request without a key gets 503");
        findings.add(Level::Error, place, &cluster.path, what, "use STATIC, STRICT_DNS or EDS");
    }
    let policies = cluster.list(&["load_balancing_policy", "policies"]);
    let configs = policies.iter().filter_map(|p| p.down(&["typed_extension_config", "typed_config"]));
    let override_host = configs.into_iter().find(|c| c.is_a("OverrideHost"));
    let sources: Vec<At<'_>> = override_host.iter().flat_map(|o| o.list(&["override_host_sources"])).collect();
    let looks_at =
        |header: &str| sources.iter().any(|s| s.text(&["header"]).is_some_and(|h| h.eq_ignore_ascii_case(header)));
    let path = format!("{}.load_balancing_policy", cluster.path);
    match selection.mode {
        SelectionMode::OverrideHost => {
            if !looks_at(&selection.header) {
                let what = format!(
                    "cluster {name} has no override_host policy that looks at {}: Envoy never sees the choice",
                    selection.header
                );
                let mend =
                    format!("give it override_host with override_host_sources: [{{header: {}}}]", selection.header);
                findings.add(Level::Error, place, &path, what, mend);
            }
        }
        SelectionMode::StatefulSession if !looks_at(&selection.fallback_header) => {
            let what = format!(
                "cluster {name} has no override_host policy that looks at {}: retries go by load alone",
                selection.fallback_header
            );
            let mend = format!(
                "give it override_host over least_request with override_host_sources: [{{header: {}}}]",
                selection.fallback_header
            );
            findings.add(Level::Warning, place, &path, what, mend);
        }
        SelectionMode::StatefulSession => {}
    }
    check_health(one, config, cluster, name, findings);
    check_static_replicas(one, config, cluster, name, findings);
}

fn check_health(one: &Instance<'_>, config: &Config, cluster: &At<'_>, name: &str, findings: &mut Findings) {
    let place = one.place.as_str();
    let checks = cluster.list(&["health_checks"]);
    for check in checks.iter().filter(|c| c.get("no_traffic_interval").is_none()) {
        let what = format!(
            "cluster {name} has no no_traffic_interval: before its first request a dead replica is noticed only after 60 s"
        );
        findings.add(Level::Note, place, &check.path, what, "set no_traffic_interval: 1s");
    }
    let outlier = cluster.get("outlier_detection");
    if let Some(outlier) = &outlier
        && !checks.is_empty()
        && outlier.get("successful_active_health_check_uneject_host").is_none()
    {
        let what =
            format!("cluster {name}: a health check that passes takes back at once what outlier_detection has ejected");
        let mend = "set successful_active_health_check_uneject_host: false";
        findings.add(Level::Note, place, &outlier.path, what, mend);
    }
    match config.selection.mode {
        SelectionMode::OverrideHost => {
            let what = "selection.mode override_host sends requests to replicas that fail their health checks, too";
            let mend = "take stateful_session where the header is yours to choose";
            findings.add(Level::Note, place, &format!("{}.configuration", one.plugin.path), what, mend);
        }
        SelectionMode::StatefulSession if checks.is_empty() && outlier.is_none() => {
            let what = format!(
                "cluster {name} has neither health_checks nor outlier_detection: a dead replica goes on being chosen"
            );
            findings.add(
                Level::Warning,
                place,
                &cluster.path,
                what,
                "add health_checks with http_health_check: {path: /health}",
            );
        }
        SelectionMode::StatefulSession => {}
    }
}

/// Replicas that the configuration lists must be endpoints, by the same address.
fn check_static_replicas(one: &Instance<'_>, config: &Config, cluster: &At<'_>, name: &str, findings: &mut Findings) {
    if cluster.text(&["type"]).is_some_and(|t| t != "STATIC") {
        return;
    }
    let groups = cluster.list(&["load_assignment", "endpoints"]);
    let endpoints = groups.iter().flat_map(|g| g.list(&["lb_endpoints"]));
    let known: Vec<String> = endpoints
        .filter_map(|e| {
            let at = e.down(&["endpoint", "address", "socket_address"])?;
            let (host, port) = (at.text(&["address"])?, at.number(&["port_value"])?);
            Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        })
        .collect();
    for (i, replica) in config.replicas.iter().enumerate().filter(|(_, r)| !known.contains(&r.address)) {
        let what = format!(
            "replicas[{i}].address \"{}\" is no endpoint of cluster {name}: requests for it go by load",
            replica.address
        );
        let path = format!("{}.configuration", one.plugin.path);
        findings.add(Level::Warning, &one.place, &path, what, format!("the cluster has {}", known.join(", ")));
    }
}
