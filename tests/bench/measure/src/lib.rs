//! What `scripts/bench choice`, `index`, `templates` and `tokenizer` measure, in the wasm of a real Envoy ([`plugin`]) and
//! natively: there the bench itself has the modules that measure kvroute, and `main.rs` the rivals. A [`spec::Spec`]
//! says what, and the answer is JSON.

#[cfg(target_family = "wasm")]
mod choice;
pub mod clock;
#[cfg(target_family = "wasm")]
mod index;
pub mod inputs;
#[cfg(target_family = "wasm")]
mod plugin;
pub mod rival;
pub mod spec;
#[cfg(target_family = "wasm")]
mod templates;
#[cfg(target_family = "wasm")]
mod tokenizer;
