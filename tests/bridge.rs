//! The bridge between mock replicas and stand-ins for the ingest listener of Envoy: what the stand-in's worker knows
//! must become what the replicas hold, through restarts, gaps and changes of the lead.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::post;
use kvroute::blocks::{BlockHash, Chain, namespace};
use kvroute::bridge::cache::CacheConfig;
use kvroute::bridge::config::ReplicaSpec;
use kvroute::bridge::recording::{self, Line};
use kvroute::bridge::stream::{Changes, Stream};
use kvroute::bridge::trust::TrustMachine;
use kvroute::bridge::{Bridge, BridgeConfig};
use kvroute::feed::batch::Batch;
use kvroute::feed::record::{LoadReport, Record, ReplicaInfo, Trust};
use kvroute::feed::snapshot::Snapshot;
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::mock::{Config, Replica};
use serde_json::{Value, json};

const SECRET: &str = "s3cret";
const SEED: &str = "seed";
/// Never waited for in a test that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ingest and one worker, as the protocol says they behave.
#[derive(Default)]
struct Ingest {
    holder: Option<(Epoch, Instant)>,
    /// Every change of the holder.
    leads: Vec<Epoch>,
    applied: u64,
    /// A batch is missing, so snapshots must be pulled.
    behind: bool,
    replicas: BTreeMap<FeedReplicaId, ReplicaInfo>,
    loads: BTreeMap<FeedReplicaId, LoadReport>,
    held: BTreeMap<FeedReplicaId, BTreeSet<BlockHash>>,
    /// Since a snapshot may be older than what was applied.
    recent: Vec<Batch>,
    refuse: bool,
}

impl Ingest {
    fn apply(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Replica(info) => drop(self.replicas.insert(info.id, info.clone())),
                Record::Gone(id) => {
                    self.replicas.remove(id);
                    self.held.remove(id);
                }
                Record::Stored { replica, hashes, .. } => self.held.entry(*replica).or_default().extend(hashes),
                Record::Removed { replica, hashes, .. } => {
                    self.held.entry(*replica).or_default().retain(|h| !hashes.contains(h));
                }
                Record::Cleared(id) => drop(self.held.remove(id)),
                Record::Load(id, load) => drop(self.loads.insert(*id, *load)),
                Record::Held { replicas, blocks, .. } => {
                    for (hash, holders, _) in blocks {
                        for (_, id) in replicas.iter().enumerate().filter(|(bit, _)| holders >> bit & 1 == 1) {
                            self.held.entry(*id).or_default().insert(*hash);
                        }
                    }
                }
            }
        }
    }

    fn of(&self, address: SocketAddr) -> Option<&ReplicaInfo> {
        self.replicas.values().find(|r| r.address == address.to_string())
    }
}

type Shared = Arc<Mutex<Ingest>>;

