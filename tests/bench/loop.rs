//! What long prompts do to the others of their worker: `scripts/bench loop [--json] [ROW...]`. One worker; small
//! requests alone, and beside long prompts that come without pause, each of them new. And what a worker adds to memory.
//!
//! | measured | goal |
//! |---|---|
//! | `loop_duration_us` at P99.9 by Envoy's own count (`enable_dispatcher_stats`) | 8 ms |
//! | p99 of the small requests, less what it is alone | 10 ms |
//! | memory that a worker adds to Envoy's, beyond the pack | 8 MB |
//!
//! The first two depend on what else the machine does, and on what Envoy itself takes to read a long body, to hold it
//! and to send it on. The row of small requests alone shows the first, those with a filter that only holds bodies the
//! second; they are measured by turns.

#[path = "../e2e/harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "loop/load.rs"]
mod load;
#[path = "loop/memory.rs"]
mod memory;
#[path = "gateway/noop.rs"]
mod noop;
#[path = "support/options.rs"]
mod options;
#[path = "gateway/wire.rs"]
#[allow(dead_code)]
mod wire;

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};

use harness::{Gateway, Setup};
use kvroute::gateway::Balancing;
use load::{Kind, Long, Part};

const USAGE: &str = "\
What long prompts do to the other requests of their worker: turns of its event loop and small requests, alone and beside
long prompts that come without pause; the same with a filter that does nothing but to hold each body until it is
complete. And the memory that a worker adds. Takes five minutes.

usage: scripts/bench loop [--json] [ROW...]      ROW: 432k, 4m, 20m, word, spaces, memory; default all

exit code: 0, or 1 when a goal was missed";

/// Rows of long prompts: by which name they are asked for, what they are, and how they are shown.
const ROWS: [(&str, Long, &str); 5] = [
    ("432k", (Kind::Words, 432_000), "beside prompts of 432 KB"),
    ("4m", (Kind::Words, 4 << 20), "beside prompts of 4 MB"),
    ("20m", (Kind::Words, 20_000_000), "beside prompts of 20 MB"),
    ("word", (Kind::Word, 1_000_000), "beside words of 1 MB"),
    ("spaces", (Kind::Spaces, 10_000_000), "beside 10 MB of spaces"),
];

/// Megabytes.
const MEMORY_GOAL: f64 = 8.0;

/// With kvroute, or with a filter that only holds bodies.
fn setup(only_holding: bool, concurrency: u32) -> Setup {
    let mut setup = Setup { concurrency, ..Setup::default() };
    setup.mock.throw_away_over = Some(20_000);
    setup.mock.output_tokens = 1;
    setup.bootstrap.buffer_limit = Some(64 << 20);
    setup.bootstrap.dispatcher_stats = true;
    // Room for two prompts of 20 MB at a time.
    setup.bootstrap.router["limits"] = json!({"max_inspect_bytes": 24 << 20, "max_job_bytes": 384 << 20});
    if only_holding {
        setup.bridge = false;
        setup.bootstrap.balancing = Balancing::WithoutFilter;
        setup.bootstrap.health_path = None;
        setup.bootstrap.in_place = Some(noop::file(true));
    }
    setup
}

/// One row: its name, with kvroute, and with the filter that only holds bodies.
struct Row(&'static str, Part, Part);

async fn rows(wanted: &[&str]) -> Vec<Row> {
    let holding = Arc::new(Gateway::start(setup(true, 1)).await);
    let gateway = Arc::new(Gateway::start(setup(false, 1)).await);
    load::yield_to_others();
    let mut rows = Vec::new();
    let all = ROWS.into_iter().filter(|(name, ..)| wanted.contains(name));
    for (name, of) in std::iter::once(("small requests alone", None)).chain(all.map(|(_, of, name)| (name, Some(of)))) {
        let pool = Arc::new(of.map_or_else(Vec::new, load::pool));
        let held = load::part(&holding, &pool).await;
        rows.push(Row(name, load::part(&gateway, &pool).await, held));
    }
    rows
}

fn row_json(part: &Part) -> Value {
    json!({
        "long_prompts": part.long, "p50_ms": part.p50, "p99_ms": part.p99, "loop_p999_us": part.loop_p999,
        "loop_max_us": part.loop_max,
    })
}

fn print_row(name: &str, part: &Part, verdict: &str) {
    println!(
        "{name:26} {:>6} {:>6.2} ms {:>6.2} ms {:>8.2} ms {:>7.1} ms  {verdict}",
        part.long,
        part.p50,
        part.p99,
        part.loop_p999 / 1e3,
        part.loop_max / 1e3
    );
}

fn main() -> ExitCode {
    let names: Vec<&str> = ROWS.iter().map(|(name, ..)| *name).chain(["memory"]).collect();
    let (json_wanted, wanted) = options::options_and_names(USAGE, &names);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let memory = wanted.contains(&"memory").then(|| {
        let of = |only_holding| runtime.block_on(memory::of_a_worker(|workers| setup(only_holding, workers)));
        (of(false), of(true), memory::pack())
    });
    let rows = if wanted == ["memory"] { Vec::new() } else { runtime.block_on(rows(&wanted)) };
    let alone = rows.first().map_or(0.0, |row| row.1.p99);
    let met = |part: &Part| part.loop_p999 <= 8000.0 && part.p99 - alone <= 10.0;
    let memory_met = memory.is_none_or(|(worker, _, pack)| worker - pack <= MEMORY_GOAL);
    let all_met = memory_met && rows.iter().all(|row| met(&row.1));
    let code = if all_met { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    if json_wanted {
        let mut shown: Vec<Value> = Vec::new();
        for Row(name, part, held) in &rows {
            let mut row = row_json(part);
            row["name"] = json!(name);
            row["p99_more_than_alone_ms"] = json!(part.p99 - alone);
            row["only_holding"] = row_json(held);
            row["met"] = json!(met(part));
            shown.push(row);
        }
        if let Some((worker, holding, pack)) = memory {
            shown.push(json!({
                "name": "memory of a worker", "mb": worker, "pack_mb": pack, "beyond_the_pack_mb": worker - pack,
                "only_holding_mb": holding, "goal_mb": MEMORY_GOAL, "met": memory_met,
            }));
        }
        println!("{}", Value::Array(shown));
        return code;
    }
    if !rows.is_empty() {
        println!("{:26} {:>6} {:>9} {:>9} {:>11} {:>10}", "", "long", "p50", "p99", "loop P99.9", "loop max");
        for Row(name, part, held) in &rows {
            print_row(name, part, verdict(met(part)));
            print_row("  with a holding filter", held, "");
        }
        println!("goals: loop P99.9 at most 8 ms; p99 at most 10 ms more than alone");
    }
    if let Some((worker, holding, pack)) = memory {
        println!(
            "a worker adds {worker:.1} MB, of which {pack:.1} MB are the pack: {:.1} MB, goal {MEMORY_GOAL}: {}\n    \
             (with a holding filter, which has no tokenizer: {holding:.1} MB)",
            worker - pack,
            verdict(memory_met)
        );
    }
    code
}
