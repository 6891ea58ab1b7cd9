//! The instances against each other: which VM each runs in, and what they must have in common.

use super::envoy::Envoy;
use super::instance::Instance;
use super::{Findings, Level};
use crate::config::Role;

/// Checks all instances.
pub fn check(all: &[Instance<'_>], envoy: &Envoy<'_>, findings: &mut Findings) {
    let of = |role: Role| all.iter().filter(move |i| i.role() == Some(role));
    let Some(first) = of(Role::Router).next() else {
        if envoy.is_whole && !all.is_empty() && all.iter().all(|i| i.config.is_ok()) {
            let mend = "add a filter with \"role\": \"router\" to the listener of the clients";
            findings.add(Level::Error, "", "", "no instance has the role router: nothing is routed", mend);
        }
        return;
    };
    let tagged = envoy.stats_config.as_ref().is_some_and(|stats| stats.value.to_string().contains("kvroute"));
    if envoy.is_whole && !tagged {
        let what =
            "there are no stats_tags for kvroute: each outcome and slot is a metric of its own instead of a label";
        findings.add(Level::Note, "", "stats_config", what, "take over stats_config of envoy/envoy.yaml");
    }
    // An instance whose configuration is refused may be the one that seems to be missing.
    let all_known = all.iter().all(|i| i.config.is_ok());
    for router in of(Role::Router) {
        routers(first, router, findings);
        if router.router().is_some_and(|c| c.bridge.is_some()) && envoy.is_whole && all_known {
            fed(router, all, findings);
        }
    }
    for ingest in of(Role::Ingest) {
        if all.iter().any(|i| i.role() == Some(Role::Router) && i.vm == ingest.vm) {
            let what = "ingest shares the router's VM: a fault of the router on a request stops the feed as well";
            let path = format!("{}.vm_config.configuration", ingest.plugin.path);
            findings.add(
                Level::Warning,
                &ingest.place,
                &path,
                what,
                "give ingest a vm_config.configuration of its own",
            );
        }
    }
    for admin in of(Role::Admin) {
        share(admin, all, findings);
    }
    secrets(first, all, findings);
}

/// Several routers are meant to share their VMs.
fn routers(first: &Instance<'_>, other: &Instance<'_>, findings: &mut Findings) {
    let path = |field: &str| format!("{}.{field}", other.plugin.path);
    if first.vm != other.vm {
        let what = format!("it has another VM than the router of {}: each worker keeps two indexes", first.place);
        let mend = "give both the same vm_id, code and vm_config.configuration";
        findings.add(Level::Warning, &other.place, &path("vm_config"), what, mend);
    } else if first.config != other.config {
        let what = format!(
            "it shares its VM with the router of {}, but not the configuration: limits, policy and replicas of one hold for both",
            first.place
        );
        let mend = "give both the same configuration, or each a vm_config.configuration of its own";
        findings.add(Level::Warning, &other.place, &path("configuration"), what, mend);
    }
}

/// A router with a bridge needs an ingest with the same shared data, and wants an admin.
fn fed(router: &Instance<'_>, all: &[Instance<'_>], findings: &mut Findings) {
    let of = |role: Role| all.iter().filter(move |i| i.role() == Some(role));
    let path = format!("{}.vm_config.vm_id", router.plugin.path);
    match of(Role::Ingest).next() {
        None => {
            let what =
                "there is no instance with the role ingest: the bridge has nowhere to post, and the index stays empty";
            let mend = "add the listener kvroute_ingest of envoy/envoy.yaml";
            findings.add(Level::Error, &router.place, &router.plugin.path, what, mend);
        }
        Some(other) if !of(Role::Ingest).any(|i| i.vm.id == router.vm.id) => {
            let what = format!(
                "its vm_id is \"{}\", that of ingest \"{}\": the feed never reaches it",
                router.vm.id, other.vm.id
            );
            findings.add(Level::Error, &router.place, &path, what, "give both the same vm_id");
        }
        Some(_) => {}
    }
    if of(Role::Admin).next().is_none() {
        let what =
            "there is no instance with the role admin: kvroute state and kvroute explain --gateway get no answer";
        let mend = "add the filter kvroute_admin of envoy/envoy.yaml beside ingest";
        findings.add(Level::Note, &router.place, &router.plugin.path, what, mend);
    }
}

/// Admin looks into the memory of the VM that it runs in, so that must be the router's.
fn share(admin: &Instance<'_>, all: &[Instance<'_>], findings: &mut Findings) {
    let routers: Vec<&Instance<'_>> = all.iter().filter(|i| i.role() == Some(Role::Router)).collect();
    if routers.iter().any(|r| r.vm == admin.vm) {
        return;
    }
    let Some(router) = routers.first() else { return };
    let (ours, theirs) = (&admin.vm, &router.vm);
    let fields = [
        ("vm_id", &ours.id, &theirs.id),
        ("code", &ours.code, &theirs.code),
        ("configuration", &ours.configuration, &theirs.configuration),
    ];
    for (field, ours, theirs) in fields.iter().filter(|(_, ours, theirs)| ours != theirs) {
        let what = format!(
            "admin has its own VM, since its vm_config.{field} is \"{ours}\" and the router's \"{theirs}\": it sees no router"
        );
        let path = format!("{}.vm_config.{field}", admin.plugin.path);
        findings.add(
            Level::Error,
            &admin.place,
            &path,
            what,
            "give both the same vm_id, code and vm_config.configuration",
        );
    }
}

fn secrets(first: &Instance<'_>, all: &[Instance<'_>], findings: &mut Findings) {
    let Some(expected) = first.secret() else { return };
    if expected == "change-me" {
        let path = format!("{}.configuration", first.plugin.path);
        let what = "the secret is still the one of the example: whoever has read it can ask what is cached, and feed the filter";
        findings.add(Level::Warning, &first.place, &path, what, "choose one, here and for ingest, admin and bridge");
    }
    for one in all.iter().filter(|i| i.vm.id == first.vm.id) {
        if one.secret().is_some_and(|secret| secret != expected) {
            let what = format!("its secret differs from that of {}: one of them will refuse the bridge", first.place);
            let path = format!("{}.configuration", one.plugin.path);
            findings.add(Level::Error, &one.place, &path, what, "give all of them the bridge's secret");
        }
    }
}
