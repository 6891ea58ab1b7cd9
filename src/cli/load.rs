//! `kvroute load`

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::table::say;
use crate::load::{Options, Pace, run as run_load};

const EXAMPLES: &str = r#"Examples:
  kvroute load http://127.0.0.1:10000 --model my-model
  kvroute load http://127.0.0.1:10000 --model my-model -n 100 -t 6 -c 32 --json"#;

/// Sends multi-turn chats to an OpenAI-compatible endpoint and reports what came back.
///
/// Exit code 1 when any request failed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where to send: http://host:port, with or without /v1
    url: String,
    /// Model that requests name
    #[arg(long, default_value = "mock")]
    model: String,
    /// Conversations
    #[arg(long, short = 'n', default_value_t = 30)]
    conversations: usize,
    /// Turns of each conversation
    #[arg(long, short = 't', default_value_t = 4)]
    turns: usize,
    /// Different system prompts, shared evenly by the conversations
    #[arg(long, default_value_t = 1)]
    system_prompts: usize,
    /// Words of a system prompt (about as many tokens); 0 for none
    #[arg(long, default_value_t = 500)]
    system_words: usize,
    /// Words of a question
    #[arg(long, default_value_t = 100)]
    question_words: usize,
    /// Tokens that an answer may have
    #[arg(long, default_value_t = 32)]
    max_tokens: u64,
    /// Ask for whole answers; the time to the first token is then that to the end
    #[arg(long)]
    no_stream: bool,
    /// Closed loop: requests under way at once
    #[arg(long, short = 'c', default_value_t = 8)]
    concurrency: usize,
    /// Open loop instead: requests a second on average, at random times
    #[arg(long, conflicts_with = "concurrency", value_parser = positive)]
    rate: Option<f64>,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds for one request
    #[arg(long, default_value_t = 300.0, value_parser = positive)]
    timeout: f64,
    /// Header of all requests
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Response header that names the replica
    #[arg(long, default_value = "x-mock-replica")]
    replica_header: String,
    /// HTTP/2 without TLS
    #[arg(long)]
    http2: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

/// Sends, waits, reports.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let bar = progress(args.conversations * args.turns);
    let tick = bar.clone();
    let options = Options {
        url: args.url,
        model: args.model,
        conversations: args.conversations,
        turns: args.turns,
        system_prompts: args.system_prompts,
        system_words: args.system_words,
        question_words: args.question_words,
        max_tokens: args.max_tokens,
        stream: !args.no_stream,
        pace: match args.rate {
            Some(rate) => Pace::Open { rate },
            None => Pace::Closed { concurrency: args.concurrency },
        },
        seed: args.seed,
        timeout: Duration::from_secs_f64(args.timeout),
        headers: args.headers,
        replica_header: args.replica_header,
        http2: args.http2,
        on_answer: Some(Arc::new(move || tick.inc(1))),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(run_load(options));
    bar.finish_and_clear();
    let report = match result {
        Ok(report) => report,
        // Nothing could be sent.
        Err(error) => {
            eprintln!("kvroute load: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    if args.json {
        say!("{}", serde_json::to_string(&report)?)?;
    } else {
        say!("{}", report.table())?;
    }
    Ok(if report.errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A bar on the terminal; nothing elsewhere.
fn progress(requests: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests  {per_sec}  {elapsed}");
    ProgressBar::new(requests as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number <= 1e9 { Ok(number) } else { Err("must be more than 0, at most 1e9".to_owned()) }
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("there is no colon in it")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
