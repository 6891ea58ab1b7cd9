use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::feed::slots::Shared;
use crate::feed::slots::fake::Memory;
use crate::filter::fake::Fake;
use crate::pack::tests::pack_named;
use crate::routing::Policy;

pub(in crate::filter) const MODEL: &str = "m";

pub(in crate::filter) fn packs(name: &str) -> Vec<Pack> {
    // The directory behind a pack is named after it: one a test.
    let pack = pack_named(&format!("router-{name}"));
    Pack::parse(pack).unwrap()
}

pub(in crate::filter) fn config(packs: &[Pack], more: Value) -> Config {
    let mut config = json!({"role": "router", "secret": "s",
        "models": [{"name": MODEL, "pack": packs[0].name(), "block_size": 4}],
        "replicas": [{"address": "10.0.0.1:1", "model": MODEL}]});
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    Config::from_value(&config).unwrap()
}

pub(in crate::filter) fn body(text: &str) -> Vec<u8> {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}]}).to_string().into_bytes()
}

pub(in crate::filter) fn submit(vm: &mut Router, host: &Fake, stream: u32, setup: &Rc<Setup>, text: &str) -> Submitted {
    host.stream.set(stream);
    let submitted = vm.submit(stream, setup.clone(), Api::ChatCompletions, body(text), host.now(), host);
    host.stream.set(0);
    submitted
}

#[test]
fn a_session_header_is_a_weak_preference() {
    let packs = packs("session");
    let shared = Rc::new(Memory::default());
    let host = Fake::new(&shared);
    let replicas: Vec<Value> = (1..=8).map(|n| json!({"address": format!("10.0.0.{n}:1"), "model": MODEL})).collect();
    let picks = |more: Value, session: &str| {
        let mut vm = Router::new(1, config(&packs, more), &packs, 7).unwrap();
        let setup = vm.setups.newest().clone();
        let mut picks: Vec<String> = Vec::new();
        for stream in 1..=6 {
            host.headers.borrow_mut().clear();
            host.headers.borrow_mut().insert((stream, "x-session".into()), session.into());
            assert_eq!(submit(&mut vm, &host, stream, &setup, &format!("{stream}abababab")), Submitted::Pass);
            picks.push(host.headers.borrow()[&(stream, "x-kvroute-replica".to_owned())].clone());
            vm.ended(stream, &host);
        }
        picks.dedup();
        picks
    };
    let with = |session: f64| {
        json!({"replicas": replicas, "policy": {"session": session},
        "selection": {"session_header": "x-session"}})
    };
    let one = picks(with(500.0), "one");
    assert_eq!(one.len(), 1, "{one:?}");
    assert_eq!(picks(with(500.0), "one"), one);
    assert!(["two", "three", "four", "five"].iter().any(|session| picks(with(500.0), session) != one));
    // Nobody looks at it.
    assert!(picks(with(0.0), "one").len() > 1);
    assert!(picks(json!({"replicas": replicas, "policy": {"session": 500.0}}), "one").len() > 1);
    assert!(picks(with(500.0), &"x".repeat(300)).len() > 1, "too long to be a session");
}

/// What Envoy does when something lies in the queue of a VM.
fn announced(vm: &mut Router, host: &Fake) {
    vm.link.announce(host);
    vm.turn(Cause::News, host);
}

#[test]
fn a_bounce_calls_a_vm_again_and_is_counted() {
    let packs = packs("bounce");
    let shared = Rc::new(Memory::default());
    let (here, there) = (Fake::new(&shared), Fake::new(&shared));
    let mut vms = [1, 3].map(|random| Router::new(1, config(&packs, json!({})), &packs, random).unwrap());
    let [one, two] = &mut vms;
    one.on_request(&here);
    two.on_request(&there);
    one.turn(Cause::Tick, &here);
    two.turn(Cause::Tick, &there);
    // A slice ends after a few of the steps in which the body is parsed and ids are hashed.
    here.step.set(100_000);
    let setup = one.setups.newest().clone();
    let body = json!({"model": MODEL, "prompt": vec![12_345; 600_000]}).to_string().into_bytes();
    assert_eq!(one.submit(7, setup, Api::Completions, body, here.now(), &here), Submitted::Held);
    here.pass(10 * MS); // the time away pays back the first slice
    one.turn(Cause::News, &here);
    assert_eq!((one.jobs().0, here.counter(Counter::Bounces)), (1, 0));
    announced(two, &there);
    announced(one, &here);
    assert_eq!(here.counter(Counter::Bounces), 1);
    // It goes on by itself, bounce by bounce and tick by tick, to the end.
    let mut rounds = 0;
    while one.jobs().0 > 0 {
        announced(two, &there);
        announced(one, &here);
        one.turn(Cause::Tick, &here);
        rounds += 1;
        assert!(rounds < 1_000);
    }
    assert_eq!(*here.resumed.borrow(), [7]);
    assert!(here.header(7, "x-kvroute-replica").is_some());
    assert!(rounds > 3 && here.counter(Counter::Bounces) > 3, "{rounds} rounds");
}

