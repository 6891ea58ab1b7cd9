//! A good configuration of Envoy's has no finding; each change that breaks one is found, and by its place.

use std::path::Path;

use serde_json::{Value, json};

use super::{Level, Report, Source, check};
use crate::gateway::Bootstrap;

const ROUTER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const PLUGIN: &str =
    "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/1/typed_config/config";
const INGEST: &str =
    "/static_resources/listeners/1/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";
const ADMIN: &str =
    "/static_resources/listeners/1/filter_chains/0/filters/0/typed_config/http_filters/1/typed_config/config";
const ROUTE: &str =
    "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes/0";
const HOST: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";
const CLUSTER: &str = "/static_resources/clusters/0";

fn bootstrap() -> Bootstrap {
    Bootstrap {
        replicas: vec!["127.0.0.1:8001".parse().unwrap()],
        bridge: Some("127.0.0.1:7000".parse().unwrap()),
        router: json!({"models": [{"name": "m"}]}),
        buffer_limit: Some(16 << 20),
        wasm: "/no/such/kvroute.wasm".into(),
        ..Bootstrap::default()
    }
}

fn good() -> Value {
    bootstrap().to_json(Path::new("/no/such/folder"))
}

fn report(config: &Value) -> Report {
    check(config.to_string().as_bytes(), &Source::default(), None)
}

/// Findings but the note that there were no packs.
fn findings(report: &Report) -> Vec<(Level, String)> {
    let all = report.findings.iter().filter(|f| !f.what.contains("packs were not looked at"));
    all.map(|f| (f.level, f.what.clone())).collect()
}

/// `good()` with a value replaced, added to its object, or (null) taken away.
fn with(pointer: &str, value: Value) -> Value {
    let mut config = good();
    set(&mut config, pointer, value);
    config
}

fn set(config: &mut Value, pointer: &str, value: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {parent}")) {
        Value::Object(map) => _ = map.insert(field.to_owned(), value),
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        _ => panic!("no container at {parent}"),
    }
}

/// The plugin configuration at `pointer`, changed.
fn plugin(pointer: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut config = good();
    let text = config.pointer(&format!("{pointer}/configuration/value")).unwrap().as_str().unwrap();
    let mut inner: Value = serde_json::from_str(text).unwrap();
    change(&mut inner);
    set(&mut config, &format!("{pointer}/configuration/value"), inner.to_string().into());
    config
}

/// The filters of the public listener in another order, or fewer.
fn filters(order: &[usize]) -> Value {
    let mut config = good();
    let list = config.pointer(&format!("{ROUTER}/http_filters")).unwrap().as_array().unwrap().clone();
    let list: Vec<Value> = order.iter().map(|i| list[*i].clone()).collect();
    set(&mut config, &format!("{ROUTER}/http_filters"), list.into());
    config
}

#[test]
fn a_good_configuration_has_no_finding_in_any_spelling() {
    let json = report(&good());
    assert_eq!(findings(&json), []);
    let roles: Vec<_> = json.instances.iter().map(|i| i.role).collect();
    assert_eq!(roles, [Some("router"), Some("ingest"), Some("admin")]);
    assert_eq!(json.instances[0].models[0].name, "m");
    let yaml = serde_norway::to_string(&good()).unwrap();
    assert_eq!(check(yaml.as_bytes(), &Source::default(), None).findings, json.findings);
    let camel = good().to_string().replace("allow_on_headers_stop_iteration", "allowOnHeadersStopIteration");
    assert_eq!(check(camel.as_bytes(), &Source::default(), None).findings, json.findings);
}

#[test]
fn envoy_yaml_has_no_finding_but_its_secret() {
    let text = include_bytes!("../../envoy/envoy.yaml");
    let report = check(text, &Source::default(), None);
    let secret =
        "the secret is still the one of the example: whoever has read it can ask what is cached, and feed the filter";
    assert_eq!(findings(&report), [(Level::Warning, secret.to_owned())]);
    assert_eq!(report.instances.len(), 3);
}

#[test]
fn a_tenants_salt_is_the_gateways() {
    let mut own = bootstrap();
    own.router["tenant_salt"] = json!({"header": "x-tenant", "write": true});
    let mut config = own.to_json(Path::new("/d"));
    let said = findings(&report(&config));
    assert!(
        matches!(&said[..], [(Level::Warning, what)] if what.starts_with("nothing before kvroute sets")),
        "{said:?}"
    );
    let list =
        config.pointer_mut(&format!("{ROUTER}/http_filters/0/typed_config/mutations/request_mutations")).unwrap();
    list.as_array_mut().unwrap().push(json!({"remove": "x-tenant"}));
    assert_eq!(findings(&report(&config)), []);
    set(&mut config, &format!("{PLUGIN}/failure_policy"), json!("FAIL_OPEN"));
    let said = findings(&report(&config));
    assert!(said.iter().any(|(level, what)| *level == Level::Error && what.contains("without their salt")), "{said:?}");
}

