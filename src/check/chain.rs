//! The filters around a router, and the listener around ingest and admin.

use std::net::IpAddr;

use super::envoy::{Envoy, Filter, Manager};
use super::instance::Instance;
use super::tree::At;
use super::{Findings, Level, bypass, route};
use crate::config::{Config, Role, SelectionMode};
use crate::filter::accounts::EXPLAIN_HEADER;
use crate::filter::steer::{PREFILL_HEADER, RANK_HEADER};
use crate::look::SECRET_HEADER;

const MUTATION: &str = "header_mutation.v3.HeaderMutation";
const SESSION: &str = "stateful_session.v3.StatefulSession";

/// Checks what stands around an instance.
pub fn check(one: &Instance<'_>, manager: &Manager<'_>, envoy: &Envoy<'_>, findings: &mut Findings) {
    match one.role() {
        Some(Role::Router) => {
            let Some(config) = one.router() else { return };
            stripped(one, config, manager, findings);
            salted(one, config, manager, findings);
            if config.selection.mode == SelectionMode::StatefulSession {
                session(one, config, manager, findings);
            }
            route::check(one, config, manager, envoy, findings);
            bypass::check(one, config, manager, envoy, findings);
        }
        Some(Role::Ingest | Role::Admin) => {
            private(one, manager, findings);
            if let Ok(config) = &one.config {
                allowed(one, config, manager, findings);
            }
        }
        None => {}
    }
}

/// A client must not be able to send the headers that steer: they are removed before the filter runs, so that this
/// holds while its VM is down, too.
fn stripped(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, findings: &mut Findings) {
    let selection = &config.selection;
    let (before, after) = manager.filters.split_at(one.index.min(manager.filters.len()));
    let early = manager.at.list(&["early_header_mutation_extensions"]);
    let early: Vec<At<'_>> = early
        .iter()
        .filter_map(|e| e.get("typed_config"))
        .filter(|c| c.is_a("header_mutation.v3.HeaderMutation"))
        .flat_map(|c| c.list(&["mutations"]))
        .collect();
    let removed = |name: &str| {
        early.iter().any(|m| removes(m, name)) || before.iter().any(|f| mutates(f, "request_mutations", name))
    };
    let mut steering = vec![&selection.header];
    if selection.mode == SelectionMode::StatefulSession {
        steering.push(&selection.fallback_header);
    }
    let path = format!("{}.http_filters", manager.at.path);
    for name in steering {
        if !removed(name) {
            let what = format!(
                "no header_mutation filter before kvroute removes {name}: a client that sends it chooses the replica"
            );
            let mend =
                format!("put a header_mutation filter before kvroute with request_mutations: [{{remove: {name}}}]");
            findings.add(Level::Error, &one.place, &path, what, mend);
        }
        if let Some(late) = after.iter().skip(1).find(|f| mutates(f, "request_mutations", name)) {
            let what = format!("the filter {} after kvroute removes {name}: the choice is lost", late.name);
            findings.add(Level::Error, &one.place, &late.path, what, "put it before kvroute");
        }
    }
    let engines = [
        (RANK_HEADER, "a client that sends it chooses the engine's rank"),
        (PREFILL_HEADER, "while the filter's VM is down, a client that sends it makes an engine ask any host"),
    ];
    for (name, why) in engines.into_iter().filter(|(name, _)| !removed(name)) {
        let what = format!("no header_mutation filter before kvroute removes {name}: {why}");
        let mend = format!("add {{remove: {name}}} to its request_mutations");
        findings.add(Level::Warning, &one.place, &path, what, mend);
    }
    if config.receipts.explain
        && let Some(name) = [EXPLAIN_HEADER, SECRET_HEADER].into_iter().find(|name| removed(name))
    {
        let what =
            format!("receipts.explain is on, but {name} is removed before kvroute: nobody can ask for a receipt");
        let mend = format!(
            "take {{remove: {name}}} out of the request_mutations of this listener, or leave receipts.explain off"
        );
        findings.add(Level::Warning, &one.place, &path, what, mend);
    }
    allowed(one, config, manager, findings);
    let name = &selection.header;
    let answers = before.iter().any(|f| mutates(f, "response_mutations", name));
    if selection.mode == SelectionMode::StatefulSession && !answers {
        let what =
            format!("answers tell clients a replica's address in {name}, where Envoy chose another than the filter");
        let mend = format!("add response_mutations: [{{remove: {name}}}] to the header_mutation filter");
        findings.add(Level::Warning, &one.place, &path, what, mend);
    }
}

/// Networks are told from each other by an address that clients must not write.
fn allowed(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, findings: &mut Findings) {
    let receipts = &config.receipts;
    if receipts.allow.is_empty() {
        return;
    }
    if !manager.at.is_true("use_remote_address") {
        let what = "receipts.allow goes by source.address, and without use_remote_address Envoy takes that from \
                    X-Forwarded-For, which clients write";
        let mend = "set use_remote_address: true in this http_connection_manager (with xff_num_trusted_hops: N behind N \
                    proxies of your own)";
        findings.add(Level::Warning, &one.place, &manager.at.path, what, mend);
    }
    if one.role() == Some(Role::Router) && !receipts.explain {
        let what = "receipts.allow has no effect while receipts.explain is off";
        let path = format!("{}.configuration", one.plugin.path);
        findings.add(Level::Note, &one.place, &path, what, "set receipts.explain: true, or leave receipts.allow out");
    }
}

