//! `kvroute explain` as a user runs it: from a file or standard input, as text or JSON, with or without a pick.

use std::process::Output;

use common::pack;
use serde_json::Value;

mod common;

fn explain(arguments: &[&str], stdin: &str) -> Output {
    common::kvroute(&[&["explain"], arguments].concat(), stdin)
}

#[test]
fn standard_input_and_file_text_and_json() {
    let Some(pack) = pack("explain") else { return };
    let pack = pack.to_str().unwrap();
    let body = r#"{"model": "any", "messages": [{"role": "user", "content": "Please count the red apples on the table, then the green ones."}]}"#;

    let json = explain(&["--pack", pack, "--json"], body);
    assert!(json.status.success(), "{}", String::from_utf8_lossy(&json.stderr));
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(value["model"], "qwen3");
    assert_eq!(value["no_key"], Value::Null);
    let tokens = value["token_ids"].as_array().unwrap().len();
    assert_eq!(value["block_hashes"].as_array().unwrap().len(), tokens / 16);

    let file = std::env::temp_dir().join(format!("kvroute-explain-{}.json", std::process::id()));
    std::fs::write(&file, body).unwrap();
    let text = explain(&["--pack", pack, "--block-size", "8", file.to_str().unwrap()], "");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("<|im_start|>user\nPlease count"), "{text}");
    assert!(text.contains("⟦0⟧") && text.contains(&format!("{} blocks of 8 tokens", tokens / 8)), "{text}");
    assert!(!text.contains('\x1b'), "colours in a pipe: {text:?}");

    for (stdin, path, reason) in [
        (body, "/v1/embeddings", "not_our_path"),
        ("{", "/v1/chat/completions", "not_json"),
        (r#"{"model": "m", "messages": "hello"}"#, "/v1/chat/completions", "bad_request"),
        (r#"{"model": "m", "prompt": "Hi"}"#, "/v1/completions", "too_short"),
    ] {
        let answer = explain(&["--pack", pack, "--path", path, "--json"], stdin);
        let value: Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert_eq!(value["no_key"]["reason"], reason, "{value}");
    }
    for left in [pack.as_ref(), file.as_path()] {
        std::fs::remove_file(left).unwrap();
    }
}

#[test]
fn wrong_arguments_are_said_to_be_so() {
    for (arguments, code, message) in [
        (&["body.json"][..], 2, "--pack"),
        (&["--pack", "/nowhere.pack", "-"], 1, "/nowhere.pack"),
        (&["--gateway", "http://127.0.0.1:1", "-"], 1, "KVROUTE_SECRET"),
        (&["--gateway", "http://127.0.0.1:1", "--secret", "s", "-"], 1, "cannot ask http://127.0.0.1:1"),
    ] {
        let answer = explain(arguments, "{}");
        let stderr = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(answer.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}
