//! The command line. One file a subcommand: its arguments, and `run`.

mod ask;
mod bridge;
mod check_config;
mod conform;
mod demo;
mod doctor;
mod explain;
mod hub;
mod inspect;
mod load;
mod mock_replica;
mod models;
mod pack;
mod replay;
mod simulate;
mod state;
mod table;
mod top;
mod up;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Routes LLM requests to the replica whose KV cache holds the longest part of the prompt.
#[derive(Debug, Parser)]
#[command(name = "kvroute", version, about, max_term_width = 100)]
#[command(before_help = concat!("kvroute ", env!("CARGO_PKG_VERSION")))]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Demo(demo::Args),
    Bridge(bridge::Args),
    CheckConfig(check_config::CheckConfigArgs),
    Conform(conform::ConformArgs),
    Doctor(doctor::DoctorArgs),
    Pack(pack::PackArgs),
    Explain(explain::ExplainArgs),
    Inspect(inspect::InspectArgs),
    Load(load::Args),
    Replay(replay::ReplayArgs),
    Simulate(simulate::Args),
    State(state::StateArgs),
    Top(top::TopArgs),
    MockReplica(mock_replica::Args),
}

/// Parses the arguments, runs the subcommand, prints its error. Exit codes: 0 done, 1 the check or run failed,
/// 2 the arguments or the configuration are wrong.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Up(args) => up::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Bridge(args) => bridge::run(args),
        Command::CheckConfig(args) => check_config::run(args),
        Command::Conform(args) => conform::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::State(args) => state::run(args),
        Command::Top(args) => top::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Load(args) => load::run(args),
        Command::MockReplica(args) => mock_replica::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("kvroute: {error:#}");
        ExitCode::FAILURE
    })
}
