//! Envoy: its version, its configuration, the health of its replicas, what became of requests so far.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Level, Report, Target, authority, reasons};
use crate::check::live::{self, Live};
use crate::config::Config;
use crate::request::Version;

/// What the next steps go by.
#[derive(Debug)]
pub struct Proxy {
    /// Envoy's version.
    pub version: String,
    /// The clusters of the first router's routes.
    pub clusters: Vec<String>,
    /// Where clients connect.
    pub url: Option<String>,
    /// Where ingest and admin listen.
    pub ingest: Option<String>,
    /// The bridge.
    pub bridge: Option<String>,
    /// The secret, where it is known.
    pub secret: Option<String>,
    /// The first router's configuration.
    pub config: Option<Config>,
    /// `ip:port` of the replicas, and whether Envoy finds them healthy.
    pub replicas: BTreeMap<String, bool>,
    /// Worker threads.
    pub workers: usize,
}

/// Of requests that got no key for one reason, so many in a hundred are worth a word.
const MANY: u64 = 20;
/// Fewer requests say nothing.
const ENOUGH: u64 = 50;

/// Asks Envoy.
pub async fn look(client: &reqwest::Client, target: &Target, report: &mut Report) -> Result<Proxy> {
    let admin = target.admin.trim_end_matches('/');
    let info = json(client, admin, "/server_info").await?;
    let version = info["version"].as_str().and_then(|v| v.split('/').nth(1)).unwrap_or("?").to_owned();
    if Version::parse(&version).is_some_and(|v| v < Version(1, 35, 0)) {
        let what = format!("Envoy is {version}");
        let why = "it does not know allow_on_headers_stop_iteration: every request that the filter holds hangs";
        report.add(Level::Error, "envoy_too_old", "Envoy", [&what, why, "run Envoy 1.35 or newer"]);
    }
    report.envoy = version;
    let dump = json(client, admin, "/config_dump").await?;
    let live = live::check(&dump);
    findings(&live, report);
    let listeners = json(client, admin, "/listeners?format=json").await?;
    let clusters = json(client, admin, "/clusters?format=json").await?;
    let host = admin.split_once("://").map_or(admin, |(_, rest)| rest);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let at = |name: &str| address_of(&listeners, name, host).map(|at| format!("http://{at}"));
    let router = live.routers.first();
    let config = router.map(|router| router.config.clone());
    let bridge = config.as_ref().and_then(|config| config.bridge.as_ref());
    let bridge = bridge.and_then(|bridge| hosts(&clusters, &bridge.cluster).into_keys().next());
    let mut replicas = BTreeMap::new();
    for cluster in router.into_iter().flat_map(|router| &router.clusters) {
        let found = hosts(&clusters, cluster);
        if found.is_empty() {
            let what = format!("cluster {cluster} has no endpoint");
            let mend =
                "give it the replicas: ip:port in its load_assignment, or the name or service behind which they are";
            report.add(Level::Error, "no_endpoints", "Envoy", [&what, "every request is answered 503", mend]);
        }
        for (address, healthy) in &found {
            if !healthy {
                let why = "Envoy sends it nothing, and requests for what it has cached are computed elsewhere";
                let mend = format!("see why http://{address} does not pass the health check of cluster {cluster}");
                let what = format!("Envoy finds it unhealthy (cluster {cluster})");
                report.add(Level::Error, "unhealthy", address, [&what, why, &mend]);
            }
            report.replica(address).healthy = *healthy;
        }
        replicas.extend(found);
    }
    let page = client.get(format!("{admin}/stats?usedonly&filter=kvroute_")).timeout(TIMEOUT).send().await?;
    outcomes(&page.text().await?, report);
    let concurrency = &info["command_line_options"]["concurrency"];
    let proxy = Proxy {
        version: report.envoy.clone(),
        clusters: router.map(|router| router.clusters.clone()).unwrap_or_default(),
        url: target.url.clone().or_else(|| at(&router?.listener)),
        ingest: at(live.admin.as_deref().or(live.ingest.as_deref()).unwrap_or_default()),
        bridge: target.bridge.clone().or_else(|| Some(format!("http://{}", bridge?))),
        secret: target.secret.clone().or(live.secret),
        config,
        replicas,
        workers: usize::try_from(concurrency.as_u64().unwrap_or(1)).unwrap_or(1),
    };
    report.url = proxy.url.clone();
    report.checked.push(format!("Envoy {}: its configuration, {} replicas", report.envoy, proxy.replicas.len()));
    Ok(proxy)
}

const TIMEOUT: Duration = Duration::from_secs(10);

async fn json(client: &reqwest::Client, admin: &str, path: &str) -> Result<Value> {
    let url = format!("{admin}{path}");
    let ask = async {
        let answer = client.get(&url).timeout(TIMEOUT).send().await?.error_for_status()?;
        anyhow::Ok(serde_json::from_str(&answer.text().await?)?)
    };
    ask.await.with_context(|| format!("{url}: this must be Envoy's admin interface (--admin)"))
}

