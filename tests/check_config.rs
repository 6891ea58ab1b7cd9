//! `kvroute check-config` as a user runs it, and the same lines from a real Envoy.
//!
//! The last test needs Envoy and the filter, like tests/envoy_smoke.rs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::kvroute::gateway::{Bootstrap, default_wasm, envoy_binary};
use common::kvroute;
use serde_json::{Value, json};

mod common;
#[path = "check_config/schema.rs"]
mod schema;

/// The report on a configuration, and the exit code.
fn check(config: &str, more: &[&str]) -> (Value, i32) {
    let output = kvroute(&[&["check-config", "-", "--json"], more].concat(), config);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
    (report, output.status.code().unwrap())
}

/// The line with which a configuration is refused; `None` where it is not.
fn line(config: &Value) -> Option<String> {
    let (report, code) = check(&config.to_string(), &[]);
    let errors: Vec<&Value> = report["findings"].as_array().unwrap().iter().filter(|f| f["level"] == "error").collect();
    assert_eq!((code, report["ok"].as_bool().unwrap()), (i32::from(!errors.is_empty()), errors.is_empty()));
    assert!(errors.len() <= 1, "{errors:?}");
    let line = errors.first()?["what"].as_str().unwrap().to_owned();
    assert!(!line.contains('\n'), "{line}");
    Some(line)
}

/// A router's configuration with every field there is.
fn complete() -> Value {
    json!({
        "role": "router",
        "secret": "s3cret",
        "secret_env": null,
        "hash_seed": "seed",
        "models": [{
            "name": "m", "aliases": ["other"], "adapters": ["l"], "pack": "m", "block_size": 32, "enabled": true,
            "shadow": false, "rollout_percent": 100,
            "engine": {
                "engine": "vllm", "version": "0.32.0", "chat_template": "{{ messages }}",
                "chat_template_content_format": "auto", "default_chat_template_kwargs": {"a": true},
                "exclude_tools_when_tool_choice_none": true, "trust_request_chat_template": false,
                "enable_auto_tool_choice": true, "tool_call_parser": "hermes", "reasoning_parser": "qwen3",
                "tokenizer_mode": "auto", "tokenizer": null, "hf_overrides": {"max_position_embeddings": 8192},
                "transformers": "5.19.0", "add_bos_token": false, "max_model_len": 4096, "reasoning_effort": {"low": "high"},
                "anthropic_disabled_thinking_effort": "auto", "utc_offset_minutes": 60,
            },
        }],
        "bridge": {"cluster": "kvroute_bridge", "timeout_ms": 1000},
        "replicas": [{"address": "10.0.0.1:8000", "model": "m", "rank": 0, "role": "both", "capacity_blocks": 100}],
        "selection": {
            "mode": "stateful_session", "header": "x-a", "fallback_header": "x-b", "outcome_header": "x-c", "session_header": "x-d",
        },
        "limits": {
            "max_inspect_bytes": 4096, "buffer_limit_bytes": 4096, "max_job_bytes": 1 << 20, "max_jobs": 2,
            "time_budget_ms": 5, "finish_budget_ms": 5, "slice_ms": 0.5, "index_bytes": 1 << 20,
            "prompt_memory_bytes": 1 << 20, "memory_bytes": 32 << 20, "max_backlog": 100,
        },
        "tenant_salt": {"header": "x-tenant", "write": true},
        "receipts": {"explain": true, "allow": ["10.0.0.0/8"], "header": "x-r", "sample": 0.01, "filter_state": true},
        "paths": {
            "chat_completions": ["/chat"], "completions": ["/c"], "messages": ["/m"], "responses": ["/r"],
        },
        "policy": {
            "queue": 0.5, "context": 0.02, "request": 16, "waiting": 512, "bound": 1.25, "crowding": 2000, "crowding_max": 2500, "alike": 192, "copy": 1,
            "home_seconds": 120, "cpu_tier": 0.8, "disk_tier": 0.4, "predicted": 0.95, "catching_up": 0.9,
            "stale": 0.5, "no_events": 0.8, "load_max_age_ms": 5000, "session": 0, "adapter": 512, "remote_prefill": 16, "temperature": 0, "unconfirmed": 0.5,
            "candidates": 3,
        },
        "test": {"trap_header": "x-trap"},
    })
}

