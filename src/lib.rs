//! kvroute: an Envoy filter that sends each LLM request to the replica whose KV cache already holds the
//! longest part of its prompt.
//!
//! One request, from the top:
//!
//! | step | module | in | out |
//! |---|---|---|---|
//! | body | [`request`] | HTTP path and body | what the engine would render: messages, tools, arguments |
//! | text | [`template`] | those | the prompt text |
//! | tokens | [`tokenizer`] | text | token ids, lazily |
//! | blocks | [`blocks`] | token ids | a chain of [`blocks::BlockHash`] |
//! | match | [`index`] | the chain | matched blocks per replica |
//! | choose | [`routing`], [`replicas`] | matches, load, trust | replicas, ranked by cost |
//! | steer | `filter` | the ranking | the headers by which Envoy picks the upstream |
//!
//! [`explain`] takes the first four steps at once and keeps all of it, for people to look at.
//!
//! The cache state arrives the other way: engines publish KV events, `bridge` turns them into the records of
//! [`feed`], the ingest instance of the filter hands them to every router VM, and [`index`] applies them.
//!
//! Everything but `filter` (wasm), `bridge`, `check`, `doctor`, `gateway`, `hub`, `mock`, `load`, `conform`, `simulate`
//! and `cli` (native) is plain Rust without a host.
//! Whatever fails on the way ends in a [`nokey::NoKey`]: the request goes on by plain load balancing.

// A panic in the wasm is a trap, and a trap resets every stream of that Envoy worker.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::string_slice,
        clippy::unreachable,
        clippy::integer_division_remainder_used
    )
)]

/// The version as a number, for metrics: 1,000,000 × major + 1,000 × minor + patch.
pub const VERSION_NUMBER: u64 = number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
    + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
    + number(env!("CARGO_PKG_VERSION_PATCH"));

const fn number(digits: &str) -> u64 {
    match u64::from_str_radix(digits, 10) {
        Ok(number) => number,
        Err(_) => 0,
    }
}

pub mod blocks;
pub mod clock;
pub mod config;
pub mod explain;
pub mod feed;
pub mod filter;
pub mod index;
mod lanes;
pub mod look;
pub mod nokey;
pub mod pack;
pub mod replicas;
pub mod request;
pub mod routing;
pub mod template;
pub mod tokenizer;

// Native only: they may panic where only a bug can be the cause.
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod bridge;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod check;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod cli;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod conform;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod doctor;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod gateway;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod hub;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod load;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod mock;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::string_slice)]
#[allow(clippy::unreachable, clippy::integer_division_remainder_used)]
pub mod simulate;
#[cfg(not(target_family = "wasm"))]
#[cfg_attr(test, allow(clippy::unwrap_used))]
mod whole;
