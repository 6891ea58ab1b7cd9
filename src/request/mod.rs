//! HTTP body to the prompt that the engine would tokenize.

mod api;
mod apply;
mod chat;
mod chat_completions;
mod completions;
mod conversation;
mod field;
mod flags;
mod harmony;
pub mod json;
mod limits;
mod message;
mod messages;
mod profile;
mod renderer;
mod responses;
pub mod salt;
mod sglang;
mod tools;
mod vllm;

pub use api::{Api, ApiPaths};
pub use flags::EngineFlags;
pub use profile::{InlineSystem, PROVEN, Profile, Version};
pub use renderer::{Body, Renderer};
pub use sglang::PROVEN_SGLANG;

use crate::blocks::TokenId;

/// What making a prompt of a body takes at most, the body included: its values, their copy for the template, and the
/// text; given back but for text or ids. Measured for every shape of body by tests/bodies.
pub fn memory_bound(body_bytes: usize) -> usize {
    body_bytes.saturating_mul(8).saturating_add(8 << 20)
}

/// Text or ids: what the engine starts from.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptInput {
    /// Rendered text that is still to be tokenized.
    Text(String),
    /// Rendered text in pieces: each is tokenized on its own, and the ids follow one another. Where a message
    /// spells a special token that is none to the engine, the cut is inside of it.
    Pieces(Vec<String>),
    /// Ids given by the client, used verbatim.
    Ids(Vec<TokenId>),
}

/// A cut that the engine makes after tokenizing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncate {
    /// Tokens to keep.
    pub tokens: usize,
    /// From which end, and whether the ids that `add_special_tokens` put in front survive.
    pub side: TruncateSide,
}

/// See [`Truncate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncateSide {
    /// Keep the last tokens; special tokens added in front survive (no side was given).
    Default,
    /// Keep the last tokens.
    Left,
    /// Keep the first tokens.
    Right,
}

/// A request, ready to be tokenized.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// What to tokenize. Of a list of prompts: the longest.
    pub input: PromptInput,
    /// Whether the tokenizer's post-processor adds its special tokens.
    pub add_special_tokens: bool,
    /// The cut after tokenizing, if any.
    pub truncate: Option<Truncate>,
    /// Goes into the namespace of the block hashes.
    pub cache_salt: Option<String>,
    /// True where `input` is only the part of the prompt before something that has no key (an image, say):
    /// the last token of it may be another one in the whole, so the key ends at the block before.
    pub open_ended: bool,
    /// Tokens that the client allows the answer, when it said so.
    pub max_output_tokens: Option<u64>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// The engine refuses a prompt of more tokens: book no load for one.
    pub max_prompt_tokens: Option<u64>,
}
