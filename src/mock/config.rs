//! What a mock replica can be told.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use super::FreeOrder;
use super::engine::Speed;
use super::events::{HashForm, Wire};
use super::pack_tokenizer;
use super::prompt::{ByteTokenizer, TokenizerFactory};
use super::scheduler::Limits;
use crate::request::EngineFlags;

/// See the fields. The default is a byte-tokenizing replica on free ports that answers at once.
#[derive(Clone)]
pub struct Config {
    /// For `x-mock-replica`; else the HTTP address.
    pub name: Option<String>,
    /// All sockets are bound here.
    pub host: IpAddr,
    /// HTTP; 0 takes a free one, as with the other ports.
    pub port: u16,
    /// KV events (PUB).
    pub kv_port: u16,
    /// Replay of KV events (ROUTER).
    pub replay_port: u16,
    /// Served model.
    pub model: String,
    /// Other names of it.
    pub aliases: Vec<String>,
    /// LoRA adapters: further model names with caches of their own.
    pub adapters: Vec<String>,
    /// Adapters that it says it keeps ready (`max_lora`).
    pub max_loras: usize,
    /// Data-parallel ranks: caches of their own, told apart by the header `x-data-parallel-rank`. Rank n publishes at
    /// the ports plus n.
    pub ranks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the cache, one of which the engine keeps for itself.
    pub blocks: u32,
    /// Requests that run at once; the rest waits.
    pub max_batch: usize,
    /// Tokens of one step of the engine.
    pub step_tokens: usize,
    /// Prompt and answer together.
    pub max_model_len: usize,
    /// Time for each prompt token that is not cached.
    pub prefill_us_per_token: f64,
    /// Time for each output token; all requests of the batch get theirs in it.
    pub decode_ms_per_token: f64,
    /// Length of an answer unless the client allows less.
    pub output_tokens: u64,
    /// Silence after which a stream gets a comment.
    pub keep_alive: Duration,
    /// Time that `/tokenize` and `…/render` take beyond this program's own. An engine's API server is one Python process, and its
    /// answers stand in one queue.
    pub tokenize: TokenizeTime,
    /// How events are written.
    pub wire: Wire,
    /// How hashes are written in them.
    pub hashes: HashForm,
    /// First frame of events.
    pub topic: String,
    /// Batches that can be replayed.
    pub replay_batches: usize,
    /// The engine's flag: without it every prompt is computed anew, and nothing is published.
    pub prefix_caching: bool,
    /// Whether events are published at all.
    pub kv_events: bool,
    /// `--enable-prompt-tokens-details`: the usage says how much was cached.
    pub prompt_tokens_details: bool,
    /// The version that it says it has; else that of the engines which write events as `wire` has it.
    pub version: Option<String>,
    /// Bodies longer than this are answered without a look at their content.
    pub answer_blindly_over: Option<usize>,
    /// Bodies whose content-length is more than this are read and thrown away, and answered: for load that is to cost
    /// this side as little as may be.
    pub throw_away_over: Option<usize>,
    /// Makes the tokenizer.
    pub tokenizer: TokenizerFactory,
    /// Threads that tokenize.
    pub tokenizer_threads: usize,
    /// Threads for the rest.
    pub threads: usize,
}

/// See [`Config::tokenize`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenizeTime {
    /// Microseconds for each call.
    pub us: f64,
    /// Microseconds for each token of the prompt.
    pub us_per_token: f64,
}

impl TokenizeTime {
    /// vLLM 0.32 with the tokenizer of Qwen3 on one core, as measured: 1.9 ms for 1,027 tokens and 11.1 ms for 8,173
    /// when asked by one client, 573 and 90 calls a second when asked by many.
    pub const VLLM: TokenizeTime = TokenizeTime { us: 400.0, us_per_token: 1.31 };

    pub(super) fn of(self, tokens: usize) -> Duration {
        Duration::try_from_secs_f64((self.us + self.us_per_token * tokens as f64) / 1e6).unwrap_or_default()
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: None,
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            kv_port: 0,
            replay_port: 0,
            model: "mock".to_owned(),
            aliases: Vec::new(),
            adapters: Vec::new(),
            max_loras: 4,
            ranks: 1,
            block_size: 16,
            blocks: 4096,
            max_batch: 64,
            step_tokens: 8192,
            max_model_len: 40_960,
            prefill_us_per_token: 0.0,
            decode_ms_per_token: 0.0,
            output_tokens: 64,
            keep_alive: Duration::from_secs(10),
            tokenize: TokenizeTime::default(),
            wire: Wire::Map,
            hashes: HashForm::Int,
            topic: String::new(),
            replay_batches: 10_000,
            prefix_caching: true,
            kv_events: true,
            prompt_tokens_details: true,
            version: None,
            answer_blindly_over: None,
            throw_away_over: None,
            tokenizer: Arc::new(|| Ok(Box::new(ByteTokenizer))),
            tokenizer_threads: 1,
            threads: 1,
        }
    }
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("name", &self.name).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Config {
    /// Tokenizes with a pack of a file: the one of this name, or the only one. `flags` as of the engine that the
    /// replica stands in for.
    pub fn with_pack(mut self, file: &Path, name: Option<&str>, flags: EngineFlags) -> anyhow::Result<Self> {
        self.tokenizer = pack_tokenizer::factory(file.to_owned(), name.map(str::to_owned), flags)?;
        Ok(self)
    }

    /// The version that it says it has.
    pub fn version(&self) -> &str {
        let of_wire = if self.wire == Wire::Array { "0.22.1" } else { "0.32.0" };
        self.version.as_deref().unwrap_or(of_wire)
    }

    /// Whether it publishes what it stores.
    pub(super) fn publishes(&self) -> bool {
        self.kv_events && self.prefix_caching
    }

    /// Flags of an engine that writes events as this one does, with this length of prompts.
    pub fn engine_flags(&self) -> EngineFlags {
        EngineFlags {
            version: self.version().to_owned(),
            max_model_len: Some(self.max_model_len as u64),
            ..EngineFlags::default()
        }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        if !(1..=64).contains(&self.ranks) {
            bail!("a replica has 1 to 64 data-parallel ranks");
        }
        if self.block_size == 0 {
            bail!("the block size must be at least 1");
        }
        if self.blocks < 2 {
            bail!("the cache needs at least 2 blocks, since the engine keeps one for itself");
        }
        if self.max_batch == 0 || self.step_tokens == 0 {
            bail!("the batch and the tokens of a step must be at least 1");
        }
        if self.keep_alive.is_zero() {
            bail!("the time between keep-alive comments must not be 0");
        }
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            block_size: self.block_size,
            blocks: self.blocks,
            max_batch: self.max_batch,
            step_tokens: self.step_tokens,
            // The order changed between the engines that write arrays and those that write maps.
            free_order: if self.wire == Wire::Array { FreeOrder::Append } else { FreeOrder::EmptyFirst },
        }
    }

    pub(super) fn speed(&self) -> anyhow::Result<Speed> {
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).context("times must not be negative");
        Ok(Speed { prefill: time(self.prefill_us_per_token / 1e6)?, decode: time(self.decode_ms_per_token / 1e3)? })
    }
}
