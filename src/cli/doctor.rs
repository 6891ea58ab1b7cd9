//! `kvroute doctor`: what is wrong with a running gateway, and how to mend it.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use indicatif::ProgressBar;

use super::ask::KnownSecret;
use super::table::{Paint, grouped, harmless, say, show, table};
use crate::doctor::{self, Finding, Level, Report, Target};

const EXAMPLES: &str = r#"Examples:
  kvroute doctor
  kvroute doctor --admin http://127.0.0.1:9901 --secret-file secret
  kvroute doctor --no-requests --json | jq '.findings[] | select(.level == "error")'

Exit codes: 0 nothing is wrong, 1 there is an error (with --strict also a warning), 2 Envoy could not be asked."#;

/// Finds what is wrong with a running gateway: Envoy, filter, bridge and engines, and says how to mend it.
///
/// All is found through Envoy's admin interface. Flags of the engines, their versions and names are compared with the
/// filter's configuration, what surrounds the filter is checked as by check-config, the feed is followed from the
/// engines to each worker. Then a few short requests are made: prompts of each model are compared with the engines'
/// own token ids, and second turns of conversations must find what the first ones left.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// Envoy's admin interface
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    admin: String,
    /// Where clients connect [default: the listener's address]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The bridge's --listen [default: what Envoy's cluster for it says]
    #[arg(long, value_name = "URL")]
    bridge: Option<String>,
    #[command(flatten)]
    secret: KnownSecret,
    /// Send no requests of its own
    #[arg(long)]
    no_requests: bool,
    /// How long events and workers are waited for, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    patience: u64,
    /// How long the answer to a short chat may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Warnings count as errors
    #[arg(long)]
    strict: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: DoctorArgs) -> Result<ExitCode> {
    let target = Target {
        admin: args.admin,
        url: args.url.map(|url| url.trim_end_matches('/').to_owned()),
        secret: args.secret.read()?,
        bridge: args.bridge,
        no_requests: args.no_requests,
        patience: Duration::from_secs(args.patience),
        timeout: Duration::from_secs(args.timeout.max(1)),
    };
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new_spinner(),
        false => ProgressBar::hidden(),
    };
    bar.enable_steady_tick(Duration::from_millis(120));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(doctor::look(&target, &|step| bar.set_message(format!("looking at {step}"))));
    bar.finish_and_clear();
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            eprintln!("kvroute: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let errors = report.count(Level::Error) + if args.strict { report.count(Level::Warning) } else { 0 };
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        value["ok"] = (errors == 0).into();
        say!("{value}")?;
    } else {
        show(&text(&report, Paint::new()))?;
    }
    Ok(if errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The report for people.
fn text(report: &Report, paint: Paint) -> String {
    let mut out = String::new();
    let rows = report.replicas.iter().map(|replica| {
        vec![
            harmless(&replica.address),
            harmless(&replica.engine),
            harmless(&replica.models.join(", ")),
            if replica.healthy { "yes" } else { "no" }.to_owned(),
            harmless(&replica.trust),
            replica.block_size.map_or("?".into(), |size| size.to_string()),
            grouped(replica.blocks),
        ]
    });
    if !report.replicas.is_empty() {
        let headers = ["replica", "engine", "models", "healthy", "trust", "block size", "blocks"];
        out.push_str(&format!("{}\n\n", table(&headers, 5, rows).trim_fmt()));
    }
    for checked in &report.checked {
        out.push_str(&format!("looked at {}\n", harmless(checked)));
    }
    out.push('\n');
    for finding in &report.findings {
        out.push_str(&paragraph(finding, paint));
    }
    let [errors, warnings, notes] = [(Level::Error, "error"), (Level::Warning, "warning"), (Level::Note, "note")]
        .map(|(level, name)| count(report.count(level), name));
    out.push_str(&match report.findings.is_empty() {
        true => format!("{}\n", paint.good("nothing is wrong")),
        false => format!("{errors}, {warnings}, {notes}\n"),
    });
    out
}

fn paragraph(finding: &Finding, paint: Paint) -> String {
    let label = match finding.level {
        Level::Error => paint.bad("error"),
        Level::Warning => paint.mark("warning"),
        Level::Note => "note".to_owned(),
    };
    let Finding { place, what, why, mend, .. } = finding;
    let [place, what, why, mend] = [place, what, why, mend].map(|text| harmless(text));
    format!("{label}: {place}: {what}\n  why:  {why}\n  mend: {mend}\n\n")
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_its_reason_and_its_mend() {
        let finding = Finding {
            level: Level::Error,
            id: "x",
            place: "10.0.0.1:8000".into(),
            what: "it is \x1b[2J".into(),
            why: "so".into(),
            mend: "do".into(),
        };
        let report = Report { findings: vec![finding], ..Report::default() };
        let expected =
            "\nerror: 10.0.0.1:8000: it is \\u{1b}[2J\n  why:  so\n  mend: do\n\n1 error, 0 warnings, 0 notes\n";
        assert_eq!(text(&report, Paint::plain()), expected);
        assert_eq!(text(&Report::default(), Paint::plain()), "\nnothing is wrong\n");
    }
}
