//! The feed: what the workers believe, what the bridge says, and whether the two and Envoy speak of the same replicas.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::engines::Engines;
use super::proxy::Proxy;
use super::{Level, Report, Target, reasons};
use crate::bridge::facts::plain;
use crate::bridge::serve::seed_mark;
use crate::feed::role::Role;
use crate::look::{SECRET_HEADER, STATE_PATH, WorkerState};

/// What the next step goes by.
#[derive(Debug, Default)]
pub struct Feed {
    /// The workers that have answered.
    pub workers: Vec<WorkerState>,
}

/// The bridge's `/kvroute/v1/replicas`; more than that is not needed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Overview {
    hash_seed: Option<String>,
    envoys: Vec<Sender>,
    replicas: Vec<Followed>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Sender {
    url: String,
    leading: bool,
    error: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Followed {
    name: String,
    address: String,
    model: String,
    topic: String,
    role: String,
    trust: String,
    reason: String,
}

/// Asks filter and bridge.
pub async fn look(
    client: &reqwest::Client,
    target: &Target,
    proxy: &Proxy,
    engines: &Engines,
    report: &mut Report,
) -> Feed {
    for replica in proxy.config.iter().flat_map(|config| &config.replicas) {
        judge_role(&replica.address, replica.role.label(), proxy, report);
    }
    let Some(secret) = &proxy.secret else {
        let why = "what the workers believe, and what the bridge says, was not looked at";
        let mend = "give --secret-file, or set KVROUTE_SECRET";
        report.add(Level::Warning, "no_secret", "doctor", ["the secret stands in Envoy's environment", why, mend]);
        return Feed::default();
    };
    let overview = bridge(client, proxy, secret, report).await;
    // Without a bridge nothing will come.
    let patience = if overview.is_some() { target.patience } else { target.patience.min(Duration::from_secs(1)) };
    let feed = Feed { workers: workers(patience, proxy, secret, report).await };
    if overview.is_some() {
        // Again: meanwhile what had just begun has come to something.
        let later = bridge(client, proxy, secret, &mut Report::default()).await.or(overview.clone());
        judge_bridge(&later.unwrap_or_default(), proxy, engines, report);
    }
    judge_workers(&feed.workers, proxy, overview.is_some(), report);
    feed
}

async fn bridge(client: &reqwest::Client, proxy: &Proxy, secret: &str, report: &mut Report) -> Option<Overview> {
    let url = proxy.bridge.as_deref()?.trim_end_matches('/');
    let answer = client.get(format!("{url}/kvroute/v1/replicas")).header(SECRET_HEADER, secret);
    let what = match answer.timeout(Duration::from_secs(5)).send().await {
        Err(error) => format!("the bridge does not answer at {url}: {}", plain(&error)),
        Ok(answer) if answer.status() == 401 => {
            let why = "Envoy and bridge refuse each other: no worker learns what the engines have cached";
            let mend = "give the bridge (--secret-file, KVROUTE_SECRET) the secret of the filter's configuration";
            report.add(Level::Error, "secret", "bridge", ["the bridge has another secret than the gateway", why, mend]);
            return None;
        }
        Ok(answer) => match answer.json::<Overview>().await {
            Ok(overview) => {
                report.checked.push(format!("the bridge at {url}: {} replicas", overview.replicas.len()));
                return Some(overview);
            }
            Err(error) => format!("what answers at {url} is no bridge: {}", plain(&error)),
        },
    };
    let why = "workers that begin anew get no snapshot, and without a feed nothing is known of the caches";
    let mend = "start kvroute bridge, and let Envoy's cluster for it (bridge.cluster) name its --listen";
    report.add(Level::Error, "no_bridge", "bridge", [&what, why, mend]);
    None
}

/// Every worker that has a slot, and whether the admin instance can be asked at all.
async fn workers(patience: Duration, proxy: &Proxy, secret: &str, report: &mut Report) -> Vec<WorkerState> {
    let Some(ingest) = &proxy.ingest else {
        let why = "what the workers believe was not looked at; kvroute state and explain get no answer either";
        let mend = "add the filter kvroute_admin of envoy/envoy.yaml beside ingest";
        report.add(Level::Warning, "no_admin", "filter", ["there is no admin instance", why, mend]);
        return Vec::new();
    };
    let url = format!("{ingest}{STATE_PATH}");
    let deadline = Instant::now() + patience;
    let (mut found, mut error) = (BTreeMap::new(), String::new());
    loop {
        match state(&url, secret).await {
            Ok(state) => {
                let live = state.live_slots.clone();
                if let Some(slot) = state.slot {
                    found.insert(slot, state);
                }
                found.retain(|slot, _| live.contains(slot));
                let settled = |state: &WorkerState| {
                    state.feed.sync == "synced"
                        && state.replicas.iter().all(|r| r.trust_reason != "starting" && r.trust_reason != "replaying")
                };
                // What has just begun is given time.
                if !live.is_empty() && found.len() == live.len() && found.values().all(settled) {
                    break;
                }
            }
            Err(what) => error = what,
        }
        if Instant::now() >= deadline || !error.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    if error.is_empty() && found.is_empty() {
        let why = "a worker takes part from its first request on: what it would believe cannot be looked at";
        let mend = "send a request through the gateway, or leave --no-requests out";
        report.add(Level::Note, "no_worker", "filter", ["no worker has had a request yet", why, mend]);
    }
    if !error.is_empty() {
        let why = "what the workers believe was not looked at";
        let mend = "give the secret of the filter's configuration (--secret-file, KVROUTE_SECRET), and let the listener be reachable from here";
        report.add(Level::Error, "no_admin", "filter", [&format!("{url}: {error}"), why, mend]);
    }
    let found: Vec<WorkerState> = found.into_values().collect();
    report.checked.push(format!("{} of {} workers", found.len(), proxy.workers));
    found
}

/// A connection belongs to one worker, so each request takes a new one.
async fn state(url: &str, secret: &str) -> Result<WorkerState, String> {
    let client =
        reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().timeout(Duration::from_secs(5)).build();
    let request = client.map_err(|e| e.to_string())?.get(url).header(SECRET_HEADER, secret);
    let answer = request.send().await.map_err(|e| plain(&e))?;
    match answer.status().as_u16() {
        200 => answer.json().await.map_err(|e| plain(&e)),
        401 => Err("401, the secret is not the gateway's".into()),
        status => Err(format!("{status}, no admin instance answers there")),
    }
}

fn judge_bridge(overview: &Overview, proxy: &Proxy, engines: &Engines, report: &mut Report) {
    let config = proxy.config.as_ref();
    if let (Some(mark), Some(config)) = (&overview.hash_seed, config)
        && *mark != seed_mark(&config.hash_seed)
    {
        let why = "no block hash of the bridge is one of the filter's: no cached block is ever found";
        let mend = "give bridge (--hash-seed) and filter (hash_seed) the same one";
        report.add(Level::Error, "hash_seed", "bridge", ["bridge and filter have different hash seeds", why, mend]);
    }
    for sender in overview.envoys.iter().filter(|sender| !sender.error.is_empty() || !sender.leading) {
        let what = match sender.error.as_str() {
            "" => format!("another bridge feeds {}", sender.url),
            error => format!("it cannot feed {}: {error}", sender.url),
        };
        let why = "the workers hear nothing of this bridge";
        let mend = "its --envoy must be the ingest listener, with the same secret; of two bridges one feeds an Envoy, the other waits";
        report.add(Level::Warning, "not_feeding", "bridge", [&what, why, mend]);
    }
    for followed in &overview.replicas {
        let place = &followed.address;
        judge_role(place, &followed.role, proxy, report);
        // One that only prefills is asked by other engines, not by Envoy.
        if followed.role != Role::Prefill.label() && !proxy.replicas.contains_key(place) {
            let what = format!("the bridge follows {}, which is no endpoint of Envoy's cluster", followed.name);
            let why = "Envoy cannot send where the filter points: those requests go by load alone";
            let mend = "let the bridge's http= (or address=) be the ip:port that Envoy's cluster has, or add it to the cluster";
            report.add(Level::Error, "not_in_envoy", place, [&what, why, mend]);
        }
        if let Some(config) = config.filter(|c| c.model(&followed.model).is_none()) {
            let known: Vec<&str> = config.models.iter().map(|model| model.name.as_str()).collect();
            let what =
                format!("the bridge says that it serves {:?}, the filter knows {}", followed.model, known.join(", "));
            let why = "no request is ever compared with its cache";
            let mend = "give model= of the bridge's --replica the name of models[]";
            report.add(Level::Error, "bridge_model", place, [&what, why, mend]);
        }
        let engines_topic = engines.get(place).and_then(|facts| facts.sources.as_ref()?.get("0")?.topic.clone());
        if let Some(topic) = engines_topic.filter(|topic| !topic.starts_with(&followed.topic)) {
            let what =
                format!("the bridge listens for topic {:?}, the engine publishes under {topic:?}", followed.topic);
            let why = "none of its events arrives";
            let mend = "leave topic= of the bridge's --replica out, or give it the engine's";
            report.add(Level::Error, "topic", place, [&what, why, mend]);
        }
        told(place, &followed.trust, &followed.reason, report);
    }
    for address in proxy.replicas.keys().filter(|at| !overview.replicas.iter().any(|r| r.address == **at)) {
        let why = "what it has cached is not known: it is chosen by what was sent there, or by load";
        let mend = "add it to the bridge's --replica, or see that http= (or address=) is this ip:port";
        report.add(Level::Error, "not_followed", address, ["the bridge does not follow it", why, mend]);
    }
}

/// Envoy sends whatever has no key to any replica of its cluster.
fn judge_role(address: &str, role: &str, proxy: &Proxy, report: &mut Report) {
    if role != Role::Prefill.label() || !proxy.replicas.contains_key(address) {
        return;
    }
    let what = "it only prefills (role=prefill), and stands in the cluster to which Envoy sends requests";
    let why = "requests without a key, retries, and those whose pick is unhealthy go there too, to an engine that is to \
               prefill for others";
    let mend = "take it out of Envoy's cluster (it stays among the bridge's replicas), or give it role=both if it answers, too";
    report.add(Level::Warning, "prefill_in_envoy", address, [what, why, mend]);
}

fn told(address: &str, trust: &str, reason: &str, report: &mut Report) {
    let replica = report.replica(address);
    replica.trust = format!("{trust} ({reason})");
    // The cause has its own mend.
    let causes = ["engine_unreachable", "prefix_caching_off", "events_off", "block_size", "topic"];
    if report.findings.iter().any(|finding| finding.place == address && causes.contains(&finding.id)) {
        return;
    }
    if let Some((level, why, mend)) = reasons::trust(reason) {
        let what = format!("trust in its events: {trust}, {reason}");
        report.add(level, "trust", address, [&what, why, mend]);
    }
}

fn judge_workers(workers: &[WorkerState], proxy: &Proxy, bridge: bool, report: &mut Report) {
    for worker in workers {
        let place = format!("worker {}", worker.slot.unwrap_or_default());
        let feed = &worker.feed;
        if feed.sync == "none" && proxy.config.as_ref().is_some_and(|config| config.bridge.is_some()) {
            let why = "it knows of no cache: requests go by load alone";
            let mend = "the bridge's --envoy must be the ingest listener, with the same secret; both instances need the same vm_id";
            report.add(Level::Error, "no_feed", &place, ["no bridge has fed it", why, mend]);
        } else if feed.quiet {
            let why = "what it believes of the caches gets old, and counts less";
            let mend = "see whether the bridge runs, and what it says of this Envoy (kvroute_bridge_failed_total)";
            report.add(Level::Error, "quiet", &place, ["it has not heard of the bridge for a while", why, mend]);
        } else if feed.sync == "syncing" {
            let what = format!("it has {:.0} % of its snapshot", feed.progress * 100.0);
            let mend = "ask again in some seconds; else let the cluster bridge.cluster name the bridge's --listen";
            report.add(Level::Warning, "syncing", &place, [&what, "until then matches are missed", mend]);
        }
        for replica in &worker.replicas {
            let known = report.replica(&replica.address);
            known.blocks = known.blocks.max(replica.blocks);
            if replica.truncated {
                let what = format!("{place} has given up blocks of it, since its index is full");
                let why = "cached prefixes are not found";
                report.add(Level::Warning, "truncated", &replica.address, [&what, why, "raise limits.index_bytes"]);
            }
            if !bridge {
                told(&replica.address, &replica.trust, &replica.trust_reason, report);
            }
        }
        let used = worker.memory.iter().find(|one| one.owner == "vm").map_or(0, |one| one.bytes);
        if worker.max_memory_bytes > 0 && used * 10 > worker.max_memory_bytes * 9 {
            let what = format!("it uses {used} of {} bytes", worker.max_memory_bytes);
            let mend = "lower limits.index_bytes or limits.prompt_memory_bytes, or raise limits.memory_bytes";
            report.add(Level::Warning, "memory", &place, [&what, "beyond the bound requests get no key", mend]);
        }
    }
}
