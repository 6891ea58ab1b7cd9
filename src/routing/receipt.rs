//! Why a request went where it went, for `explain` and the access log.

use serde::Serialize;

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It holds more of the prompt than any other.
    Cache,
    /// It is less loaded, though another holds as much of the prompt or more.
    Load,
    /// Several were alike; the lot decided.
    Tie,
    /// There is no other.
    Only,
}

impl Reason {
    /// The name in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Cache => "cache",
            Reason::Load => "load",
            Reason::Tie => "tie",
            Reason::Only => "only",
        }
    }
}

/// One replica in a receipt. Tokens, except where it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReceipt {
    /// `ip:port`.
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// Trust in its events.
    pub trust: &'static str,
    /// Why.
    pub trust_reason: String,
    /// Blocks that it holds from the start.
    pub matched_blocks: u32,
    /// Tokens of them that the engine can use.
    pub matched: u64,
    /// Of those, tokens that are only predicted.
    pub predicted: u64,
    /// Of those, tokens whose blocks are not confirmed.
    pub unconfirmed: u64,
    /// Tokens of the match that counted, after the discounts.
    pub credit: u64,
    /// Tokens of this prompt that it would have to prefill.
    pub uncached: u64,
    /// Requests booked there by this gateway.
    pub booked_requests: u32,
    /// Prompt tokens booked there and not prefilled yet.
    pub booked_prefill: u64,
    /// Tokens in the context of the requests booked there.
    pub booked_context: u64,
    /// Requests that its engine says it runs.
    pub reported_running: Option<u32>,
    /// Requests that its engine says wait.
    pub reported_waiting: Option<u32>,
    /// Share of its cache that its engine says is in use.
    pub reported_kv_usage: Option<f64>,
    /// Age of that in milliseconds.
    pub reported_age_ms: Option<u64>,
    /// Conversations that live there.
    pub homes: u32,
    /// Of the cost, what it has for being home to more conversations than the others.
    pub crowding: f64,
    /// The sum that decides; smaller is better. It is what of the prompt is not credited, the crowding, and for
    /// the rest load.
    pub cost: f64,
}

/// The whole story of one choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Receipt {
    /// The model as the replicas serve it.
    pub model: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// True where that is an estimate.
    pub estimated: bool,
    /// Blocks whose hashes were known when it was chosen.
    pub known_blocks: u32,
    /// Replicas that were compared.
    pub compared: usize,
    /// The address that was picked.
    pub pick: String,
    /// What decided.
    pub reason: Reason,
    /// Whether all that is believed was confirmed.
    pub synced: bool,
    /// Milliseconds since the feed was last heard of.
    pub feed_age_ms: Option<u64>,
    /// The best candidates (at most 16), best first.
    pub candidates: Vec<CandidateReceipt>,
}
