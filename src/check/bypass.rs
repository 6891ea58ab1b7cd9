//! Routes on which the filter is off, by Envoy's `FilterConfig`.

use serde_json::Value;

use super::envoy::{Envoy, Manager};
use super::instance::Instance;
use super::tree::At;
use super::{Findings, Level};
use crate::config::Config;

/// Looks for routes by which prompts go round a router.
pub fn check(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, envoy: &Envoy<'_>, findings: &mut Findings) {
    let Some(filter) = manager.filters.get(one.index) else { return };
    for host in envoy.virtual_hosts(manager) {
        let mut taken: Vec<Value> = Vec::new();
        for route in host.list(&["routes"]) {
            let Some(matched) = route.get("match") else { continue };
            let headers = matched.list(&["headers"]);
            let mut paths = matched.value.clone();
            paths.as_object_mut().and_then(|fields| fields.remove("headers"));
            let off = [&route, &host].into_iter().find_map(|at| disabled(at, &filter.name));
            let off = off.filter(|off| off.value == &Value::Bool(true));
            let Some(off) = off else {
                if headers.iter().all(|header| method(header) == Some(true)) {
                    taken.push(paths);
                }
                continue;
            };
            let goes_first = |earlier: &Value| *earlier == paths || *earlier == serde_json::json!({"prefix": "/"});
            if headers.iter().any(|header| method(header) == Some(false)) || taken.iter().any(goes_first) {
                continue;
            }
            let (level, what) = match config.tenant_salt.write {
                true => (Level::Error, "kvroute is off on this route: what comes by it goes on without tenant_salt"),
                false => (Level::Note, "kvroute is off on this route: prompts that come by it are not routed"),
            };
            let mend = "put a route with the same match and headers: [{name: :method, string_match: {exact: POST}}] before it, where kvroute is on";
            findings.add(level, &one.place, &off.path, what, mend);
        }
    }
}

/// Whether a route or virtual host turns the filter off, if it says so.
fn disabled<'a>(at: &At<'a>, filter: &str) -> Option<At<'a>> {
    let config = at.get("typed_per_filter_config")?.get(filter)?;
    config.message().filter(|(name, _)| name.ends_with("FilterConfig"))?.1.get("disabled")
}

/// Whether POST passes a matcher of headers; `None`: it looks at something else.
fn method(header: &At<'_>) -> Option<bool> {
    let exact = header.text(&["string_match", "exact"]).or_else(|| header.text(&["exact_match"]))?;
    (header.text(&["name"]) == Some(":method")).then(|| (exact == "POST") != header.is_true("invert_match"))
}
