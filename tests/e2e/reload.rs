//! The configuration changes while requests flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::json;

use crate::harness::{Answer, Conversation, Gateway, Setup, client, words};

const CONVERSATIONS: u64 = 24;

/// What updates change: weights by which the cache always wins over load, so that every later turn has to hit.
fn policy(candidates: u64) -> serde_json::Value {
    json!({"queue": 0, "context": 0, "request": 0, "waiting": 0, "crowding": 0, "candidates": candidates})
}

#[tokio::test(flavor = "multi_thread")]
async fn under_200_requests_a_second_none_fails_and_nothing_is_forgotten() {
    let mut setup = Setup::default();
    setup.bootstrap.dynamic = true;
    // Until then Envoy closes connections of a listener that was replaced, at any moment: one that is just being used for
    // the next request, too.
    setup.bootstrap.drain_time_s = 86_400;
    setup.bootstrap.router["policy"] = policy(3);
    setup.mock.output_tokens = 2;
    let mut gateway = Gateway::start(setup).await;
    let mut bodies = Vec::new();
    for seed in 0..CONVERSATIONS {
        let mut conversation = Conversation::with_system(&words(seed, 150));
        let first = gateway.turn(&mut conversation, "one").await;
        conversation.messages.push(json!({"role": "user", "content": "two"}));
        bodies.push((conversation.body(), first.replica));
    }
    gateway.settled().await;
    let before: u64 = gateway.states().await.values().map(|state| state.index.blocks).sum();

    let stop = Arc::new(AtomicBool::new(false));
    let load = {
        let (stop, url, clients) = (stop.clone(), gateway.url("/v1/chat/completions"), [client(), client()]);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            let mut running = Vec::new();
            while !stop.load(Relaxed) {
                ticks.tick().await;
                let (body, home) = bodies[running.len() % bodies.len()].clone();
                let request = clients[running.len() % 2].post(&url).body(body);
                running.push(tokio::spawn(async move {
                    let answer = Answer::read(request.send().await.expect("the connection holds")).await;
                    (answer, home)
                }));
            }
            running
        })
    };
    let counted = |gateway: &Gateway| gateway.envoy.stat("http.public.downstream_rq_2xx").unwrap();
    // Between any two updates some hundred requests pass.
    for update in 0..6 {
        let at = counted(&gateway);
        crate::harness::eventually("requests flow", async || (counted(&gateway) >= at + 150).then_some(())).await;
        tokio::task::block_in_place(|| {
            gateway.envoy.update(|bootstrap| match update % 2 {
                // By ECDS: another root context in the same VM.
                0 => bootstrap.router["policy"] = policy(update % 3),
                // By LDS: another listener in the place of this one.
                _ => bootstrap.buffer_limit = Some((2 + update as u32) << 20),
            })
        })
        .unwrap();
    }
    let at = counted(&gateway);
    crate::harness::eventually("requests flow", async || (counted(&gateway) >= at + 150).then_some(())).await;
    stop.store(true, Relaxed);
    let running = load.await.unwrap();
    let sent = running.len();
    for request in running {
        let (answer, home) = request.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.outcome.starts_with("routed; ") && !answer.outcome.contains("matched=0;"), "{answer:?}");
        assert_eq!((answer.cached_tokens() > 100, answer.replica), (true, home), "{}", answer.outcome);
    }
    eprintln!("{sent} requests over 6 updates, all answered, all by the replica that has the conversation");
    assert_eq!(gateway.reloads(), 0);
    gateway.settled().await;
    let after: u64 = gateway.states().await.values().map(|state| state.index.blocks).sum();
    assert!(after >= before, "the index had {before} blocks and has {after}");
}