async fn feed(State(ingest): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    if headers.get("x-kvroute-secret").is_none_or(|s| s != SECRET) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut ingest = ingest.lock().unwrap();
    if ingest.refuse {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let batch = match Batch::decode(&body) {
        Ok(batch) => batch,
        Err(error) => return (StatusCode::BAD_REQUEST, Json(json!({"error": error.to_string()}))).into_response(),
    };
    let epoch = batch.header.epoch;
    match ingest.holder {
        Some((holder, _)) if holder == epoch => {}
        Some((holder, at)) if at.elapsed() < Duration::from_secs(2) || epoch.term <= holder.term => {
            let age = at.elapsed().as_millis() as u64;
            let holder = json!({"term": holder.term, "epoch": format!("{:016x}", holder.id)});
            return (StatusCode::CONFLICT, Json(json!({"holder": holder, "age_ms": age}))).into_response();
        }
        _ => {
            ingest.leads.push(epoch);
            ingest.applied = 0;
            ingest.recent.clear();
            ingest.behind = true;
        }
    }
    ingest.holder = Some((epoch, Instant::now()));
    let seq = batch.header.seq;
    if seq > ingest.applied {
        ingest.behind |= seq > ingest.applied + 1;
        ingest.applied = seq;
        ingest.apply(&batch.records);
        ingest.recent.push(batch);
    }
    let slots = json!([{"slot": 0, "generation": 1, "applied": ingest.applied, "backlog": 0}]);
    Json(json!({"boot": "1", "slots": slots})).into_response()
}

async fn ingest() -> (Shared, String) {
    let shared = Shared::default();
    let routes = Router::new().route("/kvroute/v1/feed", post(feed)).with_state(shared.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (shared, url)
}

/// Pulls all ranges and puts them under what was applied, as a worker does.
async fn pull(ingest: &Shared, bridge: &Bridge) {
    let mut from = 0u64;
    loop {
        let url = format!("http://{}/kvroute/v1/snapshot?from={from:016x}", bridge.address);
        let answer = reqwest::Client::new().get(url).header("x-kvroute-secret", SECRET).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let snapshot = Snapshot::decode(&answer.bytes().await.unwrap()).unwrap();
        eventually("the batch of the snapshot", || ingest.lock().unwrap().applied >= snapshot.seq).await;
        let mut ingest = ingest.lock().unwrap();
        let range = snapshot.from..=snapshot.through;
        ingest.held.values_mut().for_each(|held| held.retain(|h| !range.contains(&h.0)));
        ingest.apply(&snapshot.records);
        let later: Vec<_> = ingest.recent.iter().filter(|b| b.header.seq > snapshot.seq).cloned().collect();
        later.iter().for_each(|b| ingest.apply(&b.records));
        if snapshot.through == u64::MAX {
            ingest.behind = false;
            return;
        }
        from = snapshot.through + 1;
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}: waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn replica(blocks: u32) -> Replica {
    let config = Config {
        model: "m".into(),
        block_size: 4,
        blocks,
        output_tokens: 8,
        prefill_us_per_token: 1.0,
        decode_ms_per_token: 0.1,
        ..Config::default()
    };
    Replica::start(config).unwrap()
}

fn spec(replica: &Replica) -> ReplicaSpec {
    ReplicaSpec {
        name: replica.http_addr().to_string(),
        http: replica.url(),
        model: "m".into(),
        kv: Some(replica.kv_endpoint().into()),
        replay: Some(replica.replay_endpoint().into()),
        ranks: 1,
        ..ReplicaSpec::default()
    }
}

fn config(envoy: &str, replicas: &[&Replica]) -> BridgeConfig {
    BridgeConfig {
        envoys: vec![envoy.into()],
        secret: SECRET.into(),
        listen: ([127, 0, 0, 1], 0).into(),
        hash_seed: SEED.into(),
        replicas: replicas.iter().map(|r| spec(r)).collect(),
        ..BridgeConfig::default()
    }
}

/// Asks and returns the tokens that the engine found cached.
async fn ask(replica: &Replica, text: &str) -> u64 {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]});
    let url = format!("{}/v1/chat/completions", replica.url());
    let answer: Value = reqwest::Client::new().post(url).json(&body).send().await.unwrap().json().await.unwrap();
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// Tokens of the text (one a byte) that the worker believes the replica holds.
fn matched(ingest: &Shared, address: SocketAddr, text: &str) -> u64 {
    let ingest = ingest.lock().unwrap();
    let Some(info) = ingest.of(address) else { return 0 };
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    let mut hashes = Vec::new();
    Chain::new(namespace(SEED, "m", None, None), 4).extend(&tokens, &mut hashes);
    let held = ingest.held.get(&info.id);
    let cap = (tokens.len() - 1) / 4;
    hashes.iter().take(cap).take_while(|h| held.is_some_and(|held| held.contains(h))).count() as u64 * 4
}

fn reason(ingest: &Shared, address: SocketAddr) -> String {
    ingest.lock().unwrap().of(address).map(|r| r.reason.clone()).unwrap_or_default()
}

fn trust(ingest: &Shared, address: SocketAddr) -> Option<Trust> {
    ingest.lock().unwrap().of(address).map(|r| r.trust)
}

fn prompt(n: usize) -> String {
    format!("{n:04} is the number of this prompt, whose words fill a few blocks of four")
}

async fn in_step(ingest: &Shared, replica: &Replica, prompts: std::ops::Range<usize>) {
    let address = replica.http_addr();
    eventually("all events applied", || {
        prompts.clone().all(|n| matched(ingest, address, &prompt(n)) == (prompt(n).len() as u64 - 1) / 4 * 4)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_learn_what_replicas_hold() {
    let (first, second) = (replica(4096), replica(4096));
    // Before the bridge is there: told by the replay.
    for n in 0..5 {
        ask(&first, &prompt(n)).await;
    }
    let (ingest, url) = ingest().await;
    let bridge = Bridge::start(config(&url, &[&first, &second])).await.unwrap();
    in_step(&ingest, &first, 0..5).await;
    assert_eq!(matched(&ingest, second.http_addr(), &prompt(0)), 0);
    for n in 5..20 {
        ask(&first, &prompt(n)).await;
        ask(&second, &prompt(n + 100)).await;
    }
    in_step(&ingest, &first, 0..20).await;
    in_step(&ingest, &second, 105..120).await;
    assert_eq!(ask(&first, &prompt(7)).await, matched(&ingest, first.http_addr(), &prompt(7)));
    for replica in [&first, &second] {
        eventually("exact", || trust(&ingest, replica.http_addr()) == Some(Trust::Exact)).await;
        eventually("its load", || ingest.lock().unwrap().loads.len() == 2).await;
        let ingest = ingest.lock().unwrap();
        let info = ingest.of(replica.http_addr()).unwrap();
        assert_eq!((info.block_size, info.capacity_blocks, info.model.as_str()), (4, 4096, "m"));
    }
    // A worker that knows nothing and pulls, knows the same.
    let before = ingest.lock().unwrap().held.clone();
    ingest.lock().unwrap().held.clear();
    pull(&ingest, &bridge).await;
    assert_eq!(ingest.lock().unwrap().held, before);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn evictions_resets_restarts_and_gaps_are_followed() {
    let replica = replica(64);
    let (ingest, url) = ingest().await;
    let bridge = Bridge::start(config(&url, &[&replica])).await.unwrap();
    let address = replica.http_addr();
    for n in 0..20 {
        ask(&replica, &prompt(n)).await;
    }
    in_step(&ingest, &replica, 19..20).await;
    // 64 blocks hold some three prompts of 16 blocks.
    assert_eq!(matched(&ingest, address, &prompt(3)), 0);
    assert!(ingest.lock().unwrap().held.values().all(|held| held.len() <= 64));

    replica.drop_events(3, false);
    for n in 20..26 {
        ask(&replica, &prompt(n)).await;
    }
    in_step(&ingest, &replica, 25..26).await;
    assert_eq!(trust(&ingest, address), Some(Trust::Exact));
    assert_eq!(ask(&replica, &prompt(24)).await, matched(&ingest, address, &prompt(24)));

    assert!(replica.reset_cache().await);
    ask(&replica, &prompt(30)).await;
    in_step(&ingest, &replica, 30..31).await;
    assert_eq!(matched(&ingest, address, &prompt(25)), 0);

    replica.restart();
    ask(&replica, &prompt(31)).await;
    in_step(&ingest, &replica, 31..32).await;
    assert_eq!(matched(&ingest, address, &prompt(30)), 0);
    eventually("exact", || trust(&ingest, address) == Some(Trust::Exact)).await;

    // Lost for good: known to be so.
    replica.drop_events(1, true);
    ask(&replica, &prompt(32)).await;
    ask(&replica, &prompt(33)).await;
    eventually("a gap", || reason(&ingest, address) == "gap").await;
    assert_eq!(trust(&ingest, address), Some(Trust::CatchingUp));
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bridge_leads_and_an_old_one_does_not_flip_back() {
    let replica = replica(4096);
    let (ingest, url) = ingest().await;
    let first = Bridge::start(config(&url, &[&replica])).await.unwrap();
    eventually("a leader", || ingest.lock().unwrap().leads.len() == 1).await;
    let second = Bridge::start(config(&url, &[&replica])).await.unwrap();
    for n in 0..10 {
        ask(&replica, &prompt(n)).await;
    }
    in_step(&ingest, &replica, 0..10).await;
    assert_eq!(ingest.lock().unwrap().leads.len(), 1);
    first.stop().await;
    eventually("the other leads", || ingest.lock().unwrap().leads.len() == 2).await;
    assert!(ingest.lock().unwrap().behind);
    pull(&ingest, &second).await;
    in_step(&ingest, &replica, 0..10).await;
    let leads = ingest.lock().unwrap().leads.clone();
    assert!(leads[1].term > leads[0].term);
    // A third one waits as long as the second is alive.
    let third = Bridge::start(config(&url, &[&replica])).await.unwrap();
    ask(&replica, &prompt(50)).await;
    in_step(&ingest, &replica, 50..51).await;
    assert_eq!(ingest.lock().unwrap().leads, leads);
    third.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_that_was_away_too_long_sees_a_hole() {
    let replica = replica(4096);
    let (ingest, url, (other, other_url)) = {
        let (shared, url) = ingest().await;
        (shared, url, ingest().await)
    };
    let mut config = BridgeConfig { max_ring_bytes: 2000, ..config(&url, &[&replica]) };
    config.envoys.push(other_url);
    let bridge = Bridge::start(config).await.unwrap();
    eventually("the first batch", || ingest.lock().unwrap().applied > 0).await;
    pull(&ingest, &bridge).await;
    ingest.lock().unwrap().refuse = true;
    for n in 0..20 {
        ask(&replica, &prompt(n)).await;
    }
    // The other one gets all of it, frame by frame, so that the ring moves on.
    in_step(&other, &replica, 0..20).await;
    ingest.lock().unwrap().refuse = false;
    eventually("a hole", || ingest.lock().unwrap().behind).await;
    pull(&ingest, &bridge).await;
    in_step(&ingest, &replica, 0..20).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_knows_what_replays_no_longer_tell() {
    let config_of = |envoy: &str, replica: &Replica, path: &std::path::Path| BridgeConfig {
        checkpoint: Some(path.to_owned()),
        ..config(envoy, &[replica])
    };
    let directory = std::env::temp_dir().join(format!("kvroute-bridge-test-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("checkpoint");
    let small = Config {
        model: "m".into(),
        block_size: 4,
        output_tokens: 8,
        decode_ms_per_token: 0.1,
        replay_batches: 5,
        ..Config::default()
    };
    let replica = Replica::start(small).unwrap();
    let (first_ingest, url) = ingest().await;
    let bridge = Bridge::start(config_of(&url, &replica, &path)).await.unwrap();
    for n in 0..20 {
        ask(&replica, &prompt(n)).await;
    }
    in_step(&first_ingest, &replica, 0..20).await;
    bridge.stop().await;
    // One batch of events while no bridge runs: within the replay buffer.
    ask(&replica, "short").await;
    let (second_ingest, url) = ingest().await;
    let bridge = Bridge::start(config_of(&url, &replica, &path)).await.unwrap();
    in_step(&second_ingest, &replica, 0..20).await;
    eventually("exact", || trust(&second_ingest, replica.http_addr()) == Some(Trust::Exact)).await;
    bridge.stop().await;
    // More than the buffer holds: the oldest blocks stay, unconfirmed.
    for n in 40..60 {
        ask(&replica, &prompt(n)).await;
    }
    let (third_ingest, url) = ingest().await;
    let bridge = Bridge::start(config_of(&url, &replica, &path)).await.unwrap();
    in_step(&third_ingest, &replica, 0..20).await;
    eventually("a gap", || reason(&third_ingest, replica.http_addr()) == "gap").await;
    bridge.stop().await;
    std::fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_comes_to_the_same_state() {
    let path = std::env::temp_dir().join(format!("kvroute-recording-test-{}", std::process::id()));
    let replica = replica(64);
    let (ingest, url) = ingest().await;
    let bridge = Bridge::start(BridgeConfig { record: Some(path.clone()), ..config(&url, &[&replica]) }).await.unwrap();
    for n in 0..10 {
        ask(&replica, &prompt(n)).await;
    }
    replica.drop_events(3, false);
    for n in 10..20 {
        ask(&replica, &prompt(n)).await;
    }
    replica.restart();
    ask(&replica, &prompt(31)).await;
    in_step(&ingest, &replica, 31..32).await;
    let held = ingest.lock().unwrap().held.values().next().cloned().unwrap();
    let messages = bridge.registry().states()[0].messages;
    bridge.stop().await;
    let replayed = || {
        let cache = CacheConfig { hash_seed: SEED.into(), model: "m".into(), ..CacheConfig::default() };
        let mut stream = Stream::new(FeedReplicaId(0), cache, TrustMachine::new(true, 0));
        let text = std::fs::read_to_string(&path).unwrap();
        // The last line may still be on its way.
        for line in recording::read(text.as_bytes()).map_while(Result::ok) {
            match line {
                Line::Input { t, input, .. } => {
                    input.with(|input| stream.take(input, t, &mut Changes::default())).unwrap();
                }
                Line::Lost { .. } => panic!("the disk was too slow"),
                Line::Recording { .. } | Line::Replica { .. } => {}
            }
        }
        (stream.counts.messages, stream.cache().blocks().map(|(hash, _)| hash).collect::<BTreeSet<_>>())
    };
    eventually("all of it is on the disk", || replayed().0 == messages).await;
    assert_eq!(replayed().1, held);
    std::fs::remove_file(path).unwrap();
}
