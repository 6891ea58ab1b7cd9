//! `/v1/messages` (Anthropic), mapped to a chat as vLLM's entrypoints/anthropic/serving.py does.

use super::chat::Chat;
use super::chat_completions::effort_fields;
use super::field::{bad, optional_map, optional_str, unsupported};
use super::flags::EngineFlags;
use super::json::{Json, JsonMap, Text, budget, to_ascii_json_text};
use super::profile::{InlineSystem, Profile};
use super::tools::{dump_tools, require_parser};
use crate::nokey::NoKeyReason;

/// What the mapping depends on besides the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Habits {
    /// The template takes no system message but the first: those between the turns go there.
    pub merges_inline_system: bool,
    /// The effort that `thinking: disabled` stands for; `None` ignores it.
    pub disabled_effort: Option<String>,
}

const BILLING: &str = "x-anthropic-billing-header";

/// Reads the body.
pub fn read(body: &JsonMap, profile: &Profile, flags: &EngineFlags, habits: &Habits) -> Result<Chat, NoKeyReason> {
    let list = body.get("messages").and_then(Json::as_seq).ok_or_else(|| bad("messages: not an array"))?;
    let messages: Vec<&JsonMap> = list
        .iter()
        .map(|message| message.as_map().ok_or_else(|| bad("messages: an entry is no object")))
        .collect::<Result<_, _>>()?;
    let mut out = Vec::new();
    system(body, &messages, profile, habits, &mut out)?;
    for message in &messages {
        convert(message, profile, habits, &mut out)?;
        budget::check()?;
    }
    let kwargs: Vec<(Text, Json)> = match optional_map(body, "chat_template_kwargs")? {
        Some(map) => map.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        None => Vec::new(),
    };
    let mut fields = vec![
        (Text::from("add_generation_prompt"), Json::Bool(true)),
        (Text::from("continue_final_message"), Json::Bool(false)),
    ];
    if let Some(effort) = effort(body, profile, habits)? {
        effort_fields(&effort, &kwargs, flags, &mut fields);
    }
    Ok(Chat { messages: out, tools: tools(body, &messages, profile, flags)?, kwargs, fields, as_built: false })
}

fn message(role: &str, content: Json) -> Json {
    Json::map(vec![(Text::from("role"), Json::str(role)), (Text::from("content"), content)])
}

/// The blocks of a content; `None` for a string.
fn blocks(content: Option<&Json>) -> Result<Option<Vec<&JsonMap>>, NoKeyReason> {
    match content {
        Some(Json::Str(_)) => Ok(None),
        Some(Json::Seq(list)) => {
            let block = |block| Json::as_map(block).ok_or_else(|| bad("messages: a content block is no object"));
            list.0.iter().map(block).collect::<Result<Vec<_>, _>>().map(Some)
        }
        _ => Err(bad("messages: content is neither a string nor an array")),
    }
}

