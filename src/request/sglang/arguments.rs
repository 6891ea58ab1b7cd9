//! Template arguments: `chat_template_kwargs`, and what the reasoning fields make of them
//! (`ChatCompletionRequest.normalize_reasoning_inputs`, `OpenAIServingChat._process_messages`).

use super::numbers::as_orjson;
use crate::nokey::NoKeyReason;
use crate::request::field::{bad, optional_map, unsupported};
use crate::request::json::{Json, JsonMap, Text};
use crate::template::text::strip;

/// What `reasoning_effort` may be, besides a number from 0 to 0.99.
const EFFORTS: [&str; 8] = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"];

/// Arguments that the engine gives itself: a second one is an error.
const TAKEN: [&str; 7] =
    ["self", "conversation", "messages", "tools", "tokenize", "return_dict", "add_generation_prompt"];

/// The arguments of the template. `moves_effort`: an effort in `chat_template_kwargs` becomes the request's (not over
/// `/tokenize`).
pub fn of(
    body: &JsonMap,
    defaults: &[(Text, Json)],
    trusts_template: bool,
    moves_effort: bool,
) -> Result<JsonMap, NoKeyReason> {
    let (effort, thinking) = reasoning(body)?;
    let given = match (body.get("chat_template_kwargs"), thinking) {
        (Some(Json::Map(_)) | None, _) | (Some(Json::Null), _) => optional_map(body, "chat_template_kwargs")?,
        // The reasoning fields need a place, and put an object there.
        (Some(_), Some(_)) => None,
        (Some(_), None) => return Err(bad("chat_template_kwargs: not an object")),
    };
    let mut kwargs = JsonMap::default();
    for (key, value) in given.into_iter().flat_map(JsonMap::iter) {
        kwargs.insert(key.clone(), as_orjson(value));
    }
    if kwargs.contains("chat_template") {
        return Err(match trusts_template {
            true => unsupported("chat_template: the request brings its own"),
            false => bad("chat_template_kwargs: chat_template is not trusted from requests"),
        });
    }
    let missing = |kwargs: &mut JsonMap, name: Text, value: Json| {
        if !kwargs.contains(name.as_str()) {
            kwargs.insert(name, value);
        }
    };
    if let Some(thinking) = thinking {
        missing(&mut kwargs, Text::from("thinking"), Json::Bool(thinking));
        missing(&mut kwargs, Text::from("enable_thinking"), Json::Bool(thinking));
    }
    let moved = if moves_effort { kwargs.get_some("reasoning_effort").cloned() } else { None };
    let mut out = JsonMap::default();
    let effort = moved.or(effort);
    if let Some(effort) = effort {
        out.insert(Text::from("reasoning_effort"), effort);
    }
    for (key, value) in kwargs.iter().filter(|(key, _)| !(moves_effort && key.as_str() == "reasoning_effort")) {
        out.insert(key.clone(), value.clone());
    }
    for (key, value) in defaults {
        match key.as_str() {
            // An effort of the engine's own replaces that of the request.
            "reasoning_effort" if moves_effort || !kwargs.contains("reasoning_effort") => {
                out.insert(key.clone(), value.clone());
            }
            _ => missing(&mut out, key.clone(), value.clone()),
        }
    }
    if let Some(name) = TAKEN.iter().find(|name| out.contains(name)) {
        return Err(bad(format!("chat_template_kwargs: {name}")));
    }
    if out.get("return_assistant_tokens_mask").is_some_and(Json::is_truthy) {
        return Err(bad("chat_template_kwargs: return_assistant_tokens_mask"));
    }
    if out.get("continue_final_message").is_some_and(Json::is_truthy) {
        return Err(bad("chat_template_kwargs: continue_final_message"));
    }
    let objects = |list: &[Json]| list.iter().all(|entry| entry.as_map().is_some());
    match out.get_some("documents") {
        None => {}
        Some(list) if list.as_seq().is_some_and(objects) => {}
        Some(_) => return Err(bad("chat_template_kwargs: documents is no list of objects")),
    }
    Ok(out)
}

/// The effort, and whether the fields say to think.
fn reasoning(body: &JsonMap) -> Result<(Option<Json>, Option<bool>), NoKeyReason> {
    let mut effort = body.get_some("reasoning_effort").cloned();
    let mut thinking = None;
    if let Some(map) = body.get("reasoning").and_then(Json::as_map) {
        match map.get_some("effort").or_else(|| map.get_some("reasoning_effort")) {
            None => {}
            Some(Json::Str(text)) if EFFORTS.contains(&text.as_str()) => effort = Some(Json::Str(text.clone())),
            Some(value @ (Json::Int(_) | Json::Float(_) | Json::Str(_))) => effort = Some(Json::Float(number(value)?)),
            Some(_) => return Err(bad("reasoning: an effort that is none")),
        }
        let enabled = match map.get_some("enabled").or_else(|| map.get("enable")) {
            None => false,
            Some(Json::Str(text)) => {
                let text = strip(text.as_str()).to_lowercase();
                ["1", "true", "yes", "y", "on"].contains(&text.as_str())
            }
            Some(value) => value.is_truthy(),
        };
        thinking = enabled.then_some(true);
    }
    if let Some(effort) = &effort {
        thinking = Some(effort.as_str() != Some("none"));
    }
    let effort = match effort {
        Some(Json::Str(text)) if EFFORTS.contains(&text.as_str()) => Some(Json::Str(text)),
        Some(value) => Some(number(&value)?).filter(|number| (0.0..=0.99).contains(number)).map(Json::Float),
        None => return Ok((None, thinking)),
    };
    Ok((Some(effort.ok_or_else(wrong)?), thinking))
}

fn wrong() -> NoKeyReason {
    bad("reasoning_effort: none of its names, nor a number from 0 to 0.99")
}

fn number(value: &Json) -> Result<f64, NoKeyReason> {
    match value {
        Json::Int(number) => Ok(*number as f64),
        Json::Float(number) => Ok(*number),
        Json::Str(text) => strip(text.as_str()).parse().map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}
