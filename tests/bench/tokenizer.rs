//! Text to ids: `scripts/bench tokenizer [--json]`. In a real Envoy; beside it the `tokenizers` crate in the same
//! Envoy and natively, fastokens natively, and kvroute natively.
//!
//! The text is this project's own source and documentation as messages of a chat: code for the most part, so more
//! tokens to the kilobyte than prose has. *First sight*: words that this VM has mostly not seen (it has seen another
//! text of 8,000 tokens). *Seen*: the same once more.

#[allow(dead_code)]
mod support;

use std::path::Path;
use std::process::ExitCode;

use support::{Line, Rows, Spec, cpu, in_envoy, model_dir, options, pack, print, progress, rival};

/// This project's text: all that is written in it.
fn text() -> String {
    fn collect(dir: &Path, out: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            match path.extension() {
                _ if path.is_dir() => collect(&path, out),
                Some(extension) if extension == "rs" || extension == "md" => out.push(path),
                _ => {}
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("README.md")];
    collect(&root.join("src"), &mut paths);
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect::<Vec<String>>().join("\n\n")
}

/// `tokenizer` measures kvroute with a pack, `tokenizers` the crate of that name.
fn spec(what: &str, model: &str, pack: &[u8], text: &str) -> Spec {
    let (open, close) = match model {
        "gemma3" => ("<start_of_turn>", "<end_of_turn>"),
        _ => ("<|im_start|>", "<|im_end|>"),
    };
    let json = match what {
        "tokenizer" => Vec::new(),
        _ => std::fs::read(model_dir(model).join("tokenizer.json")).unwrap(),
    };
    support::spec(&[
        ("what", what.as_bytes()),
        ("pack", pack),
        ("tokenizer.json", &json),
        ("text", text.as_bytes()),
        ("open", open.as_bytes()),
        ("close", close.as_bytes()),
    ])
}

const USAGE: &str = "\
Text to token ids in a real Envoy, with the goal and how many times as long its rivals take: the tokenizers crate
0.22.2 in the same Envoy and natively, fastokens natively, and kvroute natively. Takes some minutes.

usage: scripts/bench tokenizer [--json]

exit code: 0, or 1 when a goal was missed";

fn main() -> ExitCode {
    let json_wanted = options(USAGE);
    let text = text();
    let qwen3 = pack("qwen3");
    let ours = spec("tokenizer", "qwen3", &qwen3, &text);
    let crates = spec("tokenizers", "qwen3", &[], &text);
    progress("kvroute in Envoy");
    let envoy = in_envoy(&ours);
    progress("kvroute natively");
    let native = support::tokenizer::run(&ours, &cpu).unwrap();
    progress("the tokenizers crate in Envoy");
    let crate_envoy = in_envoy(&crates);
    progress("the tokenizers crate natively");
    let crate_native = rival(&crates, "tokenizers");
    progress("fastokens natively");
    // scripts/bench says so when that rival could not be built.
    let fastokens = match std::env::var_os("KVROUTE_WITHOUT_FASTOKENS") {
        Some(_) => Rows::new(),
        None => rival(&crates, "fastokens"),
    };
    let rivals: [(&'static str, &Rows); 4] = [
        ("kvroute, native", &native),
        ("tokenizers, Envoy", &crate_envoy),
        ("tokenizers, native", &crate_native),
        ("fastokens, native", &fastokens),
    ];
    let line = |name: &str, goal: f64, key: &str| Line {
        name: name.to_owned(),
        unit: "ms",
        goal,
        measured: envoy[key] / 1e3,
        others: rivals.iter().filter_map(|(rival, rows)| Some((*rival, rows.get(key)? / 1e3))).collect(),
    };
    let mut lines = vec![
        line(&format!("432 KB, {:.0} tokens, first sight", envoy["100k tokens ids"]), 4.0, "100k tokens first"),
        line("  all words seen", 2.0, "100k tokens seen"),
        line("its next turn, 500 to 1,500 tokens more, to block hashes", 0.2, "next turn"),
        line(&format!("36 KB, {:.0} tokens, first sight", envoy["8k tokens ids"]), 0.8, "8k tokens first"),
        line("  all words seen", 0.15, "8k tokens seen"),
        line("100 KB of one word of random letters", 10.0, "one word first"),
        line("100 KB of one letter", 10.0, "one letter first"),
        line("100 KB of spaces", 2.0, "spaces first"),
        line("100 KB of base64", 4.0, "base64 first"),
        line("100 KB of CJK", 5.0, "CJK first"),
        line("longest step at p99.9, of the inputs below", 1.5, "longest step at p99.9"),
        line("start of a tokenizer", 5.0, "start"),
    ];
    let megabytes = |name: &str, goal: f64, measured: f64| Line {
        name: name.to_owned(),
        unit: "MB",
        goal,
        measured: measured / 1e6,
        others: Vec::new(),
    };
    lines.push(megabytes("memory that a VM adds, pack and remembered prompts aside", 8.0, envoy["memory"]));
    for name in [
        "10 MB of spaces",
        "10 MB of one letter",
        "10 MB of line breaks",
        "10 MB of signs",
        "1 MB of letters in one word",
        "1 MB of accents",
    ] {
        lines.push(line(&format!("{name}, longest step"), f64::INFINITY, &format!("{name}, longest step")));
        lines.push(line("  all steps", f64::INFINITY, &format!("{name}, all")));
    }
    let sizes = [("qwen3", 3.0), ("llama3_1", 6.0), ("deepseek_v3", 3.0), ("gptoss", 10.0), ("gemma3", 14.0)];
    for (model, goal) in sizes {
        let pack = pack(model);
        progress(&format!("{model} in Envoy"));
        let rows = in_envoy(&spec("tokenizer", model, &pack, &text));
        let goals = if model == "gemma3" { 20.0 } else { f64::INFINITY };
        for (what, key, goal) in [
            (", 432 KB, first sight", "100k tokens first", goals),
            ("  all words seen", "100k tokens seen", f64::INFINITY),
            ("  longest step at p99.9", "longest step at p99.9", 1.5),
            ("  start of a tokenizer", "start", 5.0),
        ] {
            let name = if what.starts_with(',') { format!("{model}{what}") } else { what.to_owned() };
            lines.push(Line { name, unit: "ms", goal, measured: rows[key] / 1e3, others: Vec::new() });
        }
        lines.push(megabytes("  pack", goal, pack.len() as f64));
    }
    print(&lines, &rivals.map(|(name, _)| name), json_wanted)
}