#[test]
fn nobody_can_ask_for_a_receipt_where_the_question_is_removed() {
    let explain = |config: &mut Value| config["receipts"] = json!({"explain": true});
    let stripped = report(&plugin(PLUGIN, explain));
    let said = findings(&stripped);
    assert!(matches!(&said[..], [(Level::Warning, what)] if what.contains("x-kvroute-explain is removed")), "{said:?}");
    let mut own = bootstrap();
    explain(&mut own.router);
    assert_eq!(findings(&report(&own.to_json(Path::new("/d")))), []);
}

#[test]
fn networks_that_may_ask_go_by_an_address_that_clients_cannot_write() {
    let mut own = bootstrap();
    own.router["receipts"] = json!({"explain": true, "allow": ["10.0.0.0/8"]});
    let mut config = own.to_json(Path::new("/d"));
    let said = findings(&report(&config));
    assert!(matches!(&said[..], [(Level::Warning, what)] if what.contains("X-Forwarded-For")), "{said:?}");
    set(&mut config, &format!("{ROUTER}/use_remote_address"), json!(true));
    assert_eq!(findings(&report(&config)), []);
    let mut idle = plugin(PLUGIN, |c| c["receipts"] = json!({"allow": ["10.0.0.0/8"]}));
    set(&mut idle, &format!("{ROUTER}/use_remote_address"), json!(true));
    let said = findings(&report(&idle));
    assert!(matches!(&said[..], [(Level::Note, what)] if what.contains("receipts.explain is off")), "{said:?}");
    let admin = plugin(ADMIN, |c| c["receipts"] = json!({"allow": ["127.0.0.1"]}));
    let said = findings(&report(&admin));
    assert!(matches!(&said[..], [(Level::Warning, what)] if what.contains("X-Forwarded-For")), "{said:?}");
}

#[test]
fn what_breaks_a_gateway_without_a_word_is_an_error() {
    let session = format!("{ROUTER}/http_filters/2/typed_config");
    let cases: Vec<(Value, &str)> = vec![
        (with(&format!("{PLUGIN}/allow_on_headers_stop_iteration"), json!(false)), "never gets its body and hangs"),
        (with(&format!("{INGEST}/allow_on_headers_stop_iteration"), Value::Null), "never gets its body and hangs"),
        (with(&format!("{PLUGIN}/vm_config/runtime"), json!("envoy.wasm.runtime.wamr")), "no other than V8"),
        (with(&format!("{PLUGIN}/configuration"), Value::Null), "configuration is empty"),
        (filters(&[0, 1, 3]), "there is no stateful_session filter"),
        (filters(&[0, 2, 1, 3]), "stateful_session filter stands before kvroute"),
        (filters(&[0, 1, 3, 2]), "stateful_session filter stands after the router filter"),
        (filters(&[1, 2, 3]), "no header_mutation filter before kvroute removes x-kvroute-replica"),
        (filters(&[1, 0, 2, 3]), "the filter strip_selection_headers after kvroute removes x-kvroute-replica"),
        (with(&format!("{session}/session_state/typed_config/name"), json!("x-other")), "goes by the header x-other"),
        (
            with(&format!("{session}/session_state/typed_config/@type"), json!("x/CookieBasedSessionState")),
            "does not go by a header",
        ),
        (
            plugin(PLUGIN, |c| c["selection"] = json!({"header": "x-mine"})),
            "goes by the header x-kvroute-replica, kvroute writes x-mine",
        ),
        (plugin(PLUGIN, |c| c["limits"]["buffer_limit_bytes"] = json!(32 << 20)), "Envoy holds at most 16777216 bytes"),
        (
            with("/static_resources/listeners/0/per_connection_buffer_limit_bytes", Value::Null),
            "Envoy holds at most 1048576 bytes",
        ),
        (with(&format!("{ROUTE}/request_body_buffer_limit"), json!(1 << 20)), "Envoy holds at most 1048576 bytes"),
        (plugin(PLUGIN, |c| c["bridge"]["cluster"] = json!("elsewhere")), "Envoy has no such cluster"),
        (with(&format!("{INGEST}/vm_config/vm_id"), json!("other")), "the feed never reaches it"),
        (with(&format!("{ADMIN}/vm_config/configuration/value"), json!("other")), "it sees no router"),
        (with(&format!("{ADMIN}/vm_config/code/local/filename"), json!("/other.wasm")), "it sees no router"),
        (plugin(INGEST, |c| c["secret"] = json!("other")), "its secret differs"),
        (plugin(INGEST, |c| c["role"] = json!("admin")), "no instance with the role ingest"),
        (plugin(PLUGIN, |c| c["role"] = json!("ingest")), "no instance has the role router"),
        (with(&format!("{ROUTE}/route"), json!({"cluster_header": "x-kvroute-replica"})), "gets 503"),
        (with(&format!("{CLUSTER}/type"), json!("ORIGINAL_DST")), "is of type ORIGINAL_DST"),
        (plugin(PLUGIN, |c| c["selection"] = json!({"mode": "override_host"})), "Envoy never sees the choice"),
        (
            {
                let mut config = plugin(PLUGIN, |c| c["tenant_salt"] = json!({"header": "x-tenant", "write": true}));
                set(&mut config, &format!("{ROUTE}/match/safe_regex/regex"), json!(".*/v1/[a-z/]+"));
                config
            },
            "comes by /v1/chat/completion%73, /v1/completion%73, /v1/message%73 or /v1/response%73 goes on without the salt",
        ),
        (
            plugin(PLUGIN, |c| {
                c.as_object_mut().unwrap().remove("secret");
                c["secret_env"] = json!("KVROUTE_SECRET");
            }),
            "secret_env \"KVROUTE_SECRET\" is not set in the VM",
        ),
        (plugin(PLUGIN, |c| c["models"][0]["engine"] = json!({"engine": "sglang"})), "cannot be followed"),
        (
            with(
                "/bootstrap_extensions",
                json!([{"name": "envoy.bootstrap.wasm", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.wasm.v3.WasmService",
                    "config": good().pointer(INGEST).unwrap(),
                }}]),
            ),
            "as a bootstrap service",
        ),
    ];
    for (config, expected) in cases {
        let report = report(&config);
        let found = report.findings.iter().find(|f| f.level == Level::Error && f.what.contains(expected));
        let found = found.unwrap_or_else(|| panic!("no error with {expected:?} in {:#?}", report.findings));
        assert!(expected == "no instance has the role router" || !found.path.is_empty(), "{found:?}");
        assert!(report.instances.len() >= 3, "valid instances are listed, too: {expected}");
    }
}

