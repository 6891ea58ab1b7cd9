//! What a worker believes, for metrics and `GET /kvroute/v1/state`.

use serde::Serialize;

use super::book::Load;
use crate::feed::role::Role;
use crate::feed::sync::SyncState;
use crate::index::IndexStats;

/// One replica.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplicaStats {
    /// `ip:port`.
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// What it is for.
    pub role: Role,
    /// Served model.
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Trust in its events, this worker's own state of sync included.
    pub trust: &'static str,
    /// Why.
    pub trust_reason: String,
    /// Blocks it is believed to hold: GPU, CPU, disk, unconfirmed.
    pub blocks: [u32; 4],
    /// Blocks that it is expected to hold soon.
    pub predicted_blocks: u32,
    /// Blocks that its cache can hold; 0 when unknown.
    pub capacity_blocks: u64,
    /// Blocks of it had to be given up for the byte bound.
    pub truncated: bool,
    /// What this worker has on it.
    pub own: Load,
    /// What the other workers have on it.
    pub peers: Load,
    /// What its engine says it runs.
    pub reported_running: Option<u32>,
    /// What its engine says waits.
    pub reported_waiting: Option<u32>,
    /// Share of its cache in use by running requests.
    pub reported_kv_usage: Option<f64>,
    /// Age of that in milliseconds.
    pub reported_age_ms: Option<u64>,
    /// Conversations that live there, as far as this worker sent them.
    pub homes: u32,
    /// LoRA adapters that it is known to serve, and whether each is ready.
    pub adapters: Vec<(String, bool)>,
    /// Prompt tokens a second it was seen to prefill; 0 until measured.
    pub prefill_rate: f64,
}

/// A worker's state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetStats {
    /// Where it stands with the feed.
    pub sync: SyncState,
    /// Milliseconds since the feed was last heard of.
    pub feed_age_ms: Option<u64>,
    /// That is longer than a bridge that runs would be silent.
    pub feed_quiet: bool,
    /// The index.
    pub index: IndexStats,
    /// Blocks that are only predicted.
    pub predicted_blocks: usize,
    /// Requests under way.
    pub bookings: usize,
    /// The replicas.
    pub replicas: Vec<ReplicaStats>,
}
