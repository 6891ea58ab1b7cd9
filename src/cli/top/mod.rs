//! `kvroute top`: gateway and replicas, live.
//!
//! [`seen`] asks, [`view`] makes of it what is shown, [`draw`] makes lines of that, [`live`] puts them on a screen.

mod draw;
mod live;
mod seen;
mod view;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::ask::KnownSecret;
use super::table::show;
use crate::doctor::Target;
use draw::Palette;
use seen::Asker;
use view::View;

/// Who does not answer within this is said not to: a fault is to be seen within two seconds, the time between two looks
/// included. One look may wait longer.
const LIVE: Duration = Duration::from_secs(1);
const ONCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = r#"Examples:
  kvroute top
  kvroute top --admin http://127.0.0.1:9901 --secret-file secret --interval 2
  kvroute top --once
  kvroute top --json | jq '.problems'

Keys: q, Esc and Ctrl-C leave; arrows, Page Up and Page Down move where there is more than fits.
Exit codes of --once and --json: 0 Envoy, filter and bridge have answered, 1 not all of them."#;

/// Shows gateway and replicas, live: requests by outcome, hit share, trust, blocks, load, lag.
///
/// What is asked is found through Envoy's admin interface, as by doctor: the admin instance of the filter, the bridge,
/// and where it stands there the secret. Rates are of the last ten seconds. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    /// Envoy's admin interface
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9901")]
    admin: String,
    /// The gateway's listener for the feed [default: what Envoy says]
    #[arg(long, value_name = "URL")]
    gateway: Option<String>,
    /// The bridge's --listen [default: what Envoy's cluster for it says]
    #[arg(long, value_name = "URL")]
    bridge: Option<String>,
    #[command(flatten)]
    secret: KnownSecret,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = interval)]
    interval: Duration,
    /// One look, as text
    #[arg(long)]
    once: bool,
    /// One look, as a JSON object
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("write seconds from 0.1 to 3600".into());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs the subcommand.
pub fn run(args: TopArgs) -> Result<ExitCode> {
    let target = Target {
        admin: args.admin,
        url: None,
        secret: args.secret.read()?,
        bridge: args.bridge,
        no_requests: true,
        patience: Duration::ZERO,
        timeout: Duration::ZERO,
    };
    let title = target.admin.clone();
    let live = !args.once && !args.json;
    let mut asker = Asker::new(target, args.gateway, if live { LIVE } else { ONCE })?;
    if live {
        return live::run(asker, args.interval, &title);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seen = runtime.block_on(asker.look());
    let view = View::of(&seen, None);
    if args.json {
        show(&format!("{}\n", serde_json::to_string(&view)?))?;
    } else {
        // What goes into a file is whole.
        let terminal = std::io::stdout().is_terminal().then(ratatui::crossterm::terminal::size);
        let width = terminal.map_or(u16::MAX, |size| size.map_or(100, |(width, _)| width.max(60)));
        show(&draw::text(&draw::lines(&view, width, Palette { colour: false })))?;
    }
    Ok(if seen.silent.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