#[test]
fn with_one_worker_the_vm_without_a_slot_sends_back() {
    let packs = packs("alone");
    let shared = Rc::new(Memory::default());
    let (here, main) = (Fake::new(&shared), Fake::new(&shared));
    let mut worker = Router::new(1, config(&packs, json!({})), &packs, 1).unwrap();
    let mut idle = Router::new(1, config(&packs, json!({})), &packs, 3).unwrap();
    // The worker ticked before its first request and offered itself last: never to be used by itself.
    idle.turn(Cause::Tick, &main);
    worker.turn(Cause::Tick, &here);
    worker.on_request(&here);
    worker.turn(Cause::Tick, &here);
    assert!(!worker.link.can_bounce());
    for host in [&here, &main] {
        host.pass(SECOND);
    }
    idle.turn(Cause::Tick, &main);
    worker.turn(Cause::Tick, &here);
    assert!(worker.link.can_bounce());
    assert!(worker.link.bounce(&here, here.now()));
    idle.link.announce(&main);
    announced(&mut worker, &here);
    assert_eq!(here.counter(Counter::Bounces), 1);
    // The offer goes with the one who made it.
    here.pass(4 * SECOND);
    worker.turn(Cause::Tick, &here);
    assert!(!worker.link.can_bounce());
}

#[test]
fn a_queue_whose_announcements_go_nowhere_is_registered_again() {
    let packs = packs("queue");
    let shared = Rc::new(Memory::default());
    let host = Fake::new(&shared);
    let mut vm = Router::new(1, config(&packs, json!({})), &packs, 1).unwrap();
    vm.on_request(&host);
    let registered = || host.registered.borrow().iter().filter(|name| *name == "kvroute-feed-0").count();
    assert_eq!(registered(), 1);
    vm.turn(Cause::Tick, &host);
    assert_eq!(registered(), 1);
    // A root context comes and goes.
    vm.configure(2, config(&packs, json!({"policy": {"queue": 1.0}})), &packs).unwrap();
    vm.root_gone(2);
    assert_eq!(vm.setups.newest().config.policy.queue, Policy::default().queue);
    vm.turn(Cause::Tick, &host);
    assert_eq!(registered(), 2);
    // A message that nobody announced.
    let queue = shared.register_queue("kvroute-feed-0").unwrap();
    shared.enqueue(queue, b"KVT<");
    vm.turn(Cause::Tick, &host);
    assert_eq!((host.counter(Counter::QueueMissed), registered()), (1, 2));
    vm.turn(Cause::Tick, &host);
    assert_eq!(registered(), 3);
    // An announced one is none.
    shared.enqueue(queue, b"KVT<");
    announced(&mut vm, &host);
    vm.turn(Cause::Tick, &host);
    vm.turn(Cause::Tick, &host);
    assert_eq!((host.counter(Counter::QueueWakes), host.counter(Counter::QueueMissed), registered()), (1, 1, 3));
}

#[test]
fn the_wait_for_the_first_snapshot_ends_by_itself() {
    let packs = packs("sync");
    let host = Fake::new(&Rc::new(Memory::default()));
    let more = json!({"bridge": {"cluster": "b"}, "limits": {"time_budget_ms": 60_000}});
    let mut vm = Router::new(1, config(&packs, more), &packs, 1).unwrap();
    vm.on_request(&host);
    let setup = vm.setups.newest().clone();
    assert_eq!(submit(&mut vm, &host, 7, &setup, "abababababababababab"), Submitted::Held);
    host.pass(FIRST_SYNC >> 1);
    vm.turn(Cause::Tick, &host);
    assert!(host.resumed.borrow().is_empty());
    host.pass(FIRST_SYNC);
    vm.turn(Cause::Tick, &host);
    assert_eq!(*host.resumed.borrow(), [7]);
}

