//! `kvroute doctor`: nothing on a healthy gateway, and each of many seeded faults by its name and mend.

use std::process::Command;
use std::time::Duration;

use kvroute::doctor::{Level, Report, Target, look};
use kvroute::mock;
use kvroute::request::EngineFlags;
use serde_json::{Value, json};

use crate::harness::{BLOCK, Gateway, MODEL, Setup, eventually, pack_file};

fn setup() -> Setup {
    let mut setup = Setup { bridge: false, ..Setup::default() };
    setup.bootstrap.buffer_limit = Some(16 << 20);
    setup
}

fn target(gateway: &Gateway) -> Target {
    Target {
        admin: format!("http://{}", gateway.envoy.admin()),
        url: None,
        secret: None,
        bridge: None,
        no_requests: false,
        patience: Duration::from_secs(15),
        timeout: Duration::from_secs(20),
    }
}

async fn doctor(target: &Target) -> Report {
    look(target, &|_| ()).await.unwrap()
}

/// Requires the finding with this name, at this place, whose mend says this.
fn found(report: &Report, id: &str, place: &str, mend: &str) {
    let here = |f: &&kvroute::doctor::Finding| f.id == id && f.place.contains(place) && f.mend.contains(mend);
    let finding = report.findings.iter().find(here);
    let finding = finding.unwrap_or_else(|| panic!("no {id} at {place} with {mend:?} in {:#?}", report.findings));
    assert!(!finding.why.is_empty() && !finding.what.is_empty(), "{finding:?}");
}

/// Requires that nothing else was found.
fn only(report: &Report, ids: &[&str]) {
    let other: Vec<_> = report.findings.iter().filter(|finding| !ids.contains(&finding.id)).collect();
    assert!(other.is_empty(), "{other:#?}");
}

