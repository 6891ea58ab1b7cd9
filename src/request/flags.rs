//! The flags of the engine that change the prompt, by the engine's own names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::json::{self, Json, Text};

/// Which engine answers, and with which flags it was started, as far as they change the text or the ids of a
/// prompt. Part of a model's configuration; every field has the engine's own default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineFlags {
    /// `vllm` or `sglang`. SGLang has flags of the same names, but for those that it has not.
    pub engine: String,
    /// The engine's version, `0.32.0` say. One that was not compared with recorded prompts gives a warning.
    pub version: String,
    /// `--chat-template`: the text of a template (not a path), or the name of one of the model's templates (SGLang's
    /// `--hf-chat-template-name`).
    pub chat_template: Option<String>,
    /// `--chat-template-content-format`: `auto`, `string` or `openai`.
    pub chat_template_content_format: String,
    /// `--default-chat-template-kwargs`: an object, or its JSON text as on the command line (which keeps the
    /// order of the keys of nested objects).
    pub default_chat_template_kwargs: Option<serde_json::Value>,
    /// `--exclude-tools-when-tool-choice-none`
    pub exclude_tools_when_tool_choice_none: bool,
    /// `--trust-request-chat-template`
    pub trust_request_chat_template: bool,
    /// `--enable-auto-tool-choice`: without it the engine refuses tools with `tool_choice` auto.
    pub enable_auto_tool_choice: bool,
    /// `--tool-call-parser`
    pub tool_call_parser: Option<String>,
    /// `--reasoning-parser`
    pub reasoning_parser: Option<String>,
    /// `--tokenizer-mode`
    pub tokenizer_mode: String,
    /// `--tokenizer`, as it was given to `kvroute pack --tokenizer`: the pack must be of that tokenizer.
    pub tokenizer: Option<String>,
    /// `--hf-overrides`: an object, or its JSON text. What of it changes prompts: `model_type`, `architectures`,
    /// `max_position_embeddings`.
    pub hf_overrides: Option<serde_json::Value>,
    /// Version of transformers beside the engine. From 5.21 on it hands templates other messages; the engine's own
    /// requirements keep it below 5.21 unless the image was built otherwise.
    pub transformers: Option<String>,
    /// Whether the engine's tokenizer puts the BOS token in front of a text that gets special tokens, where
    /// that is not what tokenizer.json says (`add_bos_token` of tokenizer_config.json, in some releases).
    pub add_bos_token: Option<bool>,
    /// `--max-model-len`, SGLang's `--context-length`; else what config.json says.
    pub max_model_len: Option<u64>,
    /// `--reasoning-effort`: what the engine maps the efforts of requests to.
    pub reasoning_effort: BTreeMap<String, String>,
    /// `--anthropic-disabled-thinking-effort`: the effort that `thinking: disabled` stands for.
    pub anthropic_disabled_thinking_effort: Option<String>,
    /// The engine host's offset from UTC in minutes: templates may print its local date.
    pub utc_offset_minutes: i32,
}

impl Default for EngineFlags {
    fn default() -> Self {
        EngineFlags {
            engine: "vllm".to_owned(),
            version: "0.32.0".to_owned(),
            chat_template: None,
            chat_template_content_format: "auto".to_owned(),
            default_chat_template_kwargs: None,
            exclude_tools_when_tool_choice_none: false,
            trust_request_chat_template: false,
            enable_auto_tool_choice: false,
            tool_call_parser: None,
            reasoning_parser: None,
            tokenizer_mode: "auto".to_owned(),
            tokenizer: None,
            hf_overrides: None,
            transformers: None,
            add_bos_token: None,
            max_model_len: None,
            reasoning_effort: BTreeMap::new(),
            anthropic_disabled_thinking_effort: None,
            utc_offset_minutes: 0,
        }
    }
}

impl EngineFlags {
    /// The template arguments of `--default-chat-template-kwargs`.
    pub fn default_kwargs(&self) -> Result<Vec<(Text, Json)>, String> {
        let text = match self.default_chat_template_kwargs.as_ref() {
            None | Some(serde_json::Value::Null) => return Ok(Vec::new()),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value @ serde_json::Value::Object(map)) => {
                let nested = |value: &serde_json::Value| value.as_object().is_some_and(|map| map.len() > 1);
                if map.values().any(nested) {
                    return Err("default_chat_template_kwargs: give nested objects as JSON text in a string, \
                                which keeps the order of their keys"
                        .to_owned());
                }
                value.to_string()
            }
            Some(_) => return Err("default_chat_template_kwargs: neither an object nor its JSON text".to_owned()),
        };
        match json::parse(text.as_bytes()) {
            Ok(Json::Map(map)) => Ok(map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()),
            Ok(_) => Err("default_chat_template_kwargs: no object".to_owned()),
            Err(error) => Err(format!("default_chat_template_kwargs: {error}")),
        }
    }
}
