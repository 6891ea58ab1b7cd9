//! The salt of a tenant: the gateway's header holds, in the key and in the body that the engine gets.

use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Answer, Gateway, MODEL, Setup, client, eventually, kvroute, sha256, words};

const CHAT: &str = "/v1/chat/completions";

fn setup(write: bool) -> Setup {
    let mut setup = Setup::default();
    setup.bootstrap.router["tenant_salt"] = json!({"header": "x-tenant", "write": write});
    setup
}

/// A body as no library writes it: every byte of it counts.
fn body(seed: u64, salt: &str) -> String {
    let text = words(seed, 300);
    format!(
        r#" {{"model": "{MODEL}",{salt} "messages":[{{"role":"user","content":"{text}\u00e9"}}], "max_tokens": 4}}"#
    )
}

async fn post(gateway: &Gateway, body: &str, tenant: Option<&str>) -> Answer {
    let headers: Vec<(&str, &str)> = tenant.iter().map(|tenant| ("x-tenant", *tenant)).collect();
    gateway.post_with(&client(), CHAT, body.to_owned().into_bytes(), &headers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateways_salt_reaches_the_engine_and_the_key() {
    let gateway = Gateway::start(setup(true)).await;
    let plain = body(1, "");
    let with = |tenant: &str| plain.replacen('{', &format!(r#"{{"cache_salt":"{tenant}","#), 1);
    for (tenant, turn) in [("a", 0), ("b", 0), ("a", 1), ("b", 1)] {
        let answer = post(&gateway, &plain, Some(tenant)).await;
        assert_eq!((answer.status, answer.body_sha256.as_str()), (200, sha256(with(tenant).as_bytes()).as_str()));
        // The same prompt: cached for its own tenant only, and the key knows.
        let (found, reason) = (answer.cached_tokens() > 200, answer.outcome.contains("reason=cache"));
        assert_eq!((found, reason), (turn == 1, turn == 1), "{tenant} {turn}: {answer:?}");
        let claimed = answer.outcome.split("matched=").nth(1).unwrap().split(';').next().unwrap().to_owned();
        assert_eq!(claimed, answer.cached_tokens().to_string(), "{answer:?}");
        gateway.settled().await;
    }
    // What the client says of it does not count, however it says it.
    for salt in [r#" "cache_salt": "b","#, r#" "cache\u005fsalt": "b","#, r#" "cache_salt": null, "cache_salt":"b","#] {
        let answer = post(&gateway, &body(1, salt), Some("a")).await;
        let expected = body(1, &salt.replace("null", r#""a""#).replace(r#""b""#, r#""a""#));
        assert_eq!((answer.status, answer.body_sha256.as_str()), (200, sha256(expected.as_bytes()).as_str()), "{salt}");
        assert!(answer.cached_tokens() > 200 && answer.outcome.contains("reason=cache"), "{answer:?}");
    }
    // Nor by which of the ways to write a path it comes.
    let escaped = "/v1/chat/complet%69ons";
    let answer = gateway.post_with(&client(), escaped, with("b").into_bytes(), &[("x-tenant", "a")]).await;
    assert_eq!((answer.status, answer.body_sha256.as_str()), (200, sha256(with("a").as_bytes()).as_str()));
    // Without the header the body is left alone, and so is what needs no key.
    let own = body(1, r#" "cache_salt": "own","#);
    let answer = post(&gateway, &own, None).await;
    assert_eq!((answer.body_sha256.as_str(), answer.cached_tokens()), (sha256(own.as_bytes()).as_str(), 0));
    let short = format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}]}}"#);
    let answer = post(&gateway, &short, Some("a")).await;
    let expected = short.replacen('{', r#"{"cache_salt":"a","#, 1);
    assert_eq!((answer.status, answer.body_sha256.as_str()), (200, sha256(expected.as_bytes()).as_str()));
    assert_ne!(answer.outcome, "", "{answer:?}");
    eventually("all are counted", async || (gateway.counter("salted") == 9).then_some(())).await;
    assert_eq!((gateway.counter("salt_refused"), gateway.reloads()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_write_only_the_key_has_it() {
    let gateway = Gateway::start(setup(false)).await;
    let plain = body(2, "");
    for _ in 0..2 {
        let answer = post(&gateway, &plain, Some("a")).await;
        assert_eq!(answer.body_sha256, sha256(plain.as_bytes()));
        // The engine knows of no salt: its blocks are not the key's.
        assert!(answer.outcome.contains("matched=0;"), "{answer:?}");
        gateway.settled().await;
        // That they would be was expected, for two seconds.
        eventually("nothing is predicted any more", async || {
            let states = gateway.states().await;
            states.values().flat_map(|s| &s.replicas).all(|r| r.predicted_blocks == 0).then_some(())
        })
        .await;
    }
    // Whoever brings the same salt by another way agrees.
    let salted = body(2, r#" "cache_salt": "a","#);
    post(&gateway, &salted, None).await;
    gateway.settled().await;
    let answer = post(&gateway, &plain, Some("a")).await;
    assert!(answer.outcome.contains("reason=cache") && !answer.outcome.contains("matched=0;"), "{answer:?}");

    // So does explain, with the header that the gateway would set.
    let hashes = |body: &str, more: &[&str]| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tenants-body.json");
        std::fs::write(&file, body).unwrap();
        let url = format!("http://{}", gateway.envoy.ingest());
        let asked = ["explain", "--gateway", &url, "--secret", &gateway.envoy.bootstrap().secret, "--json"];
        let said = kvroute(&[&asked[..], more, &[file.to_str().unwrap()]].concat());
        let said: Value = serde_json::from_str(&said).unwrap();
        assert!(said[0]["pick"].is_string(), "{said}");
        said[0]["block_hashes"].clone()
    };
    let of_a = hashes(&salted, &[]);
    assert_eq!(hashes(&plain, &["--header", "x-tenant: a"]), of_a);
    assert_ne!(hashes(&plain, &["--header", "x-tenant: b"]), of_a);
    assert_ne!(hashes(&plain, &[]), of_a);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_salted_goes_no_further() {
    let mut setup = setup(true);
    setup.bootstrap.router["limits"] = json!({"max_inspect_bytes": 64 << 10});
    let gateway = Gateway::start(setup).await;
    let large = json!({"model": MODEL, "messages": [{"role": "user", "content": "x".repeat(80 << 10)}]}).to_string();
    let long = "t".repeat(2_000);
    for (body, tenant, status) in [
        (large.as_str(), "a", 413),
        ("[1]", "a", 400),
        ("{\"model\": ", "a", 400),
        ("\u{feff}{}", "a", 400),
        ("{}", long.as_str(), 400),
    ] {
        let answer = post(&gateway, body, Some(tenant)).await;
        assert_eq!(answer.status, status, "{body:.40}: {answer:?}");
        assert_eq!(answer.replica, "");
        assert!(answer.json["error"]["message"].as_str().unwrap().contains("cache_salt"), "{answer:?}");
    }
    // Envoy holds at most 1 MiB here, and of a body of unknown length nothing.
    let chunks = futures::stream::iter([Ok::<_, std::io::Error>(body(3, ""))]);
    let request = client().post(gateway.url(CHAT)).header("x-tenant", "a").body(reqwest::Body::wrap_stream(chunks));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 411);
    for replica in gateway.replicas.iter().flatten() {
        assert_eq!(replica.faults().requests().len(), 0);
    }
    eventually("all are counted", async || (gateway.counter("salt_refused") == 6).then_some(())).await;
    // Who has no tenant, and what carries no prompt, is not held up.
    assert_eq!(post(&gateway, &large, None).await.status, 200);
    let models = client().get(gateway.url("/v1/models")).header("x-tenant", "a").send().await.unwrap();
    assert_eq!(models.status(), 200);
    assert_eq!(gateway.counter("salt_refused"), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_unknown_length_is_salted_where_envoy_can_hold_it() {
    let mut setup = setup(true);
    setup.bootstrap.buffer_limit = Some(16 << 20);
    let gateway = Gateway::start(setup).await;
    let whole = body(4, "");
    let pieces: Vec<_> = whole.as_bytes().chunks(100).map(|c| Ok::<_, std::io::Error>(c.to_vec())).collect();
    let stream = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    let request = client().post(gateway.url(CHAT)).header("x-tenant", "a").body(stream);
    let answer = Answer::read(request.send().await.unwrap()).await;
    let expected = whole.replacen('{', r#"{"cache_salt":"a","#, 1);
    assert_eq!((answer.status, answer.body_sha256.as_str()), (200, sha256(expected.as_bytes()).as_str()));
    let value: Value = serde_json::from_str(&expected).unwrap();
    assert_eq!(value["cache_salt"], "a");
    assert!(answer.outcome.starts_with("routed"), "{answer:?}");
}
