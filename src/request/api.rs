//! Which API a path belongs to.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The APIs that carry a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`
    ChatCompletions,
    /// `/v1/completions`
    Completions,
    /// `/v1/messages` (Anthropic)
    Messages,
    /// `/v1/responses` (OpenAI)
    Responses,
    /// `/tokenize` (vLLM): a chat or a text of which only the ids are asked. Never routed; for checks against an engine.
    Tokenize,
}

/// The ends of the paths of each API. The first API with a matching end wins, in the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiPaths {
    /// Paths of chat completions.
    pub chat_completions: Vec<String>,
    /// Paths of completions.
    pub completions: Vec<String>,
    /// Paths of messages.
    pub messages: Vec<String>,
    /// Paths of responses.
    pub responses: Vec<String>,
}

impl ApiPaths {
    /// The ends of all APIs.
    pub fn ends(&self) -> impl Iterator<Item = &str> {
        let all = [&self.chat_completions, &self.completions, &self.messages, &self.responses];
        all.into_iter().flatten().map(String::as_str).filter(|end| !end.is_empty())
    }
}

impl Default for ApiPaths {
    fn default() -> Self {
        let one = |path: &str| vec![path.to_owned()];
        ApiPaths {
            chat_completions: one("/v1/chat/completions"),
            completions: one("/v1/completions"),
            messages: one("/v1/messages"),
            responses: one("/v1/responses"),
        }
    }
}

impl Api {
    /// The API of a path that is to be explained or checked: [`Api::from_path`], and `/tokenize`.
    pub fn of_check(path: &str, paths: &ApiPaths) -> Option<Api> {
        Api::from_path(path, paths).or_else(|| path.ends_with("/tokenize").then_some(Api::Tokenize))
    }

    /// The API of a request path, by the end of the path without its query. Engines find their routes by the decoded
    /// path, so `/v1/chat/complet%69ons` is one, too, and by patterns of Python, whose `$` lets one line break follow.
    pub fn from_path(path: &str, paths: &ApiPaths) -> Option<Api> {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        let path = if path.contains('%') { Cow::Owned(decoded(path)) } else { Cow::Borrowed(path) };
        let path = path.as_ref();
        let path = path.strip_suffix('\n').unwrap_or(path);
        let path = path.strip_suffix('/').unwrap_or(path);
        let ends = |list: &[String]| list.iter().any(|end| !end.is_empty() && path.ends_with(end.as_str()));
        if ends(&paths.chat_completions) {
            Some(Api::ChatCompletions)
        } else if ends(&paths.completions) {
            Some(Api::Completions)
        } else if ends(&paths.messages) {
            Some(Api::Messages)
        } else if ends(&paths.responses) {
            Some(Api::Responses)
        } else {
            None
        }
    }
}

/// `%69` as the byte that it stands for; what is no such thing stays.
fn decoded(path: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(path.len()), path.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        rest = after;
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => out.push(*byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_match_by_their_end_without_the_query() {
        let paths = ApiPaths::default();
        let of = |path| Api::from_path(path, &paths);
        assert_eq!(of("/v1/chat/completions"), Some(Api::ChatCompletions));
        assert_eq!(of("/team-a/v1/chat/completions?x=/v1/messages"), Some(Api::ChatCompletions));
        assert_eq!(of("/v1/completions"), Some(Api::Completions));
        assert_eq!(of("/v1/messages/"), Some(Api::Messages));
        assert_eq!(of("/v1/responses"), Some(Api::Responses));
        for escaped in [
            "/v1/chat/complet%69ons",
            "/v1%2fchat%2Fcompletions/?a=%",
            "/%41/v1/chat/completion%73",
            "/v1/chat/completions%0a",
            "/v1/chat/completions/%0A?\u{fffd}",
        ] {
            assert_eq!(of(escaped), Some(Api::ChatCompletions), "{escaped}");
        }
        for other in [
            "/v1/chat/completions%3F",
            "/v1/chat/completions%0d",
            "/v1/chat/completions%0a%0a",
            "/v1/chat/completions%",
            "/v1/chat/completion%7",
            "/%ff%zz%é",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of("/v1/embeddings"), None);
        assert_eq!(of("/v1/messages/count_tokens"), None);
        assert_eq!(of("/tokenize"), None);
        assert_eq!(Api::of_check("/tokenize", &paths), Some(Api::Tokenize));
        assert_eq!(Api::of_check("/v1/responses", &paths), Some(Api::Responses));
        assert_eq!(Api::of_check("/detokenize-not", &paths), None);
    }

    #[test]
    fn configured_ends_replace_the_usual_ones() {
        let paths: ApiPaths =
            serde_json::from_str(r#"{"chat_completions": ["/chat", "/v2/talk"], "messages": []}"#).unwrap();
        let of = |path| Api::from_path(path, &paths);
        assert_eq!(of("/team/v2/talk?x=1"), Some(Api::ChatCompletions));
        assert_eq!(of("/chat"), Some(Api::ChatCompletions));
        assert_eq!(of("/v1/chat/completions"), None);
        assert_eq!(of("/v1/messages"), None);
        assert_eq!(of("/v1/completions"), Some(Api::Completions));
        assert!(serde_json::from_str::<ApiPaths>(r#"{"chats": []}"#).is_err());
    }
}
