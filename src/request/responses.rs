//! `/v1/responses` (OpenAI) without server-side state, mapped to a chat as vLLM's
//! entrypoints/openai/responses/utils.py does.

use super::chat::Chat;
use super::chat_completions::effort_fields;
use super::field::{bad, optional_bool, optional_map, optional_str, unsupported};
use super::flags::EngineFlags;
use super::json::{Json, JsonMap, Text, to_json_text};
use super::profile::Profile;
use super::tools::dump_tools;
use crate::nokey::NoKeyReason;

/// Reads the body.
pub fn read(body: &JsonMap, profile: &Profile, flags: &EngineFlags) -> Result<Chat, NoKeyReason> {
    stateless(body)?;
    let mut out = Messages::default();
    if let Some(instructions) = optional_str(body, "instructions")?.filter(|text| !text.is_empty()) {
        out.push(vec![(Text::from("role"), Json::str("system")), (Text::from("content"), Json::str(instructions))]);
    }
    let mut continued = false;
    match body.get("input") {
        Some(Json::Str(text)) => {
            out.push(vec![(Text::from("role"), Json::str("user")), (Text::from("content"), Json::Str(text.clone()))]);
        }
        Some(Json::Seq(items)) => {
            for item in &items.0 {
                out.item(item.as_map().ok_or_else(|| bad("input: an item is no object"))?, profile)?;
            }
            continued = items.0.last().and_then(Json::as_map).is_some_and(is_partial);
        }
        _ => return Err(bad("input: neither a string nor an array")),
    }
    let kwargs: Vec<(Text, Json)> = match optional_map(body, "chat_template_kwargs")? {
        Some(map) => map.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        None => Vec::new(),
    };
    let mut fields = vec![
        (Text::from("add_generation_prompt"), Json::Bool(!continued)),
        (Text::from("continue_final_message"), Json::Bool(continued)),
    ];
    let reasoning = optional_map(body, "reasoning")?;
    if let Some(effort) = reasoning.map(|map| optional_str(map, "effort")).transpose()?.flatten() {
        effort_fields(effort, &kwargs, flags, &mut fields);
    }
    Ok(Chat { messages: out.finish(), tools: tools(body, profile, flags)?, kwargs, fields, as_built: true })
}

/// Refuses what lives on the server.
pub fn stateless(body: &JsonMap) -> Result<(), NoKeyReason> {
    if body.get_some("previous_response_id").is_some() {
        return Err(unsupported("previous_response_id: the conversation is on the server"));
    }
    if body.get_some("prompt").is_some() {
        return Err(bad("prompt: not supported"));
    }
    if optional_bool(body, "background")?.unwrap_or(false) && body.get("store").is_some_and(|v| !v.is_truthy()) {
        return Err(bad("background: without store"));
    }
    Ok(())
}

/// The last item is an unfinished answer, to be continued.
fn is_partial(item: &JsonMap) -> bool {
    let kind = item.get("type").and_then(Json::as_str).unwrap_or("message");
    matches!(kind, "message" | "reasoning")
        && matches!(item.get("status").and_then(Json::as_str), Some("in_progress" | "incomplete"))
}

