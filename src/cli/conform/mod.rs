//! `kvroute conform`: are kvroute's prompts and token ids the engine's?

mod text;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use super::ask::{Asker, GatewayArgs};
use super::models::{Chosen, Models, Ready, now};
use super::table::{Paint, show};
use crate::conform::cases::{Case, CaseFile, to_lines, unix_seconds};
use crate::conform::engine::{Engine, Kind, Truth};
use crate::conform::{Totals, Verdict, judge};
use crate::explain::{Explanation, explain};
use crate::nokey::{NoKey, NoKeyReason};
use crate::request::{Api, ApiPaths, Body};

const EXAMPLES: &str = r#"Examples:
  Recorded cases, on this machine and inside a running Envoy:
    kvroute conform --pack qwen3.pack --cases qwen3.jsonl
    kvroute conform --gateway http://127.0.0.1:10100 --secret-file secret --cases qwen3.jsonl
  Against a live engine (a renderer without weights will do: vllm launch render MODEL):
    kvroute conform --pack qwen3.pack --engine http://127.0.0.1:8000 --bodies bodies.jsonl
    kvroute conform --pack qwen3.pack --engine http://127.0.0.1:8000 --bodies bodies.jsonl --record qwen3.jsonl
  A line of --bodies is a request body, or {"endpoint": "/v1/messages", "body": {…}}.
  A line of --cases has the engine's answer besides: {"endpoint": …, "body": …, "status": 200, "token_ids": […]}."#;

/// Compares prompts and token ids with those of the engine, and shows the first difference of each failure.
///
/// What the engine makes of a request comes from a file of recorded cases, or from a live engine: its render
/// endpoint where it is served, else /tokenize. What kvroute makes of it comes from a pack, or out of a running
/// gateway. Exit code 1 when any case failed, or none could be checked.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ConformArgs {
    /// A pack, or a filter with packs. Left out with --gateway, unless both are to be checked.
    #[arg(long, value_name = "FILE", required_unless_present = "gateway")]
    pack: Option<PathBuf>,
    /// Recorded cases. May be repeated; the file's name up to its first "-" or "." names the pack where there are several.
    #[arg(long, value_name = "FILE", num_args = 1.., required_unless_present = "engine", conflicts_with = "engine")]
    cases: Vec<PathBuf>,
    /// A live engine to compare with.
    #[arg(long, value_name = "URL", requires = "bodies")]
    engine: Option<String>,
    /// Requests for --engine, one a line.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "engine")]
    bodies: Vec<PathBuf>,
    /// Write what the engine answered to a file for --cases.
    #[arg(long, value_name = "FILE", requires = "engine")]
    record: Option<PathBuf>,
    /// The router's plugin configuration: models and engine flags. Without it the files say the flags.
    #[arg(long, value_name = "FILE", requires = "pack")]
    config: Option<PathBuf>,
    /// The pack to take where the file has several.
    #[arg(long, value_name = "NAME", requires = "pack", conflicts_with = "config")]
    model: Option<String>,
    /// Flags of the engine as in the plugin configuration, over those that the files say: '{"max_model_len": 40960}'.
    #[arg(long, value_name = "JSON", requires = "pack", conflicts_with = "config")]
    flags: Option<String>,
    /// The day of the recording (2026-11-30) for templates that print the date. Default: what the file says, or today.
    #[arg(long, value_name = "DATE")]
    date: Option<String>,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// How one case came out.