#[test]
fn each_listener_keeps_its_own_models_headers_weights_limits_and_replicas() {
    let packs = packs("roots");
    let host = Fake::new(&Rc::new(Memory::default()));
    let mut vm = Router::new(1, config(&packs, json!({})), &packs, 1).unwrap();
    let first = vm.setups.newest().clone();
    let more = json!({
        "models": [{"name": MODEL, "pack": packs[0].name(), "block_size": 4, "aliases": ["other"]}],
        "selection": {"header": "x-second"},
        "policy": {"candidates": 0},
        "limits": {"max_jobs": 1, "slice_ms": 2.0},
        "replicas": [{"address": "10.0.0.2:2", "model": MODEL}, {"address": "10.0.0.3:3", "model": MODEL}],
    });
    let second = vm.configure(2, config(&packs, more), &packs).unwrap();
    assert_eq!(vm.setups.disputed(), ["limits.slice_ms"]);
    let base64 = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let text = "ab".repeat(100);
    for stream in 1..20 {
        assert_eq!(submit(&mut vm, &host, stream, &first, &text), Submitted::Pass);
        assert_eq!(host.header(stream, "x-kvroute-replica"), Some(base64("10.0.0.1:1")));
        assert_eq!(host.header(stream, "x-kvroute-fallback"), None);
    }
    for stream in 20..40 {
        assert_eq!(submit(&mut vm, &host, stream, &second, &text), Submitted::Pass);
        let to = host.header(stream, "x-second").unwrap();
        assert!([base64("10.0.0.2:2"), base64("10.0.0.3:3")].contains(&to));
        assert_eq!(host.header(stream, "x-kvroute-fallback"), None, "its policy names no candidates");
    }
    assert!(first.config.model("other").is_none() && second.config.model("other").is_some());
    // Of what both share, the second one's bound of jobs stops only its own requests.
    host.step.set(10_000_000);
    assert_eq!(submit(&mut vm, &host, 50, &first, &"ab".repeat(40_000)), Submitted::Held);
    assert!(vm.admit(&first, 100, &host).is_ok());
    assert_eq!(vm.admit(&second, 100, &host).unwrap_err().kind, NoKey::Busy);
    // With its listener its replicas go.
    vm.root_gone(2);
    assert_eq!(vm.fleet.stats(host.now()).replicas.len(), 1);
    assert!(vm.setups.disputed().is_empty());
}

fn long_body() -> Vec<u8> {
    json!({"model": MODEL, "prompt": vec![12_345; 600_000]}).to_string().into_bytes()
}

#[test]
fn a_small_request_is_decided_at_once_while_a_long_one_is_worked_on() {
    let packs = packs("small");
    let host = Fake::new(&Rc::new(Memory::default()));
    let mut vm = Router::new(1, config(&packs, json!({})), &packs, 1).unwrap();
    let setup = vm.setups.newest().clone();
    host.step.set(20_000);
    let began = host.now();
    assert_eq!(vm.submit(7, setup.clone(), Api::Completions, long_body(), began, &host), Submitted::Held);
    // Whatever calls the VM before its loop has turned, the last slice is not for the long one.
    for _ in 0..5 {
        vm.turn(Cause::News, &host);
    }
    assert_eq!(submit(&mut vm, &host, 8, &setup, "abababababab"), Submitted::Pass);
    assert!(host.resumed.borrow().is_empty() && vm.jobs().0 == 1);
}

#[test]
fn small_requests_pass_long_ones_unless_those_have_waited_long() {
    let packs = packs("order");
    let first_after = |wait: u64| {
        let host = Fake::new(&Rc::new(Memory::default()));
        let more = json!({"limits": {"time_budget_ms": 60_000}});
        let mut vm = Router::new(1, config(&packs, more), &packs, 1).unwrap();
        let setup = vm.setups.newest().clone();
        // Nothing is done when they come.
        host.step.set(2 * MS);
        for stream in [7, 8] {
            let began = host.now();
            vm.submit(stream, setup.clone(), Api::Completions, long_body(), began, &host);
        }
        host.pass(wait);
        assert_eq!(submit(&mut vm, &host, 9, &setup, "abababababab"), Submitted::Held);
        host.step.set(20_000);
        while host.resumed.borrow().is_empty() {
            host.pass(5 * MS);
            vm.turn(Cause::Tick, &host);
        }
        host.resumed.borrow()[0]
    };
    assert_eq!(first_after(0), 9);
    assert_eq!(first_after(SECOND), 7);
}
