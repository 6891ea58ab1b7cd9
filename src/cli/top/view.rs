//! What is shown: computed from what was seen now and a while ago, by functions of those two alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::seen::{Followed, Seen};
use crate::cli::state;
use crate::cli::table::{Paint, grouped};
use crate::look::{Decision, Load, ReplicaState, WorkerState};

/// So many are shown.
const DECISIONS: usize = 8;

/// Everything on the screen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct View {
    /// Envoy's version; null while it does not answer.
    pub envoy: Option<String>,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// Requests.
    pub requests: Requests,
    /// Workers of Envoy.
    pub workers: Vec<Worker>,
    /// Replicas.
    pub replicas: Vec<Replica>,
    /// What the workers decided last, the latest first.
    pub decisions: Vec<Decision>,
}

/// How it is with something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    #[default]
    Good,
    /// For a while, or in part.
    Fair,
    /// Not.
    Bad,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How bad.
    pub health: Health,
    /// Where.
    pub place: String,
    /// What.
    pub what: String,
}

/// A counter and how fast it grows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Count {
    /// The label in the metrics.
    pub label: String,
    /// Since Envoy's start.
    pub total: u64,
    /// Lately; null after one look.
    pub per_second: Option<f64>,
}

/// What became of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Requests {
    /// All that are anybody's prompts.
    pub all: Count,
    /// By outcome, the most frequent first.
    pub outcomes: Vec<Count>,
    /// Picks by what decided.
    pub picks: Vec<Count>,
    /// Requests that Envoy sent elsewhere than picked.
    pub moved: Count,
    /// Of the prompt tokens of routed requests, the share that the pick was believed to have cached.
    pub hit_share: Option<f64>,
    /// The same of late.
    pub recent_hit_share: Option<f64>,
    /// Over how many seconds rates and recent shares are.
    pub window_seconds: Option<f64>,
}

/// A worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Worker {
    /// Its slot.
    pub slot: Option<u32>,
    /// How it is with its feed.
    pub health: Health,
    /// Its feed in words.
    pub feed: String,
    /// Batches that it has not applied yet.
    pub behind: u64,
    /// Since the bridge was heard of.
    pub lag_ms: Option<u64>,
    /// Requests under way.
    pub jobs: u64,
    /// Blocks in its index.
    pub blocks: u64,
    /// The index's share of its bound.
    pub index_share: f64,
}

/// A replica, by the worst that anybody says of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replica {
    /// `ip:port`
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// The bridge's name of it.
    pub name: String,
    /// The model that it serves.
    pub model: String,
    /// All in all.
    pub health: Health,
    /// By Envoy; null where Envoy does not have it or does not answer.
    pub healthy: Option<bool>,
    /// `exact`, `catching_up`, `stale`, `no_events`, or `unknown`: no feed has it.
    pub trust: String,
    /// Why.
    pub trust_reason: String,
    /// Blocks that it is believed to hold.
    pub blocks: u64,
    /// Blocks that it is expected to hold soon.
    pub predicted_blocks: u64,
    /// Blocks that its cache can hold; 0 when unknown.
    pub capacity_blocks: u64,
    /// What it is busy with.
    pub load: Load,
    /// Since its last event.
    pub event_age_ms: Option<u64>,
    /// How often it began anew since the bridge's start.
    pub restarts: u64,
    /// Gaps in its events since then.
    pub gaps: u64,
    /// Why the bridge has no answer of its API; null while it answers.
    pub silent: Option<String>,
}

impl View {
    /// What there is to see. `before`: an earlier look, for rates and for what has just happened.
    pub fn of(now: &Seen, before: Option<&Seen>) -> View {
        let workers: Vec<Worker> = now.workers.iter().map(worker).collect();
        let replicas = replicas(now);
        let problems = problems(now, before, &workers, &replicas);
        let mut decisions: Vec<Decision> = now.workers.iter().flat_map(|worker| worker.decisions.clone()).collect();
        decisions.sort_by_key(|decision| decision.age_ms);
        decisions.truncate(DECISIONS);
        View { envoy: now.envoy.clone(), problems, requests: requests(now, before), workers, replicas, decisions }
    }
}

