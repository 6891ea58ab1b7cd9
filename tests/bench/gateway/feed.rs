//! How long what an engine says takes to the workers: from the ingest listener on, and the whole way.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use kvroute::blocks::{BlockHash, TokenId};
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{Record, Tier};
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::look::{SECRET_HEADER, STATE_PATH, WorkerState};
use kvroute::mock::events::{Encoder, Event, EventHash, ExtraKeys, HashForm, Wire as Shape};
use kvroute::mock::publish::Publisher;
use serde_json::json;

use super::Measured;
use super::harness::{BLOCK, Gateway, MODEL, Setup, client, eventually};
use super::wire::Wire;

const BATCHES: u64 = 1000;
const BLOCKS: u64 = 64;
/// From one batch to the next.
const PACE: Duration = Duration::from_millis(10);

/// One connection to each worker, to ask what it believes.
struct Workers {
    request: Vec<u8>,
    wires: BTreeMap<u32, Wire>,
}

impl Workers {
    async fn connect(gateway: &Gateway) -> Workers {
        let secret = &gateway.envoy.bootstrap().secret;
        let request = format!("GET {STATE_PATH} HTTP/1.1\r\nhost: bench\r\n{SECRET_HEADER}: {secret}\r\n\r\n");
        let mut workers = Workers { request: request.into_bytes(), wires: BTreeMap::new() };
        while workers.wires.len() < 2 {
            let mut wire = Wire::connect(gateway.envoy.ingest()).await;
            let state = ask(&mut wire, &workers.request).await;
            workers.wires.insert(state.slot.expect("a slot"), wire);
        }
        workers
    }

    /// Asks every worker until its state is as wanted.
    async fn show(&mut self, wanted: impl Fn(&WorkerState) -> bool) {
        for wire in self.wires.values_mut() {
            while !wanted(&ask(wire, &self.request).await) {}
        }
    }
}

async fn ask(wire: &mut Wire, request: &[u8]) -> WorkerState {
    serde_json::from_slice(wire.ask(request).await).unwrap()
}

/// Of milliseconds: p50, p90 and p99.
fn percentiles(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    [50, 90, 99].map(|p| times[(times.len() - 1) * p / 100])
}

pub async fn feed() -> Measured {
    let gateway = Gateway::start(Setup { bridge: false, ..Setup::default() }).await;
    gateway.all_have_slots().await;
    let mut workers = Workers::connect(&gateway).await;
    let client = client();
    let url = format!("http://{}/kvroute/v1/feed", gateway.envoy.ingest());
    let mut times = Vec::new();
    let begin = Instant::now();
    for seq in 1..=BATCHES {
        tokio::time::sleep_until((begin + PACE * seq as u32).into()).await;
        let hashes = (0..BLOCKS).map(|i| BlockHash(seq * BLOCKS + i)).collect();
        let stored = Record::Stored { replica: FeedReplicaId(1), tier: Tier::Gpu, parent: None, ends: vec![], hashes };
        let batch = Batch { header: BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq }, records: vec![stored] };
        let start = Instant::now();
        let request = client.post(&url).header(SECRET_HEADER, &gateway.envoy.bootstrap().secret).body(batch.encode());
        let posted = tokio::spawn(request.send());
        workers.show(|state| state.feed.applied_seq >= seq).await;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(posted.await.unwrap().unwrap().status(), 200);
    }
    let [p50, p90, p99] = percentiles(times);
    Measured {
        name: "feed_p50_ms",
        value: p50,
        goal: 2.0,
        what: "ms from posting a batch until every worker has applied it, p50",
        detail: vec![format!(
            "{BATCHES} batches of {BLOCKS} blocks at 100 a second: p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2} ms"
        )],
        numbers: json!({"p50_ms": p50, "p90_ms": p90, "p99_ms": p99}),
    }
}

/// The bridge hears an engine that lives here: its publisher, with a mock replica for all else.
pub async fn events() -> Vec<Measured> {
    let setup = Setup { replicas: 1, bridge: false, ..Setup::default() };
    let mut gateway = Gateway::start(setup).await;
    gateway.all_have_slots().await;
    let encoder = Encoder { wire: Shape::Map, hashes: HashForm::Int, block_size: BLOCK, rank: 0 };
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (mut engine, at) = Publisher::bind(here, (0, 0), encoder, "kv-events", 10_000).await.unwrap();
    let http = gateway.replica(0).url();
    let spec = format!("name=r0,http={http},model={MODEL},kv={},replay={},block-size={BLOCK}", at.events, at.replay);
    let secret = gateway.envoy.bootstrap().secret.clone();
    gateway.start_bridge_of(&[spec], &secret, &[]);
    let mut workers = Workers::connect(&gateway).await;

    // A new prompt each time.
    let mut published = 0;
    let mut prompt = || {
        let first = published * BLOCKS;
        published += 1;
        Event::Stored {
            hashes: (first..first + BLOCKS).map(|n| EventHash(n + 1)).collect(),
            parent: None,
            first_block: 0,
            tokens: (first * u64::from(BLOCK)..(first + BLOCKS) * u64::from(BLOCK)).map(|n| n as TokenId).collect(),
            extra: ExtraKeys::default(),
            session_id: None,
        }
    };
    // Until the bridge has connected, what is published reaches nobody.
    let held = |state: &WorkerState| state.replicas.iter().map(|replica| replica.blocks).sum::<u64>();
    eventually("every worker follows the engine's events", async || {
        engine.publish(&[prompt()]).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut wires = workers.wires.values_mut();
        let one = ask(wires.next()?, &workers.request).await;
        (held(&one) > 0 && one.feed.sync == "synced" && one.replicas.iter().all(|r| r.trust == "exact")).then_some(())
    })
    .await;
    let mut times = Vec::new();
    let begin = Instant::now();
    for n in 1..=BATCHES {
        tokio::time::sleep_until((begin + PACE * n as u32).into()).await;
        let (prompt, all) = (prompt(), engine.next_seq() * BLOCKS + BLOCKS);
        let start = Instant::now();
        engine.publish(&[prompt]).await;
        workers.show(|state| held(state) >= all).await;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let [p50, p90, p99] = percentiles(times);
    let line =
        format!("{BATCHES} batches of {BLOCKS} blocks at 100 a second: p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2} ms");
    let measured = |name, value, goal, what| Measured {
        name,
        value,
        goal,
        what,
        detail: vec![line.clone()],
        numbers: json!({"p50_ms": p50, "p90_ms": p90, "p99_ms": p99}),
    };
    vec![
        measured("events_p50_ms", p50, 3.0, "ms from an engine's publishing until every worker has it, p50"),
        measured("events_p99_ms", p99, 10.0, "the same, p99"),
    ]
}
