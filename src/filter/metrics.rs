//! The metrics of the filter. Envoy's `stats_tags` make labels of `.outcome.x`, `.reason.x` and `.slot.x`.

use crate::nokey::NoKey;
use crate::routing::Reason;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Steered to a replica.
    Routed,
    /// Decided, and left to plain load balancing all the same.
    Shadow,
    /// Left to plain load balancing.
    NoKey(NoKey),
    /// The client left while it was held.
    Cancelled,
}

impl Outcome {
    /// The label.
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Routed => "routed",
            Outcome::Shadow => "shadow",
            Outcome::NoKey(reason) => reason.label(),
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// Counters; their sums over all VMs are what Envoy shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Requests by what became of them.
    Requests(Outcome),
    /// Picks by what decided.
    Picks(Reason),
    /// Requests that Envoy sent elsewhere than picked.
    Moved,
    /// Prompt tokens of routed requests.
    PromptTokens,
    /// Of those, tokens that the pick was expected to have cached.
    MatchedTokens,
    /// Prompt tokens of requests in shadow mode.
    ShadowPromptTokens,
    /// Of those, tokens that the pick was expected to have cached.
    ShadowMatchedTokens,
    /// Of those, tokens that the replica to which Envoy sent them was expected to have cached.
    ShadowFoundTokens,
    /// Requests in shadow mode that Envoy sent to the pick.
    ShadowSame,
    /// Requests that got the salt of their tenant.
    Salted,
    /// Requests that were refused, since it could not be written into their body.
    SaltRefused,
    /// Requests of which the engine said how much it found cached, as far as they were looked at.
    ClaimsChecked,
    /// Of them, requests that the engine found less cached of than was believed.
    ClaimsOver,
    /// Of them, requests that it found more cached of.
    ClaimsUnder,
    /// Stretches of work.
    Slices,
    /// Messages that another VM sent back to call this one again.
    Bounces,
    /// Announcements of messages in the queue of a slot.
    QueueWakes,
    /// Times that a tick found messages which nobody had announced.
    QueueMissed,
    /// Batches of the feed that were applied.
    FeedBatches,
    /// Holes in the feed.
    FeedGaps,
    /// Snapshot answers that were applied.
    Snapshots,
    /// Snapshot pulls without a usable answer.
    FailedPulls,
    /// Things that a snapshot corrected while all was believed to be in step.
    Repaired,
}

impl Counter {
    /// Envoy's name of it.
    pub fn name(self) -> String {
        let plain = match self {
            Counter::Requests(outcome) => return format!("kvroute_requests_total.outcome.{}", outcome.label()),
            Counter::Picks(reason) => return format!("kvroute_picks_total.reason.{}", reason.label()),
            Counter::Moved => "kvroute_moved_total",
            Counter::PromptTokens => "kvroute_prompt_tokens_total",
            Counter::MatchedTokens => "kvroute_matched_tokens_total",
            Counter::ShadowPromptTokens => "kvroute_shadow_prompt_tokens_total",
            Counter::ShadowMatchedTokens => "kvroute_shadow_matched_tokens_total",
            Counter::ShadowFoundTokens => "kvroute_shadow_found_tokens_total",
            Counter::ShadowSame => "kvroute_shadow_same_total",
            Counter::Salted => "kvroute_salted_total",
            Counter::SaltRefused => "kvroute_salt_refused_total",
            Counter::ClaimsChecked => "kvroute_claims_checked_total",
            Counter::ClaimsOver => "kvroute_claims_over_total",
            Counter::ClaimsUnder => "kvroute_claims_under_total",
            Counter::Slices => "kvroute_slices_total",
            Counter::Bounces => "kvroute_bounces_total",
            Counter::QueueWakes => "kvroute_queue_wakes_total",
            Counter::QueueMissed => "kvroute_queue_missed_total",
            Counter::FeedBatches => "kvroute_feed_batches_total",
            Counter::FeedGaps => "kvroute_feed_gaps_total",
            Counter::Snapshots => "kvroute_snapshots_total",
            Counter::FailedPulls => "kvroute_failed_pulls_total",
            Counter::Repaired => "kvroute_repaired_total",
        };
        plain.to_owned()
    }
}

/// Gauges, one a slot: the VMs of an Envoy share the names of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Requests under way.
    Jobs,
    /// Memory set aside for them.
    JobBytes,
    /// Memory that the VM uses.
    MemoryBytes,
    /// The longest stretch of work since the last report, in microseconds.
    LongestSlice,
    /// Blocks in the index.
    IndexBlocks,
    /// Bytes of the index.
    IndexBytes,
    /// 1 while everything believed is confirmed.
    Synced,
    /// The last batch applied.
    AppliedSeq,
    /// [`crate::VERSION_NUMBER`]; of the VMs themselves, so that an update shows where it has come.
    Version,
}

impl Gauge {
    /// Envoy's name of it.
    pub fn name(self, slot: u32) -> String {
        let name = match self {
            Gauge::Jobs => "jobs",
            Gauge::JobBytes => "job_bytes",
            Gauge::MemoryBytes => "memory_bytes",
            Gauge::LongestSlice => "longest_slice_us",
            Gauge::IndexBlocks => "index_blocks",
            Gauge::IndexBytes => "index_bytes",
            Gauge::Synced => "synced",
            Gauge::AppliedSeq => "applied_seq",
            Gauge::Version => "version",
        };
        format!("kvroute_{name}.slot.{slot}")
    }
}
