//! Asks a live engine for the ids of a request.
//!
//! | API | asked where | |
//! |---|---|---|
//! | any | `PATH/render` | vLLM, where it is served: no flag for chat and completions, `--enable-scale-out` in 0.32, always by `vllm launch render` |
//! | chat completions, completions | `/tokenize` | where there is no render endpoint, unless the request holds something that changes the prompt and that `/tokenize` does not know |
//! | messages, responses | nowhere else | not checkable |
//!
//! SGLang has only `/tokenize`, which takes a chat completion as it is.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cases::Case;
use crate::blocks::TokenId;
use crate::request::json::{Json, JsonMap, parse};

/// What the engine says of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Truth {
    /// Status and ids; where the status is not 200, its error.
    Known(Case, Option<String>),
    /// There is no endpoint that tells.
    NotCheckable(String),
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// vLLM.
    Vllm,
    /// vLLM with gpt-oss.
    Harmony,
    /// SGLang.
    Sglang,
}

/// A live engine.
#[derive(Debug)]
pub struct Engine {
    client: reqwest::Client,
    base: String,
}

/// Fields of a chat that change its prompt and that `/tokenize` does not know.
const ONLY_CHAT: [&str; 6] = [
    "documents",
    "kv_transfer_params",
    "prompt_embeds",
    "reasoning_effort",
    "truncate_prompt_tokens",
    "truncation_side",
];

/// Fields that SGLang reads only over `/tokenize`.
const ONLY_TOKENIZE: [&str; 2] = ["add_generation_prompt", "add_special_tokens"];

impl Engine {
    /// The engine at `http://host:port`.
    pub fn new(url: &str) -> Result<Engine> {
        // The engine resets a connection after some of its errors: each request takes a new one.
        let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0);
        let client = client.timeout(Duration::from_secs(60)).build()?;
        Ok(Engine { client, base: url.trim_end_matches('/').to_owned() })
    }

    /// The version that the engine says it has; `None` where it does not say.
    pub async fn version(&self) -> Result<Option<String>> {
        let url = format!("{}/version", self.base);
        let answer = self.client.get(&url).send().await.with_context(|| format!("cannot ask {url}"))?;
        let text = answer.text().await.unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(value["version"].as_str().map(str::to_owned))
    }

    /// What the engine makes of a request. The case may come back with the endpoint `/tokenize`: then that is what was
    /// asked, and what to compare with.
    pub async fn truth(&self, case: &Case, kind: Kind) -> Result<Truth> {
        if case.endpoint.ends_with("/tokenize") {
            return self.known(case, self.post("/tokenize", &case.body).await?);
        }
        if kind != Kind::Sglang
            && let Some(answer) = self.post(&format!("{}/render", case.endpoint), &case.body).await?
        {
            return self.known(case, Some(answer));
        }
        let body = parse(case.body.as_bytes()).ok();
        let Some(body) = body.as_ref().and_then(Json::as_map) else {
            return Ok(Truth::NotCheckable("the engine has no render endpoint, and the body is no object".into()));
        };
        match not_tokenizable(case, body, kind) {
            Some(why) => Ok(Truth::NotCheckable(format!("the engine has no render endpoint, and {why}"))),
            // The comparison is with what /tokenize makes of the body.
            None => self.known(
                &Case { endpoint: "/tokenize".into(), ..case.clone() },
                self.post("/tokenize", &case.body).await?,
            ),
        }
    }

    /// Status and body of the answer; `None` where nothing is served there.
    async fn post(&self, path: &str, body: &str) -> Result<Option<(u16, String)>> {
        let url = format!("{}{path}", self.base);
        let request = self.client.post(&url).header("content-type", "application/json").body(body.to_owned());
        let answer = request.send().await.with_context(|| format!("cannot ask {url}"))?;
        let status = answer.status().as_u16();
        let text = answer.text().await.with_context(|| format!("{url}: no whole answer"))?;
        // An unknown model is a 404 as well, with an error object.
        let nothing = matches!(status, 404 | 405 | 501) && !text.contains("\"error\"");
        Ok((!nothing).then_some((status, text)))
    }

    fn known(&self, case: &Case, answer: Option<(u16, String)>) -> Result<Truth> {
        let Some((status, text)) = answer else {
            return Ok(Truth::NotCheckable("the engine has neither a render endpoint nor /tokenize".into()));
        };
        let mut case = Case { status, prompt: None, ids: Vec::new(), ..case.clone() };
        if status != 200 {
            return Ok(Truth::Known(case, Some(text.chars().take(300).collect())));
        }
        let value: Value =
            serde_json::from_str(&text).with_context(|| format!("{}: an answer that is no JSON", self.base))?;
        case.ids = match &value {
            Value::Array(prompts) => prompts.iter().map(|one| ids(&one["token_ids"])).collect::<Result<_>>()?,
            one if one["token_ids"].is_array() => vec![ids(&one["token_ids"])?],
            one => vec![ids(&one["tokens"])?],
        };
        case.prompt = value["prompt_text"].as_str().map(str::to_owned);
        Ok(Truth::Known(case, None))
    }
}

fn ids(list: &Value) -> Result<Vec<TokenId>> {
    let id = |id: &Value| id.as_u64().and_then(|id| TokenId::try_from(id).ok());
    match list.as_array().map(|list| list.iter().map(id).collect::<Option<Vec<_>>>()) {
        Some(Some(ids)) => Ok(ids),
        _ => bail!("the engine's answer has no list of token ids"),
    }
}

/// Why `/tokenize` would not give the ids that the request gets.
fn not_tokenizable(case: &Case, body: &JsonMap, kind: Kind) -> Option<String> {
    let unknown = |names: &[&str]| names.iter().find(|name| body.get_some(name).is_some()).map(|name| name.to_string());
    if kind == Kind::Sglang
        && let Some(name) = unknown(&ONLY_TOKENIZE)
    {
        return Some(format!("/tokenize goes by {name}, which requests ignore"));
    }
    if kind == Kind::Sglang && case.endpoint.ends_with("/chat/completions") {
        return None;
    }
    if case.endpoint.ends_with("/chat/completions") {
        if kind == Kind::Harmony {
            return Some("/tokenize renders gpt-oss by its template, requests are rendered otherwise".to_owned());
        }
        if body.get("tool_choice").and_then(Json::as_str) == Some("none") {
            return Some("/tokenize does not know tool_choice none".to_owned());
        }
        return unknown(&ONLY_CHAT).map(|name| format!("/tokenize does not know {name}"));
    }
    if !case.endpoint.ends_with("/completions") {
        return Some("/tokenize knows only chat completions and completions".to_owned());
    }
    match body.get("prompt") {
        Some(Json::Str(_)) => unknown(&["truncate_prompt_tokens", "truncation_side", "prompt_embeds"])
            .map(|name| format!("/tokenize does not know {name}")),
        _ => Some("/tokenize takes one text, no list".to_owned()),
    }
}
