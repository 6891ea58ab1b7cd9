//! The feed into the workers.

use std::time::{Duration, Instant};

use kvroute::blocks::BlockHash;
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::{Epoch, FeedReplicaId};

use crate::harness::{BLOCK, Gateway, MODEL, Setup, client};

fn replica(gateway: &Gateway) -> Record {
    Record::Replica(ReplicaInfo {
        id: FeedReplicaId(1),
        address: gateway.replica(0).http_addr().to_string(),
        model: MODEL.into(),
        block_size: BLOCK,
        rank: 0,
        capacity_blocks: 0,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    })
}

fn stored(seq: u64, blocks: u64) -> Record {
    Record::Stored {
        replica: FeedReplicaId(1),
        tier: Tier::Gpu,
        parent: None,
        ends: vec![],
        hashes: (0..blocks).map(|i| BlockHash((seq << 32 | i).wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect(),
    }
}

async fn push(gateway: &Gateway, client: &reqwest::Client, batch: &Batch) -> reqwest::Response {
    client
        .post(format!("http://{}/kvroute/v1/feed", gateway.envoy.ingest()))
        .header("x-kvroute-secret", &gateway.envoy.bootstrap().secret)
        .body(batch.encode())
        .send()
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_batches_does_not_stop_requests() {
    let gateway = Gateway::start(Setup { bridge: false, concurrency: 1, ..Setup::default() }).await;
    let client = client();
    gateway.all_have_slots().await;
    let epoch = Epoch { term: 1, id: 42 };
    let alone = slowest_of(&gateway, 200).await;
    for seq in 1..=1000 {
        let mut records = vec![stored(seq, 500)];
        if seq == 1 {
            records.insert(0, replica(&gateway));
        }
        let answer = push(&gateway, &client, &Batch { header: BatchHeader { epoch, seq }, records }).await;
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    }
    let during = slowest_of(&gateway, 200).await;
    eprintln!("slowest of 200 requests: {alone:?} alone, {during:?} while 1,000 batches are applied");
    crate::harness::eventually("all 500,000 blocks are in the index", async || {
        (gateway.gauge("index_blocks") >= 500_000).then_some(())
    })
    .await;
    assert_eq!(gateway.reloads(), 0);
}

async fn slowest_of(gateway: &Gateway, requests: usize) -> Duration {
    let client = client();
    let mut slowest = Duration::ZERO;
    for _ in 0..requests {
        let start = Instant::now();
        assert_eq!(client.get(gateway.url("/v1/models")).send().await.unwrap().status(), 200);
        slowest = slowest.max(start.elapsed());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ingest_listener_refuses_what_is_not_the_bridge() {
    let gateway = Gateway::start(Setup { bridge: false, ..Setup::default() }).await;
    let client = client();
    let url = format!("http://{}/kvroute/v1/feed", gateway.envoy.ingest());
    let epoch = Epoch { term: 5, id: 42 };
    let heartbeat = |term, id, seq| Batch { header: BatchHeader { epoch: Epoch { term, id }, seq }, records: vec![] };
    let good = heartbeat(5, 42, 1).encode();
    let secret = gateway.envoy.bootstrap().secret.clone();

    let no_secret = client.post(&url).body(good.clone()).send().await.unwrap();
    assert_eq!(no_secret.status(), 401);
    let wrong = client.post(&url).header("x-kvroute-secret", "guess").body(good.clone()).send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = client.post(&url).header("x-kvroute-secret", &secret).body(damaged).send().await.unwrap();
    assert_eq!(damaged.status(), 400);
    let error: serde_json::Value = damaged.json().await.unwrap();
    assert!(error["error"].as_str().unwrap().contains("checksum"), "{error}");

    assert_eq!(push(&gateway, &client, &heartbeat(5, 42, 1)).await.status(), 200);
    // A lower term, and another bridge while the first one is alive.
    let refused = push(&gateway, &client, &heartbeat(4, 7, 1)).await;
    assert_eq!(refused.status(), 409);
    let holder: serde_json::Value = refused.json().await.unwrap();
    assert_eq!(holder["holder"]["term"], epoch.term);
    // The paths of the ingest listener do not exist for clients.
    let public = client.post(gateway.url("/kvroute/v1/feed")).header("x-kvroute-secret", &secret).body(good);
    assert_eq!(public.send().await.unwrap().status(), 404);
}