/// `ip:port` of the endpoints that these clusters have now, and whether Envoy finds them healthy.
pub async fn health(client: &reqwest::Client, admin: &str, clusters: &[String]) -> Result<BTreeMap<String, bool>> {
    let page = json(client, admin, "/clusters?format=json").await?;
    Ok(clusters.iter().flat_map(|cluster| hosts(&page, cluster)).collect())
}

/// What `check-config` says of it.
fn findings(live: &Live, report: &mut Report) {
    for finding in &live.report.findings {
        // The files are where Envoy is, which need not be here.
        if finding.level == Level::Note && finding.what.contains("were not looked at") {
            continue;
        }
        // As they are written, the consequence stands behind the first colon.
        let (what, why) = finding.what.split_once(": ").unwrap_or((
            &finding.what,
            match finding.level {
                Level::Error => "the filter is refused, or has no effect",
                Level::Warning => "it works less well than it could, or not after a fault",
                Level::Note => "worth knowing",
            },
        ));
        let mend = finding.mend.as_deref().unwrap_or("as it says");
        let place = if finding.place.is_empty() { "Envoy's configuration" } else { &finding.place };
        report.add(finding.level, "configuration", place, [what, why, mend]);
    }
}

/// Where a listener can be reached from here.
fn address_of(listeners: &Value, name: &str, host: &str) -> Option<String> {
    let all = listeners["listener_statuses"].as_array()?;
    let socket = &all.iter().find(|one| one["name"] == name)?["local_address"]["socket_address"];
    let (ip, port) = (socket["address"].as_str()?, socket["port_value"].as_u64()?);
    let everywhere = ip.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_unspecified());
    Some(if everywhere { format!("{host}:{port}") } else { authority(ip, port) })
}

/// The endpoints of a cluster, and whether they are healthy.
fn hosts(clusters: &Value, name: &str) -> BTreeMap<String, bool> {
    let all = clusters["cluster_statuses"].as_array().into_iter().flatten();
    let hosts = all.filter(|cluster| cluster["name"] == name).flat_map(|c| c["host_statuses"].as_array()).flatten();
    let host = |host: &Value| {
        let socket = &host["address"]["socket_address"];
        let at = authority(socket["address"].as_str()?, socket["port_value"].as_u64()?);
        let health = &host["health_status"];
        let failed = ["failed_active_health_check", "failed_outlier_check", "pending_active_hc"];
        Some((at, !failed.iter().any(|name| health[*name] == true)))
    };
    hosts.filter_map(host).collect()
}

/// Whether many requests get no key, and why.
fn outcomes(page: &str, report: &mut Report) {
    let counts: BTreeMap<&str, u64> = page
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter_map(|(name, n)| {
            Some((name.strip_prefix("wasmcustom.kvroute_requests_total.outcome.")?, n.parse().ok()?))
        })
        .collect();
    // Other paths are nobody's prompts.
    let all: u64 = counts.iter().filter(|(name, _)| **name != "not_our_path").map(|(_, n)| n).sum();
    for (outcome, n) in &counts {
        let Some((why, mend)) = reasons::no_key(outcome).filter(|_| all >= ENOUGH && n * 100 >= all * MANY) else {
            continue;
        };
        let what = format!("{n} of {all} requests since the start got no key: {outcome}");
        report.add(Level::Warning, "no_key", "filter", [&what, why, mend]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_listener_of_all_addresses_is_reached_where_admin_is() {
        let at = |name: &str, ip: &str| json!({"name": name, "local_address": {"socket_address": {"address": ip, "port_value": 80}}});
        let page = json!({"listener_statuses": [at("a", "0.0.0.0"), at("b", "127.0.0.1"), at("c", "::1")]});
        let of = |name| address_of(&page, name, "gw");
        assert_eq!(["a", "b", "c"].map(of), ["gw:80", "127.0.0.1:80", "[::1]:80"].map(|s| Some(s.to_owned())));
        assert_eq!(of("d"), None);
    }

    #[test]
    fn many_requests_without_a_key_are_a_finding() {
        let mut report = Report::default();
        let line = |outcome: &str, n: u64| format!("wasmcustom.kvroute_requests_total.outcome.{outcome}: {n}\n");
        let page =
            [line("routed", 60), line("time_budget", 30), line("too_short", 5), line("not_our_path", 900)].concat();
        outcomes(&page, &mut report);
        let [finding] = report.findings.as_slice() else { panic!("{report:?}") };
        assert!(finding.what.starts_with("30 of 95") && finding.mend.contains("time_budget_ms"), "{finding:?}");
        let mut few = Report::default();
        outcomes(&line("time_budget", 40), &mut few);
        assert!(few.findings.is_empty());
    }
}
