//! The HTTP side: the APIs that carry prompts.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::Config;
use super::answer::{Call, KEEP_ALIVE, Output};
use super::engine::{Progress, Submission};
use super::events::ExtraKeys;
use super::faults::{Faults, SeenRequest};
use super::prompt::{Refusal, Tokenizers};
use super::ranks::Ranks;
use super::request::Params;
use super::scheduler::NewRequest;
use crate::blocks::TokenId;
use crate::request::{Api, ApiPaths};

/// Headers by which a router steers, or that it must pass on, by the beginnings of their names.
const ROUTING_HEADERS: [&str; 7] = [
    "x-kvroute-",
    "x-gateway-",
    "x-data-parallel-rank",
    "x-prefiller-host-port",
    "x-request-id",
    "traceparent",
    "tracestate",
];

/// What all handlers share.
pub struct Shared {
    pub(super) config: Config,
    pub(super) name: HeaderValue,
    pub(super) ranks: Ranks,
    pub(super) tokenizers: Tokenizers,
    /// When `/tokenize` has answered all that it was asked so far.
    pub(super) tokenizing_until: Mutex<Instant>,
    pub(super) faults: Faults,
    pub(super) calls: AtomicU64,
    /// Requests under way of each LoRA adapter.
    pub(super) adapters: Mutex<BTreeMap<String, usize>>,
}

/// A request of a LoRA adapter, while it is under way.
struct AtWork(Arc<Shared>, String);

impl AtWork {
    fn begin(shared: &Arc<Shared>, name: &str) -> AtWork {
        *shared.at_work().entry(name.to_owned()).or_default() += 1;
        AtWork(shared.clone(), name.to_owned())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut adapters = self.0.at_work();
        if let Some(count) = adapters.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                adapters.remove(&self.1);
            }
        }
    }
}

/// Chat completions, completions, messages and responses; and `…/render`, which only tokenizes.
pub async fn api(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    if let Some(limit) = shared.config.throw_away_over
        && length(&parts).is_some_and(|length| length > limit)
    {
        return thrown_away(body).await;
    }
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        // The client broke off.
        return StatusCode::BAD_REQUEST.into_response();
    };
    let path = parts.uri.path();
    let Some(api) = Api::from_path(path.strip_suffix("/render").unwrap_or(path), &ApiPaths::default()) else {
        return (StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))).into_response();
    };
    if path.ends_with("/render") {
        return shared.render(api, body).await.unwrap_or_else(|refusal| refused(api, &refusal));
    }

    let sha256 = hex(digest(&SHA256, &body).as_ref());
    let number = shared.faults.note(seen(&parts, &body, &sha256));
    shared.faults.maybe_hang().await;
    let rank = parts.headers.get("x-data-parallel-rank").and_then(|rank| rank.to_str().ok()?.parse().ok());
    let mut response = match shared.faults.take_failure() {
        Some(status) => refused(api, &Refusal { status, message: "told to fail".into() }),
        None => shared.answer(api, body.clone(), number, rank).await.unwrap_or_else(|refusal| refused(api, &refusal)),
    };
    shared.faults.update(number, |request| request.status = response.status().as_u16());

    let headers = response.headers_mut();
    headers.insert("x-mock-replica", shared.name.clone());
    headers.insert("x-mock-body-bytes", body.len().into());
    if let Ok(value) = HeaderValue::from_str(&sha256) {
        headers.insert("x-mock-body-sha256", value);
    }
    for (name, value) in parts.headers.iter().filter(|(name, _)| steers(name)) {
        if let Ok(name) = HeaderName::try_from(format!("x-mock-got-{name}")) {
            headers.append(name, value.clone());
        }
    }
    response
}

