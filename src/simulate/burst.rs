//! When a burst of equal prompts should spread: what the cost says while no time passes.

use super::Scenario;
use crate::feed::record::Trust;
use crate::routing::{Candidate, Request, last_token_cap, rank};

/// Replicas that `copies` equal cold prompts go to when they all come at once: the cost model's break-even between
/// waiting where the prefix is being computed and computing it once more.
pub fn break_even(scenario: &Scenario, copies: usize, tokens: u64) -> usize {
    let mut all = vec![Candidate { trust: Trust::Exact, ..Candidate::default() }; scenario.replicas];
    let cap = last_token_cap(tokens, scenario.block_size) as f64;
    for seed in 0..copies as u64 {
        let request = Request { tokens: tokens as f64, seed, ..Request::default() };
        let Some(best) = rank(&scenario.policy, &request, &all, 0).first().map(|s| s.candidate) else { break };
        let picked = &mut all[best];
        picked.prefill += tokens as f64 - picked.matched;
        picked.context += tokens as f64;
        picked.requests += 1.0;
        (picked.matched, picked.predicted) = (cap, cap);
    }
    all.iter().filter(|c| c.requests > 0.0).count()
}
