//! Every reason for no key that a VM comes to is counted under its label, and the request goes on.

use std::rc::Rc;

use serde_json::{Value, json};

use super::tests::{MODEL, config, packs, submit};
use super::*;
use crate::blocks::BlockHash;
use crate::feed::slots::fake::Memory;
use crate::filter::fake::Fake;

/// Reached by other tests: what `router_http.rs` decides before there is a job (tests/e2e), what no tokenizer of a pack
/// does (tests/rendering has one that does), and what needs a feed (tests of `replicas`).
const ELSEWHERE: [NoKey; 4] = [NoKey::NotOurPath, NoKey::BodyTooLarge, NoKey::TokenizerError, NoKey::NoReplica];

struct Gateway {
    vm: Router,
    host: Fake,
    setup: Rc<Setup>,
    seen: Vec<NoKey>,
}

impl Gateway {
    fn new(packs: &[Pack], more: Value) -> Gateway {
        let host = Fake::new(&Rc::new(Memory::default()));
        let mut vm = Router::new(1, config(packs, more), packs, 1).unwrap();
        vm.on_request(&host);
        let setup = vm.setups.newest().clone();
        Gateway { vm, host, setup, seen: Vec::new() }
    }

    /// Sends a body of which `reason` must become.
    fn send(&mut self, body: &Value, reason: NoKey) {
        self.host.stream.set(9);
        let body = body.to_string().into_bytes();
        let submitted = self.vm.submit(9, self.setup.clone(), Api::ChatCompletions, body, self.host.now(), &self.host);
        assert_eq!(submitted, Submitted::Pass, "{reason}");
        self.counted(reason);
    }

    fn counted(&mut self, reason: NoKey) {
        assert_eq!(self.host.counter(Counter::Requests(Outcome::NoKey(reason))), 1, "{reason}");
        assert_eq!(self.host.counter(Counter::Requests(Outcome::Routed)), 0, "{reason}");
        assert_eq!(self.host.header(9, "x-kvroute-replica"), None, "{reason}");
        self.seen.push(reason);
    }
}

fn chat(content: Value) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": content}]})
}

#[test]
fn every_reason_is_reached_and_counted() {
    let packs = packs("reasons");
    let long = || chat("ab".repeat(100).into());
    let mut seen = Vec::from(ELSEWHERE);
    let mut with = |more: Value, run: &dyn Fn(&mut Gateway)| {
        let mut gateway = Gateway::new(&packs, more);
        run(&mut gateway);
        seen.extend(gateway.seen);
    };
    with(json!({}), &|gateway| {
        gateway.send(&json!([]), NoKey::BadRequest);
        gateway.send(&chat("\u{0}".into()), NoKey::TooShort);
        gateway.send(&json!({"model": "other", "messages": []}), NoKey::UnknownModel);
        let mut own = long();
        // The length of this model is not known.
        own["truncate_prompt_tokens"] = json!(-1);
        gateway.send(&own, NoKey::Unsupported);
        let submitted = gateway.vm.submit(
            9,
            gateway.setup.clone(),
            Api::ChatCompletions,
            b"{".to_vec(),
            gateway.host.now(),
            &gateway.host,
        );
        assert_eq!(submitted, Submitted::Pass);
        gateway.counted(NoKey::NotJson);
    });
    let model = |more: Value| {
        let mut model = json!({"name": MODEL, "pack": packs[0].name(), "block_size": 4});
        model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"models": [model]})
    };
    with(model(json!({"enabled": false})), &|gateway| gateway.send(&long(), NoKey::ModelOff));
    with(model(json!({"rollout_percent": 0})), &|gateway| gateway.send(&long(), NoKey::HeldOut));
    let raises = json!({"engine": {"chat_template": "{{ raise_exception('no') }}"}});
    with(model(raises), &|gateway| gateway.send(&long(), NoKey::TemplateError));
    with(json!({}), &|gateway| {
        gateway.host.refuses_headers.set(true);
        gateway.send(&long(), NoKey::HostError);
    });
    with(json!({"limits": {"max_jobs": 1}}), &|gateway| {
        gateway.host.step.set(10_000_000);
        assert_eq!(submit(&mut gateway.vm, &gateway.host, 8, &gateway.setup, &"ab".repeat(40_000)), Submitted::Held);
        let reason = gateway.vm.admit(&gateway.setup, 100, &gateway.host).unwrap_err();
        gateway.vm.pass(9, &gateway.setup, &reason, &gateway.host);
        gateway.counted(NoKey::Busy);
    });
    with(json!({"limits": {"time_budget_ms": 1}}), &|gateway| {
        gateway.host.step.set(10_000_000);
        assert_eq!(submit(&mut gateway.vm, &gateway.host, 9, &gateway.setup, &"ab".repeat(40_000)), Submitted::Held);
        gateway.vm.turn(Cause::Tick, &gateway.host);
        gateway.counted(NoKey::TimeBudget);
    });
    with(json!({"bridge": {"cluster": "b"}, "replicas": []}), &|gateway| {
        gateway.host.pass(2 * FIRST_SYNC);
        gateway.send(&long(), NoKey::NoFeed);
    });
    with(json!({}), &|gateway| {
        // A state that does not come up.
        gateway.host.step.set(10_000_000);
        assert_eq!(submit(&mut gateway.vm, &gateway.host, 9, &gateway.setup, &"ab".repeat(40_000)), Submitted::Held);
        let held = gateway.vm.held.front_mut().unwrap();
        (held.job.model, held.job.hashes) = (None, vec![BlockHash(1)]);
        gateway.host.pass(SECOND);
        gateway.vm.turn(Cause::Tick, &gateway.host);
        gateway.counted(NoKey::Internal);
    });
    let missing: Vec<&str> = NoKey::ALL.iter().filter(|one| !seen.contains(one)).map(|one| one.label()).collect();
    assert_eq!(missing, [""; 0]);
}
