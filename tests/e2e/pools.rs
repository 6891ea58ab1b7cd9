//! Prefill and decode on replicas of their own: who answers, who is named to prefill, and who may name it.

use std::collections::BTreeSet;

use kvroute::look::SECRET_HEADER;
use serde_json::{Value, json};

use crate::harness::{BLOCK, Conversation, Gateway, MODEL, MakeConfig, Setup, client, eventually, words};

const CHAT: &str = "/v1/chat/completions";
/// What the P/D sidecars of llm-d read.
const PREFILLER: &str = "x-prefiller-host-port";

/// A gateway of which r0 and r1 decode and r2 and r3 prefill.
async fn apart() -> Gateway {
    let mut setup = Setup { replicas: 4, bridge: false, ..Setup::default() };
    setup.bootstrap.router["receipts"] = json!({"explain": true});
    // Longer than what is left of a prompt that is cached, shorter than the prompts here.
    setup.bootstrap.router["policy"] = json!({"remote_prefill": 100});
    let mut gateway = Gateway::start(setup).await;
    let roles = ["decode", "both", "prefill", "prefill"];
    let specs = gateway.replicas.iter().flatten().zip(roles);
    let specs: Vec<String> = specs.map(|(replica, role)| format!("{},role={role}", replica.bridge_spec())).collect();
    let secret = gateway.envoy.bootstrap().secret.clone();
    gateway.start_bridge_of(&specs, &secret, &[]);
    gateway.settled().await;
    gateway
}

/// The replica that the one which answered last was told to ask.
fn told(gateway: &Gateway, replica: &str) -> Option<String> {
    let seen = gateway.replica(gateway.index_of(replica)).faults().requests();
    let headers = &seen.last().unwrap().routing_headers;
    headers.iter().find(|(name, _)| name == PREFILLER).map(|(_, value)| value.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefill_replica_is_named_to_the_one_that_answers() {
    let gateway = apart().await;
    let prefills: Vec<String> = [2, 3].map(|i| gateway.replica(i).http_addr().to_string()).into();
    let mut named = BTreeSet::new();
    let mut conversations = Vec::new();
    for seed in 0..8 {
        let mut conversation = Conversation::with_system(&words(seed, 300));
        let answer = gateway.turn(&mut conversation, "one").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(["r0", "r1"].contains(&answer.replica.as_str()), "{answer:?}");
        let prefiller = told(&gateway, &answer.replica).expect("a replica is named");
        assert!(prefills.contains(&prefiller), "{prefiller} is none of {prefills:?}");
        assert!(answer.outcome.ends_with(&format!("; prefill={prefiller}")), "{answer:?}");
        named.insert(prefiller);
        conversations.push((conversation, answer.replica));
    }
    assert_eq!(named.len(), 2, "both prefill: {named:?}");
    eventually("they are counted", async || (gateway.counter("remote_prefills") == 8).then_some(())).await;
    // Nothing stays booked.
    eventually("no replica has anything booked", async || {
        let states = gateway.states().await;
        let mut all = states.values().flat_map(|state| &state.replicas);
        all.all(|r| r.load.booked_requests == 0).then_some(())
    })
    .await;
    let roles: Vec<String> = {
        let states = gateway.states().await;
        let of = |address: &str| states[&0].replicas.iter().find(|r| r.address == address).unwrap().role.clone();
        (0..4).map(|i| of(&gateway.replica(i).http_addr().to_string())).collect()
    };
    assert_eq!(roles, ["decode", "both", "prefill", "prefill"]);

    // The second turn finds the first one where it was answered: the little that is new is prefilled there.
    gateway.settled().await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    for (mut conversation, home) in conversations {
        conversation.messages.push(json!({"role": "user", "content": "two"}));
        let request = client().post(gateway.url(CHAT)).body(conversation.body());
        let request = request.header("x-kvroute-explain", "1").header(SECRET_HEADER, &secret);
        // Whatever the client says of it.
        let response = request.header(PREFILLER, "127.0.0.1:1").send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.headers()["x-mock-replica"].to_str().unwrap()), (200, &*home));
        assert_eq!(told(&gateway, &home), None);
        let receipt: Value = serde_json::from_str(response.headers()["x-kvroute-receipt"].to_str().unwrap()).unwrap();
        let prefill = &receipt["prefill"];
        assert_eq!((&prefill["pick"], &prefill["from"]), (&Value::Null, &json!(100)), "{receipt}");
        assert!(prefill["uncached"].as_u64().unwrap() < 100, "{receipt}");
        assert_eq!(receipt["compared"], 2, "{receipt}");
    }
    assert_eq!(gateway.reloads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_never_names_the_replica_that_prefills() {
    // Without a filter before it that removes the header, too.
    let config: MakeConfig = Box::new(|bootstrap, dir| {
        let mut config = bootstrap.to_json(dir);
        let filters = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
            ["http_filters"];
        let filters = filters.as_array_mut().unwrap();
        let before = filters.len();
        filters
            .retain(|filter| !filter["typed_config"]["@type"].as_str().unwrap_or_default().ends_with("HeaderMutation"));
        assert_eq!(filters.len() + 1, before);
        config
    });
    let gateway = Gateway::start(Setup { config, ..Setup::default() }).await;
    let long = Conversation::with_system(&words(1, 10 * BLOCK as usize)).body();
    let short = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string().into_bytes();
    // With a key, without one, and where no prompt is.
    for (path, body) in [(CHAT, long), (CHAT, short), ("/v1/other", b"x".to_vec())] {
        let headers = [(PREFILLER, "127.0.0.1:1")];
        gateway.post_with(&client(), path, body, &headers).await;
    }
    let seen: Vec<_> = gateway.replicas.iter().flatten().flat_map(|r| r.faults().requests()).collect();
    assert!(seen.len() >= 2, "{seen:?}");
    assert!(seen.iter().all(|request| request.routing_headers.iter().all(|(name, _)| name != PREFILLER)), "{seen:?}");
}