/// JSON pointers of all objects, and of all fields with a value.
fn places(value: &Value, at: &str, objects: &mut Vec<String>, fields: &mut Vec<String>) {
    // What stands in these has names of others.
    let free =
        ["default_chat_template_kwargs", "hf_overrides", "reasoning_effort"].iter().any(|name| at.ends_with(name));
    match value {
        Value::Object(map) if !free => {
            objects.push(at.to_owned());
            for (name, value) in map.iter().filter(|(_, v)| !v.is_null()) {
                fields.push(format!("{at}/{name}"));
                places(value, &format!("{at}/{name}"), objects, fields);
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                places(value, &format!("{at}/{i}"), objects, fields);
            }
        }
        _ => {}
    }
}

/// `/models/0/name` as errors write it: `models[0].name`.
fn dotted(pointer: &str) -> String {
    let mut out = String::new();
    for part in pointer.split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(index) => out.push_str(&format!("[{index}]")),
            Err(_) if out.is_empty() => out.push_str(part),
            Err(_) => out.push_str(&format!(".{part}")),
        }
    }
    out
}

fn with(pointer: &str, value: Value) -> Value {
    let mut config = complete();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap() {
        Value::Object(map) => _ = map.insert(field.to_owned(), value),
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        _ => panic!("no container at {parent}"),
    }
    config
}

#[test]
fn every_field_of_a_wrong_type_and_every_unknown_field_is_named() {
    assert_eq!(line(&complete()), None);
    let (mut objects, mut fields) = (Vec::new(), Vec::new());
    places(&complete(), "", &mut objects, &mut fields);
    for field in &fields {
        // A list with a list in it is no value of any field.
        let said = line(&with(field, json!([[]])));
        let any = ["default_chat_template_kwargs", "hf_overrides"].iter().find(|name| field.ends_with(*name));
        if let Some(name) = any {
            assert!(said.unwrap().starts_with(&format!("models[0].engine cannot be followed: {name}")));
            continue;
        }
        let said = said.unwrap_or_else(|| panic!("{field} may be anything"));
        let place = dotted(field);
        assert!(said.starts_with(&place), "{place}: {said}");
        let rest = said[place.len()..].trim_start_matches("[0]");
        assert!(rest.starts_with(" must be "), "{said}");
    }
    for object in &objects {
        let said = line(&with(&format!("{object}/qqqqqqqq"), json!(1))).unwrap();
        let place = dotted(&format!("{object}/qqqqqqqq"));
        let known = said.strip_prefix(&format!("{place} is no field that kvroute knows: remove it; known here: "));
        let known: BTreeSet<&str> = known.unwrap_or_else(|| panic!("{place}: {said}")).split(", ").collect();
        // `complete` has them all, so that the first half of this test has seen them all.
        let complete = complete();
        let ours = complete.pointer(object).unwrap().as_object().unwrap();
        assert_eq!(known, ours.keys().map(String::as_str).collect(), "{object}");
    }
}

