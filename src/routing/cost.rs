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
    load: f64,
    rested: f64,
    lot: u64,
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

fn sane(x: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, MOST) }
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

fn score(policy: &Policy, request: &Request, bound: f64, at: usize, c: &Candidate) -> Scored {
    let tokens = sane(request.tokens);
    let matched = sane(c.matched).min(tokens);
    let predicted = sane(c.predicted).min(matched);
    let cpu = sane(c.cpu).min(matched - predicted);
    let disk = sane(c.disk).min(matched - predicted - cpu);
    let unconfirmed = sane(c.unconfirmed).min(matched - predicted - cpu - disk);
    let trust = match c.trust {
        Trust::Exact => 1.0,
        Trust::CatchingUp => sane(policy.catching_up),
        Trust::Stale => sane(policy.stale),
        Trust::NoEvents => sane(policy.no_events),
    };
    let less = predicted * (1.0 - policy.predicted)
        + cpu * (1.0 - policy.cpu_tier)
        + disk * (1.0 - policy.disk_tier)
        + unconfirmed * (1.0 - policy.unconfirmed);
    let credit = (sane(matched - sane(less)) * trust).min(tokens);
    let mean = sane(request.mean_homes);
    let excess = sane(c.homes - mean) / (mean + 4.0);
    let crowding = (sane(policy.crowding) * excess * excess).min(sane(policy.crowding_max));
    let [context, requests_there, waiting] = staying(policy, c);
    let load = sane(policy.queue * sane(c.prefill))
        + context
        + requests_there
        + waiting
        + crowding
        + if requests(c) > bound { OVER } else { 0.0 };
    let session = if c.session { 0.0 } else { sane(policy.session) };
    let loading = if c.loading { sane(policy.adapter) } else { 0.0 };
    let wanted = sane(policy.copy * sane(c.wanted)).min(tokens - credit);
    let cost = tokens - credit - wanted + load + session + loading;
    Scored { candidate: at, cost, credit, wanted, crowding, load, rested: sane(c.rested), lot: lot(request.seed, at) }
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
            s.load = s.cost + sane(policy.temperature) * (-uniform.ln()).ln();
        }
        return best(scored, next, |s| (0, s.load));
    }
    let turn = turn(&scored, alike(policy, request));
    best(scored, next, |s| if Some(s.candidate) == turn { (i64::MIN, s.load) } else { by_cost(s) })
}

/// Tokens of load by which one replica may be above another without its being worth a copy of anything.
const SMALL: f64 = 1000.0;

/// Who would have been the better place for the request that goes to `best`, but for what it lacks of the prompt, and
/// by how many tokens: the difference of the loads that stay (prompts that wait are soon computed), less a small one.
pub fn missed(policy: &Policy, candidates: &[Candidate], best: usize) -> Option<(usize, f64)> {
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

fn by_cost(s: &Scored) -> (i64, f64) {
    (s.cost.round() as i64, s.load)
}

/// Whose turn it is: of those that cost by no more than `alike` more than the cheapest and hold as much of the prompt,
/// and are home to as many, the one that rested longest. Cache is not given up for it.
fn turn(scored: &[Scored], alike: f64) -> Option<usize> {
    let cheapest = scored.iter().min_by(|a, b| in_order(a, b, by_cost))?;
    // In steps, so that a home more or less decides nothing.
    let crowding = |s: &Scored| (s.crowding / 32.0).floor();
    let near = |s: &&Scored| {
        s.cost <= cheapest.cost + alike && s.credit >= cheapest.credit && crowding(s) <= crowding(cheapest)
    };
    let longest = |a: &&Scored, b: &&Scored| b.rested.total_cmp(&a.rested).then_with(|| in_order(a, b, by_cost));
    scored.iter().filter(near).min_by(longest).map(|s| s.candidate)
}

fn in_order(a: &Scored, b: &Scored, key: impl Fn(&Scored) -> (i64, f64)) -> Ordering {
    let (a_key, b_key) = (key(a), key(b));
    a_key.0.cmp(&b_key.0).then(a_key.1.total_cmp(&b_key.1)).then(a.lot.cmp(&b.lot))
}

fn best(mut scored: Vec<Scored>, next: usize, key: impl Fn(&Scored) -> (i64, f64)) -> Vec<Scored> {
    let order = |a: &Scored, b: &Scored| in_order(a, b, &key);
    if next + 1 < scored.len() {
        scored.select_nth_unstable_by(next, order);
        scored.truncate(next + 1);
    }
    scored.sort_unstable_by(order);
    scored
}

fn lot(seed: u64, at: usize) -> u64 {
    let mut x = seed.wrapping_add((at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
