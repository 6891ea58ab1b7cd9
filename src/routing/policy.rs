//! The weights of the cost. The defaults need no tuning.

use serde::{Deserialize, Serialize};

/// Weights. The unit of every cost is one token that has to be prefilled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Cost of each prompt token already booked or queued on the replica and not prefilled yet. Below 1: waiting
    /// costs only this request time, while prefilling the same tokens once more costs the replica capacity.
    /// Higher spreads bursts of one prefix sooner and keeps short prompts from waiting behind long ones;
    /// from 1 on nothing is gained by waiting for a prefix that is under way. Default 0.8.
    pub queue: f64,
    /// Cost of each token in the context of the requests that run there: they slow each step and fill the cache.
    /// Higher evens out long contexts, at the price of queues that are less even. Default 0.008.
    pub context: f64,
    /// Cost of each request that runs there. Higher makes the numbers of requests more even. Default 32.
    pub request: f64,
    /// Cost of each request that waits there for a place and was sent by nobody known to this gateway.
    /// Default 512.
    pub waiting: f64,
    /// Bounded load: a replica with more than this many times the mean of requests, and one more, is only picked when
    /// all have. Lower spreads hot prefixes sooner, whatever that costs in cache. Default 0: no bound.
    pub bound: f64,
    /// Cost of being home to more conversations than the others: this much for (mean + 4) conversations more
    /// than the mean, growing with the square. It keeps one shared system prompt from drawing every new
    /// conversation to one replica, and does not move those that live there. Default 2000.
    pub crowding: f64,
    /// The most that crowding may cost. Default 2500.
    pub crowding_max: f64,
    /// How long a conversation counts as living where it was sent last, in seconds. Default 120.
    pub home_seconds: u64,
    /// What a block in host memory is worth, compared with one on the accelerator. Default 0.8.
    pub cpu_tier: f64,
    /// What a block on disk or remote storage is worth. Default 0.4.
    pub disk_tier: f64,
    /// What a block is worth that is only predicted to be there when the request arrives. Default 0.95.
    pub predicted: f64,
    /// What a block is worth that was held before a gap in the events and was not confirmed since. Default 0.5.
    pub unconfirmed: f64,
    /// What a match is worth on a replica whose events are being caught up with. Default 0.9.
    pub catching_up: f64,
    /// What a match is worth on a replica whose events have a gap or have stopped. Default 0.5.
    pub stale: f64,
    /// What a match is worth on a replica without events, where it is only what was sent there. Default 0.8.
    pub no_events: f64,
    /// Age in milliseconds past which a load that an engine reported is not used. Default 5000.
    pub load_max_age_ms: u64,
    /// Cost taken off the replica that the session points at, by the header that `selection.session_header` names: a
    /// weak preference, for prompts whose blocks nobody holds yet. Default 0 (no header is looked at).
    pub session: f64,
    /// Cost of loading the request's LoRA adapter, on a replica that has it not among those that it used last (known by
    /// its metrics, or by what was sent there). Higher keeps an adapter to fewer replicas. Default 512: some 50 ms of
    /// prefill, about what it takes to bring one from host memory; from disk it takes more.
    pub adapter: f64,
    /// Prompt tokens that the replica which answers would have to prefill, from which on another one is asked to prefill
    /// for it, where there are replicas for that. Higher leaves more to it; 0: it always prefills itself. Default 16.
    pub remote_prefill: f64,
    /// Copies of prefixes that many want: of the tokens that requests for it would have saved on a less loaded replica
    /// (by more than 1,000), if that held it, this share is taken off what it costs to compute it there. They add up,
    /// those of one request a second at most, and halve every 60 s. Higher copies sooner; 0: only where it pays for a
    /// single request. Default 1.
    pub copy: f64,
    /// Replicas that cost by no more tokens than this more than the cheapest, and hold as much of the prompt, are alike:
    /// the one is taken that got no request for the longest time. At most a sixteenth of the prompt. The cost cannot
    /// see how far an engine is in its step, and requests in turn seldom meet in one. Higher spreads more evenly in
    /// time and less evenly in load. Default 192.
    pub alike: f64,
    /// Randomness: 0 takes the cheapest; T makes a replica that costs T tokens more e times less likely.
    /// Default 0.
    pub temperature: f64,
    /// How many replicas after the best one are named for retries. Default 3.
    pub candidates: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            queue: 0.8,
            context: 0.008,
            request: 32.0,
            waiting: 512.0,
            bound: 0.0,
            crowding: 2000.0,
            crowding_max: 2500.0,
            home_seconds: 120,
            cpu_tier: 0.8,
            disk_tier: 0.4,
            predicted: 0.95,
            unconfirmed: 0.5,
            catching_up: 0.9,
            stale: 0.5,
            no_events: 0.8,
            load_max_age_ms: 5000,
            session: 0.0,
            adapter: 512.0,
            remote_prefill: 16.0,
            copy: 1.0,
            alike: 192.0,
            temperature: 0.0,
            candidates: 3,
        }
    }
}

impl Policy {
    /// The largest weight.
    pub const MOST: f64 = 1e9;
    /// The most candidates.
    pub const MOST_CANDIDATES: usize = 16;

    /// Its weights.
    pub fn weights(&self) -> [(&'static str, f64); 11] {
        [
            ("queue", self.queue),
            ("context", self.context),
            ("request", self.request),
            ("waiting", self.waiting),
            ("crowding", self.crowding),
            ("crowding_max", self.crowding_max),
            ("session", self.session),
            ("adapter", self.adapter),
            ("remote_prefill", self.remote_prefill),
            ("alike", self.alike),
            ("temperature", self.temperature),
        ]
    }

    /// What parts of a match are worth, and of what a copy would save.
    pub fn shares(&self) -> [(&'static str, f64); 8] {
        [
            ("cpu_tier", self.cpu_tier),
            ("disk_tier", self.disk_tier),
            ("predicted", self.predicted),
            ("unconfirmed", self.unconfirmed),
            ("catching_up", self.catching_up),
            ("stale", self.stale),
            ("no_events", self.no_events),
            ("copy", self.copy),
        ]
    }

    /// What is wrong with it, if anything: the field, and what would be right.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (name, value) in self.weights() {
            if !(0.0..=Policy::MOST).contains(&value) {
                return Err((name, format!("must be a number from 0 to {}, not {value}", Policy::MOST)));
            }
        }
        if self.bound != 0.0 && !(1.0..=Policy::MOST).contains(&self.bound) {
            return Err(("bound", format!("must be 0 (no bound) or a number from 1, not {}", self.bound)));
        }
        for (name, value) in self.shares() {
            if !(0.0..=1.0).contains(&value) {
                return Err((name, format!("must be a number from 0 to 1, not {value}")));
            }
        }
        let most = Policy::MOST_CANDIDATES;
        if self.candidates > most {
            return Err(("candidates", format!("must be a whole number from 0 to {most}, not {}", self.candidates)));
        }
        Ok(())
    }
}
