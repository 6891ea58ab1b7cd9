//! Bodies that nobody thought of: fields that exist, with values of any kind in them, and bytes that are no JSON.

use kvroute::request::json;
use kvroute::request::memory_bound;
use proptest::prelude::*;

use crate::counting::counted;
use crate::{APIS, renderers, run};

const NAMES: &[&str] = &[
    "model",
    "messages",
    "role",
    "content",
    "type",
    "text",
    "name",
    "tool_calls",
    "function",
    "arguments",
    "id",
    "tools",
    "parameters",
    "description",
    "tool_choice",
    "tool_call_id",
    "reasoning",
    "reasoning_content",
    "chat_template_kwargs",
    "documents",
    "prompt",
    "input",
    "instructions",
    "system",
    "input_schema",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "truncate_prompt_tokens",
    "cache_salt",
    "stream",
    "max_tokens",
    "image_url",
    "thinking",
    "reasoning_effort",
    "kv_transfer_params",
    "prompt_token_ids",
    "output",
    "call_id",
    "summary",
    "tool_use_id",
    "status",
    "previous_response_id",
    "strict",
    "defer_loading",
    "",
    "k",
];
const WORDS: &[&str] = &[
    "user",
    "assistant",
    "system",
    "developer",
    "tool",
    "function",
    "text",
    "input_text",
    "output_text",
    "image_url",
    "tool_use",
    "tool_result",
    "thinking",
    "function_call",
    "function_call_output",
    "message",
    "none",
    "auto",
    "low",
    "<|im_end|>",
    "x-anthropic-billing-header: a\nb",
    "{\"a\": [1, {}]}",
    "{",
    "",
    " ",
    "\u{0}",
    "\u{3000}x\u{1c}",
    "é😀",
];

/// The text of a JSON value.
fn value() -> impl Strategy<Value = String> {
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let leaf = prop_oneof![
        4 => prop::sample::select(WORDS).prop_map(quoted),
        1 => any::<String>().prop_map(move |text| quoted(&text)),
        1 => any::<i64>().prop_map(|number| number.to_string()),
        1 => any::<f64>().prop_map(|number| if number.is_finite() { format!("{number:e}") } else { "1e999".to_owned() }),
        1 => prop::sample::select(&["null", "true", "false", "0", "-0", "1", "1e3", "-0.0", "\"\\ud83d\\ude00\"", "\"\\ud800\"",
            "NaN", "123456789012345678901234567890"][..]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(7, 120, 8, |inner| {
        let key = prop::sample::select(NAMES).prop_map(|name| serde_json::to_string(name).unwrap());
        let entry = (key, inner.clone()).prop_map(|(key, value)| format!("{key}: {value}"));
        prop_oneof![
            2 => prop::collection::vec(inner, 0..8).prop_map(|items| format!("[{}]", items.join(", "))),
            3 => prop::collection::vec(entry, 0..8).prop_map(|entries| format!("{{{}}}", entries.join(","))),
        ]
    })
}

/// A message that is nearly one, so that more than the first check is reached.
fn message() -> impl Strategy<Value = String> {
    let roles = prop::sample::select(&["user", "assistant", "system", "developer", "tool"][..]);
    let key = prop::sample::select(NAMES).prop_map(|name| serde_json::to_string(name).unwrap());
    let extras = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec((key, value()), 1..3)];
    let parts = prop::collection::vec(prop::sample::select(WORDS), 0..4).prop_map(|words| {
        let part = |word: &&str| format!(r#"{{"type":"text","text":{}}}"#, serde_json::to_string(word).unwrap());
        format!("[{}]", words.iter().map(part).collect::<Vec<String>>().join(","))
    });
    let text = prop::sample::select(WORDS).prop_map(|word| serde_json::to_string(word).unwrap());
    (roles, prop_oneof![4 => text, 3 => parts, 1 => value()], extras).prop_map(|(role, content, extras)| {
        let extras: String = extras.iter().map(|(key, value)| format!(",{key}:{value}")).collect();
        format!(r#"{{"role":"{role}","content":{content}{extras}}}"#)
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(NAMES).prop_map(|name| serde_json::to_string(name).unwrap());
    let fields = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec((key, value()), 1..4)];
    let list = (prop::sample::select(&["messages", "input", "prompt"][..]), prop::collection::vec(message(), 0..6));
    let text = prop_oneof![
        4 => (list, fields).prop_map(|((name, messages), fields)| {
            let fields: String = fields.iter().map(|(key, value)| format!(",{key}:{value}")).collect();
            format!(r#"{{"model":"m","max_tokens":5,"{name}":[{}]{fields}}}"#, messages.join(","))
        }),
        2 => value(),
    ];
    // Some are damaged: a byte replaced, the end cut off.
    (text, prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>(), any::<bool>()))).prop_map(
        |(text, damage)| {
            let mut bytes = text.into_bytes();
            if let Some((at, byte, cut)) = damage
                && !bytes.is_empty()
            {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                if cut {
                    bytes.truncate(at + 1);
                }
            }
            bytes
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    // What fails is printed, and becomes a test of its own.
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn no_body_panics_or_takes_more_than_its_bound() {
    let renderers = renderers(24);
    let cases = if std::env::var_os("KVROUTE_LONG_TESTS").is_some() { 200_000 } else { 3_000 };
    let texts = std::cell::Cell::new(0usize);
    let mut runner = proptest::test_runner::TestRunner::new(config(cases));
    let choice = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let result = runner.run(&(body(), choice), |(body, (api, template))| {
        let (name, renderer) = &renderers[template.index(renderers.len())];
        let api = APIS[api.index(APIS.len())];
        let bytes = body.len();
        let (result, taken) = counted(|| run(renderer, api, body));
        prop_assert!(taken.peak <= memory_bound(bytes), "{} bytes at once, {name}", taken.peak);
        texts.set(texts.get() + usize::from(result.is_ok()));
        Ok(())
    });
    result.unwrap();
    // A generator that never gets through would prove little.
    let texts = texts.get();
    assert!(texts > cases as usize / 50, "{texts} of {cases} gave a prompt");
}

/// What the parser takes, serde_json takes too, but for what it cannot hold; and the values are the same.
#[test]
fn the_parser_agrees_with_another_one() {
    let mut runner = proptest::test_runner::TestRunner::new(config(4_000));
    let result = runner.run(&body(), |body| {
        // An integer to Python, a float to serde_json.
        let signed_zero = body.windows(2).any(|two| two == b"-0");
        let reference = serde_json::from_slice::<serde_json::Value>(&body);
        match (json::parse(&body), reference) {
            (Ok(_), Ok(_)) if signed_zero => {}
            (Ok(value), Ok(reference)) => {
                let text = json::to_json_text(&value);
                let printed = serde_json::from_str::<serde_json::Value>(&text).unwrap();
                prop_assert!(same(&printed, &reference), "{printed} from {reference}");
            }
            (Err(error), Ok(_)) => prop_assert!(error.fault != json::Fault::Syntax, "{error}"),
            // Numbers beyond a double are infinite in Python, an error there.
            (Ok(_), Err(error)) => prop_assert!(error.to_string().contains("number out of range"), "{error}"),
            (Err(_), Err(_)) => {}
        }
        Ok(())
    });
    result.unwrap();
}

/// Equal, but for the last digit of a float: serde_json rounds it wrongly now and then.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::*;
    match (a, b) {
        (Number(a), Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(1.0));
            (a - b).abs() <= a.abs() * 1e-14 + f64::MIN_POSITIVE
        }
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Object(a), Object(b)) => a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b))),
        _ => a == b,
    }
}
