//! The index of a worker: `scripts/bench index [--json]`. In a real Envoy, and natively; beside it Dynamo's RadixTree
//! where it is installed.
//!
//! | what | goal |
//! |---|---|
//! | a block of a batch applied, at 10 million blocks | 60 ns |
//! | longest turn of the event loop meanwhile | 8 ms |
//! | a chain of 250 blocks looked up over 8 replicas that all hold it, at 500,000 blocks | 4 us |
//! | the same at 10 million | 12 us |
//!
//! *Walked*: block by block, as it is where a replica may have holes. *By jumps*: where events say that there are none.
//! *In place*: blocks that were held go and come back, so that nothing grows.

#[allow(dead_code)]
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use support::{Line, Rows, cpu, in_envoy, options, print, progress};

const USAGE: &str = "\
What the feed costs in a worker's index of 500,000 and of 10 million blocks, and matching a chain of 250 blocks against
it, in a real Envoy; with the goal, and how many times as long it takes natively, and Dynamo's RadixTree from Python.
Takes two minutes, and 2 GB of memory with Dynamo, which it measures where this has brought it:

  python3 -m pip install --no-deps --target .kvroute/dynamo ai-dynamo-runtime==1.6.1

usage: scripts/bench index [--json]

exit code: 0, or 1 when a goal was missed";

/// Blocks.
const SIZES: [u64; 2] = [500_000, 10_000_000];
const DYNAMO: &str = "RadixTree, Python";

fn main() -> ExitCode {
    let json_wanted = options(USAGE);
    let sizes = SIZES.map(|size| size.to_string()).join(" ");
    let spec = support::spec(&[("what", b"index"), ("sizes", sizes.as_bytes())]);
    // Of each number the better: on a busy machine, others' turns are in it.
    let better = |mut one: Rows, other: Rows| {
        one.iter_mut().for_each(|(name, value)| *value = value.min(other[name]));
        one
    };
    progress("kvroute natively");
    let native = support::index::run(&spec, &cpu).unwrap();
    progress("kvroute in Envoy");
    let envoy = (0..2).map(|_| in_envoy(&spec)).fold(in_envoy(&spec), better);
    progress("Dynamo's RadixTree");
    let dynamo = dynamo(&sizes).unwrap_or_else(|why| {
        eprintln!("Dynamo's RadixTree is not measured: {why}");
        Rows::new()
    });
    let line = |name: &str, unit, goal, key: String| {
        let others = [("kvroute, native", &native), (DYNAMO, &dynamo)];
        let others = others.into_iter().filter_map(|(name, rows)| Some((name, *rows.get(&key)?)));
        Line { name: name.to_owned(), unit, goal, measured: envoy[&key], others: others.collect() }
    };
    let mut lines = Vec::new();
    for (size, name, apply, lookup) in [(SIZES[0], "500,000", f64::INFINITY, 4.0), (SIZES[1], "10 million", 60.0, 12.0)]
    {
        // Dynamo has one way to look up.
        let mut jump = line("  by jumps", "us", lookup, format!("{size} jump"));
        jump.others.extend(dynamo.get(&format!("{size} walk")).map(|value| (DYNAMO, *value)));
        lines.extend([
            line(&format!("{name} blocks: one applied, in place"), "ns", apply, format!("{size} in place, ns")),
            line("  while it grows to that size", "ns", apply, format!("{size} fill, ns")),
            line("  longest turn meanwhile", "ms", 8.0, format!("{size} longest turn, ms")),
            line("  a chain of 250 over 8 replicas, walked", "us", lookup, format!("{size} walk")),
            jump,
            line("  memory a block", "B", 40.0, format!("{size} bytes")),
        ]);
    }
    print(&lines, &["kvroute, native", DYNAMO], json_wanted)
}

/// What Dynamo's RadixTree takes, or why nobody knows.
fn dynamo(sizes: &str) -> Result<Rows, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let home = std::env::var_os("KVROUTE_DYNAMO").map_or_else(|| root.join(".kvroute/dynamo"), PathBuf::from);
    if !home.join("dynamo").exists() {
        return Err(format!("not installed in {} (--help says how)", home.display()));
    }
    let mut python = Command::new("python3");
    python.arg(root.join("tests/bench/index/radix.py")).arg(sizes).env("PYTHONPATH", &home).stderr(Stdio::inherit());
    let output = python.output().map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        return Err(format!("python3: {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}
