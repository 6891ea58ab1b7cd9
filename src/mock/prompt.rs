//! Request body to prompt tokens, on threads of its own: tokenizers are not `Send`.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;

use super::words::Vocabulary;
use crate::blocks::TokenId;
use crate::request::Api;

/// Why a request is refused, as the engine would.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// For the client.
    pub message: String,
}

impl Refusal {
    /// A bad request.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Refusal { status: 400, message: message.into() }
    }
}

/// Makes tokens of requests.
pub trait PromptTokenizer {
    /// The prompt of a body with one prompt.
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<TokenId>, Refusal>;
    /// What answers are made of.
    fn vocabulary(&self) -> Vocabulary;
}

/// Makes the tokenizer of one thread.
pub type TokenizerFactory = Arc<dyn Fn() -> anyhow::Result<Box<dyn PromptTokenizer>> + Send + Sync>;

/// One token per byte of the concatenated contents: for tests that need no model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteTokenizer;

impl PromptTokenizer for ByteTokenizer {
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<TokenId>, Refusal> {
        let body: Value = serde_json::from_slice(body).map_err(|error| Refusal::bad_request(error.to_string()))?;
        let mut text = String::new();
        match api {
            Api::Completions => {
                if let Some(ids) = body["prompt"].as_array() {
                    return Ok(ids.iter().filter_map(|id| Some(id.as_u64()? as TokenId)).collect());
                }
                push_content(&mut text, &body["prompt"]);
            }
            Api::ChatCompletions => push_messages(&mut text, &body["messages"]),
            Api::Tokenize => {
                push_messages(&mut text, &body["messages"]);
                push_content(&mut text, &body["prompt"]);
            }
            Api::Messages => {
                push_content(&mut text, &body["system"]);
                push_messages(&mut text, &body["messages"]);
            }
            Api::Responses => {
                push_content(&mut text, &body["instructions"]);
                match &body["input"] {
                    Value::String(input) => text.push_str(input),
                    items => push_messages(&mut text, items),
                }
            }
        }
        Ok(text.bytes().map(TokenId::from).collect())
    }

    fn vocabulary(&self) -> Vocabulary {
        Vocabulary::bytes()
    }
}

fn push_messages(text: &mut String, messages: &Value) {
    for message in messages.as_array().into_iter().flatten() {
        push_content(text, &message["content"]);
    }
}

fn push_content(text: &mut String, content: &Value) {
    match content {
        Value::String(content) => text.push_str(content),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).for_each(|part| text.push_str(part))
        }
        _ => {}
    }
}

struct Job {
    api: Api,
    body: Bytes,
    reply: oneshot::Sender<Result<Vec<TokenId>, Refusal>>,
}

/// The threads.
#[derive(Debug)]
pub struct Tokenizers {
    jobs: Sender<Job>,
    vocabulary: Arc<Vocabulary>,
}

impl Tokenizers {
    /// Starts `threads` threads and waits until each has its tokenizer.
    pub fn start(factory: &TokenizerFactory, threads: usize) -> anyhow::Result<Tokenizers> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let (ready, vocabularies) = channel();
        let threads = threads.max(1);
        for index in 0..threads {
            let (factory, queue, ready) = (factory.clone(), queue.clone(), ready.clone());
            std::thread::Builder::new().name(format!("mock-tokens-{index}")).spawn(move || match factory() {
                Ok(tokenizer) => {
                    let _ = ready.send(Ok(tokenizer.vocabulary()));
                    drop(ready);
                    work(&*tokenizer, &queue);
                }
                Err(error) => drop(ready.send(Err(error))),
            })?;
        }
        drop(ready);
        let mut vocabulary = None;
        for result in vocabularies {
            vocabulary = Some(result?);
        }
        let vocabulary = vocabulary.ok_or_else(|| anyhow::anyhow!("a tokenizer thread died at its start"))?;
        Ok(Tokenizers { jobs, vocabulary: Arc::new(vocabulary) })
    }

    /// See [`PromptTokenizer::tokens`].
    pub async fn tokens(&self, api: Api, body: Bytes) -> Result<Vec<TokenId>, Refusal> {
        let (reply, answer) = oneshot::channel();
        let gone = || Refusal { status: 500, message: "the tokenizer thread died".into() };
        self.jobs.send(Job { api, body, reply }).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// See [`PromptTokenizer::vocabulary`].
    pub fn vocabulary(&self) -> Arc<Vocabulary> {
        self.vocabulary.clone()
    }
}

fn work(tokenizer: &dyn PromptTokenizer, queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap().recv();
        let Ok(Job { api, body, reply }) = job else { return };
        if !reply.is_closed() {
            let _ = reply.send(tokenizer.tokens(api, &body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_tokenizer_concatenates_contents_of_every_api() {
        let tokens = |api, body: Value| {
            let ids = ByteTokenizer.tokens(api, body.to_string().as_bytes()).unwrap();
            String::from_utf8(ids.iter().map(|id| *id as u8).collect()).unwrap()
        };
        let messages = serde_json::json!([
            {"role": "user", "content": "ab"},
            {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ]);
        assert_eq!(tokens(Api::ChatCompletions, serde_json::json!({"messages": messages})), "abcd");
        assert_eq!(tokens(Api::Messages, serde_json::json!({"system": "s", "messages": messages})), "sabcd");
        assert_eq!(tokens(Api::Responses, serde_json::json!({"instructions": "i", "input": messages})), "iabcd");
        assert_eq!(tokens(Api::Responses, serde_json::json!({"input": "x"})), "x");
        assert_eq!(tokens(Api::Completions, serde_json::json!({"prompt": "p"})), "p");
        assert_eq!(tokens(Api::Completions, serde_json::json!({"prompt": [97, 98]})), "ab");
        assert_eq!(ByteTokenizer.tokens(Api::Completions, b"{").unwrap_err().status, 400);
    }
}
