//! A look inside a running gateway: what the admin instance answers, as JSON.
//!
//! | request on the loopback listener | answer |
//! |---|---|
//! | `GET /kvroute/v1/state` | [`WorkerState`] |
//! | `POST /kvroute/v1/explain?path=/v1/chat/completions`, the body as a client would send it; `&now=` unix seconds, for templates that print the date | [`Choice`] |
//!
//! Both stand behind the secret, header `x-kvroute-secret`, as the feed does. Each answer is that of the worker that accepted
//! the connection and names its slot; `live_slots` tells how many others there are to ask. The filter writes these
//! types, `kvroute state` and `kvroute explain` read them; a field that one side lacks keeps its default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::explain::{Explanation, Reason};

/// The header with the secret.
pub const SECRET_HEADER: &str = "x-kvroute-secret";
/// Path of the state.
pub const STATE_PATH: &str = "/kvroute/v1/state";
/// A path of no prompt that enters the filter all the same, since it has an escape, which stays where a gateway normalizes
/// paths (Istio, Envoy Gateway): a worker takes part from its first such request on.
pub const WAKE_PATH: &str = "/v1/models%20";
/// Path of explain.
pub const EXPLAIN_PATH: &str = "/kvroute/v1/explain";

/// What one worker believes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerState {
    /// The slot that this worker's VM holds; null before its first request.
    pub slot: Option<u32>,
    /// How many VMs had this slot so far.
    pub generation: u64,
    /// Slots of this Envoy with a fresh heartbeat.
    pub live_slots: Vec<u32>,
    /// Version of the filter.
    pub version: String,
    /// Where the feed stands.
    pub feed: FeedState,
    /// The replicas that it knows.
    pub replicas: Vec<ReplicaState>,
    /// The index.
    pub index: IndexState,
    /// Memory of the VM by owner, in bytes.
    pub memory: Vec<MemoryUse>,
    /// The bound of what is in use, past which requests get no key.
    pub max_memory_bytes: u64,
    /// Requests under way.
    pub jobs: u64,
    /// What became of requests.
    pub requests: RequestCounts,
    /// What it decided last, the latest first.
    pub decisions: Vec<Decision>,
}

/// What became of the requests of one VM since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestCounts {
    /// By the labels in `kvroute_requests_total`, as far as there were any.
    pub outcomes: BTreeMap<String, u64>,
    /// Prompt tokens of routed requests.
    pub prompt_tokens: u64,
    /// Of those, tokens that the pick was expected to have cached.
    pub matched_tokens: u64,
}

/// What was decided on one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decision {
    /// How long ago.
    pub age_ms: u64,
    /// The label in `kvroute_requests_total`.
    pub outcome: String,
    /// The model; empty where it got no key.
    pub model: String,
    /// Where it was sent, or in shadow mode would have been.
    pub pick: Option<String>,
    /// What decided.
    pub reason: Option<String>,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Of those, tokens that the pick was expected to have cached.
    pub matched_tokens: u64,
}

/// Where the feed stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeedState {
    /// `none`, `syncing` or `synced`.
    pub sync: String,
    /// Share of the snapshot that has come, from 0 to 1.
    pub progress: f64,
    /// Term of the bridge that leads.
    pub term: u64,
    /// Its process, in hex.
    pub epoch: String,
    /// The last batch that was applied.
    pub applied_seq: u64,
    /// The last batch that is known of, applied or not.
    pub known_seq: u64,
    /// Batches that wait in the queue.
    pub backlog: u64,
    /// Since the last batch or heartbeat; null when there was none.
    pub age_ms: Option<u64>,
    /// That is so long that the bridge must be gone: what is believed counts for less.
    pub quiet: bool,
}

/// One replica (one data-parallel rank of one engine).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaState {
    /// `ip:port`
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// `both`, or `prefill` or `decode`.
    pub role: String,
    /// The model that it serves.
    pub model: String,
    /// `exact`, `catching_up`, `stale` or `no_events`.
    pub trust: String,
    /// Why: a reason of the bridge's (see its `/kvroute/v1/replicas`), or of the worker's own: `syncing`,
    /// `bridge_quiet`, `bridge_silent`, `not_in_the_feed`.
    pub trust_reason: String,
    /// Blocks that it is believed to hold.
    pub blocks: u64,
    /// Of those, blocks from before a gap in its events that nothing has confirmed since.
    pub unconfirmed_blocks: u64,
    /// Blocks that it is expected to hold soon.
    pub predicted_blocks: u64,
    /// Blocks that its cache can hold; 0 when unknown.
    pub capacity_blocks: u64,
    /// Blocks of it were given up, since the index is full.
    pub truncated: bool,
    /// LoRA adapters that it is known to serve (at most 64).
    pub adapters: Vec<Adapter>,
    /// Its load.
    pub load: Load,
}

