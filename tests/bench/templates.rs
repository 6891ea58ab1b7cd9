//! Body to prompt text: `scripts/bench templates [--json]`. Qwen3's template; in a real Envoy, and natively.
//!
//! | body | goal |
//! |---|---|
//! | 2 KB with 3 tools | 40 us |
//! | 60 turns, 112 KB | 250 us |
//! | 1 MB of text | 1.0 ms |
//! | 600 messages with 30 tools, 534 KB | 2.0 ms |

#[allow(dead_code)]
mod support;

use std::process::ExitCode;

use support::{Line, cpu, in_envoy, options, pack, print, progress};

const USAGE: &str = "\
Request body to prompt text with Qwen3's template in a real Envoy, with the goal, and how many times as long it takes
natively, with the template engine alone (the quick way of kvroute switched off), and serde_json for the parse alone.

usage: scripts/bench templates [--json]

exit code: 0, or 1 when a goal was missed";

fn main() -> ExitCode {
    let json_wanted = options(USAGE);
    let pack = pack("qwen3");
    let spec = support::spec(&[("what", b"templates"), ("pack", &pack)]);
    progress("kvroute natively");
    let native = support::templates::run(&spec, &cpu).unwrap();
    progress("kvroute in Envoy");
    let envoy = in_envoy(&spec);
    let goals = [
        ("2 KB with 3 tools", 40.0),
        ("60 turns, 112 KB", 250.0),
        ("1 MB of text", 1000.0),
        ("600 messages, 30 tools", 2000.0),
    ];
    let line = |name: &str, goal: f64, key: String| Line {
        name: name.to_owned(),
        unit: "us",
        goal,
        measured: envoy[&key],
        others: vec![("native", native[&key])],
    };
    let mut lines = Vec::new();
    for (name, goal) in goals {
        let mut whole = line(name, goal, format!("{name}: body to text"));
        whole.others.push(("engine, in Envoy", envoy[&format!("{name}: template engine")]));
        whole.others.push(("serde_json, parse only", envoy[&format!("{name}: serde_json parse")]));
        lines.push(whole);
        lines.push(line("  of it the parse", f64::INFINITY, format!("{name}: parse")));
    }
    lines.push(line("template compiled, once a VM", f64::INFINITY, "compile".to_owned()));
    print(&lines, &["native", "engine, in Envoy", "serde_json, parse only"], json_wanted)
}
