//! A look inside: what the admin instance answers, to whom, and what the command line makes of it.

use std::path::PathBuf;

use kvroute::blocks::BlockHash;
use kvroute::explain::{Explanation, Model, explain};
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::look::{Choice, EXPLAIN_PATH, SECRET_HEADER, STATE_PATH, WAKE_PATH, WorkerState};
use kvroute::pack::Pack;
use kvroute::request::{Api, ApiPaths, Body, EngineFlags, Renderer};
use serde_json::{Value, json};

use crate::harness::{BLOCK, Conversation, Gateway, MODEL, Setup, client, eventually, kvroute, pack_file, words};

/// A gateway to which the model is known as "m", too.
fn with_alias() -> Setup {
    let mut setup = Setup::default();
    setup.bootstrap.router["models"][0]["aliases"] = json!(["m"]);
    setup
}

/// What a worker would do with a body.
async fn ask(gateway: &Gateway, path: &str, body: impl Into<reqwest::Body>) -> Choice {
    let url = format!("http://{}{EXPLAIN_PATH}?path={path}", gateway.envoy.ingest());
    let request = client().post(url).header(SECRET_HEADER, &gateway.envoy.bootstrap().secret);
    let response = request.body(body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

/// Explains as `kvroute explain` does, without a gateway.
struct Here {
    renderer: Renderer,
    pack: Pack,
}

impl Here {
    fn new() -> Here {
        let pack = Pack::parse(std::fs::read(pack_file()).unwrap()).unwrap().remove(0);
        let renderer = Renderer::new(pack.template_source().clone(), &EngineFlags::default()).unwrap();
        Here { renderer, pack }
    }

    fn explain(&self, path: &str, body: &[u8]) -> Explanation {
        let model = Model {
            name: MODEL,
            lora: None,
            renderer: &self.renderer,
            tokenizer: self.pack.tokenizer().unwrap(),
            specials_in_front: self.pack.meta().specials.prefix.len(),
            block_size: BLOCK,
            hash_seed: "",
        };
        let api = Api::from_path(path, &ApiPaths::default()).unwrap();
        match Body::parse(body) {
            Ok(body) => explain(&model, api, &body, 0),
            Err(reason) => Explanation::without_key(reason),
        }
    }
}

/// The command line on one body: as a user would ask.
fn explained<T: serde::de::DeserializeOwned>(path: &str, body: &str, more: &[&str]) -> T {
    let file = std::env::temp_dir().join(format!("kvroute-golden-{}.json", std::process::id()));
    std::fs::write(&file, body).unwrap();
    let text = kvroute(&[&["explain", "--path", path, "--json", file.to_str().unwrap()], more].concat());
    std::fs::remove_file(&file).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wasm_explains_the_golden_requests_as_the_command_line_does() {
    let data = std::env::var_os("KVROUTE_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    let Ok(cases) = std::fs::read_to_string(data.join("golden/qwen3.jsonl")) else {
        eprintln!("SKIPPED: no golden data in {}; set KVROUTE_DATA", data.display());
        return;
    };
    let setup = with_alias();
    let mut config = setup.bootstrap.router.clone();
    (config["role"], config["secret"]) = (json!("router"), json!("not this one"));
    config["bridge"] = json!({"cluster": "nobody"});
    let config_file = std::env::temp_dir().join(format!("kvroute-golden-{}-router.json", std::process::id()));
    std::fs::write(&config_file, config.to_string()).unwrap();
    let gateway = Gateway::start(setup).await;
    let pack = pack_file();
    let here = ["--pack", pack.to_str().unwrap(), "--config", config_file.to_str().unwrap()];
    let url = format!("http://{}", gateway.envoy.ingest());
    let there = ["--gateway", &url, "--secret", &gateway.envoy.bootstrap().secret];

    let (mut all, mut keys, mut as_engine, mut refused, mut left) = (0, 0, 0, 0, Vec::new());
    for line in cases.lines().skip(1) {
        let case: Value = serde_json::from_str(line).unwrap();
        let (name, path) = (case["name"].as_str().unwrap(), case["endpoint"].as_str().unwrap());
        let body = case["body"].as_str().unwrap();
        let native: Explanation = explained(path, body, &here);
        let choices: Vec<Choice> = explained(path, body, &there);
        let wasm = &choices[0].explanation;
        assert!(native.agrees(wasm), "{name}:\nhere {native:?}\nwasm {wasm:?}");
        all += 1;
        // A key, and with it a pick, or a reason.
        assert_eq!(choices[0].pick.is_some(), wasm.no_key.is_none(), "{name}: {:?}", choices[0]);
        keys += usize::from(wasm.no_key.is_none());
        let served = case["status"] == 200;
        if !served {
            assert!(wasm.no_key.is_some(), "{name}: the engine refuses what has a key");
            refused += 1;
        } else if wasm.token_ids.is_empty() {
            left.push(format!("{name} ({})", wasm.no_key.as_ref().unwrap().reason));
        } else {
            // What the recorded engine made of it.
            let ids = json!(wasm.token_ids);
            let recorded = |list: &Value| list.as_array().is_some_and(|list| list.contains(&ids));
            assert!(case["token_ids"] == ids || recorded(&case["token_ids_list"]), "{name}: {ids}");
            if let (Some(prompt), Some(recorded)) = (&wasm.prompt, case["prompt"].as_str()) {
                assert_eq!(prompt, recorded, "{name}");
            }
            as_engine += 1;
        }
    }
    std::fs::remove_file(&config_file).unwrap();
    eprintln!(
        "{all} golden requests explained alike in the wasm and here: {keys} with a key; {as_engine} prompts as the \
         engine's, {refused} refused as by the engine, {} without ids here: {}",
        left.len(),
        left.join(", ")
    );
    assert!(as_engine > 70 && refused > 20, "{as_engine} as the engine, {refused} refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shown_without_the_secret_or_to_clients() {
    let gateway = Gateway::start(Setup::default()).await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let body = || json!({"model": MODEL, "prompt": "Hello"}).to_string();
    let inside = |path: &str| format!("http://{}{path}", gateway.envoy.ingest());
    for given in [
        None,
        Some(String::new()),
        Some("x".repeat(secret.len())),
        Some(secret[1..].to_owned()),
        Some(format!("{secret}x")),
    ] {
        for request in [client().get(inside(STATE_PATH)), client().post(inside(EXPLAIN_PATH)).body(body())] {
            let request = match &given {
                Some(given) => request.header(SECRET_HEADER, given),
                None => request,
            };
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{given:?}");
            let text = response.text().await.unwrap();
            assert_eq!(text, r#"{"error":"wrong or no x-kvroute-secret"}"#, "{given:?}");
        }
    }
    // For clients these are paths like any other: a replica gets the request and does not know them.
    for path in [STATE_PATH, EXPLAIN_PATH, "/kvroute/v1/feed"] {
        let before = gateway.envoy.stat("cluster.replicas.upstream_rq_completed").unwrap();
        for request in [client().get(gateway.url(path)), client().post(gateway.url(path)).body(body())] {
            let there = request.header(SECRET_HEADER, &secret).send().await.unwrap();
            assert!(matches!(there.status().as_u16(), 404 | 405), "{path}: {}", there.status());
            let text = there.text().await.unwrap();
            assert!(!text.contains("kvroute") && !text.contains("slot"), "{path}: {text}");
        }
        eventually("a replica has answered both", async || {
            let now = gateway.envoy.stat("cluster.replicas.upstream_rq_completed").unwrap();
            (now >= before + 2).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_every_worker_and_the_pick() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::default();
    let answer = gateway.turn(&mut conversation, &words(7, 200)).await;
    gateway.nudge(gateway.index_of(&answer.replica)).await;
    gateway.settled().await;
    let holder = gateway.replica(gateway.index_of(&answer.replica)).http_addr().to_string();
    let url = format!("http://{}", gateway.envoy.ingest());
    let secret = gateway.envoy.bootstrap().secret.clone();
    let to = ["--gateway", &url, "--secret", &secret, "--all-workers"];

    let states: Vec<WorkerState> =
        serde_json::from_str(&kvroute(&[&["state"][..], &to, &["--json"]].concat())).unwrap();
    let mut slots: Vec<_> = states.iter().map(|state| state.slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [Some(0), Some(1)]);
    let text = kvroute(&[&["state"][..], &to].concat());
    for expected in ["worker with slot 0", "worker with slot 1", &holder] {
        assert!(text.contains(expected), "{text}");
    }

    conversation.messages.push(json!({"role": "user", "content": "And now?"}));
    let body = std::env::temp_dir().join(format!("kvroute-look-{}.json", std::process::id()));
    std::fs::write(&body, conversation.body()).unwrap();
    let pack = pack_file();
    // With the pack as well: fails where the gateway comes to another key.
    let files = ["--pack", pack.to_str().unwrap(), body.to_str().unwrap()];
    let choices: Vec<Choice> =
        serde_json::from_str(&kvroute(&[&["explain"][..], &to, &files, &["--json"]].concat())).unwrap();
    assert_eq!(choices.len(), 2);
    for choice in &choices {
        assert_eq!(choice.pick.as_deref(), Some(holder.as_str()), "{choice:?}");
        assert!(choice.candidates[0].matched_blocks > 10, "{choice:?}");
        assert!(choice.candidates.iter().all(|c| c.cost >= choice.candidates[0].cost), "{choice:?}");
    }
    let text = kvroute(&[&["explain"][..], &to, &files].concat());
    assert!(text.contains("⟦0⟧") && text.contains(&format!("pick    {holder}")), "{text}");
    std::fs::remove_file(&body).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_in_different_states_answer_differently_and_say_which_they_are() {
    let gateway = Gateway::start(Setup { bridge: false, ..Setup::default() }).await;
    let prompt = json!({"model": MODEL, "prompt": words(3, 300)}).to_string();
    // One request makes one worker take part. That one gets a batch, and only then the other joins, without a bridge
    // to pull from.
    let _ = client().post(gateway.url(WAKE_PATH)).send().await;
    let first = eventually("a worker has a slot", async || {
        let choice = ask(&gateway, "/v1/completions", prompt.clone()).await;
        assert!(choice.live_slots.len() <= 1, "{choice:?}");
        choice.slot
    })
    .await;
    let key = Here::new().explain("/v1/completions", prompt.as_bytes()).block_hashes;
    let hashes: Vec<BlockHash> = key.iter().map(|hash| BlockHash(u64::from_str_radix(hash, 16).unwrap())).collect();
    let replica = FeedReplicaId(1);
    let address = gateway.replica(0).http_addr().to_string();
    let model = MODEL.to_owned();
    let info = ReplicaInfo {
        id: replica,
        address,
        model,
        block_size: BLOCK,
        rank: 0,
        capacity_blocks: 0,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    };
    let blocks = hashes.len() as u64;
    let records =
        vec![Record::Replica(info), Record::Stored { replica, tier: Tier::Gpu, parent: None, ends: vec![], hashes }];
    let header = BatchHeader { epoch: Epoch { term: 1, id: 42 }, seq: 1 };
    let feed = client().post(format!("http://{}/kvroute/v1/feed", gateway.envoy.ingest()));
    let feed = feed.header(SECRET_HEADER, &gateway.envoy.bootstrap().secret);
    assert_eq!(feed.body(Batch { header, records }.encode()).send().await.unwrap().status(), 200);
    gateway.all_have_slots().await;

    let states = gateway.states().await;
    assert_eq!(states.len(), 2);
    for (slot, state) in &states {
        assert_eq!(state.slot, Some(*slot));
        let knows = if *slot == first { (1, blocks) } else { (0, 0) };
        assert_eq!((state.replicas.len(), state.index.blocks), knows, "{state:?}");
    }
    let mut asked = std::collections::BTreeMap::new();
    eventually("both workers have explained", async || {
        let choice = ask(&gateway, "/v1/completions", prompt.clone()).await;
        asked.insert(choice.slot?, choice);
        (asked.len() == 2).then_some(())
    })
    .await;
    for (slot, choice) in &asked {
        assert_eq!(choice.explanation.block_hashes, key);
        let matched: Vec<u64> = choice.candidates.iter().map(|c| c.matched_blocks).collect();
        let expected = if *slot == first { vec![blocks] } else { vec![] };
        assert_eq!(matched, expected, "{choice:?}");
        assert_eq!(choice.no_pick.is_some(), *slot != first, "{choice:?}");
    }
}

/// What the bridge's page goes by: the workers' own counts are together what Envoy's metrics are.
#[tokio::test(flavor = "multi_thread")]
async fn the_bridge_tells_of_the_requests_of_every_worker() {
    let gateway = Gateway::start(Setup::default()).await;
    gateway.all_have_slots().await;
    for n in 0..6 {
        let mut conversation = Conversation::with_system(&words(n, 100));
        gateway.turn(&mut conversation, "one").await;
        gateway.turn(&mut conversation, "two").await;
    }
    gateway.post("/v1/chat/completions", b"{".to_vec()).await;
    let url = format!("http://{}/kvroute/v1/gateways", gateway.bridge.as_ref().unwrap().address);
    assert_eq!(client().get(&url).send().await.unwrap().status(), 401);
    let secret = &gateway.envoy.bootstrap().secret;
    let workers = eventually("both workers have told", async || {
        let told: Value = client().get(&url).header(SECRET_HEADER, secret).send().await.ok()?.json().await.ok()?;
        let [gateway] = told["gateways"].as_array()?.as_slice() else { panic!("{told}") };
        assert_eq!(gateway["error"], "");
        let workers = gateway["workers"].as_array()?.clone();
        let counts =
            |what: &str| workers.iter().map(|w| w["requests"]["outcomes"][what].as_u64().unwrap_or(0)).sum::<u64>();
        ((counts("routed"), counts("not_json")) == (12, 1)).then_some(workers)
    })
    .await;
    assert_eq!(workers.len(), 2);
    let tokens = |what: &str| workers.iter().map(|w| w["requests"][what].as_u64().unwrap()).sum::<u64>();
    let (prompt, matched) = (tokens("prompt_tokens"), tokens("matched_tokens"));
    assert!(matched > 0 && matched < prompt, "{workers:?}");
    eventually("Envoy's own metrics come to the same", async || {
        let stat = |what: &str| gateway.envoy.stat(&format!("wasmcustom.kvroute_{what}_total")).unwrap();
        ((stat("prompt_tokens"), stat("matched_tokens")) == (prompt, matched)).then_some(())
    })
    .await;
    let decided: Vec<&Value> = workers.iter().flat_map(|w| w["decisions"].as_array().unwrap()).collect();
    let routed = decided.iter().filter(|d| d["outcome"] == "routed" && d["model"] == MODEL);
    assert!(routed.clone().count() > 0 && decided.iter().any(|d| d["outcome"] == "not_json"), "{decided:?}");
    let known = |d: &&&Value| (0..3).any(|i| d["pick"] == gateway.replica(i).http_addr().to_string());
    assert_eq!(routed.clone().filter(known).count(), routed.count());
}
