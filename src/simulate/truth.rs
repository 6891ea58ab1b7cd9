//! What is so: every cache and every queue at this instant, in the terms of the choice.

use super::replica::Replica;
use super::traffic::Call;
use crate::feed::record::Trust;
use crate::routing::{Candidate, Policy, Request, last_token_cap, rank};

/// The candidates of a call, one a replica. What requests under way there will have cached counts as predicted.
pub fn candidates(replicas: &[Replica], call: &Call, block_size: u32) -> Vec<Candidate> {
    let cap = last_token_cap(call.prompt as u64, block_size);
    let tokens = |blocks: usize| (blocks as u64 * u64::from(block_size)).min(cap) as f64;
    let one = |replica: &Replica| {
        let chain = call.prompt_chain();
        let held = replica.held(chain, false);
        let coming = held + replica.held(&chain[held..], true);
        Candidate {
            matched: tokens(coming),
            predicted: tokens(coming) - tokens(held),
            prefill: replica.prefill(),
            context: replica.context(),
            requests: replica.requests() as f64,
            trust: Trust::Exact,
            ..Candidate::default()
        }
    };
    replicas.iter().map(one).collect()
}

/// How much more than the cheapest replica the picked one costs, in tokens.
pub fn regret(policy: &Policy, candidates: &[Candidate], call: &Call, picked: usize) -> f64 {
    let request = Request { tokens: call.prompt as f64, ..Request::default() };
    let all = rank(policy, &request, candidates, candidates.len());
    let cost = |at: usize| all.iter().find(|s| s.candidate == at).map(|s| s.cost);
    match (all.first(), cost(picked)) {
        (Some(best), Some(cost)) => cost - best.cost,
        _ => 0.0,
    }
}
