//! `/v1/chat/completions`

use super::chat::Chat;
use super::field::{bad, bool_field, optional_map, optional_str, unsupported};
use super::flags::EngineFlags;
use super::json::{Json, JsonMap, Text};
use super::profile::Profile;
use super::tools::{dump_tools, require_parser};
use crate::nokey::NoKeyReason;

/// Reads the body.
pub fn read(body: &JsonMap, profile: &Profile, flags: &EngineFlags) -> Result<Chat, NoKeyReason> {
    let mut chat = messages(body, flags)?;
    chat.fields = beginning(body)?;
    chat.fields.push((Text::from("documents"), documents(body)?));
    if let Some(effort) = optional_str(body, "reasoning_effort")? {
        effort_fields(effort, &chat.kwargs, flags, &mut chat.fields);
    }
    chat.tools = tools(body, profile, flags)?;
    Ok(chat)
}

/// Reads a chat of `/tokenize`, which takes tools without asking who would parse their calls.
pub fn read_tokenize(body: &JsonMap, profile: &Profile, flags: &EngineFlags) -> Result<Chat, NoKeyReason> {
    let mut chat = messages(body, flags)?;
    chat.fields = beginning(body)?;
    chat.tools = match body.get_some("tools") {
        None => None,
        Some(tools) => Some(dump_tools(tools.as_seq().ok_or_else(|| bad("tools: not an array"))?, profile)?),
    };
    Ok(chat)
}

/// Messages and template arguments.
fn messages(body: &JsonMap, flags: &EngineFlags) -> Result<Chat, NoKeyReason> {
    let messages = body.get("messages").and_then(Json::as_seq).ok_or_else(|| bad("messages: not an array"))?;
    if body.get_some("chat_template").is_some() {
        return Err(match flags.trust_request_chat_template {
            true => unsupported("chat_template: the request brings its own"),
            false => bad("chat_template: not trusted from requests"),
        });
    }
    let kwargs = match optional_map(body, "chat_template_kwargs")? {
        Some(map) => map.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>(),
        None => Vec::new(),
    };
    Ok(Chat { messages: messages.to_vec(), tools: None, kwargs, fields: Vec::new(), as_built: false })
}

/// How the answer begins.
fn beginning(body: &JsonMap) -> Result<Vec<(Text, Json)>, NoKeyReason> {
    let truthy = |name: &str| body.get(name).is_some_and(Json::is_truthy);
    if truthy("continue_final_message") && truthy("add_generation_prompt") {
        return Err(bad("continue_final_message and add_generation_prompt are both set"));
    }
    Ok(vec![
        (Text::from("add_generation_prompt"), Json::Bool(bool_field(body, "add_generation_prompt", true)?)),
        (Text::from("continue_final_message"), Json::Bool(bool_field(body, "continue_final_message", false)?)),
    ])
}

/// What an effort sets: itself, and whether to think unless the request says so.
pub fn effort_fields(effort: &str, kwargs: &[(Text, Json)], flags: &EngineFlags, fields: &mut Vec<(Text, Json)>) {
    let effort = flags.reasoning_effort.get(effort).map_or(effort, String::as_str);
    fields.push((Text::from("reasoning_effort"), Json::str(effort)));
    if !kwargs.iter().any(|(key, _)| key.as_str() == "enable_thinking") {
        fields.push((Text::from("enable_thinking"), Json::Bool(effort != "none")));
    }
}

fn documents(body: &JsonMap) -> Result<Json, NoKeyReason> {
    let Some(list) = body.get_some("documents") else {
        return Ok(Json::Null);
    };
    let is_text_map = |entry: &Json| entry.as_map().is_some_and(|map| map.iter().all(|(_, v)| v.as_str().is_some()));
    match list.as_seq() {
        Some(entries) if entries.iter().all(is_text_map) => Ok(list.clone()),
        _ => Err(bad("documents: not a list of objects of strings")),
    }
}

fn tools(body: &JsonMap, profile: &Profile, flags: &EngineFlags) -> Result<Option<Vec<Json>>, NoKeyReason> {
    let tools = match body.get_some("tools") {
        None => None,
        Some(tools) => Some(tools.as_seq().ok_or_else(|| bad("tools: not an array"))?),
    };
    if tools.is_some_and(<[Json]>::is_empty) {
        return Err(bad("tools: empty"));
    }
    let choice = match (body.get("tool_choice"), tools) {
        (None, Some(_)) => Some("auto"),
        (None, None) | (Some(Json::Null), _) => None,
        (Some(Json::Str(choice)), _) => Some(choice.as_str()),
        (Some(_), _) => Some("named"),
    };
    if let Some(choice) = choice.filter(|choice| *choice != "none") {
        if tools.is_none() {
            return Err(bad("tool_choice: without tools"));
        }
        require_parser(choice, flags)?;
    }
    match tools {
        Some(_) if choice == Some("none") && flags.exclude_tools_when_tool_choice_none => Ok(None),
        Some(tools) => dump_tools(tools, profile).map(Some),
        None => Ok(None),
    }
}
