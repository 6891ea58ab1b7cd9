//! Requests follow their KV cache.

use std::collections::BTreeMap;

use kvroute::look::Load;
use serde_json::json;

use crate::harness::{Conversation, Gateway, Setup, eventually, words};

#[tokio::test(flavor = "multi_thread")]
async fn second_turns_go_where_the_first_ones_went() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversations: Vec<Conversation> =
        (0..30).map(|i| Conversation::with_system(&words(1000 + i, 200))).collect();
    let mut first = Vec::new();
    for (i, conversation) in conversations.iter_mut().enumerate() {
        let answer = gateway.turn(conversation, &words(i as u64, 60)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        first.push(answer);
    }
    gateway.settled().await;
    let spread = count(first.iter().map(|a| &a.replica));
    assert_eq!(spread.len(), 3, "first turns: {spread:?}");
    for (i, conversation) in conversations.iter_mut().enumerate() {
        let answer = gateway.turn(conversation, &words(500 + i as u64, 30)).await;
        assert_eq!(
            answer.replica,
            first[i].replica,
            "conversation {i}: first {:?}, then {:?}, cached {}",
            first[i].outcome,
            answer.outcome,
            answer.cached_tokens()
        );
        // All of the first prompt but its last, partial block.
        assert!(answer.cached_tokens() + 16 > first[i].prompt_tokens(), "conversation {i}: {answer:?}");
    }
    eventually("what was booked is released in every worker", async || {
        let idle = |load: &Load| load.booked_requests == 0 && load.booked_prefill_tokens == 0;
        let states = gateway.states().await;
        let released = states.values().all(|s| s.jobs == 0 && s.replicas.iter().all(|r| idle(&r.load)));
        (!states.is_empty() && released).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_system_prompt_alone_sends_nobody_to_one_replica() {
    let gateway = Gateway::start(Setup::default()).await;
    let system = words(7, 2000);
    // Warm on one replica, known to all workers.
    let mut warm = Conversation::with_system(&system);
    assert_eq!(gateway.turn(&mut warm, "hello").await.status, 200);
    gateway.settled().await;
    let mut running = tokio::task::JoinSet::new();
    let gateway = std::sync::Arc::new(gateway);
    for i in 0..30 {
        let (gateway, mut conversation) = (gateway.clone(), Conversation::with_system(&system));
        running.spawn(async move { gateway.turn(&mut conversation, &words(i, 300)).await });
    }
    let answers = running.join_all().await;
    assert!(answers.iter().all(|a| a.status == 200));
    let spread = count(answers.iter().map(|a| &a.replica));
    assert!(spread.len() > 1, "all went to one replica: {spread:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn evicted_blocks_stop_attracting() {
    let mut setup = Setup::default();
    setup.mock.blocks = 200;
    let gateway = Gateway::start(setup).await;
    let mut conversation = Conversation::with_system(&words(1, 400));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    // Push it out of that replica's cache, past the gateway's back.
    for i in 0..8 {
        let mut other = Conversation::with_system(&words(100 + i, 500));
        other.messages.push(json!({"role": "user", "content": "x"}));
        gateway.behind(home, "/v1/chat/completions", other.body()).await;
    }
    gateway.settled().await;
    // What the picking worker predicted outlives the block by two seconds at most.
    eventually("nobody is believed to hold it", async || nobody_holds(&gateway, &conversation).await.then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_cache_stops_attracting() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 400));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    assert!(!nobody_holds(&gateway, &conversation).await);
    eventually("the cache is reset", async || gateway.replica(home).reset_cache().await.then_some(())).await;
    // As with the real engine the event comes with the next step that has output.
    gateway.nudge(home).await;
    gateway.settled().await;
    // What the picking worker predicted outlives the block by two seconds at most.
    eventually("nobody is believed to hold it", async || nobody_holds(&gateway, &conversation).await.then_some(()))
        .await;
}

async fn nobody_holds(gateway: &Gateway, conversation: &Conversation) -> bool {
    let matched = gateway.matched(conversation).await;
    matched.values().all(|replicas| replicas.values().all(|matched| *matched == 0))
}

fn count<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    names.for_each(|name| *counts.entry(name.as_str()).or_default() += 1);
    counts
}
