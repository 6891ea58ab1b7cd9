//! The dashboard's queries, and Prometheus's own tool.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A file of the project.
pub fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Every query of the dashboard, with the title of its panel.
pub fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&text("envoy/grafana/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of = |p: &Value| {
        let title = p["title"].as_str().unwrap().to_owned();
        let targets = p["targets"].as_array().cloned().unwrap_or_default();
        targets.into_iter().map(move |t| (title.clone(), t["expr"].as_str().unwrap().to_owned())).collect::<Vec<_>>()
    };
    panels.iter().flat_map(of).collect()
}

/// Prometheus's own tool, if it is there.
pub fn promtool() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let local = Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/promtool");
    let mut candidates = std::env::split_paths(&on_path).map(|dir| dir.join("promtool")).chain([local]);
    let found = candidates.find(|path| path.is_file());
    if found.is_none() {
        eprintln!("NOT CHECKED by promtool, which is not there: scripts/setup brings it where apt-get has prometheus");
    }
    found
}

/// Runs it, where the alerts are; it must be content.
pub fn run(promtool: &Path, arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/prometheus");
    let output = Command::new(promtool).args(arguments).current_dir(folder).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {arguments:?}:\n{}", String::from_utf8_lossy(&said));
}
