//! What the admin instance answers: the state of the router VM that it shares, and what the VM would do with a
//! request. Nothing is booked, and nothing of it is on the path of requests.

use std::rc::Rc;

use super::host::Host;
use super::metrics::{Counter, Outcome};
use super::models::Setup;
use super::router::Router;
use crate::blocks::BlockHash;
use crate::clock::Time;
use crate::explain::{Explanation, Reason, explain};
use crate::feed::record::Tier;
use crate::look::{
    Adapter, Candidate, Choice, FeedState, IndexState, Load, MemoryUse, Prefill, ReplicaState, RequestCounts,
    WorkerState,
};
use crate::nokey::{NoKey, NoKeyReason};
use crate::replicas::stats::{FleetStats, ReplicaStats};
use crate::replicas::{Ask, Matching};
use crate::request::{Api, Body, salt};
use crate::routing::{CandidateReceipt, Receipt};

/// The state of this worker.
pub fn state(router: &Router, host: &dyn Host) -> WorkerState {
    let now = host.now();
    let stats = router.fleet.stats(now);
    let (jobs, job_bytes) = router.jobs();
    let owner = |owner: &str, bytes: usize| MemoryUse { owner: owner.to_owned(), bytes: bytes as u64 };
    WorkerState {
        slot: router.link.slot(),
        generation: router.link.lease().generation(),
        live_slots: router.link.lease().live_slots(host, now),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        feed: feed(&stats),
        replicas: stats.replicas.iter().map(replica).collect(),
        index: IndexState {
            blocks: stats.index.entries as u64,
            bytes: stats.index.bytes as u64,
            max_bytes: router.setups.newest().config.limits.index_bytes as u64,
        },
        memory: vec![
            owner("vm", host.memory_used()),
            owner("index", stats.index.bytes),
            owner("jobs", job_bytes),
            owner("prompts", router.tools.memory.bytes()),
            owner("feed", stats.sync.backlog_bytes),
            #[cfg(target_family = "wasm")]
            owner("pages", core::arch::wasm32::memory_size(0).saturating_mul(64 << 10)),
        ],
        max_memory_bytes: router.setups.newest().config.limits.memory_bytes as u64,
        jobs: jobs as u64,
        requests: requests(host),
        decisions: router.recent.list(now),
    }
}

fn requests(host: &dyn Host) -> RequestCounts {
    let counted = |outcome: Outcome| (outcome.label().to_owned(), host.counted(Counter::Requests(outcome)));
    RequestCounts {
        outcomes: Outcome::all().map(counted).filter(|(_, count)| *count > 0).collect(),
        prompt_tokens: host.counted(Counter::PromptTokens),
        matched_tokens: host.counted(Counter::MatchedTokens),
    }
}

fn feed(stats: &FleetStats) -> FeedState {
    let sync = &stats.sync;
    let label = match (sync.synced, sync.epoch) {
        (true, _) => "synced",
        (false, 0) => "none",
        (false, _) => "syncing",
    };
    FeedState {
        sync: label.to_owned(),
        progress: if sync.synced { 1.0 } else { sync.cursor as f64 / u64::MAX as f64 },
        term: sync.term,
        epoch: format!("{:016x}", sync.epoch),
        applied_seq: sync.applied,
        known_seq: sync.received,
        backlog: sync.received.saturating_sub(sync.applied),
        age_ms: stats.feed_age_ms,
        quiet: stats.feed_quiet,
    }
}

fn replica(r: &ReplicaStats) -> ReplicaState {
    let booked = r.own.plus(r.peers);
    ReplicaState {
        address: r.address.clone(),
        rank: r.rank,
        role: r.role.label().to_owned(),
        model: r.model.clone(),
        trust: r.trust.to_owned(),
        trust_reason: r.trust_reason.clone(),
        blocks: r.blocks.iter().map(|b| u64::from(*b)).sum(),
        unconfirmed_blocks: r.blocks.get(Tier::Unconfirmed as usize).map_or(0, |b| u64::from(*b)),
        predicted_blocks: u64::from(r.predicted_blocks),
        capacity_blocks: r.capacity_blocks,
        truncated: r.truncated,
        adapters: r.adapters.iter().map(|(name, loaded)| Adapter { name: name.clone(), loaded: *loaded }).collect(),
        load: Load {
            booked_requests: u64::from(booked.requests),
            booked_prefill_tokens: booked.prefill as u64,
            booked_context_tokens: booked.context as u64,
            running: r.reported_running,
            waiting: r.reported_waiting,
            kv_usage: r.reported_kv_usage,
            age_ms: r.reported_age_ms,
        },
    }
}

