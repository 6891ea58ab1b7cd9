//! The `tokenizers` crate.

use super::clock::{Clock, Rows, best, timed};
use super::inputs::Inputs;
use super::spec::Spec;

/// Measures it with the `tokenizer.json` of the spec.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    let (inputs, mut rows) = (Inputs::of(spec)?, Rows::new());
    let begun = clock();
    let tokenizer = tokenizers::Tokenizer::from_bytes(spec.bytes("tokenizer.json")?).map_err(|e| e.to_string())?;
    rows.insert("start".into(), (clock() - begun) as f64 / 1e3);
    let encode = |text: &str| drop(tokenizer.encode_fast(text, false));
    encode(inputs.warm_up());
    for (name, text) in inputs.single() {
        rows.insert(format!("{name} first"), timed(clock, || encode(text)));
        rows.insert(format!("{name} seen"), best(clock, 3, || encode(text)));
    }
    Ok(rows)
}
