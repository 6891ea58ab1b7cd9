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
    /// Every one.
    pub fn all() -> impl Iterator<Item = Outcome> {
        let decided = [Outcome::Routed, Outcome::Shadow, Outcome::Cancelled];
        decided.into_iter().chain(NoKey::ALL.iter().copied().map(Outcome::NoKey))
    }

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
    /// Requests for which another replica was asked to prefill.
    RemotePrefills,
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
    /// Prompt tokens of the requests of which the engine said how much it found cached.
    ClaimsPromptTokens,
    /// Of those, tokens that were believed to be cached.
    ClaimsBelievedTokens,
    /// Of those, tokens that the engine found cached.
    ClaimsFoundTokens,
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
    /// Blocks that the index gave up to stay within its bound.
    Evicted,
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
    /// Those without a label. Envoy shows them from the beginning: a rate needs to have seen the 0, too.
    pub const PLAIN: [Counter; 26] = [
        Counter::Moved,
        Counter::RemotePrefills,
        Counter::PromptTokens,
        Counter::MatchedTokens,
        Counter::ShadowPromptTokens,
        Counter::ShadowMatchedTokens,
        Counter::ShadowFoundTokens,
        Counter::ShadowSame,
        Counter::Salted,
        Counter::SaltRefused,
        Counter::ClaimsChecked,
        Counter::ClaimsOver,
        Counter::ClaimsUnder,
        Counter::ClaimsPromptTokens,
        Counter::ClaimsBelievedTokens,
        Counter::ClaimsFoundTokens,
        Counter::Evicted,
        Counter::Slices,
        Counter::Bounces,
        Counter::QueueWakes,
        Counter::QueueMissed,
        Counter::FeedBatches,
        Counter::FeedGaps,
        Counter::Snapshots,
        Counter::FailedPulls,
        Counter::Repaired,
    ];

    /// Envoy's name of it.
    pub fn name(self) -> String {
        let plain = match self {
            Counter::Requests(outcome) => return format!("kvroute_requests_total.outcome.{}", outcome.label()),
            Counter::Picks(reason) => return format!("kvroute_picks_total.reason.{}", reason.label()),
            Counter::Moved => "kvroute_moved_total",
            Counter::RemotePrefills => "kvroute_remote_prefills_total",
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
            Counter::ClaimsPromptTokens => "kvroute_claims_prompt_tokens_total",
            Counter::ClaimsBelievedTokens => "kvroute_claims_believed_tokens_total",
            Counter::ClaimsFoundTokens => "kvroute_claims_found_tokens_total",
            Counter::Evicted => "kvroute_index_evicted_total",
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

/// Histograms: microseconds of each step of a request, of one in 16 and all of which a receipt is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Reading the body.
    Parse,
    /// Rendering the chat template.
    Render,
    /// Tokenizing and hashing.
    Tokenize,
    /// Looking the blocks up.
    Match,
    /// Ranking the candidates.
    Choose,
    /// From the end of the body until the request was let go, waiting included.
    Held,
}

impl Timing {
    /// Envoy's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Timing::Parse => "kvroute_parse_us",
            Timing::Render => "kvroute_render_us",
            Timing::Tokenize => "kvroute_tokenize_us",
            Timing::Match => "kvroute_match_us",
            Timing::Choose => "kvroute_choose_us",
            Timing::Held => "kvroute_held_us",
        }
    }
}

/// Gauges, one a slot: the VMs of an Envoy share the names of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gauge {
    /// Requests under way.
    Jobs,
    /// Memory set aside for them.
    JobBytes,
    /// Memory of what earlier prompts began with.
    PromptBytes,
    /// Memory of batches that are not applied yet.
    FeedBytes,
    /// Requests that were sent to a replica and have not ended.
    Bookings,
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
            Gauge::PromptBytes => "prompt_bytes",
            Gauge::FeedBytes => "feed_bytes",
            Gauge::Bookings => "bookings",
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
