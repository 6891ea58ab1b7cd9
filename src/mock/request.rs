//! The fields of a request body that the engine itself looks at, for all APIs.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::prompt::Refusal;
use crate::request::Api;

/// Unknown fields do not matter here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Params {
    /// Model or LoRA adapter.
    pub model: Option<String>,
    /// Of completions: may be a list.
    pub prompt: Option<Value>,
    /// Server-sent events.
    pub stream: Option<bool>,
    /// OpenAI's.
    pub stream_options: Option<StreamOptions>,
    /// Completions, chats, messages.
    pub max_tokens: Option<u64>,
    /// Chats.
    pub max_completion_tokens: Option<u64>,
    /// Responses.
    pub max_output_tokens: Option<u64>,
    /// Choices per prompt.
    pub n: Option<usize>,
    /// Always generate as many tokens as are allowed.
    pub ignore_eos: Option<bool>,
    /// Separates caches.
    pub cache_salt: Option<String>,
    /// Copied into events.
    pub session_id: Option<String>,
    /// Return the ids of the prompt and of the answer.
    pub return_token_ids: Option<bool>,
    /// Engine switches.
    pub vllm_xargs: Option<Value>,
}

/// Of [`Params`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    pub include_usage: Option<bool>,
}

impl Params {
    /// Reads a body. A key that comes twice counts by its last value.
    pub fn parse(body: &[u8]) -> Result<Params, Refusal> {
        serde_json::from_slice(body)
            .or_else(|_| serde_json::from_value(serde_json::from_slice::<Value>(body)?))
            .map_err(|error| Refusal::bad_request(format!("the body does not fit this API: {error}")))
    }

    /// One body per prompt: a completion may carry a list of them.
    pub fn single_prompts(&self, api: Api, body: &Bytes) -> Vec<Bytes> {
        let Some(Value::Array(prompts)) = self.prompt.as_ref().filter(|_| api == Api::Completions) else {
            return vec![body.clone()];
        };
        if !prompts.iter().any(|prompt| prompt.is_string() || prompt.is_array()) {
            return vec![body.clone()];
        }
        let fields = serde_json::from_slice::<Value>(body).unwrap_or(json!({}));
        let with = |prompt: &Value| {
            let mut fields = fields.clone();
            fields["prompt"] = prompt.clone();
            Bytes::from(fields.to_string())
        };
        prompts.iter().map(with).collect()
    }

    /// How many tokens to generate, and whether that is the client's limit: an answer has `usual` tokens unless
    /// the client allows fewer, or insists on all.
    pub fn output_tokens(&self, usual: u64) -> (usize, bool) {
        let limit = self.max_completion_tokens.or(self.max_tokens).or(self.max_output_tokens);
        let all = self.ignore_eos == Some(true);
        let tokens = match limit {
            Some(limit) if all => limit,
            Some(limit) => limit.min(usual),
            None => usual,
        };
        (tokens.max(1) as usize, limit == Some(tokens))
    }

    /// See [`super::scheduler::NewRequest::report_reused`].
    pub fn report_reused(&self) -> bool {
        self.vllm_xargs.as_ref().is_some_and(|args| args["kv_cache_report_mode"] == "full")
    }
}
