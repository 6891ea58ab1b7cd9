use proptest::prelude::*;

use super::cost::missed;
use super::*;
use crate::feed::record::Trust;

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..50_000.0f64, 1 => any::<f64>(), 1 => Just(0.0)]
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let trust = prop_oneof![Just(Trust::Exact), Just(Trust::CatchingUp), Just(Trust::Stale), Just(Trust::NoEvents)];
    let matched = (number(), number(), number(), number(), number());
    let load = (number(), number(), number(), number(), number(), number(), number());
    (matched, load, trust, any::<[bool; 2]>()).prop_map(|(m, l, trust, [session, loading])| Candidate {
        matched: m.0,
        cpu: m.1,
        disk: m.2,
        predicted: m.3,
        unconfirmed: m.4,
        prefill: l.0,
        context: l.1,
        requests: l.2,
        waiting: l.3,
        homes: l.4,
        rested: l.5,
        wanted: l.6,
        trust,
        session,
        loading,
    })
}

fn place(ranking: &[Scored], candidate: usize) -> usize {
    ranking.iter().position(|s| s.candidate == candidate).unwrap()
}

proptest! {
    #[test]
    fn costs_are_finite_and_the_ranking_depends_on_the_input_only(
        candidates in prop::collection::vec(candidate(), 1..20), tokens in number(), mean in number(), seed in any::<u64>(),
    ) {
        let request = Request { tokens, mean_homes: mean, seed };
        let ranking = rank(&Policy::default(), &request, &candidates, 99);
        prop_assert_eq!(ranking.len(), candidates.len());
        prop_assert!(ranking.iter().all(|s| s.cost.is_finite() && s.credit.is_finite()));
        prop_assert_eq!(&ranking, &rank(&Policy::default(), &request, &candidates, 99));
        // Asking for fewer gives the first of them.
        let few = rank(&Policy::default(), &request, &candidates, 2);
        prop_assert_eq!(&few[..], &ranking[..few.len()]);
    }

    #[test]
    fn more_load_never_raises_and_more_matched_never_lowers(
        candidates in prop::collection::vec(candidate(), 2..10), tokens in 0.0..50_000.0f64, mean in 0.0..100.0f64,
        seed in any::<u64>(), which in any::<prop::sample::Index>(), more in 0.0..10_000.0f64, what in 0..5usize,
        bound in prop_oneof![Just(0.0), 1.0..4.0f64],
    ) {
        let policy = Policy { bound, ..Policy::default() };
        let request = Request { tokens, mean_homes: mean, seed };
        let which = which.index(candidates.len());
        let finite = |x: f64| if x.is_finite() && x > 0.0 { x.min(1e9) } else { 0.0 };
        let mut candidates = candidates;
        for c in &mut candidates {
            c.rested = finite(c.rested).round();
            c.wanted = finite(c.wanted);
            for x in [&mut c.matched, &mut c.prefill, &mut c.context, &mut c.requests, &mut c.waiting, &mut c.homes] {
                *x = finite(*x);
            }
        }
        let before = place(&rank(&policy, &request, &candidates, 99), which);
        let mut loaded = candidates.clone();
        let c = &mut loaded[which];
        *[&mut c.prefill, &mut c.context, &mut c.requests, &mut c.waiting, &mut c.homes][what] += more;
        prop_assert!(place(&rank(&policy, &request, &loaded, 99), which) >= before);
        let mut matched = candidates.clone();
        matched[which].matched += more;
        prop_assert!(place(&rank(&policy, &request, &matched, 99), which) <= before);
    }
}

#[test]
fn ties_go_to_the_least_loaded_then_by_lot() {
    let policy = Policy::default();
    let mut first = [0; 4];
    for seed in 0..4000 {
        let request = Request { tokens: 100.0, seed, ..Request::default() };
        first[rank(&policy, &request, &[Candidate::default(); 4], 0)[0].candidate] += 1;
    }
    assert!(first.iter().all(|n| (850..1150).contains(n)), "{first:?}");
    // The same cost to the token, by other ways: the one that has less to do.
    let busy = Candidate { matched: 16.0, requests: 1.0, trust: Trust::Exact, ..Candidate::default() };
    let idle = Candidate { trust: Trust::Exact, ..Candidate::default() };
    for seed in 0..100 {
        let request = Request { tokens: 100.0, seed, ..Request::default() };
        assert_eq!(rank(&policy, &request, &[busy, idle], 1)[0].candidate, 1);
    }
}

#[test]
fn those_that_are_alike_are_taken_in_turn() {
    let policy = Policy::default();
    let best =
        |tokens, all: &[Candidate]| rank(&policy, &Request { tokens, ..Request::default() }, all, 0)[0].candidate;
    let busy = |requests| Candidate { requests, rested: 2.0, trust: Trust::Exact, ..Candidate::default() };
    let idle = Candidate { rested: 1.0, ..busy(0.0) };
    assert_eq!(best(4000.0, &[idle, busy(6.0)]), 1);
    assert_eq!(best(4000.0, &[idle, busy(7.0)]), 0);
    assert_eq!(best(400.0, &[idle, busy(1.0)]), 0, "of a short prompt each token counts");
    assert_eq!(best(4000.0, &[Candidate { matched: 16.0, ..idle }, busy(0.0)]), 0, "cache is not given up for a turn");
}

