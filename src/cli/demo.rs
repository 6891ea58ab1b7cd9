//! `kvroute demo`: the main job end to end, against Envoy's own policies.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use super::table::say;
use crate::bridge::config::ReplicaSpec;
use crate::bridge::{Bridge, BridgeConfig};
use crate::gateway::{Balancing, Bootstrap, Envoy, free_address};
use crate::load::{self, Options, Pace, Percentiles};
use crate::look::WAKE_PATH;
use crate::mock::{self, Replica};
use crate::pack::build::{self, BuildOptions};
use crate::pack::wasm;
use crate::request::EngineFlags;

const MODEL: &str = "qwen3";
const BLOCK_SIZE: u32 = 16;
/// How long the workers may take to get in step with the bridge.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

const EXAMPLES: &str = r#"Examples:
  scripts/demo
  scripts/demo --replicas 5 -n 60 -c 24
  scripts/demo --json | jq .policies.kvroute.cached_share"#;

/// Runs the main job end to end and compares kvroute with Envoy's own policies.
///
/// A real Envoy, mock replicas with KV events, the bridge, and multi-turn chats with the model's own tokenizer and
/// chat template; once routed by kvroute, once by Envoy's round robin, once by its least request, each time with
/// cold replicas and the same chats.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The filter, built for wasm32-wasip1
    #[arg(long, value_name = "FILE")]
    wasm: PathBuf,
    /// Directory with the model's tokenizer.json and tokenizer_config.json
    #[arg(long, value_name = "DIR")]
    model_dir: PathBuf,
    /// Mock replicas
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    replicas: u16,
    /// Conversations
    #[arg(long, short = 'n', default_value_t = 30)]
    conversations: usize,
    /// Turns of each conversation
    #[arg(long, short = 't', default_value_t = 5)]
    turns: usize,
    /// Requests under way at once
    #[arg(long, short = 'c', default_value_t = 12)]
    concurrency: usize,
    /// Words of the system prompt that all conversations share (about as many tokens)
    #[arg(long, default_value_t = 500)]
    system_words: usize,
    /// Words of a question
    #[arg(long, default_value_t = 200)]
    question_words: usize,
    /// Blocks of each replica's cache, 16 tokens each
    #[arg(long, default_value_t = 2000)]
    blocks: u32,
    /// Microseconds that a replica takes for each prompt token that it has not cached
    #[arg(long, default_value_t = 100.0)]
    prefill_us_per_token: f64,
    /// Worker threads of Envoy
    #[arg(long, default_value_t = 2)]
    envoy_concurrency: u32,
    /// The same seed gives the same chats
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// What one policy came to.
#[derive(Debug, Serialize)]
struct PolicyReport {
    requests: u64,
    errors: u64,
    cached_share: f64,
    ttft_ms: Percentiles,
    requests_per_replica: BTreeMap<String, u64>,
}

