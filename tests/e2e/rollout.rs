//! Bringing kvroute in step by step: shadow mode, and a share of the conversations.

use serde_json::json;

use crate::harness::{Conversation, Gateway, Setup, eventually, words};

fn setup(field: &str, value: serde_json::Value) -> Setup {
    let mut setup = Setup::default();
    setup.bootstrap.router["models"][0][field] = value;
    setup
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_says_what_it_would_gain_and_steers_nothing() {
    let gateway = Gateway::start(setup("shadow", json!(true))).await;
    let (mut conversations, mut prompt, mut cached, mut matched) = (Vec::new(), 0, 0, 0);
    for seed in 0..6 {
        conversations.push(Conversation::with_system(&words(seed, 200)));
    }
    for turn in 0..3 {
        for conversation in &mut conversations {
            let answer = gateway.turn(conversation, "and now?").await;
            assert_eq!(answer.status, 200);
            assert!(answer.outcome.starts_with("shadow; matched="), "{}", answer.outcome);
            let said = answer.outcome.split("matched=").nth(1).unwrap().split(';').next().unwrap();
            let said: u64 = said.parse().unwrap();
            assert_eq!(said > 150, turn > 0, "turn {turn}: {}", answer.outcome);
            (prompt, cached, matched) =
                (prompt + answer.prompt_tokens(), cached + answer.cached_tokens(), matched + said);
        }
        gateway.settled().await;
    }
    eventually("all are counted", async || (gateway.outcome("shadow") == 18).then_some(())).await;
    assert_eq!((gateway.outcome("routed"), gateway.counter("prompt_tokens")), (0, 0));
    eventually("the answers are counted", async || {
        let now = ["prompt", "matched", "found"].map(|name| gateway.counter(&format!("shadow_{name}_tokens")));
        // What Envoy chose had as much as its engine says.
        (now == [prompt, matched, cached]).then_some(())
    })
    .await;
    eprintln!("of {prompt} tokens {cached} were cached where Envoy sent them, {matched} would have been");
    assert!(matched >= cached, "{matched} of {cached}");
    for replica in gateway.replicas.iter().flatten() {
        for seen in replica.faults().requests() {
            assert!(seen.routing_headers.iter().all(|(name, _)| !name.starts_with("x-kvroute")), "{seen:?}");
        }
    }
    for (slot, state) in gateway.states().await {
        assert!(
            state.replicas.iter().all(|r| r.load.booked_requests == 0 && r.predicted_blocks == 0),
            "{slot}: {state:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_routes_whole_conversations() {
    let gateway = Gateway::start(setup("rollout_percent", json!(50))).await;
    let system = words(1, 200);
    let (mut in_it, mut out) = (0, 0);
    for number in 0..16 {
        let mut conversation = Conversation::with_system(&system);
        let first = gateway.turn(&mut conversation, &format!("question {number}")).await;
        let routed = first.outcome.starts_with("routed");
        assert!(routed || first.outcome == "held_out", "{}", first.outcome);
        for text in ["and now?", "and then?"] {
            // Whichever worker it comes to.
            conversation.messages.push(json!({"role": "user", "content": text}));
            let turn =
                gateway.post_with(&crate::harness::client(), "/v1/chat/completions", conversation.body(), &[]).await;
            assert_eq!((turn.status, turn.outcome.starts_with("routed")), (200, routed), "{}", turn.outcome);
        }
        (in_it, out) = (in_it + u32::from(routed), out + u32::from(!routed));
    }
    assert!(in_it >= 2 && out >= 2, "{in_it} in, {out} out");
}
