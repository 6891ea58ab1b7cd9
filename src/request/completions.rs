//! `/v1/completions`: a string, a list of strings, token ids, or lists of token ids.

use super::PromptInput;
use super::field::{as_int, bad, unsupported};
use super::json::{Json, JsonMap};
use crate::blocks::TokenId;
use crate::nokey::NoKeyReason;

/// The prompt; of a list of prompts, the longest, by which the request is routed.
pub fn read(body: &JsonMap) -> Result<PromptInput, NoKeyReason> {
    if body.get_some("suffix").is_some() {
        return Err(bad("suffix: only for models that fill in the middle"));
    }
    if body.get_some("prompt_embeds").is_some() {
        return Err(unsupported("prompt_embeds: embeddings have no token ids"));
    }
    prompt(body)
}

/// The prompt alone.
pub fn prompt(body: &JsonMap) -> Result<PromptInput, NoKeyReason> {
    let text = |text: &str| match text.is_empty() {
        true => Err(bad("prompt: empty")),
        false => Ok(PromptInput::Text(text.to_owned())),
    };
    match body.get_some("prompt") {
        Some(Json::Str(prompt)) => text(prompt.as_str()),
        Some(Json::Seq(list)) => match list.0.first() {
            None => Err(bad("prompt: empty")),
            Some(Json::Str(_)) => {
                let strings: Option<Vec<&str>> = list.0.iter().map(Json::as_str).collect();
                let strings = strings.ok_or_else(|| bad("prompt: a list of strings and others"))?;
                // The first of the longest ones.
                let longest = strings.iter().rev().max_by_key(|prompt| prompt.len());
                text(longest.copied().unwrap_or_default())
            }
            Some(Json::Seq(_)) => {
                let lists: Result<Vec<Vec<TokenId>>, NoKeyReason> = list
                    .0
                    .iter()
                    .map(|inner| ids(inner.as_seq().ok_or_else(|| bad("prompt: a list of lists and others"))?))
                    .collect();
                let longest = lists?.into_iter().rev().max_by_key(Vec::len).unwrap_or_default();
                Some(longest).filter(|ids| !ids.is_empty()).map(PromptInput::Ids).ok_or_else(|| bad("prompt: empty"))
            }
            Some(_) => ids(&list.0).map(PromptInput::Ids),
        },
        _ => Err(bad("prompt: missing")),
    }
}

fn ids(list: &[Json]) -> Result<Vec<TokenId>, NoKeyReason> {
    let wrong = || bad("prompt: not a token id");
    let id = |id: &Json| match id {
        Json::Str(_) => Err(wrong()),
        other => as_int(other).and_then(|id| TokenId::try_from(id).ok()).ok_or_else(wrong),
    };
    list.iter().map(id).collect()
}
