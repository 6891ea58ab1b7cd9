//! What routing adds to the latency of a request, and what it costs Envoy, beside the call that it makes needless.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvroute::gateway::Balancing;
use kvroute::mock::TokenizeTime;
use serde_json::json;

use super::harness::{Gateway, MODEL, words};
use super::wire::{Wire, cpu, post};
use super::{Measured, median, plain};

const CONCURRENCY: usize = 32;
const REQUESTS: usize = 1500;
const ROUNDS: usize = 3;

/// What the prompts are made of. Each of them has about 1,000 tokens and comes once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prompts {
    /// Sentences of this project's documentation.
    Text,
    /// Words of random letters: hardly one of them was seen before, which is the worst for a tokenizer.
    Letters,
}

impl Prompts {
    fn label(self) -> &'static str {
        match self {
            Prompts::Text => "text",
            Prompts::Letters => "letters",
        }
    }

    fn prompt(self, seed: usize) -> String {
        const DOCUMENT: &str = include_str!("../../../README.md");
        const BYTES: usize = 3400;
        match self {
            Prompts::Letters => words(seed as u64, 420),
            Prompts::Text => {
                let sentences: Vec<&str> = DOCUMENT.split_inclusive(". ").flat_map(|s| s.split("\n\n")).collect();
                let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                let mut text = String::new();
                while text.len() < BYTES {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    text.push_str(sentences[(state >> 33) as usize % sentences.len()]);
                    text.push(' ');
                }
                text
            }
        }
    }

    fn bodies(self) -> Arc<Vec<Vec<u8>>> {
        let body = |i| {
            let messages = json!([{"role": "user", "content": self.prompt(i)}]);
            json!({"model": MODEL, "max_tokens": 2, "messages": messages}).to_string().into_bytes()
        };
        Arc::new((0..REQUESTS).map(body).collect())
    }
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

/// Both gateways, for engines that take `step_ms` from an answer's first token to its second and last. The first one
/// takes none, since time for prompts would be one queue. For `/tokenize` those of `without` take the time of vLLM's
/// API server.
struct Side {
    with: Gateway,
    without: Gateway,
}

impl Side {
    async fn start(step_ms: f64) -> Side {
        let engine = |balancing, tokenize| {
            let mut setup = plain(balancing);
            setup.mock.decode_ms_per_token = step_ms;
            setup.mock.output_tokens = 2;
            setup.mock.tokenize = tokenize;
            setup
        };
        Side {
            with: Gateway::start(engine(Balancing::Kvroute, TokenizeTime::default())).await,
            without: Gateway::start(engine(Balancing::LeastRequest, TokenizeTime::VLLM)).await,
        }
    }