#[test]
fn impossible_values_are_refused() {
    for (pointer, bad) in [
        ("/role", json!("rooter")),
        ("/secret", json!("a\nb")),
        ("/secret", json!(" padded ")),
        ("/secret", json!("")),
        ("/models", json!([])),
        ("/models/0/name", json!("")),
        ("/models/0/aliases", json!([""])),
        ("/models/0/aliases", json!(["m"])),
        ("/models/0/rollout_percent", json!(-1)),
        ("/models/0/rollout_percent", json!(100.5)),
        ("/models/0/block_size", json!(0)),
        ("/models/0/block_size", json!(4097)),
        ("/models/0/block_size", json!(16.5)),
        ("/models/0/engine/engine", json!("sglang")),
        ("/models/0/engine/version", json!("newest")),
        ("/models/0/engine/chat_template", json!("{% if %}")),
        ("/models/0/engine/chat_template_content_format", json!("xml")),
        ("/models/0/engine/default_chat_template_kwargs", json!("{")),
        ("/models/0/engine/tokenizer_mode", json!("mistral")),
        ("/models/0/engine/max_model_len", json!(-1)),
        ("/models/0/engine/utc_offset_minutes", json!(6000)),
        ("/bridge/cluster", json!(" ")),
        ("/bridge/timeout_ms", json!(9)),
        ("/bridge/timeout_ms", json!(60_001)),
        ("/replicas/0/address", json!("vllm-0:8000")),
        ("/replicas/0/address", json!("10.0.0.1")),
        ("/replicas/0/model", json!("unknown")),
        ("/replicas/0/rank", json!(5000)),
        ("/replicas/0/capacity_blocks", json!(-1)),
        ("/selection/mode", json!("cookie")),
        ("/selection/header", json!("X-A")),
        ("/selection/header", json!("content-length")),
        ("/selection/fallback_header", json!("x-a")),
        ("/selection/fallback_header", json!("a b")),
        ("/selection/outcome_header", json!(":path")),
        ("/selection/session_header", json!("X Session")),
        ("/limits/max_inspect_bytes", json!(1023)),
        ("/limits/max_inspect_bytes", json!(2 << 20)), // more than all jobs may have
        ("/limits/buffer_limit_bytes", json!(0)),
        ("/limits/max_job_bytes", json!(1u64 << 40)),
        ("/limits/max_jobs", json!(0)),
        ("/limits/time_budget_ms", json!(0)),
        ("/limits/finish_budget_ms", json!(60_001)),
        ("/limits/slice_ms", json!(0.01)),
        ("/limits/index_bytes", json!(1 << 30)),
        ("/limits/prompt_memory_bytes", json!(-1)),
        ("/limits/prompt_memory_bytes", json!(1 << 30)),
        ("/limits/prompt_memory_bytes", json!(32 << 20)), // with the jobs more than the VM
        ("/limits/index_bytes", json!(32 << 20)),         // with the jobs more than the VM
        ("/limits/memory_bytes", json!(1 << 30)),
        ("/limits/max_backlog", json!(15)),
        ("/tenant_salt/header", json!("content-length")),
        ("/tenant_salt/header", json!(null)),
        ("/receipts/header", json!("X-R")),
        ("/receipts/allow/0", json!("10.0.0.1/8")),
        ("/receipts/sample", json!(1.5)),
        ("/receipts/sample", json!(-0.1)),
        ("/paths/messages", json!([""])),
        ("/policy/queue", json!(-1)),
        ("/policy/context", json!(1e10)),
        ("/policy/request", json!(-0.1)),
        ("/policy/waiting", json!(-1)),
        ("/policy/crowding", json!(-1)),
        ("/policy/crowding_max", json!(-1)),
        ("/policy/alike", json!(-1)),
        ("/policy/copy", json!(1.1)),
        ("/policy/home_seconds", json!(-1)),
        ("/policy/cpu_tier", json!(1.1)),
        ("/policy/disk_tier", json!(-0.1)),
        ("/policy/predicted", json!(2)),
        ("/policy/catching_up", json!(2)),
        ("/policy/stale", json!(2)),
        ("/policy/no_events", json!(2)),
        ("/policy/load_max_age_ms", json!(1.5)),
        ("/policy/session", json!(-1)),
        ("/policy/temperature", json!(-1)),
        ("/policy/candidates", json!(17)),
        ("/test/trap_header", json!("")),
    ] {
        let said = line(&with(pointer, bad.clone())).unwrap_or_else(|| panic!("{pointer}: {bad} passes"));
        let field = dotted(pointer);
        let field = field.rsplit('.').next().unwrap();
        // The limits of memory are about two fields, and either may be named.
        assert!(said.contains(field), "{pointer}: {bad}: {said}");
    }
}

