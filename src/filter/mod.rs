//! The filter: what Envoy calls, put together from the steps of the path of a request.
//!
//! | part | module |
//! |---|---|
//! | Envoy's callbacks, thin | `entry`, `router_http`, `ingest_http`, `admin_http` (wasm) |
//! | Envoy's host calls, and what the logic needs of them | `sys`, `envoy` (wasm), [`host`] |
//! | requests under way, and the work that is left | [`router`] |
//! | one request, body to block hashes, in steps | [`job`], [`text`] |
//! | how much work at a stretch | [`turns`] |
//! | slot, queue, snapshot pulls | [`link`] |
//! | being called again by another VM | [`bounce`] |
//! | configuration, models, tokenizers | [`setups`], [`models`] |
//! | headers that steer | [`steer`] |
//! | outcome header, receipts, filter state | [`accounts`] |
//! | requests that are decided and not steered | [`shadow`] |
//! | the first data of an answer | [`sse`] |
//! | metrics | [`metrics`] |
//! | what is shown of all this | [`look_inside`] |
//! | who may post and look | [`secret`] |

pub mod accounts;
#[cfg(target_family = "wasm")]
mod admin_http;
pub mod bounce;
#[cfg(target_family = "wasm")]
mod entry;
#[cfg(target_family = "wasm")]
mod envoy;
#[cfg(test)]
pub mod fake;
pub mod host;
#[cfg(target_family = "wasm")]
mod ingest_http;
pub mod job;
pub mod link;
pub mod look_inside;
#[cfg(target_family = "wasm")]
mod memory;
pub mod metrics;
pub mod models;
pub mod recent;
pub mod router;
#[cfg(target_family = "wasm")]
mod router_http;
pub mod secret;
pub mod setups;
pub mod shadow;
pub mod sse;
pub mod steer;
#[cfg(target_family = "wasm")]
mod sys;
pub mod text;
pub mod turns;
mod usage;
