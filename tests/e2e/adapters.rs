//! A LoRA adapter is asked for by its name: its blocks are its own, though its prompts are its model's.

use serde_json::json;

use crate::harness::{Answer, BLOCK, Gateway, MODEL, Setup, words};

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
