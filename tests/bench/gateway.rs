//! What the filter costs, as ratios measured side by side in one run. `scripts/bench gateway`, `--json`; single
//! measures by their names (overhead, latency, feed, slices).
//!
//! | measure | how | goal |
//! |---|---|---|
//! | `overhead` | Envoy's CPU time per request that the filter does not route, with and without the filter, all else alike, rounds taken in turn | at most 10 us |
//! | `latency` | p50 of chats with a prompt of about 1,000 tokens at concurrency 32, which the engines answer with two tokens at 10 ms a step: through kvroute, through plain Envoy, and through plain Envoy after a `/tokenize` call to a replica that takes the time of vLLM's API server for it | a tenth of what the call adds |
//! | `slices` | the longest stretch that the filter works without a turn of the event loop, for large chats in one message and in thousands | 20 ms a MiB: a body cannot be parsed in parts |
//! | `feed` | time from posting a batch to the state of every worker showing it, at 100 batches a second | p50 at most 2 ms |

#[path = "../e2e/harness.rs"]
#[allow(dead_code)]
mod harness;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{Record, Tier};
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::gateway::Balancing;
use kvroute::look::{SECRET_HEADER, STATE_PATH, WorkerState};
use kvroute::mock::TokenizeTime;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use harness::{Gateway, MODEL, Setup, client, words};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let json_wanted = arguments.iter().any(|a| a == "--json");
    let chosen: Vec<&str> = arguments.iter().filter(|a| !a.starts_with('-')).map(String::as_str).collect();
    if let Some(unknown) = chosen.iter().find(|name| !["overhead", "latency", "feed", "slices"].contains(name)) {
        eprintln!("there is no measure {unknown}: overhead, latency, feed, slices");
        std::process::exit(2);
    }
    let wanted = |name: &str| chosen.is_empty() || chosen.contains(&name);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let measured = runtime.block_on(async {
        let mut measured = Vec::new();
        if wanted("overhead") {
            measured.push(("overhead_us", overhead().await, 10.0, "us of Envoy CPU per request that is not routed"));
        }
        if wanted("latency") {
            measured.push(("added_latency_ratio", added_latency().await, 0.1, "of what a /tokenize call adds at p50"));
        }
        if wanted("feed") {
            measured.push(("feed_p50_ms", feed().await, 2.0, "ms from push to applied in every worker, p50"));
        }
        if wanted("slices") {
            measured.push((
                "longest_slice_1m_ms",
                longest_slice(1 << 20).await,
                20.0,
                "ms at a stretch, body of 1 MiB",
            ));
            let most = (4 << 20) - 4096;
            measured.push(("longest_slice_4m_ms", longest_slice(most).await, 80.0, "ms at a stretch, body of 4 MiB"));
        }
        measured
    });
    if json_wanted {
        let rows: serde_json::Map<String, Value> = measured
            .iter()
            .map(|(name, (value, detail), goal, _)| {
                ((*name).to_owned(), json!({"value": value, "goal": goal, "met": value <= goal, "detail": detail}))
            })
            .collect();
        println!("{}", Value::Object(rows));
        return;
    }
    for (_, (value, detail), goal, what) in measured {
        let verdict = if value <= goal { "met" } else { "MISSED" };
        println!("{value:10.3} (goal {goal}: {verdict}) {what}\n           {detail}");
    }
}

/// One keep-alive connection that speaks just enough HTTP/1.1, so that the client costs little.
struct Wire {
    stream: tokio::net::TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    async fn connect(at: SocketAddr) -> Wire {
        let stream = tokio::net::TcpStream::connect(at).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire { stream, buffer: Vec::with_capacity(1 << 16) }
    }

    /// Sends a request as it stands and gives the body of the answer, which must be a good one.
    async fn ask(&mut self, request: &[u8]) -> &[u8] {
        let (good, answer) = self.answer(request).await;
        assert!(good, "{}", String::from_utf8_lossy(answer));
        answer
    }

    /// Whether the answer is good, and its body, which must have a length.
    async fn answer(&mut self, request: &[u8]) -> (bool, &[u8]) {
        self.stream.write_all(request).await.unwrap();
        self.buffer.clear();
        loop {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the connection was closed");
            let Some(head) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&self.buffer[..head]).unwrap().to_ascii_lowercase();
            let length =
                text.lines().find_map(|l| l.strip_prefix("content-length: ")).expect("an answer with a length");
            let length: usize = length.trim().parse().unwrap();
            while self.buffer.len() < head + 4 + length {
                assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the answer was cut off");
            }
            return (text.starts_with("http/1.1 200"), &self.buffer[head + 4..head + 4 + length]);
        }
    }
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

