//! A simulator of a fleet of replicas, to judge choices of a replica by: `kvroute simulate`.
//!
//! *In*: a [`Scenario`] (replicas, gateways, how late events are), [`Traffic`] and the name of a policy. *Out*: an
//! [`Outcome`]: hit rate, times to the first token, imbalance, wrong picks. Discrete events, no clock, no threads:
//! the same input and seed give the same outcome.
//!
//! | step | module |
//! |---|---|
//! | requests: generators, a recorded trace | [`traffic`] |
//! | what happens when | [`queue`], [`mod@run`] |
//! | a replica: the scheduler and the paged cache of the [mock](crate::mock), in simulated time | [`replica`] |
//! | events to the gateways, late or lost | [`feed`] |
//! | who chooses: kvroute's own code, the rules of others, the oracle | [`policy`] |
//! | what is so, whatever a gateway believes | [`truth`] |
//! | what came of it | [`measure`], [`suite`], [`report`] |
//!
//! kvroute takes part with the code that runs in the filter: [`Fleet`](crate::replicas::Fleet), fed with frames.

pub mod burst;
pub mod feed;
pub mod measure;
pub mod policy;
pub mod queue;
pub mod replica;
pub mod report;
pub mod run;
pub mod suite;
pub mod traffic;
pub mod truth;

pub use measure::Outcome;
pub use policy::PolicyName;
pub use run::{Watch, run};
pub use traffic::Traffic;

use crate::clock::MS;
use crate::routing::Policy;

/// The deployment that is simulated. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Replicas at the start.
    pub replicas: usize,
    /// How fast each is, 1 being as the fields below say; those without a number are 1.
    pub speeds: Vec<f64>,
    /// (when, how many): replicas that come later, with cold caches.
    pub scale_out: Vec<(u64, usize)>,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of each replica's cache.
    pub blocks: u32,
    /// Requests that run at once on a replica.
    pub max_batch: usize,
    /// Tokens of one step of an engine.
    pub step_tokens: usize,
    /// Microseconds for each prompt token that is not cached.
    pub prefill_us: f64,
    /// Milliseconds for a step in which anybody gets an output token.
    pub decode_ms: f64,
    /// Microseconds that each 1,000 tokens of context add to such a step.
    pub context_us: f64,
    /// Gateways that don't see each other; each gets its share of the requests.
    pub gateways: usize,
    /// From the end of an engine's step to the moment when a gateway knows its events.
    pub event_delay: u64,
    /// Share of the batches of events that a gateway does not get.
    pub event_loss: f64,
    /// Between two readings of the engines' load.
    pub scrape_every: u64,
    /// The weights of kvroute and the oracle.
    pub policy: Policy,
    /// Everything that is left to chance comes from it.
    pub seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            replicas: 8,
            speeds: Vec::new(),
            scale_out: Vec::new(),
            block_size: 16,
            blocks: 20_000,
            max_batch: 128,
            step_tokens: 8192,
            prefill_us: 100.0,
            decode_ms: 20.0,
            context_us: 50.0,
            gateways: 1,
            event_delay: 5 * MS,
            event_loss: 0.0,
            scrape_every: 200 * MS,
            policy: Policy::default(),
            seed: 1,
        }
    }
}

/// Numbers by chance, the same on every machine.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of a seed; `what` tells those of one seed apart.
    pub fn new(seed: u64, what: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ what.rotate_left(40))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// From 0 to 1, neither of them.
    pub fn share(&mut self) -> f64 {
        ((self.draw() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// From 0 to `n`, without it; 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.share() * n as f64) as usize).min(n.saturating_sub(1))
    }

    /// From `low` to `high`.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// As long as one waits for what comes `1 / mean` times in a unit.
    pub fn waiting(&mut self, mean: f64) -> f64 {
        -self.share().ln() * mean
    }

    /// Small numbers often, large ones rarely: of 0 to `n`, the k-th is `1 / (k + 1)` as likely as the first.
    pub fn popular(&mut self, n: usize) -> usize {
        let sum: f64 = (1..=n).map(|k| 1.0 / k as f64).sum();
        let mut left = self.share() * sum;
        for k in 1..=n {
            left -= 1.0 / k as f64;
            if left <= 0.0 {
                return k - 1;
            }
        }
        n.saturating_sub(1)
    }
}
