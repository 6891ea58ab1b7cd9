use super::{Config, Role, SelectionMode};
use serde_json::{Value, json};

fn good() -> Value {
    json!({
        "role": "router",
        "models": [{"name": "qwen3", "aliases": ["Qwen/Qwen3-8B"], "block_size": 16}],
        "secret": "s",
        "bridge": {"cluster": "kvroute_bridge"},
    })
}

/// `good()` with the value at a JSON pointer replaced (or added to its object).
fn with(pointer: &str, value: Value) -> Value {
    let mut config = good();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap() {
        Value::Object(map) => _ = map.insert(field.to_owned(), value),
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        _ => panic!("no container at {parent}"),
    }
    config
}

fn error(config: &Value) -> String {
    let text = Config::from_value(config).unwrap_err().to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_small_configuration_gets_the_defaults() {
    let config = Config::from_value(&good()).unwrap();
    assert_eq!(config.role, Role::Router);
    assert_eq!(config.limits.max_inspect_bytes, 4 << 20);
    assert_eq!(config.limits.max_jobs, 64);
    assert_eq!(config.selection.mode, SelectionMode::StatefulSession);
    assert_eq!(config.selection.header, "x-kvroute-replica");
    assert_eq!(config.models[0].pack, "qwen3");
    assert_eq!(config.model("Qwen/Qwen3-8B").unwrap().0, 0);
    assert!(config.model("other").is_none());
    let gateway = Config::from_value(&with("/selection", json!({"mode": "override_host"}))).unwrap();
    assert_eq!(gateway.selection.header, "x-gateway-destination-endpoint");
}

#[test]
fn an_adapter_is_named_as_the_engine_has_it() {
    let asked = |engine: Value, name: &str| {
        let model = json!({"name": "m", "aliases": ["a"], "adapters": ["l"], "engine": engine});
        let config = Config::from_value(&with("/models/0", model)).unwrap();
        config.asked(Some(name)).map(|(_, _, adapter)| adapter.map(str::to_owned)).ok()
    };
    let adapter = Some(Some("l".to_owned()));
    for (name, vllm, sglang) in [
        ("m", Some(None), Some(None)),
        ("l", adapter.clone(), None),
        ("m:l", None, adapter.clone()),
        ("a: l", None, adapter),
        ("m:other", None, None),
    ] {
        assert_eq!(asked(json!({}), name), vllm, "{name}");
        assert_eq!(asked(json!({"engine": "sglang", "version": "0.5.23"}), name), sglang, "{name}");
    }
}

#[test]
fn every_mistake_names_its_field_and_the_mend() {
    let without = |field: &str| {
        let mut config = good();
        config.as_object_mut().unwrap().remove(field);
        config
    };
    let cases: Vec<(Value, &str)> = vec![
        (json!([]), "configuration must be an object, not a list"),
        (without("role"), "role is missing: one of router, ingest, admin"),
        (with("/role", json!("rooter")), "role must be one of router, ingest, admin, not \"rooter\""),
        (without("models"), "models is empty: name at least one model"),
        (with("/models", json!({})), "models must be a list, not an object"),
        (with("/models/0", json!("qwen3")), "models[0] must be an object, not \"qwen3\""),
        (with("/models/0/name", json!(" ")), "models[0].name must not be empty"),
        (with("/models/0/block_size", json!(0)), "models[0].block_size must be a whole number from 1 to 4096, not 0"),
        (
            with("/models/0/blocksize", json!(16)),
            "models[0].blocksize is no field that kvroute knows: did you mean \"block_size\"?",
        ),
        (
            with("/models/0/engine", json!({"engine": "vllm", "max_model_len": "8k"})),
            "models[0].engine.max_model_len must be a whole number that is not negative, not \"8k\"",
        ),
        (
            with("/models/0/aliases", json!(["qwen3"])),
            "models[0].aliases[0] \"qwen3\" names two models: every name, alias and adapter must be unique",
        ),
        (with("/limits", json!({"slice_ms": "1"})), "limits.slice_ms must be a number from 0.05 to 100, not \"1\""),
        (
            with("/limits", json!({"max_job_bytes": 2 << 20})),
            "limits.max_job_bytes must be at least limits.max_inspect_bytes",
        ),
        (
            with("/limits", json!({"memory_bytes": 64 << 20})),
            "limits.memory_bytes must be at least limits.index_bytes + limits.max_job_bytes + limits.prompt_memory_bytes",
        ),
        (
            with("/selection", json!({"header": "X-Kv"})),
            "selection.header \"X-Kv\" is not a header name: use lower-case letters, digits and '-'",
        ),
        (
            with("/selection", json!({"fallback_header": "x-kvroute-replica"})),
            "selection.fallback_header must differ from selection.header",
        ),
        (without("bridge"), "bridge is missing: name the cluster of the bridge, or list \"replicas\" here"),
        (with("/bridge", json!({})), "bridge.cluster is missing: add it"),
        (with("/secret_env", json!("KVROUTE_SECRET")), "secret_env stands beside \"secret\": keep one of the two"),
        (without("secret"), "secret is missing: give the same text to router, ingest, admin and the bridge"),
        (
            with("/replicas", json!([{"address": "vllm-0:8000", "model": "qwen3"}])),
            "replicas[0].address \"vllm-0:8000\" must be ip:port as Envoy's cluster resolves it, not a host name",
        ),
        (
            with("/replicas", json!([{"address": "10.0.0.1:8000", "model": "llama"}])),
            "replicas[0].model \"llama\" is no name of a model above",
        ),
        (json!({"role": "ingest"}), "secret is missing: give the same text to router, ingest, admin and the bridge"),
    ];
    for (config, expected) in cases {
        assert_eq!(error(&config), expected, "for {config}");
    }
}

#[test]
fn bytes_that_are_no_json_are_refused_with_the_place() {
    assert_eq!(Config::parse(b" ").unwrap_err().to_string(), "configuration is empty: give at least {\"role\": ...}");
    let text = Config::parse(b"{\"role\": router}").unwrap_err().to_string();
    assert!(text.starts_with("configuration is not JSON: ") && text.contains("line 1 column"), "{text}");
}

#[test]
fn the_secret_may_come_by_the_environment() {
    let mut config = good();
    config["secret"] = Value::Null;
    // Always set where tests run.
    config["secret_env"] = json!("CARGO_MANIFEST_DIR");
    assert_eq!(Config::from_value(&config).unwrap().secret, env!("CARGO_MANIFEST_DIR"));
    config["secret_env"] = json!("KVROUTE_NO_SUCH_VARIABLE");
    assert!(!Config::from_value(&config).unwrap().secret.is_empty());
}
