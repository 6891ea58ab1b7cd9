//! Side by side with other routers: `scripts/bench peers`, `--json`; single routers by words of their names
//! (`scripts/bench peers kvroute vllm`). The peers are installed by pip into `.kvroute/peers`; one that cannot be
//! installed or started is named with the reason, and the others are measured.
//!
//! Each router stands before three mock replicas of its own, one router after the other on the same machine:
//!
//! | column | how |
//! |---|---|
//! | cached | share of the prompt tokens that the engines found cached, by their own usage, in the same conversations: 24 of 5 turns, 8 at once, 4 system prompts, replicas whose caches hold a third of all |
//! | ttft | of the same, from the request to the first data, milliseconds |
//! | added ms | median of chats that nobody has seen before, through the router less sent to a replica, taken in turn; engines that take no time, and whose API server tokenizes (for whoever asks) as fast as vLLM's |
//! | us/request | CPU time of the router's processes for each of many chats of about 1,000 new tokens, 16 at once; kvroute's with its bridge |
//! | req/s a core | what one core would do at that price |
//! | memory | of the router's processes at the end |
//!
//! Exit code: 0, 1 when a request failed, 2 for a name that does not exist.

#[path = "../e2e/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "peers/routers.rs"]
mod routers;
#[path = "gateway/wire.rs"]
#[allow(dead_code)]
mod wire;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use kvroute::load::{self, Options, Pace};
use kvroute::mock::words::{Dice, text};
use kvroute::mock::{Config, Speed, TokenizeTime};
use serde::Serialize;
use serde_json::json;

use harness::{BLOCK, MODEL, pack_file};
use routers::{Kind, Router};

const REPLICAS: usize = 3;
/// Tokens of the prompts whose way is timed, about.
const SIZES: [usize; 3] = [1_000, 8_000, 32_000];
/// Prompts of each size.
const TIMED: [usize; 3] = [60, 30, 16];
/// Chats for the price of one.
const PRICED: usize = 1_200;
const AT_ONCE: usize = 16;

