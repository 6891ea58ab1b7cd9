//! Choosing a replica: `scripts/bench choice [--json]`. In a real Envoy, and natively.
//!
//! | among | goal |
//! |---|---|
//! | 8 replicas | 1 us |
//! | 64 | 5 us |
//! | 1,024 | 60 us |
//!
//! That is the choice alone: what each holds and is busy with becomes a cost, and the best and the next are picked. A
//! *whole request* besides books it, predicts the blocks that the pick lacks, and takes the booking back.

#[allow(dead_code)]
mod support;

use std::process::ExitCode;

use support::{Line, Rows, cpu, in_envoy, options, print, progress};

const USAGE: &str = "\
What it takes to choose a replica for a prompt of 250 blocks, of which each replica holds more or less, in a real Envoy;
with the goal, and how many times as long it takes natively. A minute.

usage: scripts/bench choice [--json]

exit code: 0, or 1 when a goal was missed";

/// Replicas, and microseconds.
const GOALS: [(&str, u32, f64); 3] = [("8", 8, 1.0), ("64", 64, 5.0), ("1,024", 1024, 60.0)];

fn main() -> ExitCode {
    let json_wanted = options(USAGE);
    let sizes = GOALS.map(|(_, size, _)| size.to_string()).join(" ");
    let spec = support::spec(&[("what", b"choice"), ("sizes", sizes.as_bytes())]);
    progress("kvroute natively");
    let native = support::choice::run(&spec, &cpu).unwrap();
    progress("kvroute in Envoy");
    // Of each number the best: on a busy machine, others' turns are in it.
    let better = |mut one: Rows, other: Rows| {
        one.iter_mut().for_each(|(name, value)| *value = value.min(other[name]));
        one
    };
    let envoy = (0..2).map(|_| in_envoy(&spec)).fold(in_envoy(&spec), better);
    let line = |name: String, goal, key: String| {
        let others = vec![("kvroute, native", native[&key])];
        Line { name, unit: "us", goal, measured: envoy[&key], others }
    };
    let mut lines = Vec::new();
    for (name, size, goal) in GOALS {
        lines.push(line(format!("a choice among {name} replicas"), goal, format!("{size} compare")));
        lines.push(line("  a whole request".to_owned(), f64::INFINITY, format!("{size} whole")));
    }
    print(&lines, &["kvroute, native"], json_wanted)
}