/// The salt keeps tenants apart only where it is the gateway's, and where no request goes round the filter.
fn salted(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, findings: &mut Findings) {
    let Some(name) = &config.tenant_salt.header else { return };
    let plugin = &one.plugin;
    let open = plugin.text(&["failure_policy"]) == Some("FAIL_OPEN") || plugin.is_true("fail_open");
    if open && config.tenant_salt.write {
        let what = "tenant_salt.write with FAIL_OPEN: after a fault of the VM requests go on without their salt";
        let path = format!("{}.failure_policy", plugin.path);
        findings.add(Level::Error, &one.place, &path, what, "set failure_policy: FAIL_RELOAD");
    }
    let before = manager.filters.iter().take(one.index);
    let others = before.filter(|f| f.of_type(MUTATION).is_none()).count();
    let mutated = manager.filters.iter().take(one.index).any(|f| mutates(f, "request_mutations", name));
    let early = manager.at.list(&["early_header_mutation_extensions"]);
    if others == 0 && !mutated && early.is_empty() {
        let what =
            format!("nothing before kvroute sets or removes {name}: a client that sends it is whatever tenant it says");
        let mend = format!("set {name} by the filter that knows the tenant, or remove it from clients, before kvroute");
        let path = format!("{}.http_filters", manager.at.path);
        findings.add(Level::Warning, &one.place, &path, what, mend);
    }
}

fn mutates(filter: &Filter<'_>, list: &str, name: &str) -> bool {
    let config = filter.of_type(MUTATION);
    config.is_some_and(|c| c.list(&["mutations", list]).iter().any(|m| removes(m, name)))
}

fn removes(mutation: &At<'_>, name: &str) -> bool {
    if mutation.text(&["remove"]).is_some_and(|n| n.eq_ignore_ascii_case(name)) {
        return true;
    }
    let Some(matcher) = mutation.down(&["remove_on_match", "key_matcher"]) else { return false };
    let text = |kind| matcher.text(&[kind]).map(str::to_ascii_lowercase);
    text("exact").is_some_and(|t| t == name)
        || text("prefix").is_some_and(|t| name.starts_with(&t))
        || text("contains").is_some_and(|t| name.contains(&t))
}

/// `stateful_session` turns the filter's header into Envoy's choice.
fn session(one: &Instance<'_>, config: &Config, manager: &Manager<'_>, findings: &mut Findings) {
    let header = &config.selection.header;
    let place = one.place.as_str();
    let list = format!("{}.http_filters", manager.at.path);
    let place_of = |end: &str| manager.filters.iter().position(|f| f.of_type(end).is_some());
    let Some(index) = place_of(SESSION) else {
        let what = "there is no stateful_session filter after kvroute: Envoy never looks at its choice";
        let mend = format!("put one between kvroute and the router filter, with a header session state named {header}");
        findings.add(Level::Error, place, &list, what, mend);
        return;
    };
    let filter = &manager.filters[index];
    if index < one.index {
        let what = "the stateful_session filter stands before kvroute: it looks for the choice before it is made";
        findings.add(Level::Error, place, &filter.path, what, "move it between kvroute and the router filter");
    }
    if place_of("router.v3.Router").is_some_and(|router| router < index) {
        let what = "the stateful_session filter stands after the router filter, where no request comes";
        findings.add(Level::Error, place, &filter.path, what, "move it between kvroute and the router filter");
    }
    let Some(state) = filter.of_type(SESSION) else { return };
    let own = state.down(&["session_state", "typed_config"]);
    let by_header = own.as_ref().filter(|s| s.is_a("HeaderBasedSessionState"));
    match by_header.and_then(|s| s.text(&["name"])) {
        None => {
            let what = "the stateful_session filter does not go by a header: it never sees the choice";
            let mend = format!("give it a HeaderBasedSessionState with name: {header}");
            findings.add(Level::Error, place, &state.path, what, mend);
        }
        Some(name) if !name.eq_ignore_ascii_case(header) => {
            let path = own.map(|s| format!("{}.name", s.path)).unwrap_or_default();
            let what = format!("the stateful_session filter goes by the header {name}, kvroute writes {header}");
            findings.add(Level::Error, place, &path, what, "give both the same name (selection.header)");
        }
        Some(_) => {}
    }
    if state.is_true("strict") {
        let what = "the stateful_session filter is strict: a request whose replica has just gone gets 503";
        findings.add(Level::Warning, place, &format!("{}.strict", state.path), what, "leave strict out");
    }
}

/// Ingest takes the feed, admin shows prompts: both are for this machine only.
fn private(one: &Instance<'_>, manager: &Manager<'_>, findings: &mut Findings) {
    let Some(listener) = &manager.listener else { return };
    let address = listener.text(&["address", "socket_address", "address"]);
    let open = address.and_then(|a| a.parse::<IpAddr>().ok()).filter(|ip| !ip.is_loopback());
    if let Some(ip) = open {
        let what = format!(
            "it listens on {ip}: whoever reaches it and has the secret reads prompts and writes the index, and the secret travels in the clear"
        );
        let path = format!("{}.address", listener.path);
        findings.add(Level::Warning, &one.place, &path, what, "bind it to 127.0.0.1, and run the bridge beside Envoy");
    }
    if one.role() != Some(Role::Ingest) {
        return;
    }
    let limit = listener.number(&["per_connection_buffer_limit_bytes"]).unwrap_or(route::ENVOYS_LIMIT);
    if limit < INGEST_LIMIT {
        let what = format!(
            "its listener holds at most {limit} bytes: Envoy answers larger batches of the bridge 413, and workers fall back to snapshots"
        );
        let path = format!("{}.per_connection_buffer_limit_bytes", listener.path);
        findings.add(Level::Warning, &one.place, &path, what, format!("set it to 67108864 (at least {INGEST_LIMIT})"));
    }
}

/// The largest batch that ingest takes.
const INGEST_LIMIT: u64 = 32 << 20;
