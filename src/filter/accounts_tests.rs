use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use crate::feed::slots::fake::Memory;
use crate::filter::fake::Fake;
use crate::filter::metrics::Timing;
use crate::filter::models::Setup;
use crate::filter::router::Router;
use crate::filter::router::tests::{config, packs, submit};

fn vm(name: &str, receipts: Value) -> (Router, Rc<Setup>, Fake) {
    let packs = packs(name);
    let vm = Router::new(1, config(&packs, json!({"receipts": receipts})), &packs, 1).unwrap();
    let setup = vm.setups.newest().clone();
    (vm, setup, Fake::new(&Rc::new(Memory::default())))
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let (mut vm, setup, host) = vm("accounts-off", json!({}));
    vm.accounts.ask(1);
    submit(&mut vm, &host, 1, &setup, &"ab".repeat(100));
    submit(&mut vm, &host, 2, &setup, "a");
    assert!(host.states.borrow().is_empty());
    assert_eq!((vm.accounts.receipt(1), vm.accounts.outcome(1)), (None, None));
}

#[test]
fn a_receipt_is_there_until_its_stream_ends() {
    let (mut vm, setup, host) = vm("accounts-shown", json!({"explain": true}));
    for (stream, text) in [(1, "ab".repeat(100)), (2, "a".to_owned()), (3, "ab".repeat(100))] {
        if stream < 3 {
            vm.accounts.ask(stream);
        }
        submit(&mut vm, &host, stream, &setup, &text);
    }
    let receipt = |stream| vm.accounts.receipt(stream).map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (first, second) = (receipt(1).unwrap(), receipt(2).unwrap());
    assert_eq!((&first["pick"], &first["outcome"]), (&json!("10.0.0.1:1"), &json!("routed")));
    assert_eq!((&second["mode"], &second["outcome"]), (&json!("passed"), &json!("too_short")));
    assert_eq!(receipt(3), None);
    assert!(host.states.borrow().is_empty(), "it goes to whoever asked alone");
    vm.ended(1, &host);
    assert_eq!(vm.accounts.receipt(1), None);
    // The number of a stream may come again.
    submit(&mut vm, &host, 1, &setup, "a");
    assert_eq!(vm.accounts.receipt(1), None);
}

#[test]
fn the_times_are_those_of_the_steps() {
    let (mut vm, setup, host) = vm("accounts-times", json!({"explain": true}));
    host.step.set(1_000);
    vm.accounts.ask(1);
    submit(&mut vm, &host, 1, &setup, &"ab".repeat(100));
    let line: Value = serde_json::from_str(vm.accounts.receipt(1).unwrap()).unwrap();
    let us = |name: &str| line["us"][name].as_u64().unwrap();
    for step in ["parse", "render", "tokenize", "match", "choose"] {
        assert!(us(step) > 0, "{step}: {line}");
    }
    assert!(us("held") > us("parse") + us("render") + us("tokenize") + us("match") + us("choose"), "{line}");
    // The histograms get the same.
    let times: BTreeMap<&str, u64> = host.times.borrow().iter().map(|(timing, us)| (timing.name(), *us)).collect();
    for step in ["parse", "render", "tokenize", "match", "choose", "held"] {
        assert_eq!(times.get(format!("kvroute_{step}_us").as_str()), Some(&us(step)), "{step}");
    }
}

#[test]
fn one_request_in_16_is_timed_and_has_no_receipt() {
    let (mut vm, setup, host) = vm("accounts-timed", json!({}));
    for stream in 1..=1_600 {
        submit(&mut vm, &host, stream, &setup, "abababababab");
        assert_eq!(vm.accounts.receipt(stream), None);
        vm.ended(stream, &host);
    }
    let held = host.times.borrow().iter().filter(|(timing, _)| *timing == Timing::Held).count();
    assert!((50..=150).contains(&held), "{held} of 1,600");
    assert!(host.states.borrow().is_empty());
}

#[test]
fn filter_state_says_what_was_decided() {
    let (mut vm, setup, host) = vm("accounts-state", json!({"filter_state": true}));
    submit(&mut vm, &host, 1, &setup, &"ab".repeat(100));
    submit(&mut vm, &host, 2, &setup, "a");
    let state = |stream, name: &str| host.state(stream, &format!("kvroute.{name}"));
    let text = |text: &str| Some(text.to_owned());
    assert_eq!((state(1, "outcome"), state(1, "model")), (text("routed"), text("m")));
    assert_eq!((state(1, "replica"), state(1, "reason")), (text("10.0.0.1:1"), text("only")));
    assert_eq!((state(1, "matched_tokens"), state(1, "held_us")), (text("0"), text("0")));
    assert!(state(1, "prompt_tokens").unwrap().parse::<u64>().unwrap() > 50);
    assert_eq!((state(1, "receipt"), state(2, "replica")), (None, None));
    assert_eq!(state(2, "outcome"), text("too_short"));
}

#[test]
fn the_sample_has_its_share_of_the_requests() {
    let (mut vm, setup, host) = vm("accounts-sample", json!({"sample": 0.25}));
    for stream in 1..=2_000 {
        submit(&mut vm, &host, stream, &setup, if stream % 2 == 0 { "a" } else { "abababababab" });
        vm.ended(stream, &host);
    }
    let states = host.states.borrow();
    assert!(states.keys().all(|(_, name)| name == "kvroute.receipt"));
    assert!((400..=600).contains(&states.len()), "{} of 2,000", states.len());
    let even = states.keys().filter(|(stream, _)| stream % 2 == 0).count();
    assert!((150..=350).contains(&even), "{even} of them without a key");
}
