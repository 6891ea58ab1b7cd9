//! The filter in a real Envoy gives the ids of the `tokenizers` crate, for every tokenizer that scripts/setup brings.
//!
//! `KVROUTE_LONG_TESTS=1` sweeps all of Unicode and more generated text, some minutes a tokenizer.

use kvroute::gateway::{Bootstrap, Envoy};
use kvroute::look::{Choice, EXPLAIN_PATH, SECRET_HEADER};
use kvroute::pack::Specials;
use kvroute::tokenizer::compact::corpus::{Random, contexts, text};
use kvroute::tokenizer::hf::HfTokenizer;
use serde_json::json;

use crate::harness::{MODELS, Packed, client, model_dir, packed};

fn long() -> bool {
    std::env::var_os("KVROUTE_LONG_TESTS").is_some()
}

/// Every code point in the contexts that decide how it is classed; in short tests one of many beyond the first ones.
fn code_points() -> Vec<String> {
    let step = |c: char| match c as u32 {
        ..0x300 => 1,
        0x300..0x32400 => 97,
        _ => 6007,
    };
    let all = ('\0'..=char::MAX).filter(|c| long() || (*c as u32).is_multiple_of(step(*c)));
    let all: Vec<char> = all.collect();
    all.chunks(1024).map(|some| contexts(some.iter().copied())).collect()
}

fn generated(added: &[String]) -> Vec<String> {
    let seeds: u64 = if long() { 3000 } else { 60 };
    let some = |seed: u64| {
        let mut random = Random(seed ^ 0x3a5);
        let specials: Vec<String> = (0..8).map(|_| added[random.below(added.len())].clone()).collect();
        let bytes = [300, 3000, 30_000][random.below(3)];
        text(&mut random, bytes, &specials)
    };
    (0..seeds).map(some).collect()
}

/// Words and runs that are longer than what is looked at in one go.
fn long_ones() -> Vec<String> {
    let mut random = Random(7);
    let megabyte: String = (0..1_000_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    let pieces = [" ", "\n", "\r\n", "a", "=-", "0", "中", "e\u{301}", "\u{1f468}\u{200d}", "\u{e000}x", "QUJD", "'s"];
    let runs = pieces.iter().map(|piece| piece.repeat(70_000 / piece.len()));
    runs.chain([megabyte]).collect()
}

async fn check(name: &str, model_type: Option<&str>) {
    let Some(Packed { wasm, .. }) = packed(name, model_type) else { return };
    let json = std::fs::read(model_dir(name).join("tokenizer.json")).unwrap();
    let reference = HfTokenizer::from_json(&json, Specials::default()).unwrap();
    let replica = "127.0.0.1:9";
    let bootstrap = Bootstrap {
        wasm,
        ingest_wasm: Some(kvroute::gateway::default_wasm()),
        replicas: vec![replica.parse().unwrap()],
        health_path: None,
        router: json!({
            "models": [{"name": name, "block_size": 16}],
            "replicas": [{"address": replica, "model": name}],
        }),
        ..Bootstrap::default()
    };
    let envoy = tokio::task::spawn_blocking(move || Envoy::start(bootstrap, 1)).await.unwrap().unwrap();
    let url = format!("http://{}{EXPLAIN_PATH}?path=/v1/completions", envoy.ingest());
    let client = client();
    let (mut texts, mut ids) = (0, 0);
    for text in code_points().into_iter().chain(generated(&reference.added_tokens())).chain(long_ones()) {
        let body = json!({"model": name, "prompt": text, "add_special_tokens": false});
        let request = client.post(&url).header(SECRET_HEADER, &envoy.bootstrap().secret);
        let choice: Choice = request.body(body.to_string()).send().await.unwrap().json().await.unwrap();
        let (got, expected) = (choice.explanation.token_ids, reference.whole(&text, false).unwrap());
        if got != expected {
            let at = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            let begin: String = text.chars().take(200).collect();
            let reason = choice.explanation.no_key;
            panic!("{name}: {} ids, expected {}; id {at} differs ({reason:?}): {begin:?}", got.len(), expected.len());
        }
        (texts, ids) = (texts + 1, ids + got.len());
    }
    eprintln!("exact {name}: {texts} texts, {ids} ids, all equal");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_in_an_envoy_are_those_of_the_crate() {
    for (name, model_type) in MODELS {
        check(name, model_type).await;
    }
}