fn kind(block: &JsonMap) -> &str {
    block.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// The text of a text block that has some.
fn block_text(block: &JsonMap) -> Option<&str> {
    block.get("text").and_then(Json::as_str).filter(|text| kind(block) == "text" && !text.is_empty())
}

/// Text blocks without a separator, those of the billing line left out.
fn joined(blocks: &[&JsonMap]) -> String {
    blocks.iter().filter_map(|block| block_text(block)).filter(|text| !text.starts_with(BILLING)).collect()
}

fn system(
    body: &JsonMap,
    messages: &[&JsonMap],
    profile: &Profile,
    habits: &Habits,
    out: &mut Vec<Json>,
) -> Result<(), NoKeyReason> {
    let mut parts = String::new();
    let mut any = false;
    match body.get_some("system") {
        None => {}
        Some(Json::Str(text)) => {
            any = !text.as_str().is_empty();
            parts.push_str(text.as_str());
        }
        Some(content) => {
            let blocks = blocks(Some(content))?.unwrap_or_default();
            parts = joined(&blocks);
            // In vLLM 0.22, blocks that leave nothing give an empty message.
            any = !parts.is_empty() || (profile.keeps_empty_system && !blocks.is_empty());
        }
    }
    if habits.merges_inline_system {
        for message in messages.iter().filter(|message| role(message) == "system") {
            let text = system_text(message)?;
            any |= !text.is_empty();
            parts.push_str(&text);
        }
    }
    if any {
        out.push(message("system", Json::str(parts)));
    }
    Ok(())
}

fn role(message: &JsonMap) -> &str {
    message.get("role").and_then(Json::as_str).unwrap_or_default()
}

fn system_text(message: &JsonMap) -> Result<String, NoKeyReason> {
    Ok(match blocks(message.get("content"))? {
        Some(blocks) => joined(&blocks),
        None => {
            let text = message.get("content").and_then(Json::as_str).unwrap_or_default();
            if text.starts_with(BILLING) { String::new() } else { text.to_owned() }
        }
    })
}

fn convert(message_in: &JsonMap, profile: &Profile, habits: &Habits, out: &mut Vec<Json>) -> Result<(), NoKeyReason> {
    let role = role(message_in);
    match role {
        "user" | "assistant" => {}
        "system" if profile.inline_system != InlineSystem::Refused => {
            let text = system_text(message_in)?;
            if !habits.merges_inline_system && !text.is_empty() {
                out.push(message("system", Json::str(text)));
            }
            return Ok(());
        }
        _ => return Err(bad("messages: a role other than user and assistant")),
    }
    let content = message_in.get("content");
    let Some(blocks) = blocks(content)? else {
        out.push(message(role, content.cloned().unwrap_or(Json::Null)));
        return Ok(());
    };
    let (mut parts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    let mut reasons = false;
    for block in blocks {
        match kind(block) {
            "text" => parts.extend(block_text(block).map(text_part)),
            "image" => parts.push(image_part()),
            "thinking" => {
                if let Some(text) = optional_str(block, "thinking")? {
                    reasons = true;
                    reasoning.push_str(text);
                }
            }
            "redacted_thinking" | "tool_reference" => {}
            "tool_use" => calls.push(tool_use(block)?),
            "tool_result" if role == "user" => tool_result(block, out)?,
            "tool_result" => parts.push(assistant_tool_result(block)?),
            other => return Err(bad(format!("messages: a content block of type {other}"))),
        }
    }
    let mut entry = vec![(Text::from("role"), Json::str(role))];
    if reasons {
        entry.push((Text::from("reasoning"), Json::str(reasoning)));
    }
    if !calls.is_empty() {
        entry.push((Text::from("tool_calls"), Json::seq(calls)));
    }
    if let [one] = parts.as_slice()
        && let Some(text) = one.as_map().and_then(|part| part.get("text"))
    {
        entry.push((Text::from("content"), text.clone()));
    } else if !parts.is_empty() {
        entry.push((Text::from("content"), Json::seq(parts)));
    } else if role == "user" {
        return Ok(());
    }
    out.push(Json::map(entry));
    Ok(())
}

fn text_part(text: &str) -> Json {
    Json::map(vec![(Text::from("type"), Json::str("text")), (Text::from("text"), Json::str(text))])
}

/// The source of an image does not matter: the key ends before it.
fn image_part() -> Json {
    Json::map(vec![(Text::from("type"), Json::str("image_url"))])
}

fn tool_use(block: &JsonMap) -> Result<Json, NoKeyReason> {
    let id = optional_str(block, "id")?.filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| unsupported("messages: a tool_use block without an id gets one from the clock"))?;
    let input = match block.get_some("input") {
        None => "{}".to_owned(),
        Some(input @ Json::Map(_)) => to_ascii_json_text(input),
        Some(_) => return Err(bad("messages: the input of a tool_use block is no object")),
    };
    let function = Json::map(vec![
        (Text::from("name"), Json::str(optional_str(block, "name")?.unwrap_or_default())),
        (Text::from("arguments"), Json::str(input)),
    ]);
    Ok(Json::map(vec![
        (Text::from("id"), Json::str(id)),
        (Text::from("type"), Json::str("function")),
        (Text::from("function"), function),
    ]))
}

fn tool_message(id: &str, content: Json) -> Json {
    Json::map(vec![
        (Text::from("role"), Json::str("tool")),
        (Text::from("tool_call_id"), Json::str(id)),
        (Text::from("content"), content),
    ])
}

/// A result of a user turn becomes a tool message before the turn's own text.
fn tool_result(block: &JsonMap, out: &mut Vec<Json>) -> Result<(), NoKeyReason> {
    let id = optional_str(block, "tool_use_id")?.unwrap_or_default();
    let (mut text, mut images, mut references) = (String::new(), Vec::new(), Vec::new());
    match block.get_some("content") {
        None => {}
        Some(Json::Str(content)) => text.push_str(content.as_str()),
        Some(Json::Seq(items)) => {
            let mut texts = Vec::new();
            for item in items.0.iter().filter_map(Json::as_map) {
                match kind(item) {
                    "text" => texts.push(optional_str(item, "text")?.unwrap_or_default()),
                    "image" => images.push(image_part()),
                    "tool_reference" => {
                        let name = ["tool_name", "name"].into_iter().filter_map(|name| item.get(name)?.as_str());
                        if let Some(name) = name.into_iter().find(|name| !name.is_empty()) {
                            references.push(Json::map(vec![
                                (Text::from("type"), Json::str("tool_reference")),
                                (Text::from("name"), Json::str(name)),
                            ]));
                        }
                    }
                    _ => {}
                }
            }
            text = texts.join("\n");
        }
        Some(_) => return Err(bad("messages: the content of a tool_result block is neither a string nor an array")),
    }
    out.push(tool_message(id, Json::str(text)));
    if !images.is_empty() {
        out.push(message("user", Json::seq(images)));
    }
    if !references.is_empty() {
        out.push(tool_message(id, Json::seq(references)));
    }
    Ok(())
}

fn assistant_tool_result(block: &JsonMap) -> Result<Json, NoKeyReason> {
    match block.get_some("content") {
        None => Ok(text_part("Tool result: ")),
        Some(Json::Str(text)) => Ok(text_part(&format!("Tool result: {}", text.as_str()))),
        Some(list @ Json::Seq(_)) if list.is_truthy() => {
            Ok(text_part(&format!("Tool result: {}", crate::template::python::repr(list))))
        }
        Some(Json::Seq(_)) => Ok(text_part("Tool result: ")),
        Some(_) => Err(bad("messages: the content of a tool_result block is neither a string nor an array")),
    }
}

fn effort(body: &JsonMap, profile: &Profile, habits: &Habits) -> Result<Option<String>, NoKeyReason> {
    let thinking = optional_map(body, "thinking")?;
    let disabled = thinking.is_some_and(|thinking| kind(thinking) == "disabled");
    if disabled && habits.disabled_effort.is_some() {
        return Ok(habits.disabled_effort.clone());
    }
    let config = optional_map(body, "output_config")?.filter(|_| profile.takes_output_effort);
    Ok(config.map(|config| optional_str(config, "effort")).transpose()?.flatten().map(str::to_owned))
}

fn tools(
    body: &JsonMap,
    messages: &[&JsonMap],
    profile: &Profile,
    flags: &EngineFlags,
) -> Result<Option<Vec<Json>>, NoKeyReason> {
    for message in messages {
        let content = blocks(message.get("content"))?.unwrap_or_default();
        if content.iter().any(|block| matches!(kind(block), "tool_addition" | "tool_removal")) {
            return Err(unsupported("messages: blocks that add or remove tools"));
        }
    }
    let choice = optional_map(body, "tool_choice")?.map(kind);
    let Some(tools) = body.get_some("tools") else {
        return Ok(None);
    };
    let tools = tools.as_seq().ok_or_else(|| bad("tools: not an array"))?;
    let choice = match choice {
        None | Some("auto") => "auto",
        Some("none") => "none",
        Some("any") => "required",
        Some(_) => "named",
    };
    require_parser(choice, flags)?;
    if choice == "none" && flags.exclude_tools_when_tool_choice_none {
        return Ok(None);
    }
    let converted: Result<Vec<Json>, NoKeyReason> = tools.iter().map(|tool| openai_tool(tool, profile)).collect();
    dump_tools(&converted?, profile).map(Some)
}

fn openai_tool(tool: &Json, profile: &Profile) -> Result<Json, NoKeyReason> {
    let tool = tool.as_map().ok_or_else(|| bad("tools: an entry is no object"))?;
    let schema = match tool.get("input_schema") {
        Some(Json::Map(schema)) => {
            let mut entries: Vec<(Text, Json)> =
                schema.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            if !schema.contains("type") {
                entries.push((Text::from("type"), Json::str("object")));
            }
            Json::map(entries)
        }
        _ => return Err(bad("tools: an entry without input_schema")),
    };
    let mut function = vec![
        (Text::from("name"), tool.get("name").cloned().unwrap_or(Json::Null)),
        (Text::from("description"), tool.get("description").cloned().unwrap_or(Json::Null)),
        (Text::from("parameters"), schema),
    ];
    for name in ["strict", "defer_loading"].into_iter().skip(usize::from(!profile.knows_strict)) {
        function.extend(tool.get_some(name).map(|value| (Text::from(name), value.clone())));
    }
    Ok(Json::map(vec![(Text::from("type"), Json::str("function")), (Text::from("function"), Json::map(function))]))
}
