//! A LoRA adapter is asked for by its name: its blocks are its own, though its prompts are its model's.

use kvroute::look::SECRET_HEADER;
use serde_json::{Value, json};

use crate::harness::{Answer, BLOCK, Gateway, MODEL, Setup, client, eventually, words};

/// Tokens that the filter expected to be cached.
fn matched(answer: &Answer) -> u64 {
    let part = answer.outcome.split("; ").find_map(|part| part.strip_prefix("matched="));
    part.unwrap_or_else(|| panic!("not routed: {answer:?}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_an_adapter_are_told_from_those_of_its_model() {
    let mut setup = Setup::default();
    setup.mock.adapters = vec!["tuned".into()];
    setup.bootstrap.router["models"] = json!([{"name": MODEL, "adapters": ["tuned"], "block_size": BLOCK}]);
    let gateway = Gateway::start(setup).await;
    let body = |model: &str| {
        let messages = json!([{"role": "user", "content": words(7, 200)}]);
        json!({"model": model, "messages": messages, "max_tokens": 1}).to_string().into_bytes()
    };
    let path = "/v1/chat/completions";
    gateway.settled().await;
    let first = gateway.post(path, body("tuned")).await;
    assert_eq!((first.status, matched(&first), first.cached_tokens()), (200, 0, 0), "{first:?}");
    gateway.settled().await;
    let again = gateway.post(path, body("tuned")).await;
    assert!(matched(&again) >= 10 * u64::from(BLOCK), "{again:?}");
    assert_eq!((&again.replica, matched(&again)), (&first.replica, again.cached_tokens()));
    // The model itself has computed none of it.
    let base = gateway.post(path, body(MODEL)).await;
    assert_eq!((matched(&base), base.cached_tokens()), (0, 0), "{base:?}");
    let unknown = gateway.post(path, body("other")).await;
    assert_eq!(unknown.outcome, "unknown_model");
}

/// What every worker knows of the adapters of a replica: names, and whether they are ready.
async fn known(gateway: &Gateway, replica: usize) -> Vec<Vec<(String, bool)>> {
    let address = gateway.replica(replica).http_addr().to_string();
    let states = gateway.states().await;
    let of = |state: &kvroute::look::WorkerState| {
        let replica = state.replicas.iter().find(|r| r.address == address);
        replica.map_or(Vec::new(), |r| r.adapters.iter().map(|a| (a.name.clone(), a.loaded)).collect())
    };
    states.values().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_where_their_adapter_is_ready_and_never_where_it_is_not_served() {
    let mut setup = Setup::default();
    setup.mock.output_tokens = 1;
    setup.bootstrap.router["models"] = json!([{"name": MODEL, "adapters": ["tuned", "other"], "block_size": BLOCK}]);
    setup.bootstrap.router["receipts"] = json!({"explain": true});
    // r0 serves both, r1 one of them, slowly enough to be seen at it, r2 none.
    setup.vary = Box::new(|replica, mut mock| {
        mock.adapters = [vec!["tuned", "other"], vec!["tuned"], vec![]][replica].iter().map(|s| (*s).into()).collect();
        mock.decode_ms_per_token = if replica == 1 { 20.0 } else { 0.0 };
        mock
    });
    let gateway = Gateway::start(setup).await;
    let path = "/v1/chat/completions";
    let body = |model: &str, seed: u64| json!({"model": model, "messages": [{"role": "user", "content": words(seed, 100)}], "max_tokens": 1});
    // Known to be served, and ready nowhere.
    let served = |name: &str| (name.to_owned(), false);
    eventually("all workers know who serves which adapter", async || {
        let of = [known(&gateway, 0).await, known(&gateway, 1).await];
        let all = |of: &[Vec<(String, bool)>], what: &[(String, bool)]| of.iter().all(|known| known == what);
        (all(&of[0], &[served("tuned"), served("other")]) && all(&of[1], &[served("tuned")])).then_some(())
    })
    .await;

    // Somebody else keeps it busy on r1: seen in the engine's metrics only.
    let mut long = body("tuned", 1);
    (long["stream"], long["max_tokens"], long["ignore_eos"]) = (true.into(), 30_000.into(), true.into());
    let direct =
        client().post(format!("{}{path}", gateway.replica(1).url())).body(long.to_string()).send().await.unwrap();
    assert_eq!(direct.status(), 200);
    eventually("all workers know that r1 has it ready", async || {
        known(&gateway, 1).await.iter().all(|known| known == &[("tuned".to_owned(), true)]).then_some(())
    })
    .await;
    let secret = gateway.envoy.bootstrap().secret.clone();
    let headers = [("x-kvroute-explain", "1"), (SECRET_HEADER, secret.as_str())];
    let mut request = client().post(gateway.url(path)).body(body("tuned", 2).to_string());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let response = request.send().await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["x-mock-replica"]), (200, &"r1".parse().unwrap()));
    let receipt: Value = serde_json::from_str(response.headers()["x-kvroute-receipt"].to_str().unwrap()).unwrap();
    assert_eq!((&receipt["lora"], &receipt["candidates"][0]["adapter"]), (&json!("tuned"), &json!("loaded")));
    assert_eq!(
        (&receipt["compared"], &receipt["candidates"][1]["adapter"]),
        (&json!(2), &json!("served")),
        "{receipt}"
    );
    drop(direct);

    // However many there are, none goes where the engine would say that there is no such model.
    let many = (0..32).map(|seed| gateway.post(path, body("other", 100 + seed).to_string().into_bytes()));
    for answer in futures::future::join_all(many).await {
        assert_eq!((answer.status, answer.replica.as_str()), (200, "r0"), "{answer:?}");
    }
    let many = (0..32).map(|seed| gateway.post(path, body("tuned", 200 + seed).to_string().into_bytes()));
    for answer in futures::future::join_all(many).await {
        assert!(answer.status == 200 && answer.replica != "r2", "{answer:?}");
    }
    assert_eq!(gateway.reloads(), 0);
}