#[test]
fn what_makes_it_worse_is_a_warning_or_a_note() {
    use Level::{Note, Warning};
    let cases: Vec<(Value, Level, &str)> = vec![
        (with(&format!("{PLUGIN}/failure_policy"), Value::Null), Warning, "FAIL_CLOSED"),
        (with(&format!("{PLUGIN}/failure_policy"), json!("FAIL_OPEN")), Warning, "FAIL_OPEN"),
        (with(&format!("{PLUGIN}/reload_config"), Value::Null), Note, "base_interval"),
        (with(&format!("{ROUTER}/http_filters/2/typed_config/strict"), json!(true)), Warning, "strict"),
        (filters(&[1, 2, 3]), Warning, "x-data-parallel-rank"),
        (filters(&[1, 2, 3]), Warning, "x-prefiller-host-port"),
        (filters(&[1, 2, 3]), Warning, "answers tell clients"),
        (with("/static_resources/listeners/1/address/socket_address/address", json!("0.0.0.0")), Warning, "listens on"),
        (
            with("/static_resources/listeners/1/per_connection_buffer_limit_bytes", Value::Null),
            Warning,
            "larger batches",
        ),
        (plugin(PLUGIN, |c| c["limits"]["buffer_limit_bytes"] = json!(1 << 20)), Warning, "larger bodies get no key"),
        (plugin(PLUGIN, |c| c["limits"]["max_inspect_bytes"] = json!(32 << 20)), Note, "bodies above 16777216"),
        (plugin(PLUGIN, |c| c["limits"]["buffer_limit_bytes"] = json!(4 << 20)), Note, "without a content-length"),
        (with(&format!("{ROUTE}/route/timeout"), Value::Null), Warning, "15 s"),
        (with(&format!("{HOST}/retry_policy"), Value::Null), Note, "no retry_policy"),
        (with(&format!("{HOST}/retry_policy/retry_host_predicate"), json!([])), Warning, "previous_hosts"),
        (
            with(&format!("{HOST}/request_headers_to_remove/0"), json!("x-kvroute-fallback")),
            Warning,
            "retries go anywhere",
        ),
        (
            with(&format!("{ROUTE}/match/headers/0/string_match/exact"), json!("PUT")),
            Note,
            "by /v1/chat/completions, /v1/completions, /v1/messages or /v1/responses is not routed",
        ),
        (
            plugin(PLUGIN, |c| c["paths"] = json!({"chat_completions": ["/chat"]})),
            Note,
            "a prompt that comes by /chat is not routed",
        ),
        (with(&format!("{CLUSTER}/load_balancing_policy"), Value::Null), Warning, "retries go by load"),
        (with(&format!("{CLUSTER}/health_checks/0/no_traffic_interval"), Value::Null), Note, "no_traffic_interval"),
        (
            with(&format!("{CLUSTER}/outlier_detection/successful_active_health_check_uneject_host"), Value::Null),
            Note,
            "ejected",
        ),
        (with(&format!("{INGEST}/vm_config/configuration/value"), json!("router")), Warning, "shares the router's VM"),
        (
            plugin(INGEST, |c| {
                c["role"] = json!("router");
                c["models"] = json!([{"name": "m"}]);
                c["bridge"] = json!({"cluster": "kvroute_bridge"});
            }),
            Warning,
            "two indexes",
        ),
        (with("/stats_config", Value::Null), Note, "stats_tags"),
        (plugin(PLUGIN, |c| c["models"][0]["enabled"] = json!(false)), Note, "switched off"),
        (
            plugin(PLUGIN, |c| c["models"][0]["engine"] = json!({"version": "0.29.0"})),
            Warning,
            "0.29.0 was not compared",
        ),
        (
            plugin(PLUGIN, |c| c["replicas"] = json!([{"address": "10.0.0.9:8000", "model": "m"}])),
            Warning,
            "is no endpoint of cluster replicas",
        ),
    ];
    for (config, level, expected) in cases {
        let report = report(&config);
        let found = report.findings.iter().find(|f| f.what.contains(expected));
        let found = found.unwrap_or_else(|| panic!("nothing with {expected:?} in {:#?}", report.findings));
        assert_eq!(found.level, level, "{found:?}");
    }
}

