//! The manifests against the types of the APIs that they are for. What `scripts/setup` could not bring is not checked,
//! and the test says so.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::manifests::{documents, file};

/// Every manifest, by its file below `envoy/`.
fn manifests() -> Vec<Value> {
    let mut found = Vec::new();
    for folder in ["kubernetes", "kubernetes/vllm", "istio", "envoy-gateway", "prometheus"] {
        let mut names: Vec<PathBuf> = std::fs::read_dir(file(folder)).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        for path in names {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let name = format!("{folder}/{name}");
            // Envoy's, Prometheus's and kustomize's own files.
            let other = ["envoy.yaml", "rules.yaml", "rules_test.yaml", "kustomization.yaml"];
            if !name.ends_with(".yaml") || other.iter().any(|o| path.ends_with(o)) {
                continue;
            }
            found.extend(documents(&name).into_iter().map(|document| json!({"file": name, "document": document})));
        }
    }
    found
}

/// What is wrong with them, or `None` (said on stderr) where the schemas are not there.
fn check(manifests: &[Value]) -> Option<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schemas = root.join(".kvroute/schemas");
    let node = Command::new("node").arg("--version").stdout(Stdio::null()).status();
    if !schemas.join("node_modules/kubernetes-models").exists() || !node.is_ok_and(|status| status.success()) {
        eprintln!("NOT CHECKED against the schemas of Kubernetes: scripts/setup brings them where there is npm");
        return None;
    }
    let mut child = Command::new("node")
        .arg(root.join("tests/deployments/schemas.mjs"))
        .arg(schemas)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(Value::from(manifests).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let summary = lines.pop().expect("the script closes with a summary");
    assert_eq!(output.status.success(), lines.is_empty(), "{text}");
    eprintln!("{summary}");
    Some(lines)
}

#[test]
fn manifests_fit_their_schemas() {
    let manifests = manifests();
    let kinds: Vec<&str> = manifests.iter().map(|m| m["document"]["kind"].as_str().unwrap()).collect();
    for kind in ["Deployment", "EnvoyFilter", "EnvoyPatchPolicy", "EnvoyProxy", "HTTPRoute", "PodMonitor"] {
        assert!(kinds.contains(&kind), "no {kind} in {kinds:?}");
    }
    if let Some(mistakes) = check(&manifests) {
        assert!(mistakes.is_empty(), "{mistakes:#?}");
    }
}

#[test]
fn a_mistake_in_a_manifest_is_found() {
    let manifests = manifests();
    let seeded = [
        ("Deployment", "/spec/template/spec/containers/0/reedinessProbe", json!({})),
        ("Deployment", "/spec/replicas", json!("two")),
        ("EnvoyFilter", "/spec/configPatches/0/applyTo", json!("LISTENERS")),
        ("EnvoyFilter", "/spec/configPatches/0/match/listener/port", json!(8080)),
        ("VirtualService", "/spec/http/0/retries/retryon", json!("reset")),
        ("ClientTrafficPolicy", "/spec/connection/buffer", json!("1Mi")),
        ("HTTPRoute", "/spec/rules/0/timeouts/request", json!("0 seconds")),
        ("EnvoyPatchPolicy", "/spec/jsonPatches/0/operation/op", json!("insert")),
        (
            "EnvoyProxy",
            "/spec/provider/kubernetes/envoyDeployment/patch/value/spec/template/spec/containers/0/arguments",
            json!([]),
        ),
        ("PodDisruptionBudget", "/apiVersion", json!("policy/v2")),
    ];
    let mutants: Vec<Value> = seeded
        .iter()
        .map(|(kind, pointer, value)| {
            let found = manifests.iter().find(|m| m["document"]["kind"] == *kind).unwrap();
            let mut mutant = found.clone();
            super::manifests::operate(&mut mutant["document"], "add", pointer, Some(value));
            mutant["file"] = (*pointer).into();
            mutant
        })
        .collect();
    let Some(mistakes) = check(&mutants) else { return };
    for (kind, pointer, _) in seeded {
        assert!(mistakes.iter().any(|m| m.starts_with(pointer)), "{kind} {pointer} passes: {mistakes:#?}");
    }
}

#[test]
fn what_kustomize_makes_is_complete() {
    let kubectl = |arguments: &[&str]| Command::new("kubectl").args(arguments).output();
    if !kubectl(&["version", "--client"]).is_ok_and(|output| output.status.success()) {
        eprintln!("NOT CHECKED: there is no kubectl to run kustomize");
        return;
    }
    for folder in ["kubernetes", "kubernetes/vllm", "istio", "istio-remote", "envoy-gateway"] {
        let output = kubectl(&["kustomize", file(folder).to_str().unwrap()]).unwrap();
        assert!(output.status.success(), "{folder}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("kind: Deployment") && text.contains("name: vllm"), "{folder}");
        // Every wasm file by the one way or the other.
        let fetched = text.matches("sha256:").count();
        assert_eq!(fetched, if folder == "istio-remote" { 3 } else { 0 }, "{folder}");
    }
}

/// The same rights in both, since kustomize takes no file of another folder.
#[test]
fn both_gateways_have_the_same_rights() {
    assert_eq!(documents("kubernetes/rbac.yaml"), documents("istio/rbac.yaml"));
}