    /// The p50 in milliseconds and Envoy's CPU a request in microseconds, for each way: the medians of some rounds.
    async fn measure<const N: usize>(&self, bodies: &Arc<Vec<Vec<u8>>>, ways: [Way<'_>; N]) -> [(f64, f64); N] {
        let mut rows = ways.map(|_| (Vec::new(), Vec::new()));
        for _ in 0..ROUNDS {
            for (row, way) in rows.iter_mut().zip(ways) {
                for replica in way.through.replicas.iter().flatten() {
                    while !replica.reset_cache().await {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
                let (p50, cpu) = way.run(bodies).await;
                row.0.push(p50);
                row.1.push(cpu);
            }
        }
        rows.map(|(p50, cpu)| (median(p50), median(cpu)))
    }
}

/// What requests are sent through, and who is asked before: a replica of `tokenizers`.
#[derive(Clone, Copy)]
struct Way<'a> {
    through: &'a Gateway,
    asked: Asked,
    tokenizers: &'a Gateway,
}

impl Way<'_> {
    async fn run(self, bodies: &Arc<Vec<Vec<u8>>>) -> (f64, f64) {
        let tokenizers: Vec<SocketAddr> = self.tokenizers.replicas.iter().flatten().map(|r| r.http_addr()).collect();
        let (start, asked) = (cpu(self.through.envoy.pid()), self.asked);
        let next = Arc::new(AtomicUsize::new(0));
        let mut running = tokio::task::JoinSet::new();
        for i in 0..CONCURRENCY {
            let (public, next, bodies) = (self.through.envoy.public(), next.clone(), bodies.clone());
            let tokenizer = tokenizers[if asked == Asked::All { i % tokenizers.len() } else { 0 }];
            running.spawn(async move {
                let mut wire = Wire::connect(public).await;
                let mut extra = Wire::connect(tokenizer).await;
                let mut times = Vec::new();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
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
        (p50, (cpu(self.through.envoy.pid()) - start).as_secs_f64() * 1e6 / bodies.len() as f64)
    }
}

/// One line of the table.
struct Row {
    prompts: Prompts,
    step_ms: f64,
    tokenizer: &'static str,
    plain: f64,
    kvroute: f64,
    asked: f64,
    plain_us: f64,
    kvroute_us: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        (self.kvroute - self.plain) / (self.asked - self.plain)
    }

    fn line(&self) -> String {
        format!(
            "{:>4}  {:<7}  {:<10}  {:>7.2}  {:>7.2}  {:>9.2}  {:>5.2}",
            self.step_ms,
            self.prompts.label(),
            self.tokenizer,
            self.plain,
            self.kvroute,
            self.asked,
            self.ratio(),
        )
    }
}

/// The added latency under several conditions, and Envoy's CPU.
pub async fn latency() -> Vec<Measured> {
    let mut rows = Vec::new();
    let mut tokens = 0.0;
    for step_ms in [10.0, 20.0, 0.0] {
        let side = Side::start(step_ms).await;
        let way = |through, asked| Way { through, asked, tokenizers: &side.without };
        let [plain_way, kvroute_way] = [&side.without, &side.with].map(|through| way(through, Asked::Nobody));
        let [one, all] = [Asked::One, Asked::All].map(|asked| way(&side.without, asked));
        let row = |prompts, tokenizer, [plain, kvroute, asked]: [(f64, f64); 3]| Row {
            prompts,
            step_ms,
            tokenizer,
            plain: plain.0,
            kvroute: kvroute.0,
            asked: asked.0,
            plain_us: plain.1,
            kvroute_us: kvroute.1,
        };
        let bodies = Prompts::Text.bodies();
        if step_ms == 10.0 {
            let [plain, kvroute, asked, spread] = side.measure(&bodies, [plain_way, kvroute_way, one, all]).await;
            tokens = side.with.counter("prompt_tokens") as f64 / (REQUESTS * ROUNDS) as f64;
            rows.push(row(Prompts::Text, "one", [plain, kvroute, asked]));
            rows.push(row(Prompts::Text, "three", [plain, kvroute, spread]));
            let letters = side.measure(&Prompts::Letters.bodies(), [plain_way, kvroute_way, one]).await;
            rows.push(row(Prompts::Letters, "one", letters));
        } else {
            rows.push(row(Prompts::Text, "one", side.measure(&bodies, [plain_way, kvroute_way, one]).await));
        }
    }
    let main = &rows[0];
    let letters = rows.iter().find(|row| row.prompts == Prompts::Letters);
    let letters_us = letters.map_or(0.0, |row| row.kvroute_us - row.plain_us);
    let mut table = vec![
        format!("Prompts of {tokens:.0} tokens at concurrency {CONCURRENCY}; p50 in ms."),
        format!(
            "{:>4}  {:<7}  {:<10}  {:>7}  {:>7}  {:>9}  {:>5}",
            "step", "prompts", "tokenizers", "plain", "kvroute", "/tokenize", "ratio"
        ),
    ];
    table.extend(rows.iter().map(Row::line));
    table.extend(
        [
            "step: milliseconds that the engines take for an answer's second and last token.",
            "letters: words of random letters, hardly one of which a tokenizer saw before.",
            "tokenizers: replicas that are asked to /tokenize, as slow as vLLM's API server: one",
            "for all requests, or three in turn.",
            "ratio: what kvroute adds to plain Envoy, of what that call adds.",
        ]
        .map(str::to_owned),
    );
    let numbers = rows.iter().map(|row| {
        json!({
            "step_ms": row.step_ms, "prompts": row.prompts.label(), "tokenizers": row.tokenizer,
            "plain_p50_ms": row.plain, "kvroute_p50_ms": row.kvroute, "tokenize_p50_ms": row.asked,
            "ratio": row.ratio(), "plain_cpu_us": row.plain_us, "kvroute_cpu_us": row.kvroute_us,
        })
    });
    vec![
        Measured {
            name: "added_latency_ratio",
            value: main.ratio(),
            goal: 0.1,
            what: "of the latency that a /tokenize call adds at p50",
            detail: table,
            numbers: numbers.collect(),
        },
        Measured {
            name: "routed_cpu_us",
            value: main.kvroute_us - main.plain_us,
            goal: 200.0,
            what: "Envoy's CPU that routing adds to a request, feed included, in us",
            detail: vec![
                format!("{:6.0} us  plain Envoy", main.plain_us),
                format!("{:6.0} us  with kvroute", main.kvroute_us),
                format!("{letters_us:+6.0} us  where the prompts are words of random letters"),
            ],
            numbers: json!({
                "plain_us": main.plain_us, "kvroute_us": main.kvroute_us, "random_letters_added_us": letters_us,
            }),
        },
    ]
}
