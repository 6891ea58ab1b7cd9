//! `kvroute check-config`: what is wrong with a configuration, before Envoy runs on it.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::ContentArrangement;

use super::table::{Paint, harmless, say, show, table};

use crate::check::{self, Finding, InstanceSummary, Level, Report, Source};
use crate::config::describe;
use crate::pack::{Pack, wasm};

const EXAMPLES: &str = r#"Examples:
  kvroute check-config envoy.yaml
  kvroute check-config envoy.yaml --pack model.wasm
  kvroute check-config router.json --pack qwen3.pack
  echo '{"role": "ingest", "secret": "s"}' | kvroute check-config -
  kvroute check-config --schema > kvroute.schema.json
  kvroute check-config --reference
  kvroute check-config --json envoy.yaml | jq '.findings[] | select(.level == "error")'

Exit codes: 0 nothing is refused, 1 there is an error (with --strict also a warning), 2 the check could not be made."#;

/// Checks the filter's configuration, alone (JSON) or inside Envoy's (YAML or JSON).
///
/// A mistake in the filter's own configuration gives the line with which the filter refuses it in Envoy. In
/// Envoy's configuration every kvroute filter is found and checked together with what stands around it: filters
/// before and after it, buffer limits, routes, clusters, the VMs that instances share. Files that Envoy's
/// configuration names (listeners, clusters, extensions, the wasm) are read where they can be.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckConfigArgs {
    /// The configuration; "-" is standard input.
    #[arg(value_name = "FILE", required_unless_present_any = ["schema", "reference"])]
    file: Option<PathBuf>,
    /// Prints the JSON Schema (draft 2020-12) of the filter's configuration, for editors.
    #[arg(long, conflicts_with_all = ["file", "reference"])]
    schema: bool,
    /// Prints every field with its type, default, unit and meaning; with --json as a list.
    #[arg(long, conflicts_with = "file")]
    reference: bool,
    /// A pack, or a filter with packs: checks that the models are in it, and what it says of them. Stands in for the
    /// wasm files that Envoy's configuration names. May be repeated.
    #[arg(long = "pack", value_name = "FILE")]
    packs: Vec<PathBuf>,
    /// Warnings count as errors.
    #[arg(long)]
    strict: bool,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: CheckConfigArgs) -> Result<ExitCode> {
    if args.schema {
        say!("{:#}", describe::schema())?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.reference {
        show(&reference(args.json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (name, text, packs) = match read(&args) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("kvroute: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let folder = args.file.as_deref().and_then(Path::parent).filter(|_| name != "-").map(Path::to_owned);
    let report = check::check(&text, &Source { folder }, packs.as_deref());
    let errors = report.count(Level::Error) + if args.strict { report.count(Level::Warning) } else { 0 };
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        value["file"] = name.into();
        value["ok"] = (errors == 0).into();
        say!("{value}")?;
    } else {
        show(&text_of(&name, &report, Paint::new()))?;
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(args: &CheckConfigArgs) -> Result<(String, Vec<u8>, Option<Vec<Pack>>)> {
    let file = args.file.as_deref().unwrap_or(Path::new("-"));
    let name = file.display().to_string();
    let text = match name.as_str() {
        "-" => {
            let mut text = Vec::new();
            std::io::stdin().read_to_end(&mut text).context("standard input")?;
            text
        }
        _ => std::fs::read(file).with_context(|| name.clone())?,
    };
    let mut packs = Vec::new();
    for path in &args.packs {
        packs.extend(
            wasm::packs_of(std::fs::read(path).with_context(|| path.display().to_string())?)
                .with_context(|| path.display().to_string())?,
        );
    }
    Ok((name, text, Some(packs).filter(|_| !args.packs.is_empty())))
}

/// Every field there is.
fn reference(json: bool) -> Result<String> {
    let fields = describe::fields();
    if json {
        let one = |f: &describe::Field| {
            serde_json::json!({"field": f.path, "type": f.kind.text(), "required": f.required, "default": f.default,
                "unit": f.unit, "meaning": f.meaning})
        };
        return Ok(format!("{}\n", serde_json::Value::from(fields.iter().map(one).collect::<Vec<_>>())));
    }
    let rows = fields.iter().map(|f| {
        let default = match &f.default {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None if f.required => "required".into(),
            None => String::new(),
        };
        vec![f.path.clone(), f.kind.text(), default, f.unit.to_owned(), f.meaning.to_owned()]
    });
    let mut table = table(&["field", "type", "default", "unit", "meaning"], 5, rows);
    // As wide as the terminal; in a pipe a line each.
    table.set_content_arrangement(ContentArrangement::Dynamic);
    Ok(format!("{}\n", table.trim_fmt()))
}

/// In the place of the role where a configuration is refused.
const REFUSED: &str = "?";

/// The report for people.
fn text_of(name: &str, report: &Report, paint: Paint) -> String {
    let kind = match report.kind {
        "plugin" => "the filter's configuration".to_owned(),
        _ => format!("Envoy's configuration, {}", count(report.instances.len(), "kvroute filter")),
    };
    let name = if name == "-" { "standard input" } else { name };
    let mut out = format!("{}: {kind}\n\n", paint.bold(name));
    let rows = report.instances.iter().map(|instance| row(instance, report));
    match report.kind {
        "plugin" => {
            // A configuration alone has no listener and no VM.
            let rows = rows.filter(|row| row[0] != REFUSED).map(|row| vec![row[0].clone(), row[3].clone()]);
            let rows: Vec<Vec<String>> = rows.collect();
            if !rows.is_empty() {
                out.push_str(&format!("{}\n\n", table(&["role", "models"], 2, rows).trim_fmt()));
            }
        }
        _ if report.instances.is_empty() => {}
        _ => {
            let table = table(&["role", "where", "VM", "models", ""], 5, rows);
            out.push_str(&format!("{}\n\n", table.trim_fmt()));
        }
    }
    for finding in &report.findings {
        out.push_str(&paragraph(finding, paint));
    }
    let [errors, warnings, notes] = [(Level::Error, "error"), (Level::Warning, "warning"), (Level::Note, "note")]
        .map(|(l, n)| count(report.count(l), n));
    out.push_str(&match report.findings.is_empty() {
        true => format!("{}\n", paint.good("all right")),
        false => format!("{errors}, {warnings}, {notes}\n"),
    });
    out
}

fn row(instance: &InstanceSummary, report: &Report) -> Vec<String> {
    let models = instance.models.iter().map(|m| {
        let mut off = if m.enabled { "" } else { ", off" }.to_owned();
        if m.shadow {
            off.push_str(", in shadow mode");
        }
        if m.rollout_percent < 100.0 {
            off.push_str(&format!(", {} % of conversations", m.rollout_percent));
        }
        let pack = if m.pack == m.name { String::new() } else { format!(", pack {}", m.pack) };
        format!("{} ({} tokens a block, {}{pack}{off})", m.name, m.block_size, m.engine)
    });
    let of_it =
        |f: &&Finding| f.level == Level::Error && f.path.starts_with(&instance.path) && f.place == instance.place;
    let state = match (instance.role, report.findings.iter().find(of_it)) {
        (None, _) => "refused",
        (_, Some(_)) => "has errors",
        _ => "",
    };
    vec![
        instance.role.unwrap_or(REFUSED).to_owned(),
        harmless(&instance.place),
        harmless(instance.vm.as_deref().unwrap_or_default()),
        harmless(&models.collect::<Vec<_>>().join("; ")),
        state.to_owned(),
    ]
}

fn paragraph(finding: &Finding, paint: Paint) -> String {
    let label = match finding.level {
        Level::Error => paint.bad("error"),
        Level::Warning => paint.mark("warning"),
        Level::Note => "note".to_owned(),
    };
    let place = match finding.place.as_str() {
        "" => String::new(),
        place => format!("{place}: "),
    };
    let mut out = format!("{label}: {}{}\n", harmless(&place), harmless(&finding.what));
    if let Some(mend) = &finding.mend {
        out.push_str(&format!("  mend: {}\n", harmless(mend)));
    }
    if !finding.path.is_empty() {
        out.push_str(&format!("  at: {}\n", harmless(&finding.path)));
    }
    out.push('\n');
    out
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
