//! What engines publish, decoded: every shape into the same [`Event`]s.
//!
//! | shape | engines |
//! |---|---|
//! | event as an array, fields by place, trailing ones optional | vLLM 0.10 to 0.23, SGLang before mid-2026 |
//! | such an array with a map at place 7 (`cache_salt`, `session_id`) | SGLang 0.5.18 |
//! | event as a map with `"type"` | vLLM from 0.24, SGLang from 0.5.2x |
//! | batch as an array `[ts, events, rank]` or as a map | both |
//!
//! Unknown fields are passed over. An event that cannot be used is left out alone, with a [`Skip`] reason; the
//! rest of its batch counts. Engines with another format (JSON over HTTP, gRPC) would get a module beside
//! [`event`] that yields the same [`Event`]s.

pub mod event;
mod extra;
pub mod msgpack;
pub mod skip;

#[cfg(test)]
mod tests;

use crate::blocks::TokenId;
use crate::feed::record::Tier;

pub use skip::{Skip, SkipCounts};

/// An engine's own name for a block; opaque. Longer ones are cut to the 64 bits that vLLM's integer form keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash(pub u64);

/// The kind of attention of a group of layers: decides which blocks a prefix hit needs of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// The engine did not say.
    #[default]
    Unknown,
    /// Needs every block of the prefix.
    Full,
    /// Needs the last blocks of the prefix, as many as the window (in tokens) covers.
    Sliding(u32),
    /// Has no part in prefix hits.
    NotCached,
    /// A kind for which no rule is proven (Mamba, chunked-local and whatever comes).
    Unproven,
}

/// Blocks became held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stored {
    /// The blocks, in order; for a group that is not full attention possibly only some of the range.
    pub hashes: Vec<EngineHash>,
    /// What the range follows; `None` at the start of a prompt.
    pub parent: Option<EngineHash>,
    /// All tokens of the range; may be empty when only the place of known blocks is told.
    pub tokens: Vec<TokenId>,
    /// Tokens per block.
    pub block_size: u32,
    /// LoRA adapter.
    pub lora: Option<String>,
    /// Cache salt; known only with the first block of a prompt.
    pub salt: Option<String>,
    /// Not 0 where the engine's hashes do not contain the salt (SGLang): it was XORed into `hashes` and `parent`.
    pub salt_mask: u64,
    /// Index of the first block whose content tokens do not tell; it and what follows has no key.
    pub unkeyed_from: Option<usize>,
    /// Where; the accelerator when the engine does not say (see [`Stored::tier`]).
    pub tier: Option<Tier>,
    /// Attention group.
    pub group: u32,
    /// Its kind.
    pub kind: GroupKind,
}

impl Stored {
    /// The tier, with its default.
    pub fn tier(&self) -> Tier {
        self.tier.unwrap_or(Tier::Gpu)
    }
}

/// Blocks are no longer held.
#[derive(Clone, Debug, PartialEq)]
pub struct Removed {
    /// The blocks.
    pub hashes: Vec<EngineHash>,
    /// From where.
    pub tier: Tier,
    /// Attention group.
    pub group: u32,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Blocks became held.
    Stored(Stored),
    /// Blocks are no longer held.
    Removed(Removed),
    /// Nothing is held any more.
    Cleared,
}

/// One message of an engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineBatch {
    /// When the engine made it, in seconds since 1970; 0 when it does not say.
    pub ts: f64,
    /// Data-parallel rank, if told.
    pub rank: Option<u32>,
    /// What can be used, in order; removals in a row are one.
    pub events: Vec<Event>,
    /// Of how many events that is.
    pub read: u64,
    /// Why the others cannot.
    pub skipped: Vec<Skip>,
}

pub use event::decode;
