//! What the APIs answer, whole or as server-sent events.

use bytes::Bytes;
use serde_json::{Value, json};

use super::events::Wire;
use crate::blocks::TokenId;
use crate::request::Api;

/// What is known of a call before its first token.
#[derive(Clone, Debug)]
pub struct Call {
    /// Decides on the shape.
    pub api: Api,
    /// `chatcmpl-…` and the like.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// As the client named it.
    pub model: String,
    /// Of all prompts.
    pub prompt_tokens: usize,
    /// Of the last prompt, for `return_token_ids`.
    pub prompt_ids: Option<Vec<TokenId>>,
    /// One per choice.
    pub outputs: Vec<Output>,
    /// Ends in `length` and not `stop`.
    pub hit_limit: bool,
    /// The last chunk of a stream tells the usage.
    pub include_usage: bool,
    /// Details of the usage changed between versions.
    pub wire: Wire,
    /// The usage has details.
    pub details: bool,
    /// Tokens per block.
    pub block_size: usize,
}

/// One choice, known from the start: the mock only has to wait for the time of each token.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Tokens.
    pub ids: Vec<TokenId>,
    /// What each adds to the text.
    pub texts: Vec<String>,
}

impl Call {
    /// The whole answer.
    pub fn whole(&self, cached: usize) -> Value {
        let text = |output: &Output| output.texts.concat();
        match self.api {
            Api::ChatCompletions | Api::Completions => {
                let choices: Vec<Value> = self.outputs.iter().enumerate().map(|(i, o)| self.choice(i, o)).collect();
                let object = if self.api == Api::Completions { "text_completion" } else { "chat.completion" };
                let mut answer = self.head(object);
                answer["choices"] = choices.into();
                answer["usage"] = self.usage(cached);
                if let Some(ids) = &self.prompt_ids {
                    answer["prompt_token_ids"] = json!(ids);
                }
                answer
            }
            Api::Messages => json!({
                "id": self.id, "type": "message", "role": "assistant", "model": self.model,
                "content": [{"type": "text", "text": text(&self.outputs[0])}],
                "stop_reason": self.anthropic_stop(), "stop_sequence": null, "usage": self.usage(cached),
            }),
            Api::Responses | Api::Tokenize => self.response("completed", &text(&self.outputs[0]), Some(cached)),
        }
    }

    /// The events of one token, the first and last ones of the stream with it.
    pub fn events(&self, choice: usize, index: usize, cached: usize, out: &mut Vec<u8>) {
        let output = &self.outputs[choice];
        let (text, first, last) = (&output.texts[index], index == 0, index + 1 == output.texts.len());
        match self.api {
            Api::ChatCompletions | Api::Completions => self.openai_chunks(choice, index, text, first, last, out),
            Api::Messages => {
                if first {
                    let mut message = self.whole(cached);
                    message["content"] = json!([]);
                    message["stop_reason"] = Value::Null;
                    message["usage"]["output_tokens"] = 0.into();
                    named(out, "message_start", json!({"message": message}));
                    let block = json!({"type": "text", "text": ""});
                    named(out, "content_block_start", json!({"index": 0, "content_block": block}));
                }
                let delta = json!({"type": "text_delta", "text": text});
                named(out, "content_block_delta", json!({"index": 0, "delta": delta}));
                if last {
                    named(out, "content_block_stop", json!({"index": 0}));
                    let delta = json!({"stop_reason": self.anthropic_stop(), "stop_sequence": null});
                    named(out, "message_delta", json!({"delta": delta, "usage": self.usage(cached)}));
                }
            }
            Api::Responses | Api::Tokenize => {
                if first {
                    let response = self.response("in_progress", "", None);
                    named(out, "response.created", json!({"response": response}));
                }
                let place = json!({"item_id": self.id, "output_index": 0, "content_index": 0, "delta": text});
                named(out, "response.output_text.delta", place);
                if last {
                    let response = self.response("completed", &output.texts.concat(), Some(cached));
                    named(out, "response.completed", json!({"response": response}));
                }
            }
        }
    }

    /// What follows the last token of the last choice.
    pub fn end(&self, cached: usize, out: &mut Vec<u8>) {
        match self.api {
            Api::ChatCompletions | Api::Completions => {
                if self.include_usage {
                    let mut chunk = self.head(self.chunk_object());
                    chunk["choices"] = json!([]);
                    chunk["usage"] = self.usage(cached);
                    data(out, &chunk);
                }
                out.extend_from_slice(b"data: [DONE]\n\n");
            }
            Api::Messages => named(out, "message_stop", json!({})),
            Api::Responses | Api::Tokenize => {}
        }
    }

