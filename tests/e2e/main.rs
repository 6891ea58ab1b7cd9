//! End to end: a real Envoy with the real filter, mock replicas and the bridge.
//!
//! Needs the filter (`scripts/test` builds it), Envoy and the Qwen3 tokenizer (`scripts/setup` brings them).

mod adapters;
mod bodies;
mod conform;
mod conversations;
mod dashboard;
mod deployments;
mod doctor;
mod exact;
mod fail_open;
mod faults;
mod feed;
mod harness;
mod look;
mod mtls;
mod pools;
mod ranks;
mod receipts;
mod reload;
mod rollout;
mod simulated;
mod slices;
mod steering;
mod tenants;
mod top;
mod up;
