//! Data-parallel ranks: caches of their own behind one address.

use std::collections::BTreeSet;

use crate::harness::{Answer, Conversation, Gateway, Setup, client, words};

const RANK: &str = "x-data-parallel-rank";

/// The rank that the replica which answered last was told, if it was.
fn told(gateway: &Gateway, answer: &Answer) -> Option<String> {
    let seen = gateway.replica(gateway.index_of(&answer.replica)).faults().requests();
    let headers = &seen.last().unwrap().routing_headers;
    headers.iter().find(|(name, _)| name == RANK).map(|(_, value)| value.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_stay_with_their_rank() {
    let mut setup = Setup { replicas: 2, ..Setup::default() };
    setup.mock.ranks = 3;
    let gateway = Gateway::start(setup).await;
    let mut conversations: Vec<Conversation> =
        (0..24).map(|i| Conversation::with_system(&words(3000 + i, 200))).collect();
    let mut first = Vec::new();
    for (i, conversation) in conversations.iter_mut().enumerate() {
        let answer = gateway.turn(conversation, &words(i as u64, 60)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let rank = told(&gateway, &answer).expect("the rank is named");
        first.push((answer, rank));
    }
    gateway.settled().await;
    let homes: BTreeSet<_> = first.iter().map(|(answer, rank)| (&answer.replica, rank)).collect();
    assert!(homes.len() > 3, "more than the ranks of one replica: {homes:?}");
    for (i, conversation) in conversations.iter_mut().enumerate() {
        // Whatever the client says of it.
        conversation.messages.push(serde_json::json!({"role": "user", "content": words(900 + i as u64, 20)}));
        let headers = [(RANK, "7")];
        let answer = gateway.post_with(&client(), "/v1/chat/completions", conversation.body(), &headers).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let (before, rank) = &first[i];
        assert_eq!((&answer.replica, told(&gateway, &answer).as_ref()), (&before.replica, Some(rank)), "{i}");
        // It was the rank that has it: all of the first prompt but its last, partial block.
        assert!(answer.cached_tokens() + 16 > before.prompt_tokens(), "conversation {i}: {answer:?}");
    }
}
