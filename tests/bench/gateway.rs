//! What the filter costs, measured side by side in one run. `scripts/bench gateway`, `--json`; single measures by
//! their names (overhead, latency, feed, events, slices). Exit code: 0 if every goal is met, 1 if one is not, 2 for a measure
//! that does not exist.
//!
//! | measure | how | goal |
//! |---|---|---|
//! | `overhead` | Envoy's CPU time per request that is not routed: without a filter, with a proxy-wasm filter that does nothing, with kvroute; all else alike, rounds taken in turn. One of another path, which its route keeps out of the filter, and one that enters it, a POST of a prompt's path without a body | at most 10 us over Envoy without a filter |
//! | `latency` | p50 of chats with a prompt of about 1,000 tokens at concurrency 32: through kvroute, through plain Envoy, and through plain Envoy after a `/tokenize` call to a replica. Prompts, the engines' speed and who answers `/tokenize` vary; the goal is for ordinary text, engines with 10 ms a step and one replica as fast as vLLM's API server | a tenth of what the call adds; 200 us of Envoy's CPU over plain Envoy |
//! | `feed` | time from posting a batch to the state of every worker showing it, at 100 batches a second | p50 at most 2 ms |
//! | `events` | time from an engine's publishing a batch by ZMQ, through the bridge, to the state of every worker showing its blocks, at 100 batches a second | p50 at most 3 ms, p99 at most 10 ms |
//! | `slices` | the longest stretch that the filter works without a turn of the event loop, for large chats in one message and in thousands | 20 ms a MiB: a body cannot be parsed in parts |

#[path = "gateway/feed.rs"]
mod feed;
#[path = "../e2e/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "gateway/latency.rs"]
mod latency;
#[path = "gateway/noop.rs"]
mod noop;
#[path = "gateway/overhead.rs"]
mod overhead;
#[path = "gateway/wire.rs"]
mod wire;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kvroute::gateway::Balancing;
use serde_json::{Value, json};

use harness::{Gateway, MODEL, Setup, words};
use wire::{Wire, post};

const MEASURES: [&str; 5] = ["overhead", "latency", "feed", "events", "slices"];

/// One number with its goal, and how it came about.
pub struct Measured {
    name: &'static str,
    value: f64,
    /// At most this much.
    goal: f64,
    /// What the number is.
    what: &'static str,
    /// Lines for people.
    detail: Vec<String>,
    /// The same for programs.
    numbers: Value,
}

impl Measured {
    fn met(&self) -> bool {
        self.value <= self.goal
    }

    fn print(&self) {
        let verdict = if self.met() { "met" } else { "MISSED" };
        println!("{:<20} {:>9.3}   goal {}: {verdict}", self.name, self.value, self.goal);
        println!("    {}", self.what);
        self.detail.iter().for_each(|line| println!("    {line}"));
        println!();
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let json_wanted = arguments.iter().any(|a| a == "--json");
    let chosen: Vec<&str> = arguments.iter().filter(|a| *a != "--json").map(String::as_str).collect();
    if let Some(unknown) = chosen.iter().find(|name| !MEASURES.contains(name)) {
        eprintln!("there is no measure {unknown}: {}", MEASURES.join(", "));
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut measured = Vec::new();
    for name in MEASURES.into_iter().filter(|name| chosen.is_empty() || chosen.contains(name)) {
        eprintln!("measuring {name} …");
        let new = runtime.block_on(async {
            match name {
                "overhead" => overhead::overhead().await,
                "latency" => latency::latency().await,
                "feed" => vec![feed::feed().await],
                "events" => feed::events().await,
                _ => {
                    let most = (4 << 20) - 4096;
                    vec![
                        longest_slice("longest_slice_1m_ms", 1 << 20, 20.0).await,
                        longest_slice("longest_slice_4m_ms", most, 80.0).await,
                    ]
                }
            }
        });
        if !json_wanted {
            new.iter().for_each(Measured::print);
        }
        measured.extend(new);
    }
    if json_wanted {
        let rows: serde_json::Map<String, Value> = measured
            .iter()
            .map(|m| {
                let row =
                    json!({"value": m.value, "goal": m.goal, "met": m.met(), "what": m.what, "detail": m.numbers});
                (m.name.to_owned(), row)
            })
            .collect();
        println!("{}", Value::Object(rows));
    }
    ExitCode::from(u8::from(!measured.iter().all(Measured::met)))
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

/// What the workers report as their longest stretches while chats of `bytes` bytes come one after another.
async fn longest_slice(name: &'static str, bytes: usize, goal: f64) -> Measured {
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
    let [one, many] = [found[0], found[1]];
    Measured {
        name,
        value: one.max(many),
        goal,
        what: "ms that the filter works at a stretch, at most, for one large body",
        detail: vec![format!(
            "A body of {:.0} MiB, median of 5: {one:.1} ms in one message, {many:.1} ms in many",
            bytes as f64 / 1048576.0
        )],
        numbers: json!({"one_message_ms": one, "many_messages_ms": many}),
    }
}
