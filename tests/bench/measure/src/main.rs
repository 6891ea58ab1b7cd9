//! The rivals natively: `kvroute-rivals SPEC NAME` prints what it measured.

use std::path::Path;

use kvroute_measure::clock::{Clock, Rows, cpu};
#[cfg(feature = "fastokens")]
use kvroute_measure::{
    clock::{best, timed},
    inputs::Inputs,
};
use kvroute_measure::{rival, spec::Spec};

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(name)) = (args.next(), args.next()) else {
        return Err("usage: kvroute-rivals SPEC tokenizers|fastokens".to_owned());
    };
    let bytes = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let spec = Spec::decode(&bytes).ok_or("no spec")?;
    let rows = match name.as_str() {
        "tokenizers" => rival::run(&spec, &cpu)?,
        "fastokens" => fastokens_rows(&spec, Path::new(&path), &cpu)?,
        other => return Err(format!("nothing is called {other}")),
    };
    println!("{}", serde_json::json!(rows));
    Ok(())
}

#[cfg(feature = "fastokens")]
fn fastokens_rows(spec: &Spec, path: &Path, clock: Clock<'_>) -> Result<Rows, String> {
    let file = path.with_extension("tokenizer.json");
    std::fs::write(&file, spec.bytes("tokenizer.json")?).map_err(|error| error.to_string())?;
    let mut rows = Rows::new();
    let load = || fastokens::Tokenizer::from_file(&file).map_err(|error| error.to_string());
    let inputs = Inputs::of(spec)?;
    rows.insert("start".into(), timed(clock, || drop(load())));
    for (name, text) in inputs.single() {
        let (mut first, mut seen) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..3 {
            let tokenizer = load()?;
            let _ = tokenizer.encode(inputs.warm_up());
            first = first.min(timed(clock, || drop(tokenizer.encode(text))));
            seen = seen.min(best(clock, 9, || drop(tokenizer.encode(text))));
        }
        rows.insert(format!("{name} first"), first);
        rows.insert(format!("{name} seen"), seen);
    }
    let _ = std::fs::remove_file(&file);
    Ok(rows)
}

#[cfg(not(feature = "fastokens"))]
fn fastokens_rows(_: &Spec, _: &Path, _: Clock<'_>) -> Result<Rows, String> {
    Err("built without fastokens".to_owned())
}
