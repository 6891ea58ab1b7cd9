//! End to end: a real Envoy with the real filter, mock replicas and the bridge.
//!
//! Needs the filter (`scripts/test` builds it), Envoy and the Qwen3 tokenizer (`scripts/setup` brings them).

mod bodies;
mod conversations;
mod faults;
mod fail_open;
mod feed;
mod harness;
mod steering;
