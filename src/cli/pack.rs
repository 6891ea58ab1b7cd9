//! `kvroute pack`: model directories to pack files, and packs into the filter.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::ProgressBar;

use super::hub::{ModelFiles, model_files};
use super::table::say;
use crate::pack::build::{self, BuildOptions, SourceOptions};
use crate::pack::{Pack, wasm};
use crate::tokenizer::hf::HfTokenizer;
use crate::whole;

const EXAMPLES: &str = r#"Examples:
  kvroute pack Qwen/Qwen3-0.6B -o qwen3.pack
  kvroute pack MODEL_DIR -o qwen3.pack
  kvroute pack MODEL_DIR --name qwen3 --wasm kvroute.wasm -o model.wasm
  kvroute pack --pack a.pack --pack b.pack --wasm kvroute.wasm -o models.wasm

A model of the Hugging Face hub is downloaded into the hub's own cache (weights are not), by the environment that its
tools know: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE."#;

/// Compiles a model's tokenizer and chat template into a pack, and puts packs into the filter.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    /// A model's directory (tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json), or the name of
    /// a model on the Hugging Face hub. A directory that exists wins.
    #[arg(required_unless_present = "packs")]
    model: Option<PathBuf>,
    /// Branch, tag or commit of a model on the hub.
    #[arg(long, requires = "model", default_value = "main")]
    revision: String,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The model's name, as requests say it. Default: its name on the hub, or that of the directory.
    #[arg(long, requires = "model")]
    name: Option<String>,
    /// Packs made before, to go into the same file. May be repeated.
    #[arg(long = "pack", value_name = "FILE")]
    packs: Vec<PathBuf>,
    /// Put the packs into this filter; those that it has are replaced.
    #[arg(long, value_name = "FILE")]
    wasm: Option<PathBuf>,
    /// Accept a base model without a chat template, or leave out one that cannot be rendered. Chat requests then get
    /// no key, unless the filter's configuration has the template that the engine is started with.
    #[arg(long, requires = "model")]
    allow_no_template: bool,
    /// Stands in for model_type of config.json, as the engine's --hf-overrides does.
    #[arg(long, requires = "model", value_name = "TYPE")]
    model_type: Option<String>,
    /// The engine's --hf-overrides: an object whose fields replace those of config.json.
    #[arg(long, requires = "model", value_name = "JSON")]
    hf_overrides: Option<String>,
    /// The engine's --tokenizer: the directory that tokenizer and chat template are taken from.
    #[arg(long, requires = "model", value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Text files on which the pack's tokenizer is compared with the `tokenizers` crate. May be repeated.
    #[arg(long, requires = "model", value_name = "TEXT", num_args = 1..)]
    verify: Vec<PathBuf>,
}

/// Runs the subcommand.
pub fn run(args: PackArgs) -> Result<ExitCode> {
    // What can be refused at once comes before the long work.
    let filter = args.wasm.as_deref().map(|path| {
        let filter = read(path)?;
        wasm::extract(&filter).with_context(|| path.display().to_string())?;
        Ok::<_, anyhow::Error>(filter)
    });
    let filter = filter.transpose()?;
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        bail!("-o: {}: there is no such folder; make it first", folder.display());
    }
    let mut files = Vec::new();
    if let Some(model) = &args.model {
        let ModelFiles { dir, name, notes } = model_files(model, &args.revision)?;
        notes.iter().for_each(|note| eprintln!("kvroute: {note}"));
        let overrides = args.hf_overrides.as_deref().map(serde_json::from_str).transpose();
        let source = SourceOptions {
            allow_no_template: args.allow_no_template,
            model_type: args.model_type.clone(),
            hf_overrides: overrides.context("--hf-overrides: no JSON object")?,
            tokenizer: args.tokenizer.clone(),
        };
        let spinner = spinner();
        let name = args.name.clone().or(Some(name));
        let file = build::build(&dir, &BuildOptions { name, source });
        spinner.finish_and_clear();
        let file = file?;
        verify(args.tokenizer.as_deref().unwrap_or(&dir), &file, &args.verify)?;
        files.push(file);
    }
    for path in &args.packs {
        let file = read(path)?;
        Pack::parse(file.clone()).with_context(|| path.display().to_string())?;
        files.push(file);
    }
    let packs = build::merge(&files)?;
    for pack in Pack::parse(packs.clone())? {
        super::inspect::print(&pack)?;
    }
    let out = match &filter {
        Some(filter) => wasm::embed(filter, &packs)?,
        None => packs,
    };
    // A reader, or a proxy, never sees half a file.
    whole::write(&args.output, &out).with_context(|| args.output.display().to_string())?;
    say!("wrote {}: {:.1} MB", args.output.display(), out.len() as f64 / 1e6)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows that it works, on a terminal: the comparison with the crate takes seconds.
fn spinner() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner().with_message("packing, and comparing every id with the tokenizers crate");
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

fn verify(dir: &Path, file: &[u8], texts: &[PathBuf]) -> Result<()> {
    let Some(pack) = Pack::parse(file.to_vec())?.pop() else { return Ok(()) };
    if texts.is_empty() {
        return Ok(());
    }
    let reference = HfTokenizer::from_json(&read(&dir.join("tokenizer.json"))?, Default::default())?;
    for path in texts {
        let text = String::from_utf8(read(path)?).with_context(|| format!("{}: not UTF-8", path.display()))?;
        let ids = build::verify(&pack, &reference, &text).with_context(|| path.display().to_string())?;
        say!("{}: {ids} ids, all equal to those of the tokenizers crate", path.display())?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| path.display().to_string())
}
