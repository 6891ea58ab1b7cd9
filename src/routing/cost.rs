//! Cost and ranking.

use std::cmp::Ordering;

use super::policy::Policy;
use crate::feed::record::Trust;

/// What is known of one replica for one request. Plain numbers; anything not finite counts as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Prompt tokens whose blocks it holds from the start, up to where a hit may end; lower tiers and predictions
    /// included.
    pub matched: f64,
    /// Of those, tokens in host memory only.
    pub cpu: f64,
    /// Of those, tokens on disk only.
    pub disk: f64,
    /// Of those, tokens that are only predicted.
    pub predicted: f64,
    /// Of those, tokens whose blocks are not confirmed.
    pub unconfirmed: f64,
    /// Prompt tokens booked there and not prefilled yet.
    pub prefill: f64,
    /// Tokens in the context of the requests booked there, or in the cache for requests by its engine's report.
    pub context: f64,
    /// Requests booked there, and those that its engine runs beyond them.
    pub requests: f64,
    /// Requests that wait there and were not booked by anybody known.
    pub waiting: f64,
    /// Conversations that live there.
    pub homes: f64,
    /// Tokens that earlier requests would have saved if it held what it lacks of this prompt and others hold.
    pub wanted: f64,
    /// Seconds since a request was sent there last.
    pub rested: f64,
    /// Trust in what it is believed to hold.
    pub trust: Trust,
    /// The session header points here.
    pub session: bool,
    /// Its engine has to load the LoRA adapter of the request first.
    pub loading: bool,
}

/// What is known of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Request {
    /// Tokens of the prompt, counted or estimated.
    pub tokens: f64,
    /// Conversations on all candidates together, divided by their number.
    pub mean_homes: f64,
    /// Decides ties, and the draw when there is a temperature.
    pub seed: u64,
}

/// A candidate with its cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Which one, as an index into the candidates.
    pub candidate: usize,
    /// Tokens; smaller is better.
    pub cost: f64,
    /// Tokens of the match that counted, after the discounts.
    pub credit: f64,
    /// Tokens of the rest that are not counted, since a copy would have saved them to earlier requests.
    pub wanted: f64,
    /// Of the cost, what it has for being home to more conversations than the others.
    pub crowding: f64,
    /// What is compared: the cost in whole tokens, then the load, then the lot.
    whole: i64,
    load: f64,
    lot: u64,
    rested: f64,
}

/// The engine computes the last token of a prompt in any case, and so all of the last block: at most this many
/// of `tokens` can be cached.
pub fn last_token_cap(tokens: u64, block_size: u32) -> u64 {
    let full = tokens.saturating_sub(1).checked_div(u64::from(block_size)).unwrap_or(0);
    full.saturating_mul(u64::from(block_size))
}

/// Costs stay below this, so that sums of them are finite and exact to the token.
const MOST: f64 = 1e12;

/// What it costs to be over the bound: more than any load that is not, and still exact to the token.
const OVER: f64 = 1e14;

#[inline]
fn sane(x: f64) -> f64 {
    match (0.0..=MOST).contains(&x) {
        true => x,
        false if x > MOST => MOST,
        false => 0.0,
    }
}

/// To the nearest whole number as [`f64::round`] has it, which is a call in wasm.
#[inline]
fn rounded(x: f64) -> i64 {
    let whole = x.trunc();
    let rest = x - whole;
    whole as i64 + i64::from(rest >= 0.5) - i64::from(rest <= -0.5)
}

/// More requests than this on a replica are over the bound.
fn bound(policy: &Policy, candidates: &[Candidate]) -> f64 {
    if policy.bound <= 0.0 {
        return f64::INFINITY;
    }
    let all: f64 = candidates.iter().map(requests).sum();
    1.0 + policy.bound * all / candidates.len().max(1) as f64
}

fn requests(c: &Candidate) -> f64 {
    sane(c.requests) + sane(c.waiting)
}

/// The cost of the load that stays when prompts are computed: of the context, of the requests, of those that wait.
fn staying(policy: &Policy, c: &Candidate) -> [f64; 3] {
    [(policy.context, c.context), (policy.request, c.requests), (policy.waiting, c.waiting)]
        .map(|(weight, tokens)| sane(weight * sane(tokens)))
}

/// Of `matched` tokens, what those are not worth that are not known to be on the accelerator.
fn less(policy: &Policy, c: &Candidate, matched: f64) -> f64 {
    // Most often all are.
    if [c.predicted, c.cpu, c.disk, c.unconfirmed] == [0.0; 4] {
        return 0.0;
    }
    let predicted = sane(c.predicted).min(matched);
    let cpu = sane(c.cpu).min(matched - predicted);
    let disk = sane(c.disk).min(matched - predicted - cpu);
    let unconfirmed = sane(c.unconfirmed).min(matched - predicted - cpu - disk);
    sane(
        predicted * (1.0 - policy.predicted)
            + cpu * (1.0 - policy.cpu_tier)
            + disk * (1.0 - policy.disk_tier)
            + unconfirmed * (1.0 - policy.unconfirmed),
    )
}

/// The cost of being home to more conversations than the `mean` of all.
fn crowding(policy: &Policy, mean: f64, c: &Candidate) -> f64 {
    let more = sane(c.homes - mean);
    if more == 0.0 {
        return 0.0;
    }
    let excess = more / (mean + 4.0);
    (sane(policy.crowding) * excess * excess).min(sane(policy.crowding_max))
}

