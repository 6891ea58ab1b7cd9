//! Routes on which the filter is off, by Envoy's `FilterConfig`.

use regex::Regex;
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
        let routes = host.list(&["routes"]);
        // By the place that turns the filter off.
        let mut bypasses: Vec<(String, Vec<String>)> = Vec::new();
        for path in prompts(config) {
            for route in &routes {
                let Some(fits) = route.get("match").and_then(|matcher| fits(&matcher, &path)) else { continue };
                if let Some(off) = [route, &host].into_iter().find_map(|at| off(at, &filter.name)) {
                    match bypasses.iter_mut().find(|(place, _)| *place == off.path) {
                        Some((_, paths)) if paths.contains(&path) => {}
                        Some((_, paths)) => paths.push(path.clone()),
                        None => bypasses.push((off.path, vec![path.clone()])),
                    }
                }
                if fits == Fits::Surely {
                    break;
                }
            }
        }
        for (place, paths) in bypasses {
            let (level, effect) = match config.tenant_salt.write {
                true => (Level::Error, "goes on without the salt of its tenant"),
                false => (Level::Note, "is not routed"),
            };
            let paths = listed(&paths);
            let what = format!("kvroute is disabled on this route: a prompt that comes by {paths} {effect}");
            let mend = "let a route on which kvroute is not disabled take the POSTs of such paths before it";
            findings.add(level, &one.place, &place, what, mend);
        }
    }
}

/// `a, b or c`.
fn listed(all: &[String]) -> String {
    match all {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => all.concat(),
    }
}

/// Paths by which prompts come. Where they must not go round the filter, unusual ones, too.
fn prompts(config: &Config) -> Vec<String> {
    let mut all = Vec::new();
    for end in config.paths.ends() {
        let path = format!("/{}", end.trim_start_matches('/'));
        if config.tenant_salt.write {
            let last = path.chars().next_back().unwrap_or('/');
            let escaped: String = last.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect();
            all.extend([format!("/any{path}/"), format!("{}{escaped}", path.trim_end_matches(last))]);
        }
        all.push(path);
    }
    all
}

/// Where a route or virtual host turns the filter off.
fn off<'a>(at: &At<'a>, filter: &str) -> Option<At<'a>> {
    let config = at.get("typed_per_filter_config")?.get(filter)?;
    let (_, config) = config.message().filter(|(name, _)| name.ends_with("FilterConfig"))?;
    config.get("disabled").filter(|off| off.value == &Value::Bool(true))
}

/// How a route looks at a request of which only path and method are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fits {
    /// It takes it.
    Surely,
    /// That depends on more.
    Perhaps,
}

/// Whether a `RouteMatch` takes POSTs of this path.
fn fits(matcher: &At<'_>, path: &str) -> Option<Fits> {
    let text = |field: &str| matcher.text(&[field]);
    let sensitive = matcher.get("case_sensitive").is_none_or(|on| on.value != &Value::Bool(false));
    let folded = |text: &str| if sensitive { text.to_owned() } else { text.to_ascii_lowercase() };
    let mut sure = true;
    let by_path = if let Some(prefix) = text("prefix") {
        folded(path).starts_with(&folded(prefix))
    } else if let Some(exact) = text("path") {
        folded(path) == folded(exact)
    } else if let Some(prefix) = text("path_separated_prefix") {
        folded(path).strip_prefix(&folded(prefix)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    } else if let Some(regex) = matcher.down(&["safe_regex"]).and_then(|regex| regex.text(&["regex"])) {
        let whole = Regex::new(&format!("^(?s:{regex})$"));
        sure &= whole.is_ok();
        whole.is_ok_and(|regex| regex.is_match(path))
    } else {
        sure = false;
        matcher.get("connect_matcher").is_none()
    };
    if !by_path {
        return None;
    }
    for header in matcher.list(&["headers"]) {
        match method(&header) {
            Some(false) => return None,
            Some(true) => {}
            None => sure = false,
        }
    }
    let known = ["prefix", "path", "path_separated_prefix", "safe_regex", "case_sensitive", "headers"];
    sure &= matcher
        .children()
        .iter()
        .all(|child| known.iter().any(|name| matcher.get(name).is_some_and(|k| std::ptr::eq(k.value, child.value))));
    Some(if sure { Fits::Surely } else { Fits::Perhaps })
}

/// Whether POST passes a matcher of headers; `None`: it looks at something else.
fn method(header: &At<'_>) -> Option<bool> {
    let exact = header.text(&["string_match", "exact"]).or_else(|| header.text(&["exact_match"]))?;
    (header.text(&["name"]) == Some(":method")).then(|| (exact == "POST") != header.is_true("invert_match"))
}