/// What a message of the template is made of.
const MESSAGE_FIELDS: [&str; 9] =
    ["role", "content", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name", "task", "tools"];

/// Messages under construction: one may span several items.
#[derive(Default)]
struct Messages(Vec<Vec<(Text, Json)>>);

impl Messages {
    fn push(&mut self, message: Vec<(Text, Json)>) {
        self.0.push(message);
    }

    fn finish(self) -> Vec<Json> {
        self.0.into_iter().map(Json::map).collect()
    }

    /// The message before, when it is the assistant's.
    fn assistant(&mut self) -> Option<&mut Vec<(Text, Json)>> {
        let last = self.0.last_mut()?;
        let is_assistant =
            last.iter().any(|(key, value)| key.as_str() == "role" && value.as_str() == Some("assistant"));
        is_assistant.then_some(last)
    }

    /// Sets a field of the assistant's message before, unless it has one; else begins a new message.
    fn assistant_field(&mut self, name: &str, value: Json) {
        if let Some(message) = self.assistant() {
            let known = message.iter_mut().find(|(key, _)| key.as_str() == name);
            match known {
                None => return message.push((Text::from(name), value)),
                Some((_, old @ Json::Null)) => {
                    *old = value;
                    return;
                }
                Some(_) => {}
            }
        }
        self.push(vec![(Text::from("role"), Json::str("assistant")), (Text::from(name), value)]);
    }

    fn tool_call(&mut self, call: Json) {
        if let Some(message) = self.assistant() {
            match message.iter_mut().find(|(key, _)| key.as_str() == "tool_calls") {
                None => return message.push((Text::from("tool_calls"), Json::seq(vec![call]))),
                Some((_, Json::Seq(calls))) => {
                    // A list of the request itself is shared with it; from the second call on it is not.
                    if std::sync::Arc::get_mut(calls).is_none() {
                        *calls = std::sync::Arc::new(super::json::JsonSeq(calls.0.clone()));
                    }
                    if let Some(calls) = std::sync::Arc::get_mut(calls) {
                        calls.0.push(call);
                    }
                    return;
                }
                Some(_) => {}
            }
        }
        let calls = Json::seq(vec![call]);
        self.push(vec![(Text::from("role"), Json::str("assistant")), (Text::from("tool_calls"), calls)]);
    }

    fn item(&mut self, item: &JsonMap, profile: &Profile) -> Result<(), NoKeyReason> {
        followed(item, profile)?;
        match item.get("type").and_then(Json::as_str) {
            Some("function_call") => {
                let mut name = required(item, "name")?.to_owned();
                if let Some(namespace) = optional_str(item, "namespace")?.filter(|text| !text.is_empty()) {
                    name = format!("{namespace}__{name}");
                }
                self.tool_call(call(required(item, "call_id")?, &name, required(item, "arguments")?));
            }
            Some("custom_tool_call") => {
                let input = optional_str(item, "input")?.unwrap_or_default();
                let input = to_json_text(&Json::map(vec![(Text::from("input"), Json::str(input))]));
                self.tool_call(call(required(item, "call_id")?, required(item, "name")?, &input));
            }
            Some("function_call_output" | "custom_tool_call_output") => self.push(vec![
                (Text::from("role"), Json::str("tool")),
                (Text::from("content"), item.get("output").cloned().unwrap_or(Json::Null)),
                (Text::from("tool_call_id"), item.get("call_id").cloned().unwrap_or(Json::Null)),
            ]),
            Some("reasoning") => {
                let text = reasoning_text(item)?;
                self.assistant_field("reasoning", Json::str(text));
            }
            None | Some("message") => self.message(item)?,
            Some(other) => return Err(bad(format!("input: an item of type {other}"))),
        }
        Ok(())
    }

    fn message(&mut self, item: &JsonMap) -> Result<(), NoKeyReason> {
        if item.get("role").and_then(Json::as_str) == Some("assistant") {
            let text = match item.get("content") {
                Some(Json::Str(text)) => Some(text.clone()),
                Some(Json::Seq(parts)) => {
                    match parts.0.first().and_then(Json::as_map).and_then(|part| part.get("text")) {
                        Some(Json::Str(text)) => Some(text.clone()),
                        _ if parts.0.is_empty() => None,
                        _ => return Err(bad("input: an assistant's message whose first part has no text")),
                    }
                }
                _ => None,
            };
            if let Some(text) = text {
                self.assistant_field("content", Json::Str(text));
                return Ok(());
            }
        }
        if !item.contains("role") {
            return Err(bad("input: an item without a role"));
        }
        // Whatever else it has, the engine does not look at; here each item after it would.
        let known = item.iter().filter(|(key, _)| MESSAGE_FIELDS.contains(&key.as_str()));
        self.push(known.map(|(key, value)| (key.clone(), value.clone())).collect());
        Ok(())
    }
}

/// Refuses what older versions render in ways of their own.
fn followed(item: &JsonMap, profile: &Profile) -> Result<(), NoKeyReason> {
    let kind = item.get("type").and_then(Json::as_str).unwrap_or("message");
    let by_assistant = kind == "message" && item.get("role").and_then(Json::as_str) == Some("assistant");
    if !profile.responses_messages && (by_assistant || item.get_some("namespace").is_some()) {
        return Err(unsupported("input: an assistant's message or a namespace, with vLLM below 0.25"));
    }
    if !profile.responses_custom_calls && kind.starts_with("custom_tool_call") {
        return Err(unsupported("input: a custom tool call, with vLLM below 0.32"));
    }
    Ok(())
}

fn required<'a>(item: &'a JsonMap, name: &str) -> Result<&'a str, NoKeyReason> {
    item.get(name).and_then(Json::as_str).ok_or_else(|| bad(format!("input: an item without {name}")))
}

fn call(id: &str, name: &str, arguments: &str) -> Json {
    let function =
        Json::map(vec![(Text::from("name"), Json::str(name)), (Text::from("arguments"), Json::str(arguments))]);
    Json::map(vec![
        (Text::from("id"), Json::str(id)),
        (Text::from("function"), function),
        (Text::from("type"), Json::str("function")),
    ])
}

/// Only the first part of a reasoning item is rendered.
pub fn reasoning_text(item: &JsonMap) -> Result<&str, NoKeyReason> {
    if item.get("encrypted_content").is_some_and(Json::is_truthy) {
        return Err(bad("input: encrypted reasoning"));
    }
    let first = |name: &str| item.get(name).and_then(Json::as_seq).and_then(<[Json]>::first).and_then(Json::as_map);
    match first("content").or_else(|| first("summary")) {
        Some(part) => required(part, "text"),
        None => Ok(""),
    }
}

fn tools(body: &JsonMap, profile: &Profile, flags: &EngineFlags) -> Result<Option<Vec<Json>>, NoKeyReason> {
    let Some(list) = body.get_some("tools") else {
        return Ok(None);
    };
    let list = list.as_seq().ok_or_else(|| bad("tools: not an array"))?;
    let none = body.get("tool_choice").and_then(Json::as_str) == Some("none");
    if list.is_empty() || (none && (flags.exclude_tools_when_tool_choice_none || !profile.responses_tools)) {
        return Ok(None);
    }
    if !profile.responses_tools {
        return Err(unsupported("tools: over responses, with vLLM below 0.27"));
    }
    let mut functions = Vec::new();
    for tool in list {
        let tool = tool.as_map().ok_or_else(|| bad("tools: an entry is no object"))?;
        match tool.get("type").and_then(Json::as_str) {
            Some("function") => functions.push(wrapped(tool)),
            Some("custom" | "namespace") => return Err(unsupported("tools: custom tools and namespaces")),
            // Tools of the server never reach the template.
            Some(_) => {}
            None => return Err(bad("tools: an entry without a type")),
        }
    }
    dump_tools(&functions, profile).map(Some)
}

fn wrapped(tool: &JsonMap) -> Json {
    let entries = tool.iter().filter(|(key, _)| key.as_str() != "type");
    let function = Json::map(entries.map(|(key, value)| (key.clone(), value.clone())).collect());
    Json::map(vec![(Text::from("type"), Json::str("function")), (Text::from("function"), function)])
}