/// A LoRA adapter of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// It is among those that the engine used last; the others it has to load first.
    pub loaded: bool,
}

/// What a replica is busy with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Requests that the gateway sent there and that are not finished.
    pub booked_requests: u64,
    /// Their tokens that still have to be computed before the first answer token.
    pub booked_prefill_tokens: u64,
    /// Tokens in their contexts.
    pub booked_context_tokens: u64,
    /// Requests in the engine's batch, by its own report; null without one.
    pub running: Option<u32>,
    /// Requests that wait there.
    pub waiting: Option<u32>,
    /// Share of its KV cache in use, from 0 to 1.
    pub kv_usage: Option<f64>,
    /// Age of the report.
    pub age_ms: Option<u64>,
}

/// The index of one worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexState {
    /// Block hashes in it.
    pub blocks: u64,
    /// Its memory.
    pub bytes: u64,
    /// The bound of its memory.
    pub max_bytes: u64,
}

/// Memory of one owner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryUse {
    /// `vm` is all that is in use; `index`, `jobs`, … are parts of it. `pages` is what the VM has taken from Envoy and
    /// never gives back.
    pub owner: String,
    /// Bytes.
    pub bytes: u64,
}

/// What one worker would do with a request now. Nothing is booked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// The worker's slot.
    pub slot: Option<u32>,
    /// Slots of this Envoy with a fresh heartbeat.
    pub live_slots: Vec<u32>,
    /// What the request comes to.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The replicas of the model, best first.
    pub candidates: Vec<Candidate>,
    /// How many replicas were compared; `candidates` has the best of them.
    pub compared: u64,
    /// `ip:port` of the best; null where plain load balancing decides.
    pub pick: Option<String>,
    /// What decided: `cache`, `load`, `tie` or `only`.
    pub reason: Option<String>,
    /// Which replica prefills, where some are there for it.
    pub prefill: Option<Prefill>,
    /// Where the feed stands, on which all this rests.
    pub feed: FeedState,
    /// Why it decides, where the request has a key.
    pub no_pick: Option<Reason>,
}

/// Which replica prefills for the one that answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prefill {
    /// `ip:port` of the one that is asked; null: the one that answers prefills itself.
    pub pick: Option<String>,
    /// Tokens that it would have to prefill.
    pub uncached_tokens: u64,
    /// From so many on another one is asked.
    pub from: u64,
    /// The replicas that were compared for it, best first.
    pub candidates: Vec<Candidate>,
}

/// One replica as a target of one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Candidate {
    /// `ip:port`
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// See [`ReplicaState::trust`].
    pub trust: String,
    /// See [`ReplicaState::trust_reason`].
    pub trust_reason: String,
    /// Blocks of the prompt, from its start, that it holds.
    pub matched_blocks: u64,
    /// Tokens of the prompt that it would have to compute.
    pub uncached_tokens: u64,
    /// Of those that it need not, tokens whose blocks are only predicted.
    pub predicted_tokens: u64,
    /// And tokens whose blocks are not confirmed.
    pub unconfirmed_tokens: u64,
    /// Its load.
    pub load: Load,
    /// What the request would cost there, in tokens of prefill; the least wins.
    pub cost: f64,
    /// Of it, tokens of the prompt that are not cached, or whose cached blocks are not relied on.
    pub cost_prefill: f64,
    /// Of it, for the load.
    pub cost_load: f64,
    /// Of it, for being home to more conversations than the others.
    pub cost_crowding: f64,
    /// Of a request for a LoRA adapter: `loaded`, `served` (it has to be loaded first), `absent` or `unknown`.
    pub adapter: Option<String>,
    /// Of the cost, for loading it.
    pub cost_adapter: f64,
}
