//! `kvroute mock-replica`

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::table::say;
use crate::mock::events::{HashForm, Wire};
use crate::mock::{Config, Replica};

const EXAMPLES: &str = r#"Examples:
  kvroute mock-replica --pack qwen3.pack --model qwen3 --port 8001 --kv-port 5551 --replay-port 5561
  kvroute mock-replica --byte-tokens --blocks 500 --prefill-us-per-token 100"#;

/// Runs a stand-in for an inference engine: OpenAI-compatible, with a prefix cache and KV events, without a model.
///
/// Prints one line with its endpoints when it can be reached, and runs until it is told to stop.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tokenize with the model pack in this file, a pack or a filter with packs
    #[arg(long, value_name = "FILE", required_unless_present = "byte_tokens")]
    pack: Option<PathBuf>,
    /// Which pack of the file [default: the only one]
    #[arg(long, value_name = "NAME", requires = "pack")]
    pack_name: Option<String>,
    /// Tokenize one token per byte of the message contents instead: needs no model
    #[arg(long, conflicts_with = "pack")]
    byte_tokens: bool,
    /// What it calls itself in the header x-mock-replica [default: its HTTP address]
    #[arg(long)]
    name: Option<String>,
    /// Address of all sockets
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port of HTTP; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Port of the KV events (ZMQ PUB); 0 takes a free one
    #[arg(long, default_value_t = 0)]
    kv_port: u16,
    /// Port of the replay of KV events (ZMQ ROUTER); 0 takes a free one
    #[arg(long, default_value_t = 0)]
    replay_port: u16,
    /// Served model
    #[arg(long, default_value = "mock")]
    model: String,
    /// Another name of the model
    #[arg(long = "alias", value_name = "NAME")]
    aliases: Vec<String>,
    /// A LoRA adapter: one more model name, with a cache of its own
    #[arg(long = "lora", value_name = "NAME")]
    adapters: Vec<String>,
    /// LoRA adapters that it says it keeps ready
    #[arg(long, value_name = "N", default_value_t = 4)]
    max_loras: usize,
    /// Data-parallel ranks, with a cache each: the header x-data-parallel-rank chooses; rank n publishes at the ports plus n
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    data_parallel: u32,
    /// Tokens per block
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    block_size: u32,
    /// Blocks of the cache
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..))]
    blocks: u32,
    /// Requests that run at once
    #[arg(long, default_value_t = 64)]
    max_batch: usize,
    /// Tokens of one step of the engine
    #[arg(long, default_value_t = 8192)]
    step_tokens: usize,
    /// Longest prompt with its answer, in tokens
    #[arg(long, default_value_t = 40_960)]
    max_model_len: usize,
    /// Microseconds for each prompt token that is not cached
    #[arg(long, default_value_t = 50.0)]
    prefill_us_per_token: f64,
    /// Milliseconds for each output token; the whole batch gets one in this time
    #[arg(long, default_value_t = 5.0)]
    decode_ms_per_token: f64,
    /// Length of an answer, unless the client allows less or asks for ignore_eos
    #[arg(long, default_value_t = 64)]
    output_tokens: u64,
    /// Milliseconds of silence after which a stream gets a comment
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keep_alive_ms: u64,
    /// Events as maps (vLLM 0.24 and newer) or as arrays (0.22)
    #[arg(long, value_enum, default_value_t = Wire::Map)]
    wire: Wire,
    /// Block hashes in events
    #[arg(long, value_enum, default_value_t = HashForm::Int)]
    hashes: HashForm,
    /// Topic of the events
    #[arg(long, default_value = "")]
    topic: String,
    /// Batches of events that can be replayed
    #[arg(long, default_value_t = 10_000)]
    replay_batches: usize,
    /// Compute every prompt anew, as an engine without prefix caching
    #[arg(long)]
    no_prefix_caching: bool,
    /// Publish no KV events
    #[arg(long)]
    no_kv_events: bool,
    /// Do not say in the usage how much was cached
    #[arg(long)]
    no_prompt_tokens_details: bool,
    /// The version that it says it has [default: that of --wire]
    #[arg(long, value_name = "VERSION")]
    engine_version: Option<String>,
    /// Answer bodies longer than this many bytes without a look at their content
    #[arg(long, value_name = "BYTES")]
    answer_blindly_over: Option<usize>,
    /// Threads that tokenize
    #[arg(long, default_value_t = 1)]
    tokenizer_threads: usize,
}

/// Runs until SIGINT or SIGTERM.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config {
        name: args.name,
        host: args.host,
        port: args.port,
        kv_port: args.kv_port,
        replay_port: args.replay_port,
        model: args.model,
        aliases: args.aliases,
        adapters: args.adapters,
        max_loras: args.max_loras,
        ranks: args.data_parallel,
        block_size: args.block_size,
        blocks: args.blocks,
        max_batch: args.max_batch,
        step_tokens: args.step_tokens,
        max_model_len: args.max_model_len,
        prefill_us_per_token: args.prefill_us_per_token,
        decode_ms_per_token: args.decode_ms_per_token,
        output_tokens: args.output_tokens,
        keep_alive: Duration::from_millis(args.keep_alive_ms),
        wire: args.wire,
        hashes: args.hashes,
        topic: args.topic,
        replay_batches: args.replay_batches,
        prefix_caching: !args.no_prefix_caching,
        kv_events: !args.no_kv_events,
        prompt_tokens_details: !args.no_prompt_tokens_details,
        version: args.engine_version,
        answer_blindly_over: args.answer_blindly_over,
        tokenizer_threads: args.tokenizer_threads,
        ..Config::default()
    };
    let config = match &args.pack {
        Some(file) => {
            let flags = config.engine_flags();
            config.with_pack(file, args.pack_name.as_deref(), flags)?
        }
        None => config,
    };
    let replica = Replica::start(config)?;
    say!(
        "mock replica {}: {} events {} replay {}",
        replica.name(),
        replica.url(),
        replica.kv_endpoint(),
        replica.replay_endpoint()
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminate.recv() => Ok(()),
        }
    })?;
    replica.stop();
    Ok(ExitCode::SUCCESS)
}
