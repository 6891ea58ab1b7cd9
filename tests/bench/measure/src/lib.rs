//! What `scripts/bench templates` and `scripts/bench tokenizer` measure. The same code runs in the wasm of a real
//! Envoy ([`plugin`]) and natively (`main.rs`); a [`Spec`] says what, and the answer is JSON.

#[cfg(target_family = "wasm")]
mod plugin;
pub mod spec;
pub mod templates;
pub mod tokenizer;

use std::collections::BTreeMap;

use serde_json::Value;

pub use spec::Spec;

/// Nanoseconds on some clock.
pub type Clock<'a> = &'a dyn Fn() -> u64;

/// Names and microseconds (or what the name says).
pub type Rows = BTreeMap<String, f64>;

/// Runs a spec.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Value, String> {
    let rows = match spec.text("what")? {
        "templates" => templates::run(spec, clock)?,
        "tokenizer" => tokenizer::run(spec, clock)?,
        other => return Err(format!("nothing is called {other}")),
    };
    serde_json::to_value(rows).map_err(|error| error.to_string())
}

/// The quickest of some runs, in microseconds: what it takes where nothing else wants the core.
pub fn best(clock: Clock<'_>, runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs).map(|_| timed(clock, &mut work)).fold(f64::INFINITY, f64::min)
}

/// One run in microseconds.
pub fn timed(clock: Clock<'_>, mut work: impl FnMut()) -> f64 {
    let begun = clock();
    work();
    (clock() - begun) as f64 / 1e3
}
