//! `kvroute simulate`

use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::table::{Paint, grouped, show, table};
use crate::clock::MS;
use crate::routing::Policy;
use crate::simulate::suite::Suite;
use crate::simulate::traffic::{Shape, read_trace};
use crate::simulate::{Outcome, PolicyName, Scenario, Traffic, burst, report};

const EXAMPLES: &str = r#"Examples:
  kvroute simulate                                       # every shape of traffic by every policy
  kvroute simulate multi-turn agents --seconds 600 --report report.html
  kvroute simulate --trace conversation_trace.jsonl --requests 4000 --load 1.5
  kvroute simulate multi-turn --policies kvroute,oracle --gateways 4 --event-delay-ms 0,50,200,500
  kvroute simulate unique --speeds 1,1,1,0.5 --replicas 4 --policies kvroute,least-request --json
  kvroute simulate bursts --weights '{"queue": 1}' --ttft-bound-ms 2000"#;

/// Compares choices of a replica, without engines: simulated replicas, caches, events, clients.
///
/// Replicas have paged prefix caches, chunked prefill and batched decode; kvroute takes part with the code of the
/// filter. Times are simulated, so they say which policy is better and by how much, not how fast your engines are:
/// give their speed by --prefill-us, --decode-ms and --blocks. The same seed gives the same numbers.
///
/// Columns: hit, prompt tokens found in caches; ttft, time to the first token; req/s at bound, the most requests a
/// second for which 90 % of them stay below --ttft-bound-ms; uneven, busy time of the busiest replica over the mean;
/// wrong, picks that cost at least 512 tokens more than another replica would have by the oracle's cost at that moment.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Shapes of traffic; all when neither they nor a trace are named
    #[arg(value_enum)]
    shapes: Vec<Shape>,
    /// A recorded trace besides: a JSON object a line with timestamp, input_length, output_length, hash_ids
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Requests of the trace
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Who chooses
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    policies: Vec<PolicyName>,
    /// Seconds of generated traffic
    #[arg(long, default_value_t = 240.0, value_parser = seconds)]
    seconds: f64,
    /// Times as many requests as usual (the trace: as fast)
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    load: f64,
    /// Replicas; generated traffic grows with them
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    replicas: u16,
    /// How fast each replica is; those without a number: 1
    #[arg(long, value_delimiter = ',', value_name = "FACTORS", value_parser = factor)]
    speeds: Vec<f64>,
    /// So many cold replicas more, after so many seconds
    #[arg(long, value_name = "SECONDS:N", value_parser = scale_out)]
    scale_out: Vec<(u64, usize)>,
    /// Gateways that don't see each other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    gateways: u16,
    /// How late events reach a gateway; several: a run for each
    #[arg(long, value_delimiter = ',', value_name = "MS", default_value = "5", value_parser = milliseconds)]
    event_delay_ms: Vec<f64>,
    /// Share of the batches of events that get lost on the way to a gateway
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    event_loss: f64,
    /// Tokens of a block
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    block_size: u32,
    /// Blocks of a replica's cache
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(64..=4_000_000))]
    blocks: u32,
    /// Requests that a replica runs at once
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    max_batch: u16,
    /// Microseconds to prefill a token
    #[arg(long, value_name = "US", default_value_t = 100.0, value_parser = factor)]
    prefill_us: f64,
    /// Milliseconds of a step in which output tokens are made
    #[arg(long, value_name = "MS", default_value_t = 20.0, value_parser = factor)]
    decode_ms: f64,
    /// Search for the throughput at which p90 of the time to the first token is this; takes some ten times as long
    #[arg(long, value_name = "MS", value_parser = factor)]
    ttft_bound_ms: Option<f64>,
    /// Weights of kvroute and the oracle that differ from the defaults: JSON like `policy` of the filter
    #[arg(long, value_name = "JSON", value_parser = weights)]
    weights: Option<Policy>,
    /// Everything that is left to chance comes from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs at a time; as many as the machine has cores when left out
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Makes the traffic, runs, shows.
pub fn run(args: Args) -> Result<ExitCode> {
    let suite = match suite(&args) {
        Ok(suite) => suite,
        Err(error) => {
            eprintln!("kvroute simulate: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let bar = progress(suite.work());
    let outcomes = suite.run(&|n| bar.inc(n as u64));
    bar.finish_and_clear();
    if let Some(file) = &args.report {
        std::fs::write(file, report::page(&suite, &outcomes)).with_context(|| format!("{}", file.display()))?;
    }
    match args.json {
        true => show(&format!("{}\n", json(&suite, &outcomes)))?,
        false => show(&text(&suite, &outcomes, Paint::new()))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn suite(args: &Args) -> Result<Suite> {
    let shapes: &[Shape] = match (args.shapes.is_empty(), &args.trace) {
        (true, None) => &Shape::ALL,
        _ => &args.shapes,
    };
    let load = args.load * f64::from(args.replicas) / 8.0;
    let mut traffics: Vec<Traffic> =
        shapes.iter().map(|shape| shape.traffic(args.seconds, load, args.block_size, args.seed)).collect();
    if let Some(file) = &args.trace {
        let name = file.display();
        let open = File::open(file).with_context(|| format!("{name}"))?;
        let trace = read_trace(BufReader::new(open), args.requests as usize, args.block_size, args.seed);
        traffics.push(trace.with_context(|| format!("{name}"))?.faster(args.load));
    }
    let scenario = Scenario {
        replicas: usize::from(args.replicas),
        speeds: args.speeds.clone(),
        scale_out: args.scale_out.clone(),
        block_size: args.block_size,
        blocks: args.blocks,
        max_batch: usize::from(args.max_batch),
        prefill_us: args.prefill_us,
        decode_ms: args.decode_ms,
        gateways: usize::from(args.gateways),
        event_loss: args.event_loss,
        policy: args.weights.clone().unwrap_or_default(),
        seed: args.seed,
        ..Scenario::default()
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Ok(Suite {
        scenario,
        traffics,
        policies: if args.policies.is_empty() { PolicyName::ALL.to_vec() } else { args.policies.clone() },
        delays: args.event_delay_ms.iter().map(|ms| (ms * MS as f64) as u64).collect(),
        bound_ms: args.ttft_bound_ms,
        threads: args.threads.unwrap_or(cores),
    })
}

fn text(suite: &Suite, outcomes: &[Outcome], paint: Paint) -> String {
    let mut out = String::new();
    for traffic in &suite.traffics {
        let requests = grouped(traffic.requests() as u64);
        out += &format!("{}: {}; {requests} requests\n", paint.bold(&traffic.name), traffic.about);
        let of = outcomes.iter().filter(|o| o.traffic == traffic.name);
        let mut headers = vec!["", "hit", "ttft p50", "p90", "p99 ms", "req/s", "uneven", "wrong", "prefilled"];
        if suite.bound_ms.is_some() {
            headers.insert(6, "at bound");
        }
        if suite.delays.len() > 1 {
            headers.insert(1, "delay ms");
        }
        let rows = of.map(|o| {
            let mut row = vec![
                o.policy.clone(),
                format!("{:.1}%", o.hit_rate * 100.0),
                ms(o.ttft_ms.p50),
                ms(o.ttft_ms.p90),
                ms(o.ttft_ms.p99),
                format!("{:.1}", o.throughput),
                format!("{:.2}", o.busy_imbalance),
                o.wrong_picks.map_or("-".into(), |share| format!("{:.1}%", share * 100.0)),
                format!("{:.2} M", o.prefilled_tokens as f64 / 1e6),
            ];
            if suite.bound_ms.is_some() {
                row.insert(6, o.bound_throughput.map_or("-".into(), |t| format!("{t:.1}")));
            }
            if suite.delays.len() > 1 {
                row.insert(1, format!("{}", o.event_delay_ms));
            }
            row
        });
        out += &format!("{}\n", table(&headers, 1, rows));
        let refused: usize = outcomes.iter().filter(|o| o.traffic == traffic.name).map(|o| o.refused).sum();
        if refused > 0 {
            out += &format!("{refused} requests were too large for the cache of a replica and count nowhere\n");
        }
        if traffic.name == Shape::Bursts.label() {
            let spread = burst::break_even(&suite.scenario, 64, 8192);
            out += &format!("break-even of the cost: 64 such prompts at once are cheapest on {spread} replicas\n");
        }
        out.push('\n');
    }
    out
}

fn ms(x: f64) -> String {
    grouped(x.round() as u64)
}

fn json(suite: &Suite, outcomes: &[Outcome]) -> serde_json::Value {
    let s = &suite.scenario;
    json!({
        "scenario": {
            "replicas": s.replicas, "speeds": s.speeds, "block_size": s.block_size, "blocks": s.blocks,
            "prefill_us": s.prefill_us, "decode_ms": s.decode_ms, "context_us": s.context_us,
            "gateways": s.gateways, "event_loss": s.event_loss, "seed": s.seed, "policy": s.policy,
            "ttft_bound_ms": suite.bound_ms, "burst_break_even": burst::break_even(s, 64, 8192),
        },
        "outcomes": outcomes,
    })
}

/// A bar on the terminal; nothing elsewhere.
fn progress(requests: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {percent} %  {human_pos} requests  {elapsed}, {eta} left");
    ProgressBar::new(requests as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn number(text: &str, most: f64, zero: bool) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match (0.0..=most).contains(&number) && (zero || number > 0.0) {
        true => Ok(number),
        false => Err(format!("must be {}, at most {most}", if zero { "0 or more" } else { "more than 0" })),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    number(text, 1e6, false)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 86_400.0, false)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    number(text, 60_000.0, true)
}

fn share(text: &str) -> Result<f64, String> {
    number(text, 1.0, true)
}

fn scale_out(text: &str) -> Result<(u64, usize), String> {
    let (after, more) = text.split_once(':').ok_or("write it as SECONDS:N, like 120:2")?;
    let more = more.parse().ok().filter(|n| (1..=512).contains(n)).ok_or("N must be a number from 1 to 512")?;
    Ok(((seconds(after)? * 1e9) as u64, more))
}

fn weights(text: &str) -> Result<Policy, String> {
    let policy: Policy = serde_json::from_str(text).map_err(|e| e.to_string())?;
    policy.check().map_err(|(field, why)| format!("{field} {why}"))?;
    Ok(policy)
}
