//! Text to ids: `scripts/bench tokenizer [--json]`. In a real Envoy; beside it the `tokenizers` crate in the same
//! Envoy and natively, fastokens natively, and kvroute natively.
//!
//! The text is this project's own source and documentation as messages of a chat: code for the most part, so more
//! tokens to the kilobyte than prose has. *First sight*: words that this VM has mostly not seen (it has seen another
//! text of 8,000 tokens). *Seen*: the same once more. `tokenizers` is the version that packs are checked against;
//! its engine is the same from 0.21 to 0.23.

#[allow(dead_code)]
mod support;

use std::path::Path;
use std::process::ExitCode;

use support::{Line, Rows, Spec, model_dir, pack, print};

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

fn spec(model: &str, engine: &str, pack: &[u8], text: &str) -> Spec {
    let (open, close) = match model {
        "gemma3" => ("<start_of_turn>", "<end_of_turn>"),
        _ => ("<|im_start|>", "<|im_end|>"),
    };
    let json = std::fs::read(model_dir(model).join("tokenizer.json")).unwrap();
    let json = if engine == "kvroute" { Vec::new() } else { json };
    let parts: [(&str, &[u8]); 7] = [
        ("what", b"tokenizer"),
        ("engine", engine.as_bytes()),
        ("pack", pack),
        ("tokenizer.json", &json),
        ("text", text.as_bytes()),
        ("open", open.as_bytes()),
        ("close", close.as_bytes()),
    ];
    Spec::new(&parts)
}

fn main() -> ExitCode {
    let text = text();
    let qwen3 = pack("qwen3");
    let ours = spec("qwen3", "kvroute", &qwen3, &text);
    let crates = spec("qwen3", "tokenizers", &[], &text);
    let envoy = ours.in_envoy();
    let native = ours.natively(&[]);
    let crate_envoy = crates.in_envoy();
    let crate_native = crates.natively(&[]);
    // scripts/bench says so when that rival could not be built.
    let fastokens = match std::env::var_os("KVROUTE_WITHOUT_FASTOKENS") {
        Some(_) => Rows::new(),
        None => crates.natively(&["fastokens"]),
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
        let rows = spec(model, "kvroute", &pack, &text).in_envoy();
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
    print(&lines, &rivals.map(|(name, _)| name))
}
