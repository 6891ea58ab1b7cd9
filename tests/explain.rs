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
fn the_salt_of_a_tenant_comes_by_a_header() {
    let Some(pack) = pack("explain-tenant") else { return };
    let config = std::env::temp_dir().join(format!("kvroute-explain-tenant-{}.json", std::process::id()));
    let router = serde_json::json!({
        "role": "router", "secret": "s", "models": [{"name": "m", "pack": "qwen3"}],
        "replicas": [{"address": "127.0.0.1:1", "model": "m"}], "tenant_salt": {"header": "x-tenant"},
    });
    std::fs::write(&config, router.to_string()).unwrap();
    let (pack_file, config_file) = (pack.to_str().unwrap(), config.to_str().unwrap());
    let body = |salt: &str| {
        let words = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen";
        format!(r#"{{"model": "m", {salt} "messages": [{{"role": "user", "content": "{words}"}}]}}"#)
    };
    let hashes = |salt: &str, headers: &[&str]| {
        let headers: Vec<&str> = headers.iter().flat_map(|header| ["--header", *header]).collect();
        let arguments = [&["--pack", pack_file, "--config", config_file, "--json"][..], &headers].concat();
        let answer = explain(&arguments, &body(salt));
        let value: Value = serde_json::from_slice(&answer.stdout).unwrap();
        assert!(!value["block_hashes"].as_array().unwrap().is_empty(), "{value}");
        value["block_hashes"].clone()
    };
    let of_a = hashes(r#""cache_salt": "a","#, &[]);
    assert_eq!(hashes("", &["X-Tenant: a"]), of_a);
    assert_eq!(hashes(r#""cache_salt": "own","#, &["x-other: b", "x-tenant:a"]), of_a);
    assert_ne!(hashes("", &["x-tenant: b"]), of_a);
    assert_ne!(hashes("", &["x-other: a"]), of_a);
    assert_eq!(hashes("", &["x-tenant:"]), hashes("", &[]));

    let answer = explain(&["--pack", pack_file, "--header", "x-tenant: a", "-"], &body(""));
    assert!(String::from_utf8(answer.stderr).unwrap().contains("give --config"));
    for left in [&pack, &config] {
        std::fs::remove_file(left).unwrap();
    }
}

#[test]
fn wrong_arguments_are_said_to_be_so() {
    for (arguments, code, message) in [
        (&["body.json"][..], 2, "--pack"),
        (&["--pack", "/nowhere.pack", "-"], 1, "/nowhere.pack"),
        (&["--pack", "/nowhere.pack", "--header", "x-tenant", "-"], 2, "write 'NAME: VALUE'"),
        (&["--pack", "/nowhere.pack", "--header", "x y: 1", "-"], 2, "is no name of a header"),
        (&["--pack", "/nowhere.pack", "--header", "Host: h", "-"], 2, "it decides nothing"),
        (&["--gateway", "http://127.0.0.1:1", "-"], 1, "KVROUTE_SECRET"),
        (&["--gateway", "http://127.0.0.1:1", "--secret", "s", "-"], 1, "cannot ask http://127.0.0.1:1"),
    ] {
        let answer = explain(arguments, "{}");
        let stderr = String::from_utf8(answer.stderr).unwrap();
        assert_eq!(answer.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
    }
}