/// What this worker would do with a body that came for `path`, at the wall clock `unix` where it is given.
pub fn choice(router: &mut Router, host: &dyn Host, path: &str, unix: Option<u64>, body: &[u8]) -> Choice {
    let now = host.now();
    let mut out = Choice {
        slot: router.link.slot(),
        live_slots: router.link.lease().live_slots(host, now),
        feed: feed(&router.fleet.stats(now)),
        ..Choice::default()
    };
    let setup = match explanation(router, host, path, unix, body) {
        Ok((explanation, setup)) => {
            out.explanation = explanation;
            setup
        }
        Err(reason) => {
            out.explanation = Explanation::without_key(reason);
            return out;
        }
    };
    if out.explanation.no_key.is_some() {
        return out;
    }
    match preview(router, &setup, now, &out.explanation) {
        Ok(receipt) => {
            let candidate = |c| candidate(c, receipt.prompt_tokens);
            out.candidates = receipt.candidates.iter().map(candidate).collect();
            out.compared = receipt.compared as u64;
            out.reason = Some(receipt.reason.label().to_owned());
            out.pick = Some(receipt.pick);
            out.prefill = receipt.prefill.as_ref().map(|prefill| Prefill {
                pick: prefill.pick.clone(),
                uncached_tokens: prefill.uncached,
                from: prefill.from,
                candidates: prefill.candidates.iter().map(candidate).collect(),
            });
        }
        Err(kind) => out.no_pick = Some(Reason::from(NoKeyReason::new(kind, no_pick(kind)))),
    }
    out
}

fn explanation(
    router: &mut Router,
    host: &dyn Host,
    path: &str,
    unix: Option<u64>,
    body: &[u8],
) -> Result<(Explanation, Rc<Setup>), NoKeyReason> {
    let largest = router.setups.all().map(|setup| setup.config.limits.max_inspect_bytes).max().unwrap_or(0);
    if body.len() > largest {
        return Err(NoKeyReason::new(NoKey::BodyTooLarge, format!("{} bytes", body.len())));
    }
    let sent = Body::parse(body)?;
    // Listeners may differ: the newest one that knows the model, or else the path, answers.
    let knows = |setup: &&Rc<Setup>| setup.config.asked(sent.model()).is_ok();
    let setup = router.setups.all().find(knows).unwrap_or(router.setups.newest()).clone();
    let api = Api::of_check(path, &setup.config.paths);
    let api = api.ok_or_else(|| NoKeyReason::new(NoKey::NotOurPath, format!("no prompt comes by {path}")))?;
    // The question comes with the headers that the gateway would see.
    let header = setup.config.tenant_salt.header.as_deref();
    let body = match header.and_then(|name| host.request_header(name)).filter(|salt| !salt.is_empty()) {
        Some(tenant) => Body::parse(&salt::of_tenant(body, tenant.as_bytes())?)?,
        None => sent,
    };
    let (at, _, lora) = setup.config.asked(body.model())?;
    let model = setup.models.get(at).ok_or_else(|| NoKeyReason::new(NoKey::Internal, "models out of step"))?;
    let model = model.explainable(&mut router.tools.tokenizers, lora, &setup.config.hash_seed)?;
    let explanation = explain(&model, api, &body, unix.unwrap_or_else(|| host.unix_seconds()));
    Ok((explanation, setup))
}

fn preview(router: &Router, setup: &Setup, now: Time, explanation: &Explanation) -> Result<Receipt, NoKey> {
    let model = explanation.model.as_deref().unwrap_or_default();
    let mut matching: Matching = router.fleet.begin(model, explanation.block_size)?;
    for hash in &explanation.block_hashes {
        let hash = u64::from_str_radix(hash, 16).map_err(|_| NoKey::Internal)?;
        router.fleet.push(&mut matching, BlockHash(hash));
    }
    let tokens = explanation.token_ids.len() as u64;
    let (policy, only) = (Some(&setup.config.policy), setup.only.as_deref());
    let adapter = explanation.lora.as_deref();
    router.fleet.preview(&matching, &Ask { tokens, policy, only, adapter, now, ..Ask::default() })
}

fn no_pick(kind: NoKey) -> &'static str {
    match kind {
        NoKey::NoFeed => "no feed has reached this worker, so it knows no replica",
        NoKey::NoReplica => "no replica that is known serves this model",
        _ => "no replica to choose",
    }
}

fn candidate(c: &CandidateReceipt, tokens: u64) -> Candidate {
    let cost_prefill = (tokens.saturating_sub(c.credit) as f64 - c.wanted).max(0.0);
    Candidate {
        address: c.address.clone(),
        rank: c.rank,
        trust: c.trust.to_owned(),
        trust_reason: c.trust_reason.clone(),
        matched_blocks: u64::from(c.matched_blocks),
        uncached_tokens: c.uncached,
        predicted_tokens: c.predicted,
        unconfirmed_tokens: c.unconfirmed,
        load: Load {
            booked_requests: u64::from(c.booked_requests),
            booked_prefill_tokens: c.booked_prefill,
            booked_context_tokens: c.booked_context,
            running: c.reported_running,
            waiting: c.reported_waiting,
            kv_usage: c.reported_kv_usage,
            age_ms: c.reported_age_ms,
        },
        cost: c.cost,
        cost_prefill,
        cost_load: (c.cost - cost_prefill - c.crowding - c.loading).max(0.0),
        cost_crowding: c.crowding,
        adapter: c.adapter.map(str::to_owned),
        cost_adapter: c.loading,
    }
}