    /// Names it in the shape of the API.
    pub fn refusal(api: Api, status: u16, message: &str) -> Value {
        let kind = match status {
            404 => "NotFoundError",
            400..500 => "BadRequestError",
            _ => "InternalServerError",
        };
        match api {
            Api::Messages => json!({"type": "error", "error": {"type": kind, "message": message}}),
            _ => json!({"error": {"message": message, "type": kind, "param": null, "code": status}}),
        }
    }

    fn head(&self, object: &str) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }

    fn chunk_object(&self) -> &'static str {
        if self.api == Api::Completions { "text_completion" } else { "chat.completion.chunk" }
    }

    fn finish_reason(&self) -> &'static str {
        if self.hit_limit { "length" } else { "stop" }
    }

    fn anthropic_stop(&self) -> &'static str {
        if self.hit_limit { "max_tokens" } else { "end_turn" }
    }

    fn choice(&self, index: usize, output: &Output) -> Value {
        let text = output.texts.concat();
        let reason = self.finish_reason();
        let mut choice = match self.api {
            Api::Completions => json!({"index": index, "text": text, "logprobs": null, "finish_reason": reason}),
            _ => json!({
                "index": index, "message": {"role": "assistant", "content": text},
                "logprobs": null, "finish_reason": reason,
            }),
        };
        if self.prompt_ids.is_some() {
            choice["token_ids"] = json!(output.ids);
        }
        choice
    }

    fn openai_chunks(&self, choice: usize, index: usize, text: &str, first: bool, last: bool, out: &mut Vec<u8>) {
        let mut chunk = self.head(self.chunk_object());
        let mut put = |content: Value, reason: Option<&str>| {
            let key = if self.api == Api::Completions { "text" } else { "delta" };
            chunk["choices"] = json!([{"index": choice, key: content, "logprobs": null, "finish_reason": reason}]);
            if self.prompt_ids.is_some() && !(first && content["role"].is_string()) {
                chunk["choices"][0]["token_ids"] = json!([self.outputs[choice].ids[index]]);
            }
            data(out, &chunk);
        };
        let reason = last.then(|| self.finish_reason());
        if self.api == Api::Completions {
            put(text.into(), reason);
        } else {
            if first {
                put(json!({"role": "assistant", "content": ""}), None);
            }
            put(json!({"content": text}), reason);
        }
    }

    fn response(&self, status: &str, text: &str, cached: Option<usize>) -> Value {
        let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
        let message =
            json!({"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content});
        let cut = cached.is_some() && self.hit_limit;
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "model": self.model,
            "status": if cut { "incomplete" } else { status },
            "incomplete_details": cut.then(|| json!({"reason": "max_output_tokens"})),
            "output": if cached.is_some() { json!([message]) } else { json!([]) },
            "usage": cached.map(|cached| self.usage(cached)),
        })
    }

    /// As the engine counts: prompts summed up, cached tokens of the last one.
    fn usage(&self, cached: usize) -> Value {
        let completion: usize = self.outputs.iter().map(|output| output.ids.len()).sum();
        let stored = (self.prompt_tokens / self.block_size * self.block_size).saturating_sub(cached);
        match self.api {
            Api::Messages => json!({
                "input_tokens": self.prompt_tokens - cached - stored, "output_tokens": completion,
                "cache_creation_input_tokens": stored, "cache_read_input_tokens": cached,
            }),
            Api::Responses | Api::Tokenize => json!({
                "input_tokens": self.prompt_tokens, "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": completion, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.prompt_tokens + completion,
            }),
            _ => {
                let details = match self.wire {
                    _ if !self.details => Value::Null,
                    Wire::Array if cached == 0 => Value::Null,
                    Wire::Array => json!({"cached_tokens": cached}),
                    Wire::Map => {
                        let created = if self.api == Api::Completions { Value::Null } else { stored.into() };
                        json!({"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": null})
                    }
                };
                json!({
                    "prompt_tokens": self.prompt_tokens, "total_tokens": self.prompt_tokens + completion,
                    "completion_tokens": completion, "prompt_tokens_details": details,
                })
            }
        }
    }
}

/// A comment that keeps the connection alive.
pub const KEEP_ALIVE: Bytes = Bytes::from_static(b": keep-alive\n\n");

fn data(out: &mut Vec<u8>, value: &Value) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(value.to_string().as_bytes());
    out.extend_from_slice(b"\n\n");
}

fn named(out: &mut Vec<u8>, name: &str, mut value: Value) {
    value["type"] = name.into();
    out.extend_from_slice(format!("event: {name}\n").as_bytes());
    data(out, &value);
}
