//! `kvroute inspect`: what a pack file or a packed filter contains.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::table::{harmless, say};
use crate::pack::{Pack, wasm};
use crate::request::{EngineFlags, Renderer};

const EXAMPLES: &str = r#"Examples:
  kvroute inspect model.wasm
  kvroute inspect --json qwen3.pack | jq '.packs[].fingerprint'"#;

/// Shows what a pack, or the packs inside a filter, contain.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// A pack file or a wasm.
    file: PathBuf,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: InspectArgs) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let bytes = std::fs::read(&args.file).with_context(|| name.clone())?;
    let (kind, file) = match wasm::is_wasm(&bytes) {
        true => ("filter", wasm::extract(&bytes).with_context(|| name.clone())?.map(<[u8]>::to_vec)),
        false => ("pack", Some(bytes.clone())),
    };
    let packs = file.map_or(Ok(Vec::new()), Pack::parse).with_context(|| name.clone())?;
    if args.json {
        let packs: Vec<Value> = packs.iter().map(describe).collect();
        say!("{}", json!({"file": name, "kind": kind, "bytes": bytes.len(), "packs": packs}))?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{name}: {kind}, {:.1} MB, {}", bytes.len() as f64 / 1e6, count(packs.len()))?;
    packs.iter().try_for_each(print)?;
    Ok(ExitCode::SUCCESS)
}

fn count(packs: usize) -> String {
    match packs {
        0 => "no pack: put one in with kvroute pack --wasm".to_owned(),
        1 => "1 pack".to_owned(),
        n => format!("{n} packs"),
    }
}

/// A pack in a few lines.
pub fn print(pack: &Pack) -> std::io::Result<()> {
    let (meta, template) = (pack.meta(), pack.template_source());
    say!("{}", harmless(&meta.name))?;
    say!("  fingerprint  {} (kvroute {})", harmless(&meta.fingerprint), harmless(&meta.made_by))?;
    say!("  tokenizer    {}, {:.1} MB", pack.tokenizer_kind(), pack.tokenizer_bytes() as f64 / 1e6)?;
    if !meta.engine_note.is_empty() {
        say!("               {}", harmless(&meta.engine_note))?;
    }
    say!("  around text  {:?} … {:?}", meta.specials.prefix, meta.specials.suffix)?;
    let chat = match (&template.chat_template, template.model_type.as_deref()) {
        (_, Some("gpt_oss")) => "harmony (model_type gpt_oss)".to_owned(),
        (Some(_), _) => "chat template".to_owned(),
        (None, _) => "none: chat requests get no key".to_owned(),
    };
    say!("  chat         {chat}")?;
    for warning in warnings(pack) {
        say!("  warning      {}", harmless(&warning))?;
    }
    for (name, size) in &meta.sources {
        say!("  from         {}, {size} bytes", harmless(name))?;
    }
    Ok(())
}

/// What an operator should know of the template, whatever the engine's flags are.
fn warnings(pack: &Pack) -> Vec<String> {
    match Renderer::new(pack.template_source().clone(), &EngineFlags::default()) {
        Ok(renderer) => renderer.warnings().to_vec(),
        Err(error) => vec![format!("cannot be rendered with the engine's default flags: {error}")],
    }
}

fn describe(pack: &Pack) -> Value {
    let meta = pack.meta();
    json!({
        "name": meta.name,
        "fingerprint": meta.fingerprint,
        "made_by": meta.made_by,
        "tokenizer": {"kind": pack.tokenizer_kind(), "bytes": pack.tokenizer_bytes(), "note": meta.engine_note},
        "specials": meta.specials,
        "sources": meta.sources,
        "template": pack.template_source(),
        "warnings": warnings(pack),
    })
}
