//! Natively: `kvroute-measure SPEC` prints the answer; `kvroute-measure SPEC fastokens` measures that rival.

use std::path::Path;

use kvroute_measure::{Rows, Spec};
#[cfg(feature = "fastokens")]
use kvroute_measure::{best, timed, tokenizer};

fn main() -> Result<(), String> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: kvroute-measure SPEC [fastokens]")?;
    let bytes = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let spec = Spec::decode(&bytes).ok_or("no spec")?;
    let clock = cpu;
    let answer = match args.next().as_deref() {
        None => kvroute_measure::run(&spec, &clock)?,
        Some(_) => serde_json::to_value(fastokens_rows(&spec, Path::new(&path), &clock)?).map_err(|e| e.to_string())?,
    };
    println!("{answer}");
    Ok(())
}

/// CPU time of this process in nanoseconds: that of all threads of a rival that has some, and of nobody else.
fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to what it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(feature = "fastokens")]
fn fastokens_rows(spec: &Spec, path: &Path, clock: kvroute_measure::Clock<'_>) -> Result<Rows, String> {
    let file = path.with_extension("tokenizer.json");
    std::fs::write(&file, spec.bytes("tokenizer.json")?).map_err(|error| error.to_string())?;
    let mut rows = Rows::new();
    let load = || fastokens::Tokenizer::from_file(&file).map_err(|error| error.to_string());
    let inputs = tokenizer::Inputs::of(spec)?;
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
fn fastokens_rows(_: &Spec, _: &Path, _: kvroute_measure::Clock<'_>) -> Result<Rows, String> {
    Err("built without fastokens".to_owned())
}