/// The length that the request says its body has.
fn length(parts: &Parts) -> Option<usize> {
    parts.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// See [`Config::throw_away_over`].
async fn thrown_away(body: Body) -> Response {
    let mut data = body.into_data_stream();
    while let Some(piece) = data.next().await {
        if piece.is_err() {
            // The client broke off.
            return StatusCode::BAD_REQUEST.into_response();
        }
    }
    Json(json!({"object": "mock.not_read"})).into_response()
}

impl Shared {
    pub(super) fn at_work(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(
        self: &Arc<Self>,
        api: Api,
        body: Bytes,
        number: u64,
        rank: Option<u32>,
    ) -> Result<Response, Refusal> {
        let engine = self.ranks.engine(rank)?;
        if self.config.answer_blindly_over.is_some_and(|limit| body.len() > limit) {
            return Ok(Json(json!({"object": "mock.not_tokenized"})).into_response());
        }
        let params = Params::parse(&body)?;
        let mut extra =
            ExtraKeys { lora: self.adapter(params.model.as_deref())?, cache_salt: params.cache_salt.clone() };
        let at_work = extra.lora.as_ref().map(|(_, name)| AtWork::begin(self, name));
        if !self.config.prefix_caching {
            // Blocks that no other prompt can have.
            extra.cache_salt = Some(format!("alone-{number}"));
        }
        let mut prompts = Vec::new();
        for single in params.single_prompts(api, &body) {
            prompts.push(self.tokenizers.tokens(api, single).await?);
        }
        let (output_tokens, hit_limit) = params.output_tokens(self.config.output_tokens);
        for prompt in &prompts {
            self.check_length(prompt.len(), output_tokens)?;
        }
        let prompt_tokens = prompts.iter().map(Vec::len).sum();
        self.faults.update(number, |request| request.prompt_tokens = prompt_tokens);

        let streams = params.stream == Some(true);
        let prompt_ids = (params.return_token_ids == Some(true)).then(|| prompts.last().cloned().unwrap_or_default());
        let mut outputs = Vec::new();
        let mut submissions = Vec::new();
        let (sender, progress) = tokio::sync::mpsc::unbounded_channel();
        let choices = params.n.unwrap_or(1).max(1);
        for prompt in prompts {
            for sibling in 0..choices {
                let output = self.output(&prompt, &extra, sibling, output_tokens);
                submissions.push(Submission {
                    request: NewRequest {
                        prompt: prompt.clone(),
                        output: output.ids.clone(),
                        extra: extra.clone(),
                        session_id: params.session_id.clone(),
                        report_reused: params.report_reused(),
                        hashes: Vec::new(),
                    },
                    choice: outputs.len(),
                    every_token: streams,
                    progress: sender.clone(),
                });
                outputs.push(output);
            }
        }
        drop(sender);
        let call = Call {
            api,
            id: self.call_id(api),
            created: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            model: params.model.unwrap_or_else(|| self.config.model.clone()),
            prompt_tokens,
            prompt_ids,
            outputs,
            hit_limit,
            include_usage: params.stream_options.and_then(|options| options.include_usage) == Some(true),
            wire: self.config.wire,
            details: self.config.prompt_tokens_details,
            block_size: self.config.block_size as usize,
        };
        engine.submit(submissions);
        if streams {
            // The headers go out now, long before the first token.
            return Ok(self.clone().stream(call, progress, number, at_work));
        }
        let whole = self.whole(call, progress, number).await;
        drop(at_work);
        whole
    }

    async fn whole(
        &self,
        call: Call,
        mut progress: UnboundedReceiver<Progress>,
        number: u64,
    ) -> Result<Response, Refusal> {
        let (mut open, mut cached) = (call.outputs.len(), 0);
        while open > 0 {
            let Some(token) = progress.recv().await else {
                return Err(Refusal { status: 500, message: "the engine died".into() });
            };
            open -= usize::from(token.last);
            if token.choice + 1 == call.outputs.len() {
                cached = token.cached_tokens;
            }
        }
        self.faults.complete(number, call.prompt_tokens, cached);
        Ok(Json(call.whole(cached)).into_response())
    }

    fn stream(
        self: Arc<Self>,
        call: Call,
        progress: UnboundedReceiver<Progress>,
        number: u64,
        at_work: Option<AtWork>,
    ) -> Response {
        struct Stream {
            _at_work: Option<AtWork>,
            shared: Arc<Shared>,
            call: Call,
            progress: UnboundedReceiver<Progress>,
            open: usize,
            cached: usize,
            number: u64,
        }
        let open = call.outputs.len();
        let state = Stream { _at_work: at_work, shared: self, call, progress, open, cached: 0, number };
        let chunks = futures::stream::unfold(state, |mut state| async move {
            if state.open == 0 {
                return None;
            }
            let wait = tokio::time::timeout(state.shared.config.keep_alive, state.progress.recv());
            let token = match wait.await {
                Err(_) => return Some((Ok(KEEP_ALIVE), state)),
                Ok(None) => {
                    state.open = 0;
                    return Some((Err(std::io::Error::other("the engine died")), state));
                }
                Ok(Some(token)) => token,
            };
            let mut chunk = Vec::new();
            let mut next = Some(token);
            // What has come meanwhile goes out with it.
            while let Some(token) = next {
                state.open -= usize::from(token.last);
                if token.choice + 1 == state.call.outputs.len() {
                    state.cached = token.cached_tokens;
                }
                state.call.events(token.choice, token.index, token.cached_tokens, &mut chunk);
                next = state.progress.try_recv().ok();
            }
            if state.open == 0 {
                state.call.end(state.cached, &mut chunk);
                state.shared.faults.complete(state.number, state.call.prompt_tokens, state.cached);
            }
            Some((Ok(Bytes::from(chunk)), state))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
        (headers, Body::from_stream(chunks)).into_response()
    }

    async fn render(&self, api: Api, body: Bytes) -> Result<Response, Refusal> {
        let params = Params::parse(&body)?;
        let mut rendered = Vec::new();
        for single in params.single_prompts(api, &body) {
            let tokens = self.tokenizers.tokens(api, single).await?;
            self.take_time(tokens.len()).await;
            rendered.push(json!({"token_ids": tokens}));
        }
        let one = api != Api::Completions;
        Ok(Json(if one { rendered.remove(0) } else { rendered.into() }).into_response())
    }

    /// Tokens of a chat or of a text, as the engine's `/tokenize` gives them.
    pub(super) async fn tokenize(&self, body: Bytes) -> Result<Value, Refusal> {
        let tokens = self.tokenizers.tokens(Api::Tokenize, body).await?;
        self.take_time(tokens.len()).await;
        Ok(json!({
            "count": tokens.len(), "max_model_len": self.config.max_model_len, "tokens": tokens, "token_strs": null,
        }))
    }

    /// The time that the engine's API server takes to tokenize so many, after all that it was asked before.
    async fn take_time(&self, tokens: usize) {
        let time = self.config.tokenize.of(tokens);
        if !time.is_zero() {
            let done = {
                let mut busy = self.tokenizing_until.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                *busy = (*busy).max(Instant::now()) + time;
                *busy
            };
            tokio::time::sleep_until(done.into()).await;
        }
    }

    /// The LoRA adapter that a model name stands for.
    fn adapter(&self, model: Option<&str>) -> Result<Option<(u64, String)>, Refusal> {
        let Some(model) = model else { return Ok(None) };
        if model == self.config.model || self.config.aliases.iter().any(|alias| alias == model) {
            return Ok(None);
        }
        match self.config.adapters.iter().position(|adapter| adapter == model) {
            Some(index) => Ok(Some((index as u64 + 1, model.to_owned()))),
            None => Err(Refusal { status: 404, message: format!("The model `{model}` does not exist.") }),
        }
    }

    fn check_length(&self, prompt: usize, output: usize) -> Result<(), Refusal> {
        let cache = (self.config.blocks as usize).saturating_sub(1) * self.config.block_size as usize;
        let limit = self.config.max_model_len.min(cache);
        if prompt == 0 {
            return Err(Refusal::bad_request("The prompt is empty."));
        }
        if prompt + output > limit {
            let message = format!(
                "This model's maximum context length is {limit} tokens. However, you requested {output} output tokens \
                 and your prompt contains {prompt} input tokens."
            );
            return Err(Refusal::bad_request(message));
        }
        Ok(())
    }

    /// The answer follows from the prompt alone: the same question gets the same answer from every replica.
    fn output(&self, prompt: &[TokenId], extra: &ExtraKeys, sibling: usize, tokens: usize) -> Output {
        let vocabulary = self.tokenizers.vocabulary();
        let seed = extra.block_hash(0, None, prompt).0 ^ sibling as u64;
        let mut output = Output::default();
        for piece in vocabulary.answer(seed, tokens) {
            output.ids.push(piece.id);
            output.texts.push(piece.text.clone());
        }
        output
    }

    fn call_id(&self, api: Api) -> String {
        let kind = match api {
            Api::ChatCompletions => "chatcmpl",
            Api::Completions => "cmpl",
            Api::Messages => "msg",
            Api::Responses => "resp",
            Api::Tokenize => "tokenize",
        };
        format!("{kind}-{:016x}", self.calls.fetch_add(1, Relaxed))
    }
}

/// The answer to a request that is refused.
pub fn refused(api: Api, refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(Call::refusal(api, refusal.status, &refusal.message))).into_response()
}

/// Paths that nobody serves.
pub async fn not_found() -> Result<Response, Infallible> {
    Ok((StatusCode::NOT_FOUND, Json(json!({"detail": "Not Found"}))).into_response())
}

fn steers(name: &HeaderName) -> bool {
    ROUTING_HEADERS.iter().any(|start| name.as_str().starts_with(start))
}

fn seen(parts: &Parts, body: &Bytes, sha256: &str) -> SeenRequest {
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    SeenRequest {
        path: parts.uri.to_string(),
        body_sha256: sha256.to_owned(),
        body_bytes: body.len(),
        routing_headers: parts.headers.iter().filter(|(name, _)| steers(name)).map(header).collect(),
        ..SeenRequest::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