fn score(policy: &Policy, request: &Request, bound: f64, at: usize, c: &Candidate) -> Scored {
    let tokens = sane(request.tokens);
    let matched = sane(c.matched).min(tokens);
    let trust = match c.trust {
        Trust::Exact => 1.0,
        Trust::CatchingUp => sane(policy.catching_up),
        Trust::Stale => sane(policy.stale),
        Trust::NoEvents => sane(policy.no_events),
    };
    let credit = (sane(matched - less(policy, c, matched)) * trust).min(tokens);
    let crowding = crowding(policy, sane(request.mean_homes), c);
    let [context, requests_there, waiting] = staying(policy, c);
    let load = sane(policy.queue * sane(c.prefill))
        + context
        + requests_there
        + waiting
        + crowding
        + if bound < f64::INFINITY && requests(c) > bound { OVER } else { 0.0 };
    let session = if c.session { 0.0 } else { sane(policy.session) };
    let loading = if c.loading { sane(policy.adapter) } else { 0.0 };
    let wanted = sane(policy.copy * sane(c.wanted)).min(tokens - credit);
    let cost = tokens - credit - wanted + load + session + loading;
    let (whole, lot, rested) = (rounded(cost), lot(request.seed, at), sane(c.rested));
    Scored { candidate: at, cost, credit, wanted, crowding, whole, load, lot, rested }
}

/// The best `1 + next` candidates, best first. Of those that are as good as the cheapest it is the turn of the one that
/// rested longest; after it they come by cost, and equal to the token the least loaded first, then by chance.
pub fn rank(policy: &Policy, request: &Request, candidates: &[Candidate], next: usize) -> Vec<Scored> {
    let bound = bound(policy, candidates);
    let scored = candidates.iter().enumerate().map(|(at, c)| score(policy, request, bound, at, c));
    let mut scored: Vec<Scored> = scored.collect();
    if policy.temperature > 0.0 {
        // Drawing by exp(-cost / T) without a sum: the least of cost - T * Gumbel noise.
        for s in &mut scored {
            let uniform = ((s.lot >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
            (s.whole, s.load) = (0, s.cost + sane(policy.temperature) * (-uniform.ln()).ln());
        }
    } else if let Some(turn) = turn(&scored, alike(policy, request)).and_then(|turn| scored.get_mut(turn)) {
        turn.whole = i64::MIN;
    }
    first(&scored, next.saturating_add(1))
}

/// Tokens of load by which one replica may be above another without its being worth a copy of anything.
const SMALL: f64 = 1000.0;

/// Who would have been the better place for the request that goes to `best`, but for what it lacks of the prompt, and
/// by how many tokens: the difference of the loads that stay (prompts that wait are soon computed), less a small one.
pub(super) fn missed(policy: &Policy, candidates: &[Candidate], best: usize) -> Option<(usize, f64)> {
    let stays = |c: &Candidate| staying(policy, c).iter().sum::<f64>();
    let picked = candidates.get(best)?;
    let lacks = candidates.iter().enumerate().filter(|(_, c)| sane(c.matched) < sane(picked.matched));
    let (at, least) = lacks.map(|(at, c)| (at, stays(c))).min_by(|a, b| a.1.total_cmp(&b.1))?;
    let gain = stays(picked) - least - SMALL;
    (gain > 0.0 && policy.copy > 0.0).then_some((at, gain))
}

/// Costs as close as this are alike.
fn alike(policy: &Policy, request: &Request) -> f64 {
    sane(policy.alike).min(sane(request.tokens) / 16.0)
}

/// Whose turn it is: of those that cost by no more than `alike` more than the cheapest and hold as much of the prompt,
/// and are home to as many, the one that rested longest. Cache is not given up for it.
fn turn(scored: &[Scored], alike: f64) -> Option<usize> {
    let cheapest = scored.iter().min_by(in_order)?;
    // In steps, so that a home more or less decides nothing.
    let crowding = |s: &Scored| (s.crowding / 32.0).floor();
    let (most, least) = (cheapest.cost + alike, crowding(cheapest));
    let near = |s: &&Scored| s.cost <= most && s.credit >= cheapest.credit && crowding(s) <= least;
    let longest = |a: &&Scored, b: &&Scored| b.rested.total_cmp(&a.rested).then_with(|| in_order(a, b));
    scored.iter().filter(near).min_by(longest).map(|s| s.candidate)
}

fn in_order(a: &&Scored, b: &&Scored) -> Ordering {
    a.whole.cmp(&b.whole).then_with(|| a.load.total_cmp(&b.load)).then_with(|| a.lot.cmp(&b.lot))
}

/// The first `count` of them, in order: few of many, so nothing is sorted that will not be named.
fn first(scored: &[Scored], count: usize) -> Vec<Scored> {
    let mut first: Vec<Scored> = Vec::with_capacity(count.min(scored.len()));
    for s in scored {
        let before = |other: &Scored| in_order(&other, &s).is_le();
        if first.len() >= count && first.last().is_some_and(before) {
            continue;
        }
        first.truncate(count.saturating_sub(1));
        first.insert(first.partition_point(before), *s);
    }
    first
}

fn lot(seed: u64, at: usize) -> u64 {
    let mut x = seed.wrapping_add((at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
