use std::rc::Rc;

use serde_json::{Value, json};

use crate::feed::slots::fake::Memory;
use crate::filter::fake::Fake;
use crate::filter::host::Host;
use crate::filter::metrics::{Counter, Outcome};
use crate::filter::models::Setup;
use crate::filter::router::tests::{MODEL, config, packs, submit};
use crate::filter::router::{Cause, Router, Submitted};
use crate::nokey::NoKey;
use crate::request::Api;

const TEXT: &str = "abababababababababababababababab";

fn vm(name: &str, model: Value) -> (Router, Rc<Setup>, Fake) {
    let packs = packs(name);
    let mut all = json!({"name": MODEL, "pack": packs[0].name(), "block_size": 4});
    all.as_object_mut().unwrap().extend(model.as_object().unwrap().clone());
    let more = json!({"models": [all], "selection": {"outcome_header": "x-outcome"}, "receipts": {"filter_state": true},
        "replicas": [{"address": "10.0.0.1:1", "model": MODEL}, {"address": "10.0.0.2:2", "model": MODEL}]});
    let vm = Router::new(1, config(&packs, more), &packs, 1).unwrap();
    let setup = vm.setups.newest().clone();
    (vm, setup, Fake::new(&Rc::new(Memory::default())))
}

#[test]
fn a_shadow_is_decided_and_counted_and_leaves_nothing_behind() {
    let (mut vm, setup, host) = vm("shadow", json!({"shadow": true}));
    assert_eq!(submit(&mut vm, &host, 1, &setup, TEXT), Submitted::Pass);
    assert!(host.headers.borrow().is_empty(), "{:?}", host.headers.borrow());
    let count = |counter| host.counter(counter);
    assert_eq!((count(Counter::Requests(Outcome::Shadow)), count(Counter::Requests(Outcome::Routed))), (1, 0));
    assert!(count(Counter::ShadowPromptTokens) > 8);
    assert_eq!((count(Counter::PromptTokens), count(Counter::MatchedTokens)), (0, 0));
    let stats = vm.fleet.stats(crate::clock::Time(host.now.get()));
    assert_eq!((stats.bookings, stats.predicted_blocks), (0, 0));
    assert!(stats.replicas.iter().all(|r| r.own.requests == 0), "{stats:?}");
    let pick = host.state(1, "kvroute.replica").unwrap();
    assert_eq!(host.state(1, "kvroute.outcome").unwrap(), "shadow");
    let outcome = vm.accounts.outcome(1).unwrap();
    assert!(outcome.starts_with("shadow; matched=0; ") && outcome.ends_with(&format!("to={pick}")), "{outcome}");
    vm.response(1, 200, &pick, false, &host);
    assert_eq!(count(Counter::ShadowSame), 1);
    // Its answer counts once, and only for the one that was picked.
    vm.response(1, 200, &pick, false, &host);
    vm.ended(1, &host);
    submit(&mut vm, &host, 2, &setup, TEXT);
    vm.response(2, 200, "10.0.0.9:9", false, &host);
    vm.ended(2, &host);
    submit(&mut vm, &host, 3, &setup, TEXT);
    vm.ended(3, &host);
    vm.response(3, 200, &pick, false, &host);
    assert_eq!((count(Counter::ShadowSame), count(Counter::ShadowFoundTokens)), (1, 0));
    assert_eq!(vm.jobs().0, 0);
}

#[test]
fn what_is_cached_where_is_counted_for_the_pick_and_for_envoys_choice() {
    let (mut vm, steered, host) = vm("shadow-found", json!({}));
    let long = "ab".repeat(4_000);
    // Without a feed what was sent to a replica is taken for held.
    submit(&mut vm, &host, 1, &steered, &long);
    while vm.jobs().0 > 0 {
        vm.turn(Cause::Tick, &host);
    }
    let holder = host.state(1, "kvroute.replica").unwrap();
    let other = if holder.ends_with(":1") { "10.0.0.2:2" } else { "10.0.0.1:1" };
    vm.response(1, 200, &holder, false, &host);
    vm.ended(1, &host);
    let packs = packs("shadow-found");
    let mut more = serde_json::to_value(json!({"models": [{"name": MODEL, "pack": packs[0].name(), "block_size": 4,
        "shadow": true}]}))
    .unwrap();
    more["replicas"] = json!([{"address": "10.0.0.1:1", "model": MODEL}, {"address": "10.0.0.2:2", "model": MODEL}]);
    let shadow = vm.configure(2, config(&packs, more), &packs).unwrap();
    let count = |counter| host.counter(counter);
    submit(&mut vm, &host, 2, &shadow, &long);
    vm.response(2, 200, &holder, false, &host);
    let matched = count(Counter::ShadowMatchedTokens);
    assert!(matched > 3_000, "{matched}");
    assert_eq!((count(Counter::ShadowFoundTokens), count(Counter::ShadowSame)), (matched, 1));
    submit(&mut vm, &host, 3, &shadow, &long);
    vm.response(3, 200, other, false, &host);
    assert_eq!(count(Counter::ShadowMatchedTokens), 2 * matched);
    assert_eq!((count(Counter::ShadowFoundTokens), count(Counter::ShadowSame)), (matched, 1));
}

#[test]
fn a_roll_out_takes_whole_conversations_and_grows() {
    let packs = packs("rollout");
    let setup = |percent: f64, vm: &mut Option<Router>| {
        let more =
            json!({"models": [{"name": MODEL, "pack": packs[0].name(), "block_size": 4, "rollout_percent": percent}]});
        let config = config(&packs, more);
        match vm {
            Some(vm) => vm.configure(1, config, &packs).unwrap(),
            None => vm.insert(Router::new(1, config, &packs, 1).unwrap()).setups.newest().clone(),
        }
    };
    let host = Fake::new(&Rc::new(Memory::default()));
    let (mut vm, mut before) = (None, vec![false; 200]);
    for percent in [0.0, 5.0, 40.0, 100.0] {
        let setup = setup(percent, &mut vm);
        let vm = vm.as_mut().unwrap();
        let mut routed = Vec::new();
        for conversation in 0..200 {
            let mut messages = vec![json!({"role": "user", "content": format!("{TEXT}{conversation}")})];
            let mut turn = |messages: &[Value]| {
                let body = json!({"model": MODEL, "messages": messages}).to_string().into_bytes();
                host.stream.set(1);
                assert_eq!(vm.submit(1, setup.clone(), Api::ChatCompletions, body, host.now(), &host), Submitted::Pass);
                let steered = host.headers.borrow_mut().remove(&(1, "x-kvroute-replica".to_owned())).is_some();
                vm.ended(1, &host);
                steered
            };
            let first = turn(&messages);
            messages.push(json!({"role": "assistant", "content": "ab"}));
            messages.push(json!({"role": "user", "content": "ba"}));
            assert_eq!(turn(&messages), first, "{percent} % of conversation {conversation}");
            routed.push(first);
        }
        assert!(before.iter().zip(&routed).all(|(before, now)| now | !before), "whoever was in stays in");
        let share = routed.iter().filter(|r| **r).count() as f64 / 2.0;
        assert!((share - percent).abs() <= 10.0 && (percent > 0.0 || share == 0.0), "{share} % of {percent} %");
        before = routed;
    }
    let held_out = host.counter(Counter::Requests(Outcome::NoKey(NoKey::HeldOut)));
    let routed = host.counter(Counter::Requests(Outcome::Routed));
    assert_eq!(held_out + routed, 4 * 400);
}
