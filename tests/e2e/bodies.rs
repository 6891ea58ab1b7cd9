//! What the client sends is what the replica gets, whatever its size and framing; and many at once fit.

use std::sync::Arc;

use crate::harness::{Answer, Gateway, MODEL, Setup, client, sha256, words};

/// A chat body of about `bytes` bytes.
fn chat(bytes: usize) -> Vec<u8> {
    let text = words(bytes as u64, bytes / 6);
    let content = text.get(..bytes.min(text.len())).unwrap();
    serde_json::json!({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": content}]})
        .to_string()
        .into_bytes()
}

async fn send(gateway: &Gateway, http2: bool, chunked: bool, body: &[u8]) -> Answer {
    let mut builder = reqwest::Client::builder().no_proxy().timeout(crate::harness::PATIENCE);
    if http2 {
        builder = builder.http2_prior_knowledge();
    }
    let request = builder.build().unwrap().post(gateway.url("/v1/chat/completions"));
    let request = request.header("content-type", "application/json");
    let request = if chunked {
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> = body.chunks(60_000).map(|c| Ok(c.to_vec())).collect();
        request.body(reqwest::Body::wrap_stream(futures::stream::iter(pieces)))
    } else {
        request.body(body.to_vec())
    };
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_arrive_unchanged() {
    for buffer_limit in [None, Some(64 << 20)] {
        let mut setup = Setup::default();
        // The engine would answer 400 to prompts this long; what matters is what it received.
        setup.mock.answer_blindly_over = Some(500_000);
        setup.bootstrap.buffer_limit = buffer_limit;
        let gateway = Gateway::start(setup).await;
        for bytes in [1_000, 1_000_000, 20_000_000] {
            let body = chat(bytes);
            for http2 in [false, true] {
                for chunked in [false, true] {
                    let case = format!("{bytes} bytes, http2 {http2}, chunked {chunked}, limit {buffer_limit:?}");
                    let answer = send(&gateway, http2, chunked, &body).await;
                    assert_eq!(answer.status, 200, "{case}: {answer:?}");
                    assert_eq!(answer.body_sha256, sha256(&body), "{case}");
                    assert!(!answer.outcome.is_empty(), "{case}: the filter did not see the request");
                }
            }
        }
        assert_eq!(gateway.reloads(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_bodies_at_once_stay_within_the_bound() {
    let mut setup = Setup::default();
    setup.mock.answer_blindly_over = Some(100_000);
    setup.bootstrap.buffer_limit = Some(64 << 20);
    let limits = serde_json::json!({"max_inspect_bytes": 32 << 20, "max_job_bytes": 128 << 20, "max_jobs": 64});
    setup.bootstrap.router["limits"] = limits;
    let gateway = Arc::new(Gateway::start(setup).await);
    for (requests, bytes) in [(100, 20_000_000), (500, 1_000_000)] {
        let body = bytes::Bytes::from(chat(bytes));
        let digest = sha256(&body);
        let clients: Vec<_> = (0..8).map(|_| client()).collect();
        let mut running = tokio::task::JoinSet::new();
        for i in 0..requests {
            let (client, body, url) = (clients[i % 8].clone(), body.clone(), gateway.url("/v1/chat/completions"));
            running.spawn(async move {
                let sent = client.post(url).header("content-type", "application/json").body(body).send().await;
                Answer::read(sent.unwrap()).await
            });
        }
        for answer in running.join_all().await {
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.body_sha256, digest);
        }
        assert_eq!(gateway.reloads(), 0, "a VM was reloaded");
        // Idle again: what jobs hold has been given back.
        let held = crate::harness::eventually("no job holds memory", async || {
            let held = gateway.gauge("job_bytes");
            (held == 0).then_some(held)
        })
        .await;
        assert_eq!(held, 0);
        // Peak bound: 128 MiB of jobs, and what a VM needs besides (tables, allocator slack), in each of 2 workers.
        let peak = gateway.gauge("memory_bytes");
        assert!(peak < 2 * (512 << 20), "the VMs grew to {peak} bytes");
    }
}
