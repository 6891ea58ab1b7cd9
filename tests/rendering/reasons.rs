//! Why there is no key: each reason that a body can lead to, as `explain` shows it.

use std::collections::BTreeSet;
use std::rc::Rc;

use kvroute::explain::{Explanation, Model, explain};
use kvroute::nokey::{LIMITS, NoKey};
use kvroute::request::{Api, Body};
use kvroute::tokenizer::{Boundary, Encoding, Step, TokenizeError, Tokenizer};
use serde_json::json;

use crate::{NOW, flags, renderer};

/// One id a byte; fails at a "!".
struct Bytes;

struct Run(Rc<str>);

impl Tokenizer for Bytes {
    fn start(self: Rc<Self>, text: Rc<str>, _: bool) -> Box<dyn Encoding> {
        Box::new(Run(text))
    }

    fn resume(self: Rc<Self>, _: Rc<str>, _: bool, _: Boundary) -> Option<Box<dyn Encoding>> {
        None
    }

    fn engine(&self) -> &'static str {
        "bytes"
    }
}

impl Encoding for Run {
    fn step(&mut self, _: usize, out: &mut Vec<u32>) -> Result<Step, TokenizeError> {
        if self.0.contains('!') {
            return Err(TokenizeError("an exclamation mark".into()));
        }
        out.extend(self.0.bytes().map(u32::from));
        Ok(Step::Done)
    }

    fn boundary(&self) -> Option<Boundary> {
        None
    }

    fn remaining_bytes(&self) -> usize {
        0
    }
}

fn explained(api: Api, body: &str) -> Explanation {
    explained_by(json!({"trust_request_chat_template": true}), api, body)
}

fn explained_by(engine: serde_json::Value, api: Api, body: &str) -> Explanation {
    let template =
        "{% for m in messages %}{{ m.content }}{{ raise_exception('no robots') if m.role == 'robot' }}{% endfor %}";
    let renderer = renderer(template, &flags(engine));
    let model = Model {
        name: "m",
        lora: None,
        renderer: &renderer,
        tokenizer: Rc::new(Bytes),
        specials_in_front: 0,
        block_size: 16,
        hash_seed: "",
    };
    match Body::parse(body.as_bytes()) {
        Ok(body) => explain(&model, api, &body, NOW),
        Err(reason) => Explanation::without_key(reason),
    }
}