#[derive(Debug, Serialize)]
struct Outcome {
    name: String,
    endpoint: String,
    #[serde(flatten)]
    verdict: Option<Verdict>,
    /// Why it could not be checked, or what the engine answered instead of ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// A file's outcomes, seen from one place.
#[derive(Debug, Serialize)]
struct Report {
    name: String,
    /// `pack` or `gateway`.
    place: &'static str,
    totals: Totals,
    /// All but the identical ones.
    outcomes: Vec<Outcome>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Runs the subcommand.
pub fn run(args: ConformArgs) -> Result<ExitCode> {
    let date = args.date.as_deref().map(|date| unix_seconds(date).with_context(|| format!("--date {date:?}: no day")));
    let date = date.transpose()?;
    let over: Option<Value> = args.flags.as_deref().map(serde_json::from_str).transpose().context("--flags")?;
    let models = args.pack.as_deref().map(|pack| Models::read(pack, args.config.as_deref())).transpose()?;
    let asker = args.gateway.gateway.is_some().then(|| args.gateway.asker()).transpose()?;
    let paths = if args.engine.is_some() { &args.bodies } else { &args.cases };
    let files = paths.iter().map(|path| CaseFile::read(path)).collect::<Result<Vec<_>>>()?;
    let places = usize::from(models.is_some()) + usize::from(asker.is_some());
    let progress = progress(files.iter().map(|file| file.cases.len() * places).sum());
    let (mut reports, mut recorded) = (Vec::new(), Vec::new());
    for file in &files {
        let at = date.or(file.meta.unix_seconds);
        let mut here = models.as_ref().map(|models| Here::new(&args, models, file, over.as_ref())).transpose()?;
        let kind = here.as_mut().map_or(Kind::Vllm, Here::kind);
        let (cases, notes) = match &args.engine {
            None => (file.cases.iter().map(|case| Ok((case.clone(), None))).collect(), notes(file)),
            Some(url) => asked(url, file, kind, here.as_ref())?,
        };
        if let Some(path) = &args.record {
            let known = cases.iter().filter_map(|asked| asked.as_ref().ok()).map(|(case, _)| case.clone());
            recorded.extend(known);
            let version = here.as_ref().and_then(Here::version).unwrap_or_default();
            let name = if kind == Kind::Sglang { "sglang" } else { "vllm" };
            let meta = serde_json::json!({name: version, "engine": over.clone().unwrap_or_default()});
            std::fs::write(path, to_lines(&meta, &recorded)).with_context(|| path.display().to_string())?;
        }
        if let Some(here) = &mut here {
            reports.push(report(file, "pack", &cases, &notes, &progress, |case| here.explain(case, at))?);
        }
        if let Some(asker) = &asker {
            let notes = if here.is_some() { Vec::new() } else { notes };
            reports.push(report(file, "gateway", &cases, &notes, &progress, |case| there(asker, case, at))?);
        }
    }
    progress.finish_and_clear();
    if args.json {
        show(&format!("{}\n", serde_json::json!({"files": reports, "totals": text::sum(&reports)})))?;
    } else {
        show(&text::reports(&reports, Paint::new()))?;
    }
    let total = text::sum(&reports);
    if total.failed == 0 && total.identical == 0 {
        bail!("no case was compared: the engine refused, or has no endpoint for, every one");
    }
    Ok(if total.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A case with what the engine said instead of ids, or why it could not be asked.
type Asked = std::result::Result<(Case, Option<String>), Box<(Case, String)>>;

fn report(
    file: &CaseFile,
    place: &'static str,
    cases: &[Asked],
    notes: &[String],
    progress: &ProgressBar,
    mut explain: impl FnMut(&Case) -> Result<Explanation>,
) -> Result<Report> {
    let mut out = Report {
        name: file.name.clone(),
        place,
        totals: Totals::default(),
        outcomes: Vec::new(),
        notes: notes.to_vec(),
    };
    for asked in cases {
        let (case, verdict, note) = match asked {
            Ok((case, note)) => {
                let ours = explain(case).with_context(|| format!("{} {}", file.name, case.name))?;
                (case, Some(judge(case, &ours)), note.clone())
            }
            Err(unasked) => (&unasked.0, None, Some(unasked.1.clone())),
        };
        out.totals.count(verdict.as_ref());
        if verdict != Some(Verdict::Identical) {
            let (name, endpoint) = (case.name.clone(), case.endpoint.clone());
            out.outcomes.push(Outcome { name, endpoint, verdict, note });
        }
        progress.inc(1);
    }
    Ok(out)
}

fn progress(cases: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} cases").expect("the template is right");
    ProgressBar::new(cases as u64).with_style(style)
}

fn notes(file: &CaseFile) -> Vec<String> {
    let others = &file.meta.other_flags;
    if others.is_empty() {
        return Vec::new();
    }
    vec![format!("flags taken to be without effect on prompts: {}", others.join(" "))]
}

/// Asks the engine for each of a file's requests.
fn asked(url: &str, file: &CaseFile, kind: Kind, here: Option<&Here<'_>>) -> Result<(Vec<Asked>, Vec<String>)> {
    let engine = Engine::new(url)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut notes = notes(file);
    if let (Some(says), Some(here)) = (runtime.block_on(engine.version())?, here)
        && let Some(told) = here.version()
        && !says.starts_with(told.trim_start_matches('v'))
    {
        notes.push(format!("the engine says that it is {says}, kvroute was told {told}"));
    }
    let ask = |case: &Case| -> Result<Asked> {
        Ok(match runtime.block_on(engine.truth(case, kind))? {
            Truth::Known(case, note) => Ok((case, note)),
            Truth::NotCheckable(why) => Err(Box::new((case.clone(), why))),
        })
    };
    Ok((file.cases.iter().map(ask).collect::<Result<_>>()?, notes))
}

/// Works cases out on this machine.
struct Here<'a> {
    models: &'a Models,
    paths: ApiPaths,
    /// Without a configuration: what the arguments and the file say.
    chosen: Option<Chosen>,
    made: Vec<Ready>,
}

impl<'a> Here<'a> {
    fn new(args: &ConformArgs, models: &'a Models, file: &CaseFile, over: Option<&Value>) -> Result<Here<'a>> {
        let chosen = match args.config {
            Some(_) => None,
            None => {
                let pack = models.pack_of(args.model.as_deref().or(Some(file.tokenizer())))?.name().to_owned();
                let flags = file.meta.flags(over).with_context(|| file.name.clone())?;
                Some(Chosen { name: pack.clone(), lora: None, pack, flags, block_size: 16, hash_seed: String::new() })
            }
        };
        Ok(Here { models, paths: models.paths(), chosen, made: Vec::new() })
    }

    fn version(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.flags.version.as_str())
    }