fn worker(state: &WorkerState) -> Worker {
    let feed = &state.feed;
    let health = match (feed.age_ms, feed.quiet, feed.sync.as_str()) {
        (None, ..) | (_, true, _) => Health::Bad,
        (_, _, "synced") => Health::Good,
        _ => Health::Fair,
    };
    Worker {
        slot: state.slot,
        health,
        feed: state::feed(feed, Paint::plain()),
        behind: feed.known_seq.saturating_sub(feed.applied_seq),
        lag_ms: feed.age_ms,
        jobs: state.jobs,
        blocks: state.index.blocks,
        index_share: share(state.index.bytes, state.index.max_bytes).unwrap_or(0.0),
    }
}

fn requests(now: &Seen, before: Option<&Seen>) -> Requests {
    let before = before.filter(|before| before.at_ms < now.at_ms && !before.stats.is_empty());
    let seconds = before.map(|before| (now.at_ms - before.at_ms) as f64 / 1e3);
    let value = |name: &str| now.stats.get(name).copied().unwrap_or(0);
    // A counter that went back is one of an Envoy that began anew.
    let grown = |name: &str| {
        let earlier = before?.stats.get(name).copied().unwrap_or(0);
        Some(value(name).checked_sub(earlier).unwrap_or(value(name)))
    };
    let count = |label: &str, name: &str| {
        let per_second = grown(name).zip(seconds).map(|(grown, seconds)| grown as f64 / seconds);
        Count { label: label.to_owned(), total: value(name), per_second }
    };
    let all_of = |prefix: &str| {
        let names = now.stats.keys().filter_map(|name| Some((name.strip_prefix(prefix)?, name)));
        let mut counts: Vec<Count> = names.map(|(label, name)| count(label, name)).collect();
        counts.retain(|count| count.total > 0);
        counts.sort_by_key(|count| std::cmp::Reverse(count.total));
        counts
    };
    // Other paths are nobody's prompts.
    let mut outcomes = all_of("requests_total.outcome.");
    outcomes.retain(|count| count.label != "not_our_path");
    let rates: Option<Vec<f64>> = outcomes.iter().map(|count| count.per_second).collect();
    let all = Count {
        label: "all".into(),
        total: outcomes.iter().map(|count| count.total).sum(),
        per_second: rates.filter(|_| seconds.is_some()).map(|rates| rates.iter().sum()),
    };
    let (matched, prompt) = ("matched_tokens_total", "prompt_tokens_total");
    Requests {
        all,
        outcomes,
        picks: all_of("picks_total.reason."),
        moved: count("moved", "moved_total"),
        hit_share: share(value(matched), value(prompt)),
        recent_hit_share: grown(matched).zip(grown(prompt)).and_then(|(matched, prompt)| share(matched, prompt)),
        window_seconds: seconds,
    }
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Every replica of which Envoy, a worker or the bridge knows.
fn replicas(now: &Seen) -> Vec<Replica> {
    let mut all: BTreeMap<(String, u32, String), Replica> = BTreeMap::new();
    for followed in now.bridge.iter().flat_map(|bridge| &bridge.replicas) {
        let key = (followed.address.clone(), followed.rank, followed.model.clone());
        all.insert(key, by_the_bridge(followed));
    }
    // What no worker believes has no effect yet; what the bridge knows of itself is later there.
    for state in now.workers.iter().flat_map(|worker| &worker.replicas) {
        let key = (state.address.clone(), state.rank, state.model.clone());
        let replica = all.entry(key).or_insert_with(|| Replica {
            address: state.address.clone(),
            rank: state.rank,
            model: state.model.clone(),
            ..Replica::default()
        });
        add(replica, state);
    }
    let known: BTreeSet<String> = all.keys().map(|(address, ..)| address.clone()).collect();
    for address in now.healthy.keys().filter(|address| !known.contains(*address)) {
        let replica =
            Replica { address: address.clone(), trust: "unknown".into(), health: Health::Bad, ..Replica::default() };
        all.insert((address.clone(), 0, String::new()), replica);
    }
    let mut all: Vec<Replica> = all.into_values().collect();
    for replica in &mut all {
        replica.healthy = now.healthy.get(&replica.address).copied();
        let of_trust = rank_of(&replica.trust).0;
        let out_of_reach = replica.healthy == Some(false) || replica.silent.is_some();
        replica.health = if out_of_reach { Health::Bad } else { of_trust };
    }
    all
}

fn by_the_bridge(followed: &Followed) -> Replica {
    let load = Load {
        running: followed.running,
        waiting: followed.waiting,
        kv_usage: followed.kv_usage,
        age_ms: followed.load_age_ms,
        ..Load::default()
    };
    Replica {
        address: followed.address.clone(),
        rank: followed.rank,
        name: followed.name.clone(),
        model: followed.model.clone(),
        trust: followed.trust.clone(),
        trust_reason: followed.reason.clone(),
        blocks: followed.blocks.values().sum(),
        capacity_blocks: followed.capacity_blocks,
        load,
        event_age_ms: followed.last_event_age_ms,
        restarts: followed.restarts,
        gaps: followed.gaps,
        silent: (followed.api == "silent").then(|| followed.api_error.clone()),
        ..Replica::default()
    }
}

/// What a worker believes: of trust the worst counts, of numbers the largest.
fn add(replica: &mut Replica, state: &ReplicaState) {
    if replica.trust.is_empty() || rank_of(&state.trust) > rank_of(&replica.trust) {
        (replica.trust, replica.trust_reason) = (state.trust.clone(), state.trust_reason.clone());
    }
    replica.blocks = replica.blocks.max(state.blocks);
    replica.predicted_blocks = replica.predicted_blocks.max(state.predicted_blocks);
    replica.capacity_blocks = replica.capacity_blocks.max(state.capacity_blocks);
    let (load, new) = (&mut replica.load, &state.load);
    load.booked_requests = load.booked_requests.max(new.booked_requests);
    load.booked_prefill_tokens = load.booked_prefill_tokens.max(new.booked_prefill_tokens);
    load.booked_context_tokens = load.booked_context_tokens.max(new.booked_context_tokens);
    if load.age_ms.is_none() {
        (load.running, load.waiting, load.kv_usage, load.age_ms) = (new.running, new.waiting, new.kv_usage, new.age_ms);
    }
}

/// How bad a trust is, and which of two is worse.
fn rank_of(trust: &str) -> (Health, u8) {
    match trust {
        "exact" => (Health::Good, 0),
        "catching_up" => (Health::Fair, 1),
        "stale" => (Health::Bad, 2),
        "no_events" => (Health::Bad, 3),
        _ => (Health::Bad, 4),
    }
}

fn problems(now: &Seen, before: Option<&Seen>, workers: &[Worker], replicas: &[Replica]) -> Vec<Problem> {
    let mut all = Vec::new();
    let mut add = |health, place: String, what: String| {
        if health != Health::Good {
            all.push(Problem { health, place, what });
        }
    };
    for (who, what) in &now.silent {
        add(Health::Bad, (*who).to_owned(), what.clone());
    }
    for sender in now.bridge.iter().flat_map(|bridge| &bridge.envoys).filter(|sender| !sender.error.is_empty()) {
        add(Health::Bad, "bridge".into(), format!("cannot send to {}: {}", sender.url, sender.error));
    }
    for worker in workers {
        let slot = worker.slot.map_or("worker".to_owned(), |slot| format!("worker {slot}"));
        // A worker without a slot has not had a request yet.
        let health = if worker.slot.is_none() { Health::Good } else { worker.health };
        add(health, slot, format!("feed {}", worker.feed));
    }
    for replica in replicas {
        let place = state::address(&replica.address, replica.rank);
        if replica.healthy == Some(false) {
            add(Health::Bad, place.clone(), "Envoy finds it unhealthy and sends it nothing".into());
        }
        if let Some(why) = &replica.silent {
            add(Health::Bad, place.clone(), format!("its API does not answer: {why}"));
        }
        if replica.healthy.is_none() && !now.healthy.is_empty() {
            add(Health::Bad, place.clone(), "Envoy's clusters do not have it under this address".into());
        }
        let trust = match replica.trust.as_str() {
            "unknown" => "no feed has it: the bridge is not told of it, or under another address".to_owned(),
            trust => state::trust(trust, &replica.trust_reason),
        };
        add(rank_of(&replica.trust).0, place.clone(), trust);
        if let Some(since) = before.and_then(|before| restarts(before, replica)).filter(|n| *n < replica.restarts) {
            let times = replica.restarts - since;
            add(Health::Fair, place, format!("began anew: its cache was lost ({} of late)", grouped(times)));
        }
    }
    all.sort_by_key(|problem| std::cmp::Reverse(problem.health));
    all
}

fn restarts(before: &Seen, replica: &Replica) -> Option<u64> {
    let mut then = before.bridge.iter().flat_map(|bridge| &bridge.replicas);
    Some(then.find(|r| (&r.address, r.rank) == (&replica.address, replica.rank))?.restarts)
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
