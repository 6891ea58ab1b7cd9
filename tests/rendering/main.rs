//! What the engine makes of a body before its template, rule by rule, against texts written down from the engine's
//! sources and from what it answered. Templates of our own print what they are given, so no tokenizer is needed.

mod apis;
mod flags;
mod media;
mod reasons;
mod sglang;
mod versions;

use kvroute::nokey::NoKeyReason;
use kvroute::request::{Api, Body, EngineFlags, Prepared, PromptInput, Renderer};
use kvroute::template::{ChatTemplates, TemplateSource};
use serde_json::{Value, json};

/// 2026-11-30 12:00:00 UTC.
pub const NOW: u64 = 1_796_040_000;
/// Prints all that a template is given of a conversation.
pub const ALL: &str = "{{ messages|tojson }}{% if tools %} {{ tools|tojson }}{% endif %}";

/// A model with this template.
pub fn source(template: &str) -> TemplateSource {
    TemplateSource {
        chat_template: Some(ChatTemplates::Single(template.to_owned())),
        special_tokens: [("bos_token".to_owned(), "<s>".to_owned())].into(),
        ..TemplateSource::default()
    }
}

/// Flags from the fields of a model's `engine`.
pub fn flags(fields: Value) -> EngineFlags {
    serde_json::from_value(fields).expect("flags")
}

/// Flags of a version of vLLM, with parsers for tool calls.
pub fn version(version: &str) -> EngineFlags {
    flags(
        json!({"version": version, "tool_call_parser": "any", "enable_auto_tool_choice": true, "max_model_len": 1000}),
    )
}

/// A renderer of a template for an engine with these flags.
pub fn renderer(template: &str, flags: &EngineFlags) -> Renderer {
    Renderer::new(source(template), flags).expect("a renderer")
}

/// What becomes of a body, given as text: its spelling may matter.
pub fn prepare_text(renderer: &Renderer, api: Api, body: &str) -> Result<Prepared, NoKeyReason> {
    Body::parse(body.as_bytes()).and_then(|body| renderer.prepare(api, &body, NOW))
}

/// What becomes of a body.
pub fn prepare(renderer: &Renderer, api: Api, body: &Value) -> Result<Prepared, NoKeyReason> {
    prepare_text(renderer, api, &body.to_string())
}

/// The text of a prepared prompt.
pub fn text(prepared: Prepared) -> String {
    match prepared.input {
        PromptInput::Text(text) => text,
        other => panic!("no text but {other:?}"),
    }
}

/// The prompt of a chat.
pub fn chat(template: &str, flags: &EngineFlags, body: &Value) -> Result<String, NoKeyReason> {
    prepare(&renderer(template, flags), Api::ChatCompletions, body).map(text)
}

/// A conversation of one user message.
pub fn hi() -> Value {
    json!({"messages": [{"role": "user", "content": "hi"}]})
}
