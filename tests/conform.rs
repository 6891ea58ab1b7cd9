//! `kvroute conform` as a user runs it: against a live engine, with and without a render endpoint, and on files.

use std::path::PathBuf;
use std::process::Output;
use std::sync::OnceLock;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{get, post};
use kvroute::mock::{Config, Replica};
use serde_json::{Value, json};

mod common;

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Dir {
    fn new(test: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("kvroute-conform-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn put(&self, name: &str, lines: &[Value]) -> String {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// The pack as a path, made once.
fn pack() -> Option<String> {
    static PACK: OnceLock<Option<String>> = OnceLock::new();
    PACK.get_or_init(|| common::pack("conform").map(|file| file.to_str().unwrap().to_owned())).clone()
}

fn conform(args: &[&str]) -> Output {
    common::kvroute(&[&["conform"], args].concat(), "")
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

fn bodies() -> Vec<Value> {
    let hi = json!([{"role": "user", "content": "Please count the red apples on the table."}]);
    vec![
        json!({"model": "m", "messages": hi}),
        json!({"model": "m", "messages": hi, "reasoning_effort": "none"}),
        json!({"model": "m", "prompt": "Once upon a time"}),
        json!({"model": "m", "prompt": ["one", "two words"]}),
        json!({"endpoint": "/v1/messages", "body": {"model": "m", "max_tokens": 4, "messages": hi}}),
        json!({"endpoint": "/v1/responses", "body": {"model": "m", "input": "Hello"}}),
        json!({"endpoint": "/tokenize", "body": {"model": "m", "messages": hi, "tools": [{"type": "function", "function": {"name": "f"}}]}}),
        json!({"endpoint": "/v1/chat/completions", "body": {"model": "m", "messages": "none"}}),
    ]
}

fn engine(pack: &str) -> Replica {
    let config = Config { model: "m".into(), ..Config::default() };
    Replica::start(config.with_pack(pack.as_ref(), None, Default::default()).unwrap()).unwrap()
}

#[test]
fn an_engine_that_renders_is_asked_for_every_api() {
    let dir = Dir::new("render");
    let Some(pack) = pack() else { return };
    let (engine, bodies) = (engine(&pack), dir.put("bodies.jsonl", &bodies()));

    let output = conform(&["--pack", &pack, "--engine", &engine.url(), "--bodies", &bodies, "--json"]);
    let totals = report(&output)["totals"].clone();
    assert_eq!(
        totals,
        json!({"cases": 8, "identical": 7, "engine_refused": 1, "limits": 0, "not_checkable": 0, "failed": 0})
    );
    assert!(output.status.success());

    // What the engine said can be kept, and judged again without it.
    let recorded = dir.0.join("qwen3-kept.jsonl").to_str().unwrap().to_owned();
    let output = conform(&["--pack", &pack, "--engine", &engine.url(), "--bodies", &bodies, "--record", &recorded]);
    assert!(output.status.success());
    let again = conform(&["--pack", &pack, "--cases", &recorded, "--json"]);
    assert_eq!(report(&again)["totals"], totals);

    // Told another flag than the engine has, kvroute renders other prompts.
    let flags = r#"{"default_chat_template_kwargs": {"enable_thinking": false}}"#;
    let output = conform(&["--pack", &pack, "--engine", &engine.url(), "--bodies", &bodies, "--flags", flags]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("line 1  /v1/chat/completions  differs"), "{text}");
    assert!(text.contains("tokens  at 17 (block 1), of 17 and 21") && text.contains("(ends)"), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("conform by pack: 8 cases, ") && !last.ends_with(" 0 failed"), "{text}");
    assert!(!text.contains('\x1b'), "colours in a pipe: {text:?}");
}

/// Serves `/tokenize` of an engine, and its version, and nothing else.
async fn without_render(engine: String) -> String {
    let client = reqwest::Client::new();
    let forward = move |body: Bytes| async move {
        let answer = client.post(format!("{engine}/tokenize")).body(body).send().await.unwrap();
        let status = StatusCode::from_u16(answer.status().as_u16()).unwrap();
        (status, answer.bytes().await.unwrap())
    };
    let version = get(async || r#"{"version": "0.22.1"}"#);
    serve(Router::new().route("/tokenize", post(forward)).route("/version", version)).await
}

/// An engine that knows these routes and no others.
async fn serve(routes: Router) -> String {
    let routes = routes.fallback(async || (StatusCode::NOT_FOUND, r#"{"detail": "Not Found"}"#));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_only_tokenizes_is_asked_for_what_that_can_tell() {
    let dir = Dir::new("tokenize");
    let Some(pack) = pack() else { return };
    let bodies = dir.put("bodies.jsonl", &bodies());
    let engine = tokio::task::block_in_place(|| engine(&pack));
    let url = without_render(engine.url()).await;
    let output = tokio::task::spawn_blocking(move || {
        let text = conform(&["--pack", &pack, "--engine", &url, "--bodies", &bodies]);
        let text = String::from_utf8(text.stdout).unwrap();
        assert!(text.contains("the engine says that it is 0.22.1, kvroute was told 0.32.0"), "{text}");
        assert!(
            text.contains("not checkable here") && text.contains("/tokenize does not know reasoning_effort"),
            "{text}"
        );
        conform(&["--pack", &pack, "--engine", &url, "--bodies", &bodies, "--json"])
    });
    let output = output.await.unwrap();
    let report = report(&output);
    assert_eq!(
        report["totals"],
        json!({"cases": 8, "identical": 3, "engine_refused": 1, "limits": 0, "not_checkable": 4, "failed": 0}),
        "{report:#}"
    );
    tokio::task::block_in_place(|| drop(engine));
}

/// Answers `/tokenize` of SGLang with what it made of the recorded chats.
async fn sglang(cases: Vec<Value>) -> String {
    let tokenize = move |body: Bytes| async move {
        let case = cases.iter().find(|case| case["body"].as_str().unwrap().as_bytes() == body).unwrap();
        let ids = &case["token_ids"];
        json!({"tokens": ids, "count": ids.as_array().unwrap().len(), "max_model_len": 40960}).to_string()
    };
    serve(Router::new().route("/tokenize", post(tokenize))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_is_asked_for_chats_as_they_are() {
    let dir = Dir::new("sglang");
    let Some(pack) = pack() else { return };
    let recorded = include_str!("data/recorded/qwen3-sglang0.5.23.jsonl");
    let cases = recorded.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let wanted = ["tools key order", "effort 'low'", "continue", "choice \"none\"", "agp false", "c text", "c list"];
    let cases: Vec<Value> = cases.filter(|case| wanted.iter().any(|name| case["name"] == *name)).collect();
    assert_eq!(cases.len(), wanted.len());
    let bodies = dir.put("qwen3-bodies.jsonl", &cases);
    let url = sglang(cases).await;
    let output = tokio::task::spawn_blocking(move || {
        let flags = r#"{"engine": "sglang", "version": "0.5.23"}"#;
        conform(&["--pack", &pack, "--engine", &url, "--bodies", &bodies, "--flags", flags, "--json"])
    });
    let output = output.await.unwrap();
    let report = report(&output);
    // Not told: a list of prompts, and a field that only /tokenize reads.
    assert_eq!(
        report["totals"],
        json!({"cases": 7, "identical": 5, "engine_refused": 0, "limits": 0, "not_checkable": 2, "failed": 0}),
        "{report:#}"
    );
    assert!(output.status.success());
}

#[test]
fn files_of_cases_are_judged_and_refusals_named() {
    let dir = Dir::new("cases");
    let Some(pack) = pack() else { return };
    let case = |name: &str, body: Value, status: u16, ids: Value| json!({"name": name, "endpoint": "/v1/completions", "body": body.to_string(), "status": status, "token_ids": ids});
    let good = dir.put(
        "qwen3-good.jsonl",
        &[
            json!({"meta": {"vllm": "0.32.0", "flags": ["--enforce-eager"]}}),
            case("ids", json!({"prompt": [1, 2, 3]}), 200, json!([1, 2, 3])),
            case("refused", json!({"prompt": ""}), 400, json!([])),
            json!({"name": "kept", "endpoint": "/v1/responses", "status": 200, "token_ids": [1],
                "body": {"input": "x", "previous_response_id": "r"}}),
        ],
    );
    let output = conform(&["--pack", &pack, "--cases", &good]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("a limit of kvroute: previous_response_id"), "{text}");
    assert!(text.contains("note: flags taken to be without effect on prompts: --enforce-eager"), "{text}");

    let bad = dir.put(
        "qwen3-bad.jsonl",
        &[
            case("other ids", json!({"prompt": [1, 2, 3]}), 200, json!([1, 9, 3])),
            case("no key", json!({"prompt": ""}), 200, json!([5])),
        ],
    );
    let output = conform(&["--pack", &pack, "--cases", &good, &bad, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report = report(&output);
    assert_eq!(report["totals"]["failed"], 2);
    let outcomes = &report["files"][1]["outcomes"];
    assert_eq!((&outcomes[0]["verdict"], &outcomes[0]["tokens"]["index"]), (&json!("differs"), &json!(1)));
    assert_eq!((&outcomes[1]["verdict"], &outcomes[1]["reason"]), (&json!("refused"), &json!("bad_request")));
}

#[test]
fn nothing_compared_is_no_success() {
    let dir = Dir::new("nothing");
    let Some(pack) = pack() else { return };
    let cases = dir.put("a.jsonl", &[json!({"endpoint": "/v1/completions", "body": "{}", "status": 404})]);
    let output = conform(&["--pack", &pack, "--cases", &cases]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no case was compared"));
    let output = conform(&["--pack", &pack, "--engine", "http://127.0.0.1:1", "--bodies", &cases]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot ask http://127.0.0.1:1"));
    assert_eq!(conform(&["--pack", &pack]).status.code(), Some(2));
}