#[test]
fn text_for_people_and_exit_codes() {
    let good = kvroute(&["check-config", "-"], &complete().to_string());
    assert_eq!(good.status.code(), Some(0));
    let text = String::from_utf8(good.stdout).unwrap();
    assert!(text.contains("m (32 tokens a block, vllm 0.32.0)"), "{text}");
    let bad = kvroute(&["check-config", "-"], &with("/limits/max_jobs", json!(0)).to_string());
    assert_eq!(bad.status.code(), Some(1));
    let text = String::from_utf8(bad.stdout).unwrap();
    assert!(text.contains("error: limits.max_jobs must be a whole number from 1 to 10000, not 0\n"), "{text}");
    assert!(text.contains("1 error, "), "{text}");
    let old = with("/models/0/engine/version", json!("0.29.0")).to_string();
    assert_eq!(kvroute(&["check-config", "-"], &old).status.code(), Some(0));
    assert_eq!(kvroute(&["check-config", "--strict", "-"], &old).status.code(), Some(1));
    for arguments in
        [&["check-config"][..], &["check-config", "/no/such/file"], &["check-config", "-", "--pack", "/no"]]
    {
        assert_eq!(kvroute(arguments, "{}").status.code(), Some(2), "{arguments:?}");
    }
}

/// A model directory whose template prints what it is told to.
struct Model(PathBuf);

