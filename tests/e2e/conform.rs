//! Every recorded request, worked out inside a real Envoy: the same totals as natively.

use std::path::{Path, PathBuf};
use std::process::Command;

use kvroute::conform::cases::CaseFile;
use kvroute::gateway::{Bootstrap, Envoy};
use serde_json::{Value, json};

use crate::harness::{Packed, packed};

/// The day of the recording, and the engine's `--max-model-len`.
const DATE: &str = "2026-11-30";
const MAX_MODEL_LEN: u64 = 40960;

fn directory(variable: &str, usual: &str) -> PathBuf {
    let usual = Path::new(env!("CARGO_MANIFEST_DIR")).join(usual);
    std::env::var_os(variable).map_or(usual, PathBuf::from)
}

/// The recorded files of a tokenizer.
fn files(name: &str) -> Vec<PathBuf> {
    let dir = directory("KVROUTE_DATA", "../shared/data").join("golden");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        eprintln!("SKIPPED: {} does not exist; set KVROUTE_DATA", dir.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        path.extension().is_some_and(|e| e == "jsonl") && stem.split(['-', '.']).next() == Some(name)
    });
    files.sort();
    files
}

/// Runs `kvroute conform` and gives its report of the only file.
fn conform(args: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_kvroute")).arg("conform").args(args).arg("--json").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let value: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text:?} {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.success(), value["totals"]["failed"] == 0, "the exit code");
    value["files"][0].clone()
}

fn check(name: &str, model_type: Option<&str>) {
    let files = files(name);
    if files.is_empty() {
        return;
    }
    let Some(Packed { pack, wasm }) = packed(name, model_type) else { return };
    let pack = pack.to_str().unwrap();
    for path in files {
        let file = CaseFile::read(&path).unwrap();
        let flags = json!({"max_model_len": MAX_MODEL_LEN});
        let engine = file.meta.flags(Some(&flags)).unwrap();
        let replica = "127.0.0.1:9";
        let bootstrap = Bootstrap {
            wasm: wasm.clone(),
            ingest_wasm: Some(kvroute::gateway::default_wasm()),
            replicas: vec![replica.parse().unwrap()],
            health_path: None,
            router: json!({
                "models": [{"name": name, "aliases": ["m"], "block_size": 16, "engine": engine}],
                "replicas": [{"address": replica, "model": name}],
            }),
            ..Bootstrap::default()
        };
        let envoy = Envoy::start(bootstrap, 1).unwrap();
        let path = path.to_str().unwrap();
        let (flags, url) = (flags.to_string(), format!("http://{}", envoy.ingest()));
        let secret = envoy.bootstrap().secret.clone();
        let native = conform(&["--pack", pack, "--flags", &flags, "--date", DATE, "--cases", path]);
        let gateway = conform(&["--gateway", &url, "--secret", &secret, "--date", DATE, "--cases", path]);
        let of = |report: &Value, what: &str| report["totals"][what].as_u64().unwrap();
        for (place, report) in [("native", &native), ("gateway", &gateway)] {
            eprintln!("golden {} ({place}): {} cases, {} failed", file.name, of(report, "cases"), of(report, "failed"));
        }
        assert_eq!(of(&native, "cases"), file.cases.len() as u64);
        assert!(of(&native, "identical") > 0);
        assert_eq!(native["totals"], gateway["totals"], "{gateway:#}");
        assert_eq!(of(&gateway, "failed"), 0, "{gateway:#}");
    }
}

#[test]
fn recorded_requests_come_to_the_same_inside_an_envoy() {
    crate::harness::MODELS.into_iter().for_each(|(name, model_type)| check(name, model_type));
}
