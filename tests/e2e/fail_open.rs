//! Whatever goes wrong, the request reaches a replica, and a counter says why it was not routed by its cache.

use serde_json::json;

use crate::harness::{Answer, Gateway, MODEL, Setup, client, eventually, sha256, words};

async fn left_alone(gateway: &Gateway, path: &str, body: Vec<u8>, label: &str) -> Answer {
    let before = gateway.outcome(label);
    let answer = gateway.post(path, body.clone()).await;
    assert_eq!(answer.outcome, label);
    // Counted in the VM, and told to Envoy with its next tick.
    let told = async || Some(gateway.outcome(label)).filter(|count| *count > before);
    assert_eq!(eventually("it is counted", told).await, before + 1, "the counter of {label}");
    if label == "not_our_path" {
        // The mock replica's own answer.
        assert_eq!((answer.status, &answer.json), (404, &json!({"detail": "Not Found"})));
    } else {
        assert!(!answer.replica.is_empty(), "{label}: no replica saw it: {answer:?}");
        assert_eq!(answer.body_sha256, sha256(&body), "{label}: the bytes changed");
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reason_leaves_the_request_alone() {
    let mut setup = Setup::default();
    setup.mock.answer_blindly_over = Some(50_000);
    setup.bootstrap.router["limits"] = json!({"max_inspect_bytes": 100_000});
    let gateway = Gateway::start(setup).await;
    let chat = "/v1/chat/completions";
    let long = words(1, 100);
    let message = |content: &str| json!([{"role": "user", "content": content}]);

    left_alone(&gateway, chat, b"{\"model\": ".to_vec(), "not_json").await;
    left_alone(&gateway, chat, b"\xff\xfe not text".to_vec(), "not_json").await;
    left_alone(
        &gateway,
        chat,
        b"{\"model\":\"qwen3\",\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}".to_vec(),
        "not_json",
    )
    .await;
    left_alone(&gateway, chat, b"[1, 2]".to_vec(), "bad_request").await;
    left_alone(&gateway, chat, json!({"model": MODEL, "messages": []}).to_string().into(), "bad_request").await;
    left_alone(&gateway, "/v1/embedding%73", json!({"model": MODEL, "input": "x"}).to_string().into(), "not_our_path")
        .await;
    left_alone(
        &gateway,
        chat,
        json!({"model": "another", "messages": message(&long)}).to_string().into(),
        "unknown_model",
    )
    .await;
    left_alone(&gateway, chat, json!({"model": MODEL, "messages": message("hi")}).to_string().into(), "too_short")
        .await;
    left_alone(
        &gateway,
        chat,
        json!({"model": MODEL, "messages": message(&words(2, 30_000))}).to_string().into(),
        "body_too_large",
    )
    .await;
    assert_eq!(gateway.reloads(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_template_leaves_the_request_alone() {
    let gateway = Gateway::start(Setup::default()).await;
    // The template looks into the content of a tool call's function, which is not there.
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": words(1, 50)}],
        "chat_template_kwargs": {"messages": 7}});
    let answer = gateway.post("/v1/chat/completions", body.to_string().into()).await;
    assert!(!answer.replica.is_empty());
    assert!(["template_error", "unsupported", "bad_request"].contains(&answer.outcome.as_str()), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_over_the_budget_go_by_load() {
    let mut setup = Setup::default();
    setup.mock.answer_blindly_over = Some(50_000);
    setup.bootstrap.router["limits"] = json!({"max_job_bytes": 1 << 20, "max_inspect_bytes": 1 << 20});
    let gateway = Gateway::start(setup).await;
    // Working on a body takes a multiple of its size.
    let body = |words_| json!({"model": MODEL, "messages": [{"role": "user", "content": words(1, words_)}]});
    left_alone(&gateway, "/v1/chat/completions", body(60_000).to_string().into(), "busy").await;
    let answer = gateway.post("/v1/chat/completions", body(500).to_string().into()).await;
    assert!(answer.outcome.starts_with("routed"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_feed_requests_go_by_load() {
    let mut setup = Setup { bridge: false, ..Setup::default() };
    setup.bootstrap.router["bridge"] = json!({"cluster": "nobody"});
    let gateway = Gateway::start(setup).await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": words(1, 100)}]});
    let answer = gateway.post("/v1/chat/completions", body.to_string().into()).await;
    assert_eq!((answer.status, answer.outcome.as_str()), (200, "no_feed"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn static_replicas_need_no_feed() {
    let gateway = Gateway::start(Setup::default()).await;
    let addresses: Vec<_> = gateway.replicas.iter().flatten().map(|r| r.http_addr().to_string()).collect();
    let mut setup = Setup { bridge: false, ..Setup::default() };
    let listed: Vec<_> = addresses.iter().map(|a| json!({"address": a, "model": MODEL})).collect();
    setup.bootstrap.router["replicas"] = listed.into();
    drop(gateway);
    // Its own replicas stand elsewhere, so the picks name hosts that Envoy does not know: it falls back.
    let gateway = Gateway::start(setup).await;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": words(1, 100)}]});
    let answer = gateway.post("/v1/chat/completions", body.to_string().into()).await;
    assert_eq!(answer.status, 200);
    assert!(answer.outcome.starts_with("routed"), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_prompt_does_not_enter_the_filter() {
    for dynamic in [false, true] {
        // Without a bridge nobody wakes the workers, which would be counted.
        let mut setup = Setup { concurrency: 1, bridge: false, ..Setup::default() };
        setup.bootstrap.dynamic = dynamic;
        let gateway = Gateway::start(setup).await;
        let before = gateway.all_outcomes();
        for path in ["/v1/models", "/v1/chat/completions"] {
            let answer = client().get(gateway.url(path)).send().await.unwrap();
            assert!(answer.headers().get("x-kvroute-outcome").is_none(), "{path}, dynamic: {dynamic}");
        }
        let answer = gateway.post("/v1/embeddings", b"{}".to_vec()).await;
        assert_eq!((answer.status, answer.outcome.as_str()), (404, ""));
        left_alone(&gateway, "/v1/chat/complet%69ons?x=1", b"{".to_vec(), "not_json").await;
        assert_eq!(gateway.all_outcomes(), before + 1, "dynamic: {dynamic}");
    }
}