/// Runs all policies. Exit code 1 when a request failed.
pub fn run(args: Args) -> Result<ExitCode> {
    if std::io::stderr().is_terminal() {
        eprintln!("{} conversations of {} turns, {} replicas", args.conversations, args.turns, args.replicas);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let files = Files::make(&args)?;
    let mut reports = Vec::new();
    for (label, balancing) in [
        ("kvroute", Balancing::Kvroute),
        ("round_robin", Balancing::RoundRobin),
        ("least_request", Balancing::LeastRequest),
    ] {
        let report = runtime.block_on(run_policy(&args, &files, label, balancing)).with_context(|| label.to_owned())?;
        reports.push((label, report));
    }
    if args.json {
        let policies: serde_json::Map<String, serde_json::Value> = reports
            .iter()
            .map(|(label, report)| Ok(((*label).to_owned(), serde_json::to_value(report)?)))
            .collect::<Result<_>>()?;
        say!("{}", json!({ "policies": policies }))?;
    } else {
        say!("{}", table(&reports))?;
    }
    let errors = reports.iter().any(|(_, report)| report.errors > 0);
    Ok(if errors { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The pack and the filter that carries it.
struct Files {
    pack: PathBuf,
    wasm: PathBuf,
    dir: PathBuf,
}

impl Files {
    fn make(args: &Args) -> Result<Files> {
        let dir = std::env::temp_dir().join(format!("kvroute-demo-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let options = BuildOptions { name: Some(MODEL.into()), ..BuildOptions::default() };
        let pack = build::build(&args.model_dir, &options)?;
        let plain = std::fs::read(&args.wasm).with_context(|| args.wasm.display().to_string())?;
        let files = Files { pack: dir.join("qwen3.pack"), wasm: dir.join("kvroute-qwen3.wasm"), dir };
        std::fs::write(&files.wasm, wasm::embed(&plain, &pack)?)?;
        std::fs::write(&files.pack, pack)?;
        Ok(files)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

async fn run_policy(args: &Args, files: &Files, label: &str, balancing: Balancing) -> Result<PolicyReport> {
    let config = mock::Config {
        model: MODEL.into(),
        block_size: BLOCK_SIZE,
        blocks: args.blocks,
        max_batch: 32,
        prefill_us_per_token: args.prefill_us_per_token,
        decode_ms_per_token: 2.0,
        ..mock::Config::default()
    }
    .with_pack(&files.pack, None, EngineFlags::default())?;
    let replicas = (0..args.replicas)
        .map(|i| Replica::start(mock::Config { name: Some(format!("replica-{i}")), ..config.clone() }))
        .collect::<Result<Vec<_>>>()?;
    let (ingest, bridge_address) = (free_address()?, free_address()?);
    let bootstrap = Bootstrap {
        balancing,
        wasm: files.wasm.clone(),
        ingest_wasm: Some(args.wasm.clone()),
        replicas: replicas.iter().map(Replica::http_addr).collect(),
        ingest,
        bridge: (balancing == Balancing::Kvroute).then_some(bridge_address),
        router: json!({"models": [{"name": MODEL, "pack": MODEL, "block_size": BLOCK_SIZE}]}),
        ..Bootstrap::default()
    };
    let secret = bootstrap.secret.clone();
    let concurrency = args.envoy_concurrency;
    let envoy = tokio::task::spawn_blocking(move || Envoy::start(bootstrap, concurrency)).await??;
    let bridge = match balancing {
        Balancing::Kvroute => {
            let specs = replicas.iter().map(|r| ReplicaSpec::parse(&r.bridge_spec())).collect::<Result<_, _>>();
            let config = BridgeConfig {
                envoys: vec![format!("http://{ingest}")],
                secret,
                listen: bridge_address,
                replicas: specs.map_err(anyhow::Error::msg)?,
                ..BridgeConfig::default()
            };
            let bridge = Bridge::start(config).await.map_err(anyhow::Error::msg)?;
            await_sync(&envoy, concurrency).await?;
            Some(bridge)
        }
        _ => None,
    };
    let report = load::run(options(args, &envoy, label)).await?;
    if let Some(bridge) = bridge {
        bridge.stop().await;
    }
    tokio::task::spawn_blocking(move || drop((envoy, replicas))).await?;
    Ok(PolicyReport {
        requests: report.requests,
        errors: report.errors,
        cached_share: (report.cached_share * 1e4).round() / 1e4,
        ttft_ms: report.ttft_ms,
        requests_per_replica: report.requests_per_replica,
    })
}

fn options(args: &Args, envoy: &Envoy, label: &str) -> Options {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new((args.conversations * args.turns) as u64)
    } else {
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{msg:14} {bar:40} {pos}/{len} {per_sec}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(label.to_owned());
    Options {
        url: format!("http://{}", envoy.public()),
        model: MODEL.into(),
        conversations: args.conversations,
        turns: args.turns,
        system_words: args.system_words,
        question_words: args.question_words,
        pace: Pace::Closed { concurrency: args.concurrency },
        seed: args.seed,
        on_answer: Some(Arc::new(move || {
            bar.inc(1);
            if bar.length() == Some(bar.position()) {
                bar.finish_and_clear();
            }
        })),
        ..Options::default()
    }
}

/// Waits until every worker is in step with the bridge. A worker takes part from its first POST on.
async fn await_sync(envoy: &Envoy, workers: u32) -> Result<()> {
    let deadline = Instant::now() + SYNC_TIMEOUT;
    let url = format!("http://{}{WAKE_PATH}", envoy.public());
    while envoy.stats(".kvroute_synced.slot.")?.iter().map(|(_, synced)| synced).sum::<u64>() < u64::from(workers) {
        if Instant::now() > deadline {
            bail!("the workers did not get in step with the bridge; the end of Envoy's log:\n{}", envoy.log());
        }
        // A new connection goes to any worker.
        let client = reqwest::Client::builder().no_proxy().build()?;
        let _ = client.post(&url).send().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

fn table(reports: &[(&str, PolicyReport)]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["policy", "requests", "errors", "cached", "TTFT p50", "p90", "p99", "requests per replica"]);
    for (label, report) in reports {
        let spread: Vec<String> = report.requests_per_replica.values().map(u64::to_string).collect();
        table.add_row([
            (*label).to_owned(),
            report.requests.to_string(),
            report.errors.to_string(),
            format!("{:.1} %", report.cached_share * 100.0),
            format!("{:.0} ms", report.ttft_ms.p50),
            format!("{:.0} ms", report.ttft_ms.p90),
            format!("{:.0} ms", report.ttft_ms.p99),
            spread.join(" / "),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