/// What one router came to.
#[derive(Debug, Serialize)]
struct Row {
    router: &'static str,
    /// Why it was not measured.
    skipped: Option<String>,
    errors: u64,
    cached_share: f64,
    ttft_p50_ms: f64,
    ttft_p90_ms: f64,
    /// By about so many tokens.
    added_ms: Vec<(usize, f64)>,
    cpu_us_per_request: f64,
    requests_per_core_second: f64,
    requests_per_second: f64,
    memory_bytes: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let json_wanted = arguments.iter().any(|a| a == "--json");
    let chosen: Vec<&String> = arguments.iter().filter(|a| *a != "--json").collect();
    if let Some(unknown) = chosen.iter().find(|word| !Kind::ALL.iter().any(|kind| kind.name().contains(word.as_str())))
    {
        eprintln!("there is no router {unknown}: {}", Kind::ALL.map(Kind::name).join(", "));
        return ExitCode::from(2);
    }
    let wanted = |kind: &Kind| chosen.is_empty() || chosen.iter().any(|word| kind.name().contains(word.as_str()));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut rows = Vec::new();
    for kind in Kind::ALL.into_iter().filter(wanted) {
        eprintln!("measuring {} …", kind.name());
        rows.push(runtime.block_on(measure(kind)).unwrap_or_else(|reason| Row {
            router: kind.name(),
            skipped: Some(reason),
            errors: 0,
            cached_share: 0.0,
            ttft_p50_ms: 0.0,
            ttft_p90_ms: 0.0,
            added_ms: Vec::new(),
            cpu_us_per_request: 0.0,
            requests_per_core_second: 0.0,
            requests_per_second: 0.0,
            memory_bytes: 0,
        }));
    }
    if json_wanted {
        println!("{}", json!({"routers": rows}));
    } else {
        println!("{}", table(&rows));
        for row in &rows {
            if let Some(reason) = &row.skipped {
                println!("{} was not measured: {reason}", row.router);
            }
            if row.errors > 0 {
                println!("{}: {} requests failed", row.router, row.errors);
            }
        }
    }
    if rows.iter().any(|row| row.errors > 0) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "router",
        "cached",
        "ttft p50",
        "p90",
        "+ms 1k",
        "8k",
        "32k",
        "us/request",
        "req/s a core",
        "MB",
    ]);
    for row in rows.iter().filter(|row| row.skipped.is_none()) {
        let mut cells = vec![
            row.router.to_owned(),
            format!("{:.1} %", row.cached_share * 100.0),
            format!("{:.0}", row.ttft_p50_ms),
            format!("{:.0}", row.ttft_p90_ms),
        ];
        cells.extend(row.added_ms.iter().map(|(_, ms)| format!("{ms:.2}")));
        cells.push(format!("{:.0}", row.cpu_us_per_request));
        cells.push(format!("{:.0}", row.requests_per_core_second));
        cells.push(format!("{:.0}", row.memory_bytes as f64 / 1e6));
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The engines: caches that hold a third of what is asked, 16,000 tokens of prefill a second.
fn mock() -> Config {
    let config = Config {
        model: MODEL.into(),
        block_size: BLOCK,
        blocks: 2_600,
        max_batch: 32,
        prefill_us_per_token: 60.0,
        decode_ms_per_token: 2.0,
        output_tokens: 32,
        tokenize: TokenizeTime::VLLM,
        ..Config::default()
    };
    config.with_pack(&pack_file(), None, Default::default()).unwrap()
}

async fn measure(kind: Kind) -> Result<Row, String> {
    let router = Router::start(kind, REPLICAS, &mock()).await?;
    let options = Options {
        url: router.url.clone(),
        model: MODEL.into(),
        conversations: 24,
        turns: 5,
        system_prompts: 4,
        system_words: 600,
        question_words: 200,
        max_tokens: 32,
        pace: Pace::Closed { concurrency: 8 },
        seed: 7,
        ..Options::default()
    };
    router.settled().await;
    let talked = load::run(options).await.map_err(|e| e.to_string())?;
    for at in 0..router.replicas {
        router.replica(at).set_speed(Speed { prefill: Duration::ZERO, decode: Duration::ZERO });
    }
    let failed = AtomicU64::new(talked.errors);
    let mut added_ms = Vec::new();
    for (size, count) in SIZES.into_iter().zip(TIMED) {
        added_ms.push((size, added(&router, size, count, &failed).await));
    }
    let (cpu_us, rate) = price(&router, &failed).await;
    let row = Row {
        router: kind.name(),
        skipped: None,
        errors: failed.into_inner(),
        cached_share: talked.cached_share,
        ttft_p50_ms: talked.ttft_ms.p50,
        ttft_p90_ms: talked.ttft_ms.p90,
        added_ms,
        cpu_us_per_request: cpu_us,
        requests_per_core_second: 1e6 / cpu_us,
        requests_per_second: rate,
        memory_bytes: router.memory(),
    };
    router.stop().await;
    Ok(row)
}

/// A chat of about so many tokens that no other one begins like.
fn body(tokens: usize, seed: u64) -> String {
    let words = text(&mut Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1), tokens);
    json!({"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 1}).to_string()
}

async fn send(client: &reqwest::Client, base: &str, body: String, failed: &AtomicU64) -> Duration {
    let begin = Instant::now();
    let request = client.post(format!("{base}/v1/chat/completions")).header("content-type", "application/json");
    let good = match request.body(body).send().await {
        Ok(answer) => answer.status().is_success() && answer.bytes().await.is_ok(),
        Err(_) => false,
    };
    failed.fetch_add(u64::from(!good), Relaxed);
    begin.elapsed()
}

/// What the way through the router adds to the median, in milliseconds.
async fn added(router: &Router, tokens: usize, count: usize, failed: &AtomicU64) -> f64 {
    let (client, direct) = (harness::client(), router.replica(0).url());
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    for i in 0..count + 4 {
        // Never the same one twice, so that nobody remembers it.
        let (one, other) =
            (body(tokens, (tokens * 1000 + i * 2) as u64), body(tokens, (tokens * 1000 + i * 2 + 1) as u64));
        let (a, b) = (send(&client, &router.url, one, failed).await, send(&client, &direct, other, failed).await);
        // The first ones make connections.
        if i >= 4 {
            through.push(a.as_secs_f64() * 1e3);
            straight.push(b.as_secs_f64() * 1e3);
        }
    }
    median(through) - median(straight)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU time of the router for one chat, in microseconds, and the chats a second that came through meanwhile.
async fn price(router: &Router, failed: &AtomicU64) -> (f64, f64) {
    let cpu = || router.pids.iter().map(|pid| wire::cpu(*pid)).sum::<Duration>();
    let bodies: Vec<String> = (0..PRICED).map(|i| body(1_000, 0xC0DE_0000 + i as u64)).collect();
    let bodies = Arc::new(std::sync::Mutex::new(bodies));
    let (start, begin) = (cpu(), Instant::now());
    let client = harness::client();
    let all = (0..AT_ONCE).map(|_| async {
        loop {
            let next = bodies.lock().unwrap().pop();
            let Some(body) = next else { break };
            send(&client, &router.url, body, failed).await;
        }
    });
    futures::future::join_all(all).await;
    let (spent, took) = (cpu() - start, begin.elapsed());
    (spent.as_secs_f64() * 1e6 / PRICED as f64, PRICED as f64 / took.as_secs_f64())
}