/// CPU time of all threads of a process.
fn cpu(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanos = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

fn plain(balancing: Balancing) -> Setup {
    let mut setup = Setup { bridge: balancing == Balancing::Kvroute, ..Setup::default() };
    setup.bootstrap.balancing = balancing;
    setup.bootstrap.health_path = None;
    // As it is by default: the tests' header that says what became of a request costs something.
    setup.bootstrap.router["selection"] = json!({});
    setup.mock.output_tokens = 1;
    setup
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn overhead() -> (f64, String) {
    const ROUNDS: usize = 9;
    const CONNECTIONS: u32 = 8;
    const REQUESTS: u32 = 1000;
    let with = Gateway::start(Setup { concurrency: 1, ..plain(Balancing::Kvroute) }).await;
    let without = Gateway::start(Setup { concurrency: 1, ..plain(Balancing::WithoutFilter) }).await;
    let request = b"GET /v1/models HTTP/1.1\r\nhost: bench\r\n\r\n";
    // A worker takes part from its first request on. What the feed and its ticks cost from then on does not depend on
    // requests: taken off.
    for gateway in [&with, &without] {
        Wire::connect(gateway.envoy.public()).await.ask(request).await;
    }
    with.all_have_slots().await;
    let (start, begin) = (cpu(with.envoy.pid()), Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let idle = (cpu(with.envoy.pid()) - start).as_secs_f64() / begin.elapsed().as_secs_f64();
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (costs, (gateway, idle)) in costs.iter_mut().zip([(&with, idle), (&without, 0.0)]) {
            let (start, begin) = (cpu(gateway.envoy.pid()), Instant::now());
            let mut running = tokio::task::JoinSet::new();
            // Several at once: a worker that sleeps between any two requests mostly wakes up.
            for _ in 0..CONNECTIONS {
                let mut wire = Wire::connect(gateway.envoy.public()).await;
                running.spawn(async move {
                    for _ in 0..REQUESTS {
                        wire.ask(request).await;
                    }
                });
            }
            running.join_all().await;
            let spent = (cpu(gateway.envoy.pid()) - start).as_secs_f64() - idle * begin.elapsed().as_secs_f64();
            costs.push(spent / f64::from(CONNECTIONS * REQUESTS) * 1e6);
        }
    }
    let [with, without] = costs.map(median);
    (
        with - without,
        format!(
            "{with:.1} us with the filter, {without:.1} us without, ratio {:.2}; the feed takes {:.1} ms a second, taken off",
            with / without,
            idle * 1e3
        ),
    )
}

/// Whom a request's tokens are asked of before it is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nobody,
    /// One replica, for all requests.
    One,
    /// The replicas in turn.
    All,
}

async fn added_latency() -> (f64, String) {
    const CONCURRENCY: usize = 32;
    const REQUESTS: usize = 2000;
    const ROUNDS: usize = 3;
    let engine = |balancing, tokenize| {
        let mut setup = plain(balancing);
        // The second token of an answer takes this long; the first one none, since time for prompts would be one queue.
        setup.mock.decode_ms_per_token = 10.0;
        setup.mock.output_tokens = 2;
        setup.mock.tokenize = tokenize;
        setup
    };
    let with = Gateway::start(engine(Balancing::Kvroute, TokenizeTime::default())).await;
    let without = Gateway::start(engine(Balancing::LeastRequest, TokenizeTime::VLLM)).await;
    // Prompts of about 1,000 tokens, none seen twice by one policy.
    let bodies: Vec<Vec<u8>> = (0..REQUESTS as u64)
        .map(|i| {
            let messages = json!([{"role": "user", "content": words(i, 420)}]);
            json!({"model": MODEL, "max_tokens": 2, "messages": messages}).to_string().into_bytes()
        })
        .collect();
    let bodies = std::sync::Arc::new(bodies);
    let run = async |gateway: &Gateway, asked: Asked, tokenizers: &Gateway| {
        let tokenizers: Vec<SocketAddr> = tokenizers.replicas.iter().flatten().map(|r| r.http_addr()).collect();
        let start = cpu(gateway.envoy.pid());
        let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let mut running = tokio::task::JoinSet::new();
        for i in 0..CONCURRENCY {
            let (public, next, bodies) = (gateway.envoy.public(), next.clone(), bodies.clone());
            let tokenizer = tokenizers[if asked == Asked::All { i % tokenizers.len() } else { 0 }];
            running.spawn(async move {
                let mut wire = Wire::connect(public).await;
                let mut extra = Wire::connect(tokenizer).await;
                let mut times = Vec::new();
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(body) = bodies.get(at) else { return times };
                    let start = Instant::now();
                    if asked != Asked::Nobody {
                        extra.ask(&post("/tokenize", body)).await;
                    }
                    wire.ask(&post("/v1/chat/completions", body)).await;
                    times.push(start.elapsed().as_secs_f64() * 1e3);
                }
            });
        }
        let p50 = median(running.join_all().await.into_iter().flatten().collect());
        (p50, (cpu(gateway.envoy.pid()) - start).as_secs_f64() * 1e6 / bodies.len() as f64)
    };
    // What is sent through, who is asked, whose replicas answer that: those of `with` take no more time for it than
    // this program needs.
    let arms = [
        (&without, Asked::Nobody, &without),
        (&with, Asked::Nobody, &without),
        (&without, Asked::One, &without),
        (&without, Asked::All, &without),
        (&without, Asked::One, &with),
    ];
    let mut rows = arms.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (row, (gateway, asked, tokenizers)) in rows.iter_mut().zip(arms) {
            for replica in gateway.replicas.iter().flatten() {
                while !replica.reset_cache().await {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            row.push(run(gateway, asked, tokenizers).await);
        }
    }
    let [plain_us, kvroute_us] = [0, 1].map(|i| median(rows[i].iter().map(|(_, cpu)| *cpu).collect()));
    let [plain, kvroute, one, all, own] = rows.map(|row| median(row.into_iter().map(|(p50, _)| p50).collect()));
    let ratio = |asked: f64| (kvroute - plain) / (asked - plain);
    (
        ratio(one),
        format!(
            "p50 at concurrency {CONCURRENCY}: plain {plain:.2} ms, kvroute {kvroute:.2} ms, plain after /tokenize {one:.2} ms;\n           \
             /tokenize spread over all replicas {all:.2} ms (ratio {:.2}), one replica with the mock's own speed {own:.2} ms (ratio {:.2});\n           \
             Envoy's CPU per request: plain {plain_us:.0} us, kvroute {kvroute_us:.0} us",
            ratio(all),
            ratio(own),
        ),
    )
}

async fn feed() -> (f64, String) {
    const BATCHES: u64 = 1000;
    const BLOCKS: u64 = 64;
    let gateway = Gateway::start(Setup { bridge: false, ..Setup::default() }).await;
    gateway.all_have_slots().await;
    // One connection to each worker.
    let state = format!(
        "GET {STATE_PATH} HTTP/1.1\r\nhost: bench\r\n{SECRET_HEADER}: {}\r\n\r\n",
        gateway.envoy.bootstrap().secret
    );
    let mut workers: std::collections::BTreeMap<u32, Wire> = Default::default();
    while workers.len() < 2 {
        let mut wire = Wire::connect(gateway.envoy.ingest()).await;
        let answer: WorkerState = serde_json::from_slice(wire.ask(state.as_bytes()).await).unwrap();
        workers.insert(answer.slot.expect("a slot"), wire);
    }
    let client = client();
    let url = format!("http://{}/kvroute/v1/feed", gateway.envoy.ingest());
    let mut times = Vec::new();
    let begin = Instant::now();
    for seq in 1..=BATCHES {
        tokio::time::sleep_until((begin + Duration::from_millis(10 * seq)).into()).await;
        let hashes = (0..BLOCKS).map(|i| kvroute::blocks::BlockHash(seq * BLOCKS + i)).collect();
        let stored = Record::Stored { replica: FeedReplicaId(1), tier: Tier::Gpu, parent: None, ends: vec![], hashes };
        let batch = Batch { header: BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq }, records: vec![stored] };
        let start = Instant::now();
        let request = client.post(&url).header(SECRET_HEADER, &gateway.envoy.bootstrap().secret).body(batch.encode());
        let posted = tokio::spawn(request.send());
        for wire in workers.values_mut() {
            loop {
                let answer: WorkerState = serde_json::from_slice(wire.ask(state.as_bytes()).await).unwrap();
                if answer.feed.applied_seq >= seq {
                    break;
                }
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(posted.await.unwrap().unwrap().status(), 200);
    }
    times.sort_by(f64::total_cmp);
    let at = |p: usize| times[(times.len() - 1) * p / 100];
    (
        at(50),
        format!(
            "{BATCHES} batches of {BLOCKS} blocks at 100 a second: p50 {:.2}, p90 {:.2}, p99 {:.2} ms",
            at(50),
            at(90),
            at(99)
        ),
    )
}

/// What the workers report as their longest stretches while chats of `bytes` bytes come one after another.
async fn longest_slice(bytes: usize) -> (f64, String) {
    let mut setup = Setup { concurrency: 1, ..plain(Balancing::Kvroute) };
    setup.bootstrap.buffer_limit = Some(16 << 20);
    let gateway = Gateway::start(setup).await;
    let mut wire = Wire::connect(gateway.envoy.public()).await;
    let body = |messages: Vec<Value>| {
        post("/v1/chat/completions", &serde_json::to_vec(&json!({"model": MODEL, "messages": messages})).unwrap())
    };
    let message = |seed: u64, bytes: usize| {
        let mut text = words(seed, bytes >> 2);
        text.truncate(bytes);
        json!({"role": if seed.is_multiple_of(2) { "user" } else { "assistant" }, "content": text})
    };
    let mut found = Vec::new();
    for kind in ["one message", "messages of 200 bytes"] {
        let mut longest = Vec::new();
        for round in 0..5u64 {
            let request = match kind {
                "one message" => body(vec![message(round * 2, bytes - 200)]),
                _ => body((0..bytes as u64 / 250).map(|i| message(round << 32 | i, 200)).collect()),
            };
            // The mock replica refuses prompts that its cache cannot hold, which does not matter here.
            wire.answer(&request).await;
            let mut worst = 0;
            let end = Instant::now() + Duration::from_millis(1200);
            while Instant::now() < end {
                worst = worst.max(gateway.gauge("longest_slice_us"));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            longest.push(worst as f64 / 1e3);
        }
        found.push(median(longest));
    }
    (found[0].max(found[1]), format!("median of 5: {:.1} ms in one message, {:.1} ms in many", found[0], found[1]))
}
