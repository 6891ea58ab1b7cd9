//! Who may choose the replica: the filter, not the client.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::harness::{Conversation, Gateway, Setup, client, words};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_cannot_choose_the_replica() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(3, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    let other = gateway.replica((home + 1) % 3).http_addr().to_string();
    let (name, encoded) = ("x-kvroute-replica", STANDARD.encode(&other));
    for headers in [
        vec![(name, encoded.as_str())],
        vec![("x-kvroute-fallback", other.as_str())],
        vec![("x-gateway-destination-endpoint", other.as_str())],
        vec![("x-data-parallel-rank", "1")],
        vec![("x-prefiller-host-port", other.as_str())],
    ] {
        conversation.messages.push(serde_json::json!({"role": "user", "content": "and now?"}));
        let answer = gateway.post_with(&client(), "/v1/chat/completions", conversation.body(), &headers).await;
        assert_eq!(answer.replica, first.replica, "{headers:?}");
        // What steers must not reach the replica as the client wrote it either.
        let seen = gateway.replica(home).faults().requests();
        let seen = &seen.last().unwrap().routing_headers;
        for (name, value) in &headers {
            assert!(!seen.iter().any(|(n, v)| n == name && v == value), "{name} came through: {seen:?}");
        }
    }
    // Nor where the filter gives no key: a short prompt goes by load, wherever the client points.
    let body = serde_json::json!({"model": crate::harness::MODEL, "messages": [{"role": "user", "content": "hi"}]});
    let mut chosen = std::collections::BTreeSet::new();
    for _ in 0..30 {
        let headers = [(name, encoded.as_str())];
        chosen.insert(
            gateway.post_with(&client(), "/v1/chat/completions", body.to_string().into(), &headers).await.replica,
        );
    }
    assert!(chosen.len() > 1, "30 requests without a key all went to {chosen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sick_best_replica_is_passed_over() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(4, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    gateway.replica(home).faults().set_health(503);
    crate::harness::eventually("Envoy sees that it is sick", async || {
        let healthy = gateway.envoy.stat("cluster.replicas.membership_healthy").unwrap();
        (healthy == 2).then_some(())
    })
    .await;
    let answer = gateway.turn(&mut conversation, "two").await;
    assert_eq!(answer.status, 200);
    assert_ne!(answer.replica, first.replica);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_best_replica_is_retried_on_the_next() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(5, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    gateway.replica(home).faults().fail(1, 503);
    let answer = gateway.turn(&mut conversation, "two").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_ne!(answer.replica, first.replica);
}