fn cli(gateway: &Gateway, more: &[&str]) -> (Option<i32>, String) {
    let admin = format!("http://{}", gateway.envoy.admin());
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
    command.args(["doctor", "--admin", &admin]).args(more).env_remove("KVROUTE_SECRET");
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_a_healthy_gateway() {
    let mut gateway = Gateway::start(Setup { bridge: true, ..setup() }).await;
    let report = doctor(&target(&gateway)).await;
    assert_eq!(report.findings, [], "{report:#?}");
    assert_eq!(report.replicas.len(), 3);
    assert!(
        report.replicas.iter().all(|replica| replica.healthy && replica.trust == "exact (complete)"),
        "{report:#?}"
    );
    assert!(
        report.checked.iter().any(|line| line == "qwen3: 9 prompts have the engines' own token ids"),
        "{report:#?}"
    );

    let (code, text) = cli(&gateway, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("nothing is wrong\n"), "{text}");
    gateway.kill(2).await;
    let (code, text) = cli(&gateway, &["--json", "--no-requests", "--patience", "1"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &report["ok"]), (Some(1), &json!(false)), "{text}");
    let (code, _) = cli(&gateway, &["--admin", "http://127.0.0.1:1"]);
    assert_eq!(code, Some(2));
}

/// Replicas with one fault each, beside one that has none.
#[tokio::test(flavor = "multi_thread")]
async fn flags_of_engines_that_break_routing_are_found() {
    let thinking_off: EngineFlags =
        serde_json::from_value(json!({"default_chat_template_kwargs": {"enable_thinking": false}})).unwrap();
    let vary = move |i, mock: mock::Config| match i {
        1 => mock::Config { prefix_caching: false, ..mock },
        2 => mock::Config { kv_events: false, ..mock },
        3 => mock::Config { block_size: 2 * BLOCK, ..mock },
        4 => mock::Config { model: "other".into(), ..mock },
        5 => mock::Config { version: Some("0.28.0".into()), ..mock },
        6 => mock::Config { max_model_len: 8192, ..mock },
        7 => mock.with_pack(&pack_file(), None, thinking_off.clone()).unwrap(),
        8 => mock::Config { adapters: vec!["my-lora".into()], ..mock },
        _ => mock,
    };
    let mut setup = Setup { replicas: 10, vary: Box::new(vary), ..setup() };
    setup.bootstrap.router["models"][0]["engine"] = json!({"max_model_len": 40_960});
    let mut gateway = Gateway::start(setup).await;
    gateway.start_bridge();
    gateway.all_have_slots().await;
    let at: Vec<String> = gateway.replicas.iter().flatten().map(|r| r.http_addr().to_string()).collect();
    gateway.kill(9).await;
    eventually("Envoy knows", async || {
        (gateway.envoy.stat("cluster.replicas.membership_healthy").unwrap() == 9).then_some(())
    })
    .await;
    let report = doctor(&target(&gateway)).await;
    let faults = [
        (1, "prefix_caching_off", "--no-enable-prefix-caching"),
        (2, "events_off", "--kv-events-config"),
        (3, "block_size", "set block_size of model qwen3 to 32"),
        (4, "model_name", "--served-model-name qwen3"),
        (4, "bridge_model", "model= of the bridge's --replica"),
        (5, "engine_version", "\"version\": \"0.28.0\""),
        (6, "max_model_len", "to 8192"),
        (7, "ids_differ", "--default-chat-template-kwargs"),
        (8, "adapters", "models[].adapters of qwen3"),
        (9, "engine_unreachable", "start it"),
        (9, "unhealthy", "health check"),
    ];
    for (i, id, mend) in faults {
        found(&report, id, &at[i], mend);
    }
    // A fault has its own name alone, where it is.
    for (i, address) in at.iter().enumerate() {
        let here = report.findings.iter().filter(|finding| finding.place == *address);
        let others: Vec<_> = here.filter(|f| !faults.iter().any(|(n, id, _)| *n == i && *id == f.id)).collect();
        // Without prefix caching there is nothing to publish.
        let others: Vec<_> = others.into_iter().filter(|f| !(i == 1 && f.id == "events_off")).collect();
        assert!(others.is_empty(), "r{i}: {others:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_surrounds_the_filter_is_judged_as_it_runs() {
    let mut setup = setup();
    setup.config = Box::new(|bootstrap, dir| {
        let mut config = bootstrap.to_json(dir);
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let at = |rest: &str| format!("{manager}{rest}");
        // Clients may choose, Envoy does not follow, and holds less than the filter was told.
        *config.pointer_mut(&at("/http_filters/0/typed_config/mutations")).unwrap() =
            json!({"request_mutations": [{"remove": "x-other"}]});
        config.pointer_mut(&at("/http_filters")).unwrap().as_array_mut().unwrap().remove(2);
        config["static_resources"]["listeners"][0]["per_connection_buffer_limit_bytes"] = json!(1 << 20);
        let route = config.pointer_mut(&at("/route_config/virtual_hosts/0/routes/0/route")).unwrap();
        route.as_object_mut().unwrap().remove("timeout");
        config
    });
    let mut gateway = Gateway::start(setup).await;
    gateway.start_bridge();
    gateway.settled().await;
    let report = doctor(&Target { no_requests: true, ..target(&gateway) }).await;
    for (mend, what) in [
        ("request_mutations: [{remove: x-kvroute-replica}]", "a client that sends it chooses the replica"),
        ("put one between kvroute and the router filter", "Envoy never looks at its choice"),
        ("set limits.buffer_limit_bytes to 1048576", "get 413"),
        ("set timeout: 0s", "cut off with 504"),
    ] {
        found(&report, "configuration", "listener public", mend);
        assert!(report.findings.iter().any(|finding| finding.why.contains(what)), "{what}: {:#?}", report.findings);
    }
    only(&report, &["configuration"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_hangs_is_a_finding_and_its_cause_another() {
    let mut setup = Setup { replicas: 2, ..setup() };
    setup.config = Box::new(|bootstrap, dir| {
        let mut config = bootstrap.to_json(dir);
        let plugin =
            "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/1/typed_config/config";
        config.pointer_mut(plugin).unwrap().as_object_mut().unwrap().remove("allow_on_headers_stop_iteration");
        config
    });
    let mut gateway = Gateway::start(setup).await;
    gateway.start_bridge();
    let report = doctor(&Target { timeout: Duration::from_secs(2), ..target(&gateway) }).await;
    found(&report, "configuration", "listener public", "set it to true");
    found(&report, "request_fails", MODEL, "allow_on_headers_stop_iteration: true");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_feed_that_does_not_fit_is_found() {
    let mut setup = Setup { replicas: 6, ..setup() };
    setup.mock.prompt_tokens_details = false;
    setup.mock.topic = "kv".into();
    let mut gateway = Gateway::start(setup).await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let at: Vec<String> = gateway.replicas.iter().flatten().map(|r| r.http_addr().to_string()).collect();

    // Without a bridge.
    let report = doctor(&Target { patience: Duration::from_millis(500), no_requests: true, ..target(&gateway) }).await;
    found(&report, "no_bridge", "bridge", "start kvroute bridge");
    found(&report, "no_worker", "filter", "leave --no-requests out");
    gateway.all_have_slots().await;

    // With one that has another secret.
    let specs: Vec<String> = gateway.replicas.iter().flatten().map(|replica| replica.bridge_spec()).collect();
    gateway.start_bridge_of(&specs, "another", &[]);
    let bridge_answers = async |gateway: &Gateway| {
        let url = format!("http://{}/healthz", gateway.bridge.as_ref().unwrap().address);
        eventually("the bridge answers", async || crate::harness::client().get(&url).send().await.ok()).await
    };
    bridge_answers(&gateway).await;
    let report = doctor(&Target { patience: Duration::from_millis(500), no_requests: true, ..target(&gateway) }).await;
    found(&report, "secret", "bridge", "the secret of the filter's configuration");
    found(&report, "no_feed", "worker", "the same secret");
    gateway.kill_bridge();

    // With one that was told otherwise of each replica.
    let mut specs = specs;
    specs[1].push_str(",topic=other");
    specs[2] = specs[2].replace(&format!("kv={}", gateway.replica(2).kv_endpoint()), "kv=tcp://127.0.0.1:1");
    specs[3] = specs[3].replace(&gateway.replica(3).url(), "http://127.0.0.1:2");
    specs.remove(4);
    specs[4].push_str(",role=prefill");
    gateway.start_bridge_of(&specs, &secret, &["--hash-seed", "another"]);
    bridge_answers(&gateway).await;
    let report = doctor(&target(&gateway)).await;
    found(&report, "hash_seed", "bridge", "--hash-seed");
    found(&report, "topic", &at[1], "leave topic=");
    found(&report, "trust", &at[2], "correct kv=");
    found(&report, "not_in_envoy", "127.0.0.1:2", "http=");
    found(&report, "not_followed", &at[3], "--replica");
    found(&report, "not_followed", &at[4], "--replica");
    found(&report, "prefill_in_envoy", &at[5], "take it out of Envoy's cluster");
    found(&report, "no_cached_tokens", "qwen3", "--enable-prompt-tokens-details");
    assert!(!report.findings.iter().any(|f| f.place == at[0] && f.level == Level::Error), "{:#?}", report.findings);
}
