//! A prompt of any length leaves the worker to others between its slices.

use std::sync::Arc;

use kvroute::filter::job::Job;
use serde_json::json;

use crate::harness::{Gateway, MODEL, Setup, eventually, words};

/// A body of about `bytes` bytes.
fn chat(text: &str) -> Vec<u8> {
    json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}).to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn others_are_served_while_a_long_prompt_is_tokenized() {
    let mut setup = Setup { concurrency: 1, ..Setup::default() };
    // The engine would refuse prompts this long.
    setup.mock.answer_blindly_over = Some(100_000);
    setup.bootstrap.buffer_limit = Some(64 << 20);
    setup.bootstrap.router["limits"] = json!({
        "max_inspect_bytes": 32 << 20, "max_job_bytes": 256 << 20, "finish_budget_ms": 60_000,
    });
    let gateway = Arc::new(Gateway::start(setup).await);
    let word = words(5, 200_000).replace(' ', "");
    let inputs = [
        ("20 MB of words", words(3, 3_200_000)),
        ("words of a megabyte each", [word.as_str(); 16].join(" ")),
        ("10 MB of spaces", " ".repeat(10_000_000)),
    ];
    for (name, text) in inputs {
        let body = chat(&text);
        let held = Job::cost(body.len()) as u64;
        // The worker itself says whether it is at work on the prompt at this moment.
        let under_way = async || {
            let states = gateway.states().await;
            let jobs = states.values().flat_map(|state| &state.memory).find(|memory| memory.owner == "jobs");
            jobs.is_some_and(|jobs| jobs.bytes >= held)
        };
        let before = gateway.counter("slices");
        let (mut long, mut answered) = (None, 0);
        // A worker that stood still until the prompt is done would never be seen at work on it.
        eventually("five times others are answered while a long prompt is under way", async || {
            let post = || {
                let (gateway, body) = (gateway.clone(), body.clone());
                tokio::spawn(async move { gateway.post("/v1/chat/completions", body).await })
            };
            if long.get_or_insert_with(post).is_finished() && !under_way().await {
                assert_eq!(long.take().unwrap().await.unwrap().status, 200, "{name}");
            } else if under_way().await {
                let small = gateway.post("/v1/chat/completions", chat(&words(answered + 100, 30))).await;
                assert_eq!(small.status, 200, "{name}: {small:?}");
                answered += 1;
            }
            (answered >= 5).then_some(())
        })
        .await;
        eventually("the long prompt is done", async || (!under_way().await).then_some(())).await;
        let slices = gateway.counter("slices") - before;
        assert!(slices >= 10, "{name}: {slices} slices");
    }
    assert_eq!(gateway.reloads(), 0, "a VM was reloaded");
}