#[test]
fn each_reason_that_a_body_leads_to_is_shown() {
    let chat = |role: &str, content: &str| json!({"messages": [{"role": role, "content": content}]}).to_string();
    let long = "x".repeat(40);
    for (body, reason, detail) in [
        ("{".to_owned(), NoKey::NotJson, ""),
        ("[]".to_owned(), NoKey::BadRequest, "no object"),
        (r#"{"messages": [{"role": "user", "content": "\ud800"}]}"#.to_owned(), NoKey::NotJson, ""),
        (chat("robot", &long), NoKey::TemplateError, "no robots"),
        (json!({"messages": "hi"}).to_string(), NoKey::BadRequest, "messages"),
        (
            json!({"messages": [{"role": "user", "content": long}], "chat_template": "x"}).to_string(),
            NoKey::Unsupported,
            "chat_template",
        ),
        (chat("user", &format!("{long}!")), NoKey::TokenizerError, "exclamation mark"),
        (chat("user", "short"), NoKey::TooShort, "5 tokens"),
    ] {
        let no_key = explained(Api::ChatCompletions, &body).no_key.unwrap_or_else(|| panic!("{body}: a key"));
        assert_eq!(no_key.reason, reason.label(), "{body}: {no_key:?}");
        assert!(no_key.detail.contains(detail), "{body}: {no_key:?}");
    }
    let got = explained(Api::ChatCompletions, &chat("user", &long));
    assert_eq!((got.no_key, got.block_hashes.len()), (None, 2));
}

#[test]
fn every_reason_has_one_label_of_its_own_and_stands_in_the_readme() {
    let readme = include_str!("../../README.md");
    let labels: BTreeSet<&str> = NoKey::ALL.iter().map(|reason| reason.label()).collect();
    assert_eq!(labels.len(), NoKey::ALL.len());
    for label in labels {
        assert!(readme.contains(&format!("`{label}`")), "{label} is not in README.md");
    }
}

#[test]
fn every_limit_stands_in_the_readme_and_is_what_a_refusal_says() {
    let readme = include_str!("../../README.md");
    for limit in LIMITS {
        assert!(readme.contains(&format!("`{limit}`")), "{limit} is not in README.md");
    }
    let chat = |fields: serde_json::Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        (Api::ChatCompletions, body)
    };
    let arguments = json!([{"role": "assistant", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": NaN}"}}]}]);
    let vllm = vec![
        (Api::Responses, json!({"input": "x", "previous_response_id": "r"})),
        chat(json!({"chat_template": "x"})),
        (Api::Completions, json!({"prompt": "x", "prompt_embeds": "AA=="})),
        chat(json!({"messages": arguments})),
    ];
    let with = |field: &str, value: serde_json::Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body[field] = value;
        body
    };
    let tool = |field: &str| {
        let mut function = json!({"name": "f"});
        function[field] = json!("yes");
        chat(json!({"tools": [{"type": "function", "function": function}]}))
    };
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "x"}]}]);
    let blocks = |block: serde_json::Value| {
        (Api::Messages, json!({"max_tokens": 5, "messages": [{"role": "user", "content": "x"}, block]}))
    };
    let rare = vec![
        (Api::Responses, json!({"input": "x", "tools": [{"type": "custom", "name": "c"}]})),
        blocks(json!({"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "t"}}]})),
        blocks(json!({"role": "assistant", "content": [{"type": "tool_use", "name": "t", "input": {}}]})),
        (Api::Responses, json!({"input": "x", "truncation": "auto"})),
        chat(json!({"messages": image, "truncate_prompt_tokens": 5})),
        tool("strict"),
        tool("defer_loading"),
        chat(json!({"messages": [{"role": "developer", "content": "x", "tools": [{"type": "custom"}]}]})),
        (Api::ChatCompletions, with("chat_template_kwargs", json!({"return_assistant_tokens_mask": true}))),
    ];
    let dropped = vec![chat(json!({"messages": image}))];
    let harmony = vec![
        (Api::Responses, json!({"input": "x", "previous_input_messages": [{"role": "user"}]})),
        (Api::Responses, json!({"input": "x", "tools": [{"type": "web_search"}]})),
        (Api::Responses, json!({"input": [{"type": "web_search_call", "id": "w"}]})),
    ];
    let called = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]);
    let function = json!([{"type": "function", "name": "f", "parameters": {}}]);
    let old = vec![
        (Api::Responses, json!({"input": "x", "tools": function})),
        (Api::Responses, json!({"input": [{"type": "message", "role": "assistant", "content": "x"}]})),
        (Api::Responses, json!({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "c", "input": "x"}]})),
    ];
    let last = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "<s>x"}]);
    let sglang = vec![
        (Api::Messages, json!({"messages": []})),
        chat(json!({"extra_key": "k"})),
        chat(json!({"lora_path": "l"})),
        chat(json!({"session_params": {"id": "s"}})),
        (Api::Completions, json!({"prompt": ["x", "y"], "cache_salt": ["a", "b"]})),
        chat(json!({"messages": last, "continue_final_message": true})),
        chat(json!({"reasoning_effort": "low"})),
    ];
    let failing = vec![
        chat(json!({"tools": [{"type": "function", "function": {"name": "f"}}]})),
        (Api::ChatCompletions, with("chat_template_kwargs", json!({"continue_final_message": ""}))),
    ];
    let mut reached = BTreeSet::new();
    let parsers = |mut engine: serde_json::Value| {
        engine["tool_call_parser"] = json!("any");
        engine["enable_auto_tool_choice"] = json!(true);
        engine
    };
    let oss = json!({"model_type": "gpt_oss"});
    let engines = [
        (parsers(json!({})), rare),
        (json!({"chat_template": "{{ 'x' }}", "chat_template_content_format": "string"}), dropped),
        (parsers(json!({"hf_overrides": oss})), harmony),
        (parsers(json!({"hf_overrides": oss, "version": "0.24.0"})), vec![chat(json!({}))]),
        (parsers(json!({"hf_overrides": oss, "version": "0.30.0"})), vec![chat(json!({"messages": called}))]),
        (parsers(json!({"version": "0.24.0"})), old),
        (
            json!({"engine": "sglang", "version": "0.5.23", "tool_call_parser": "any",
                "chat_template": "{{ tools[0].function.name.encode() }}"}),
            failing,
        ),
        (json!({"trust_request_chat_template": true}), vllm),
        (
            json!({"engine": "sglang", "version": "0.5.23", "chat_template": "{# low_effort truncate_history_thinking #}"}),
            sglang,
        ),
    ];
    for (engine, bodies) in engines {
        for (api, body) in bodies {
            let detail = explained_by(engine.clone(), api, &body.to_string()).no_key.unwrap().detail;
            let limit = LIMITS.iter().find(|limit| detail.starts_with(**limit));
            reached.insert(*limit.unwrap_or_else(|| panic!("{body}: {detail}")));
        }
    }
    assert_eq!(reached, LIMITS.iter().copied().collect());
}