#[test]
fn a_bound_spreads_what_is_hot_and_binds_nobody_when_all_are_over_it() {
    let hot = |requests| Candidate { matched: 90_000.0, requests, trust: Trust::Exact, ..Candidate::default() };
    let cold = Candidate { requests: 3.0, ..hot(0.0) };
    let cold = Candidate { matched: 0.0, ..cold };
    let request = Request { tokens: 100_000.0, ..Request::default() };
    let best = |policy: &Policy, all: &[Candidate]| rank(policy, &request, all, 0)[0].candidate;
    let bounded = Policy { bound: 1.25, ..Policy::default() };
    // The mean is 6 with 9 of them on one: 1 + 1.25 * 6 is the most.
    assert_eq!(best(&Policy::default(), &[cold, hot(9.0)]), 1);
    assert_eq!(best(&bounded, &[cold, hot(9.0)]), 0);
    assert_eq!(best(&bounded, &[cold, hot(6.0)]), 1);
    assert_eq!(best(&bounded, &[hot(9.0)]), 0);
    assert!(Policy { bound: 0.5, ..Policy::default() }.check().is_err_and(|(field, _)| field == "bound"));
}

#[test]
fn a_temperature_spreads_by_cost() {
    let policy = Policy { temperature: 1000.0, ..Policy::default() };
    let candidates = [
        Candidate { trust: Trust::Exact, matched: 1000.0, ..Candidate::default() },
        Candidate { trust: Trust::Exact, ..Candidate::default() },
    ];
    let wins = (0..10_000).filter(|seed| {
        let request = Request { tokens: 2000.0, seed: *seed, ..Request::default() };
        rank(&policy, &request, &candidates, 0)[0].candidate == 0
    });
    // e / (1 + e) = 0.731
    let share = wins.count() as f64 / 10_000.0;
    assert!((0.70..0.76).contains(&share), "{share}");
}

#[test]
fn the_last_block_is_never_cached() {
    // Measured on vLLM 0.32.
    for (tokens, block, cached) in [(32, 32, 0), (64, 32, 32), (352, 32, 320), (353, 32, 352), (0, 32, 0), (5, 0, 0)] {
        assert_eq!(last_token_cap(tokens, block), cached);
    }
}

#[test]
fn the_policy_is_read_strictly() {
    let policy: Policy = serde_json::from_str(r#"{"queue": 1, "candidates": 2}"#).unwrap();
    assert_eq!(policy, Policy { queue: 1.0, candidates: 2, ..Policy::default() });
    assert!(policy.check().is_ok());
    assert!(serde_json::from_str::<Policy>(r#"{"que": 1}"#).is_err());
    assert!(Policy { queue: -1.0, ..Policy::default() }.check().is_err_and(|(field, _)| field == "queue"));
    assert!(Policy { stale: 2.0, ..Policy::default() }.check().is_err_and(|(field, _)| field == "stale"));
    assert!(Policy { context: f64::NAN, ..Policy::default() }.check().is_err());
}

#[test]
fn an_adapter_that_is_ready_is_worth_as_much_as_its_weight_says() {
    let policy = Policy { alike: 0.0, ..Policy::default() };
    let request = Request { tokens: 2000.0, seed: 3, ..Request::default() };
    let ready = Candidate { trust: Trust::Exact, ..Candidate::default() };
    let loads = |matched| Candidate { loading: true, matched, ..ready };
    let first = |matched| rank(&policy, &request, &[loads(matched), ready], 0)[0].candidate;
    assert_eq!((first(policy.adapter - 16.0), first(policy.adapter + 16.0)), (1, 0));
    let ranking = rank(&policy, &request, &[loads(0.0), ready], 1);
    assert_eq!(ranking[1].cost - ranking[0].cost, policy.adapter);
}

#[test]
fn what_many_want_is_held_once_more_when_that_pays_for_them_together() {
    let (policy, tokens) = (Policy::default(), 6000.0);
    let exact = Candidate { trust: Trust::Exact, ..Candidate::default() };
    // One holds it and is busy, one came late.
    let busy = Candidate { matched: 5900.0, requests: 20.0, context: 120_000.0, ..exact };
    let request = Request { tokens, seed: 1, ..Request::default() };
    let first = |late: Candidate| rank(&policy, &request, &[busy, late], 0)[0];
    assert_eq!(first(exact).candidate, 0, "alone it does not pay");
    assert_eq!(missed(&policy, &[busy, exact], 0), Some((1, 20.0 * 32.0 + 120_000.0 * 0.008 - 1000.0)));
    assert_eq!(missed(&policy, &[busy, Candidate { matched: 5900.0, ..exact }], 0), None, "it lacks nothing");
    assert_eq!(missed(&policy, &[exact, busy], 1).map(|m| m.0), Some(0));
    assert_eq!(missed(&Policy { copy: 0.0, ..policy.clone() }, &[busy, exact], 0), None);
    let paid = first(Candidate { wanted: 5000.0, ..exact });
    assert_eq!((paid.candidate, paid.wanted), (1, 5000.0));
    assert_eq!(first(Candidate { wanted: 1e9, ..exact }).cost, 0.0, "no more than what it lacks");
}