impl Model {
    fn new(name: &str, template: &str) -> Model {
        let dir = std::env::temp_dir().join(format!("kvroute-check-config-{}", std::process::id())).join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let tokenizer = json!({"version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}});
        std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(dir.join("tokenizer_config.json"), json!({"chat_template": template}).to_string()).unwrap();
        Model(dir)
    }

    fn pack(&self) -> String {
        let file = self.0.with_extension("pack").to_str().unwrap().to_owned();
        let output = kvroute(&["pack", self.0.to_str().unwrap(), "-o", &file], "");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        file
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn models_are_held_against_their_packs() {
    let plain = Model::new("plain", "{{ messages[0].content }}");
    let day = Model::new("day", "{{ strftime_now('%d %B') }}{{ messages[0].content }}");
    let second = Model::new("second", "{{ strftime_now('%H:%M:%S') }}{{ messages[0].content }}");
    let packs: Vec<String> = [&plain, &day, &second].map(Model::pack).into();
    let more: Vec<&str> = packs.iter().flat_map(|p| ["--pack", p.as_str()]).collect();
    let of = |models: Value| {
        let config = json!({"role": "router", "secret": "s", "bridge": {"cluster": "b"}, "models": models});
        let (report, code) = check(&config.to_string(), &more);
        let findings = report["findings"].as_array().unwrap().iter();
        let findings = findings.map(|f| format!("{}: {}", f["level"].as_str().unwrap(), f["what"].as_str().unwrap()));
        (findings.collect::<Vec<_>>(), code)
    };
    let all = json!([
        {"name": "plain", "engine": {"version": "0.31.0"}},
        {"name": "m", "pack": "day"},
        {"name": "second"},
    ]);
    let (findings, code) = of(all);
    assert_eq!(code, 0);
    assert_eq!(findings.len(), 3, "{findings:?}");
    assert!(findings[0].starts_with("warning: model plain: vllm 0.31.0 was not compared"), "{findings:?}");
    assert!(findings[1].starts_with("warning: model m: the template prints the date (%d %B)"), "{findings:?}");
    assert!(findings[2].starts_with("warning: model second: the template prints the time (%H:%M:%S)"), "{findings:?}");
    let (findings, code) = of(json!([{"name": "plain"}, {"name": "gone"}]));
    assert_eq!(code, 1);
    assert_eq!(findings[0], "error: models[1].pack \"gone\" is not there: this wasm has plain, day, second");
    assert!(findings[1].contains("\"day\", is used by no model"), "{findings:?}");
}

const ROUTERS_CONFIGURATION: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/1/typed_config/config/configuration/value";

/// Envoy's word on a bootstrap: `None` where it is taken.
fn validate(bootstrap: &Path) -> Option<String> {
    let output = Command::new(envoy_binary().unwrap())
        .args(["--mode", "validate", "--log-level", "error", "--component-log-level", "wasm:info", "-c"])
        .arg(bootstrap)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (!output.status.success()).then(|| String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn envoy_says_the_same_line() {
    let plain = Model::new("in-envoy", "{{ messages[0].content }}");
    let other = Model::new("beside-it", "{{ messages[0].role }}");
    let dir = plain.0.join("envoy");
    std::fs::create_dir_all(&dir).unwrap();
    let wasm = dir.join("model.wasm");
    let (packs, filter, out) = ([plain.pack(), other.pack()], default_wasm(), wasm.to_str().unwrap());
    let packs = ["--pack", &packs[0], "--pack", &packs[1]];
    let packed = kvroute(&[&["pack", "--wasm", filter.to_str().unwrap(), "-o", out][..], &packs].concat(), "");
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let good = json!({"models": [{"name": "m", "pack": "in-envoy"}, {"name": "beside-it", "aliases": ["b"]}]});
    let mut bootstrap = Bootstrap {
        replicas: vec!["127.0.0.1:9".parse().unwrap()],
        bridge: Some("127.0.0.1:9".parse().unwrap()),
        // The same file for ingest: Envoy compiles it once.
        wasm: wasm.clone(),
        ..Bootstrap::default()
    };
    let file = dir.join("bootstrap.json");
    let mut both = |router: Value| {
        let without_secret = router.get("secret_env").is_some();
        bootstrap.router = router;
        let mut json = bootstrap.to_json(&dir);
        if without_secret {
            let text = json.pointer_mut(ROUTERS_CONFIGURATION).unwrap();
            let mut config: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
            config.as_object_mut().unwrap().remove("secret");
            *text = config.to_string().into();
        }
        std::fs::write(&file, json.to_string()).unwrap();
        (check(&std::fs::read_to_string(&file).unwrap(), &[]), validate(&file))
    };
    let ((report, code), envoy) = both(good.clone());
    assert_eq!((code, envoy.as_deref()), (0, None), "{report:#}");
    for (pointer, bad) in [
        ("/limits", json!({"max_jobs": 0})),
        ("/limits", json!({"max_job": 1})),
        ("/models/0/pack", json!("gone")),
        ("/models/0/engine", json!({"max_model_len": "8k"})),
        ("/policy", json!({"stale": 2})),
        ("/policy", json!({"unconfirmed": -1})),
        ("/secret_env", json!("KVROUTE_NOT_IN_THE_VM")),
    ] {
        let mut router = good.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        router.pointer_mut(parent).unwrap()[field] = bad.clone();
        let ((report, code), envoy) = both(router);
        let errors: Vec<&str> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|f| f["level"] == "error")
            .map(|f| f["what"].as_str().unwrap())
            .collect();
        assert_eq!((code, errors.len()), (1, 1), "{pointer}: {bad}: {report:#}");
        let envoy = envoy.unwrap_or_else(|| panic!("Envoy takes {pointer}: {bad}, kvroute says {errors:?}"));
        assert!(envoy.contains(&format!("kvroute: {}", errors[0])), "{errors:?}, Envoy:\n{envoy}");
    }
    // The example, with the files that it names where they are.
    let example = include_str!("../envoy/envoy.yaml").replace("my-model", "in-envoy");
    let example = example.replace("/etc/kvroute/model.wasm", wasm.to_str().unwrap());
    let example =
        example.replace("/etc/kvroute/kvroute.wasm", default_wasm().canonicalize().unwrap().to_str().unwrap());
    let file = dir.join("envoy.yaml");
    std::fs::write(&file, &example).unwrap();
    let (report, code) = check(&example, &[]);
    assert_eq!((code, report["findings"].as_array().unwrap().len()), (0, 2), "{report:#}");
    assert_eq!(validate(&file), None);
}