    fn kind(&mut self) -> Kind {
        let Some(chosen) = self.chosen.clone() else { return Kind::Vllm };
        if chosen.flags.engine == "sglang" {
            return Kind::Sglang;
        }
        let harmony = self.ready(chosen).is_ok_and(|ready| ready.renderer.is_harmony());
        if harmony { Kind::Harmony } else { Kind::Vllm }
    }

    fn ready(&mut self, chosen: Chosen) -> Result<&Ready> {
        if let Some(at) = self.made.iter().position(|ready| ready.chosen == chosen) {
            return Ok(&self.made[at]);
        }
        let ready = self.models.ready(chosen)?;
        ready.renderer.warnings().iter().for_each(|warning| eprintln!("kvroute: {}: {warning}", ready.chosen.pack));
        self.made.push(ready);
        self.made.last().context("just made")
    }

    fn explain(&mut self, case: &Case, at: Option<u64>) -> Result<Explanation> {
        let api = Api::of_check(&case.endpoint, &self.paths);
        let api =
            api.ok_or_else(|| NoKeyReason::new(NoKey::NotOurPath, format!("no API has the path {:?}", case.endpoint)));
        let (api, body) = match api.and_then(|api| Ok((api, Body::parse(case.body.as_bytes())?))) {
            Ok(parsed) => parsed,
            Err(reason) => return Ok(Explanation::without_key(reason)),
        };
        let chosen = match (self.models.configured(body.model()), &self.chosen) {
            (Some(Err(reason)), _) => return Ok(Explanation::without_key(reason)),
            (Some(Ok(chosen)), _) => chosen,
            (None, chosen) => chosen.clone().context("neither a configuration nor a pack")?,
        };
        Ok(explain(&self.ready(chosen)?.model(), api, &body, at.unwrap_or_else(now)))
    }
}

fn there(asker: &Asker, case: &Case, at: Option<u64>) -> Result<Explanation> {
    Ok(asker.explain(&case.endpoint, at, case.body.as_bytes())?.explanation)
}