#[test]
fn headers_may_be_stripped_in_other_ways() {
    let mut config = filters(&[1, 2, 3]);
    let early = json!([{"name": "early", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
        "mutations": [{"remove": "X-Kvroute-Replica"}, {"remove": "x-kvroute-fallback"}],
    }}]);
    set(&mut config, &format!("{ROUTER}/early_header_mutation_extensions"), early);
    assert_eq!(report(&config).count(Level::Error), 0);
    let prefix = json!([{"remove_on_match": {"key_matcher": {"prefix": "x-kvroute-"}}}]);
    let config = with(&format!("{ROUTER}/http_filters/0/typed_config/mutations/request_mutations"), prefix);
    assert_eq!(report(&config).count(Level::Error), 0);
}

#[test]
fn other_wasm_filters_are_left_alone() {
    let mut config = good();
    let mut other = config.pointer(&format!("{ROUTER}/http_filters/1")).unwrap().clone();
    let text = other.to_string().replace("kvroute", "other").replace("allow_on_headers_stop_iteration", "vm_id");
    other = serde_json::from_str(&text).unwrap();
    set(&mut other, "/typed_config/config/configuration/value", json!("{}"));
    let list = config.pointer_mut(&format!("{ROUTER}/http_filters")).unwrap().as_array_mut().unwrap();
    list.insert(0, other);
    assert_eq!(findings(&report(&config)), []);
}

#[test]
fn files_that_envoy_reads_are_read() {
    let dir = std::env::temp_dir().join(format!("kvroute-check-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut bootstrap = Bootstrap { dynamic: true, ..bootstrap() };
    let write = |bootstrap: &Bootstrap| {
        for (name, content) in bootstrap.dynamic_files(&dir, 1) {
            std::fs::write(dir.join(name), content.to_string()).unwrap();
        }
    };
    write(&bootstrap);
    let json = bootstrap.to_json(&dir);
    let report_now = report(&json);
    assert_eq!(findings(&report_now), []);
    assert_eq!(report_now.instances.len(), 3);
    bootstrap.router["limits"] = json!({"max_jobs": 0});
    write(&bootstrap);
    let report_now = report(&json);
    let line = "limits.max_jobs must be a whole number from 1 to 10000, not 0";
    assert_eq!(findings(&report_now), [(Level::Error, line.to_owned())]);
    assert!(report_now.findings[0].path.starts_with("ecds.json: resources[0]"), "{report_now:#?}");
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(findings(&report(&json)).iter().any(|(level, what)| *level == Level::Note && what.contains("lds.json")));
}

#[test]
fn text_that_is_neither_is_refused() {
    let of = |text: &str| check(text.as_bytes(), &Source::default(), None);
    assert_eq!(of("- a\n- [").findings[0].level, Level::Error);
    assert!(of("- a\n- [").findings[0].what.contains("neither JSON nor YAML"));
    assert!(of("static_resources: {}").findings[0].what.contains("no kvroute filter"));
    assert!(of("role: router").findings[0].what.starts_with("configuration is not JSON"));
    assert!(of("{\"role\": router}").findings[0].what.starts_with("configuration is not JSON"));
    assert!(of("").findings[0].what.starts_with("configuration is empty"));
}
