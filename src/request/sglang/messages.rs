//! From the messages of a request to the template's, through SGLang's classes (openai/protocol.py) and
//! `process_content_for_template_format` (parser/jinja_template_utils.py).

use super::numbers::as_orjson;
use super::{Rules, tools};
use crate::nokey::NoKeyReason;
use crate::request::field::{bad, optional_bool, optional_int, optional_str, unsupported};
use crate::request::json::{self, Fault, Json, JsonMap, Text};
use crate::template::ContentFormat;

/// The roles of other messages than the user's; of any case.
const ROLES: [&str; 7] = ["system", "assistant", "tool", "function", "developer", "latest_reminder", "root"];

/// The messages that the template gets.
pub fn messages(list: &[Json], format: ContentFormat, rules: Rules) -> Result<Vec<Json>, NoKeyReason> {
    let mut out = Vec::with_capacity(list.len());
    for message in list {
        let message = message.as_map().ok_or_else(|| bad("messages: an entry is no object"))?;
        out.push(convert(message, format, rules)?);
        json::budget::check()?;
    }
    Ok(out)
}

fn convert(message: &JsonMap, format: ContentFormat, rules: Rules) -> Result<Json, NoKeyReason> {
    let given = message.get("role").and_then(Json::as_str).ok_or_else(|| bad("messages: an entry has no role"))?;
    if given == "user" {
        let content = content(message, given, format)?.ok_or_else(|| bad("messages: the user's content is null"))?;
        return Ok(Json::map(vec![entry("role", Json::str(given)), entry("content", content.value)]));
    }
    let role = given.to_lowercase();
    if !ROLES.contains(&role.as_str()) {
        return Err(bad("messages: a role that is none"));
    }
    let mut rest = Vec::new();
    let mut text = |name: &'static str| -> Result<(), NoKeyReason> {
        rest.extend(optional_str(message, name)?.map(|text| entry(name, Json::str(text))));
        Ok(())
    };
    text("tool_call_id")?;
    text("name")?;
    if !matches!(optional_str(message, "phase")?, None | Some("commentary" | "final_answer")) {
        return Err(bad("messages: a phase that is none"));
    }
    text("phase")?;
    text("reasoning_content")?;
    if let Some(calls) = message.get_some("tool_calls") {
        let calls = calls.as_seq().ok_or_else(|| bad("messages: tool_calls is no array"))?;
        let calls: Result<Vec<Json>, NoKeyReason> =
            calls.iter().map(|call| tool_call(call, role == "assistant")).collect();
        rest.push(entry("tool_calls", Json::seq(calls?)));
    }
    rest.extend(
        tools::list(message.get("tools"), tools::count_in(&role), rules)?.map(|list| entry("tools", Json::seq(list))),
    );
    if rules.knows_prefix {
        rest.extend(optional_bool(message, "prefix")?.map(|prefix| entry("prefix", Json::Bool(prefix))));
    }

    let content = content(message, &role, format)?;
    let mut out = vec![entry("role", Json::str(role))];
    match content {
        Some(Content { value, rebuilt: true }) => {
            out.extend(rest);
            out.push(entry("content", value));
        }
        content => {
            out.push(entry("content", content.map_or_else(|| Json::str(""), |content| content.value)));
            out.extend(rest);
        }
    }
    Ok(Json::map(out))
}

fn entry(name: &str, value: Json) -> (Text, Json) {
    (Text::from(name), value)
}

struct Content {
    value: Json,
    /// The engine made a new message of it, in which the content comes last.
    rebuilt: bool,
}

/// `None`: null or absent.
fn content(message: &JsonMap, role: &str, format: ContentFormat) -> Result<Option<Content>, NoKeyReason> {
    let parts = match message.get("content") {
        None | Some(Json::Null) => return Ok(None),
        Some(text @ Json::Str(_)) => return Ok(Some(Content { value: text.clone(), rebuilt: false })),
        Some(Json::Seq(parts)) => &parts.0,
        Some(other) => return Err(bad(format!("messages: content is {}", other.type_name()))),
    };
    let mut kept = Vec::with_capacity(parts.len());
    for part in parts {
        kept.extend(read_part(part, role)?);
    }
    let texts = || kept.iter().filter_map(|part| if let Part::Text(text) = part { Some(text) } else { None });
    let rebuilt = format == ContentFormat::OpenAi;
    let only_text = kept.iter().all(|part| matches!(part, Part::Text(_)));
    let value = match rebuilt && !(role == "tool" && only_text) {
        true => Json::seq(kept.iter().map(Part::to_json).collect()),
        false => joined(texts()),
    };
    Ok(Some(Content { value, rebuilt }))
}

/// The texts with blanks between; one text is shared, not copied.
fn joined<'a>(texts: impl Iterator<Item = &'a Text>) -> Json {
    let list: Vec<&Text> = texts.collect();
    match list.as_slice() {
        [one] => Json::Str((*one).clone()),
        many => Json::str(many.iter().map(|text| text.as_str()).collect::<Vec<&str>>().join(" ")),
    }
}

enum Part {
    Text(Text),
    Reference(Text),
}

impl Part {
    fn to_json(&self) -> Json {
        let (kind, name, text) = match self {
            Part::Text(text) => ("text", "text", text),
            Part::Reference(text) => ("tool_reference", "name", text),
        };
        Json::map(vec![entry("type", Json::str(kind)), entry(name, Json::Str(text.clone()))])
    }
}

/// `None`: a part that the template does not see.
fn read_part(part: &Json, role: &str) -> Result<Option<Part>, NoKeyReason> {
    let part = part.as_map().ok_or_else(|| bad("messages: a content part is no object"))?;
    let text = |name: &str| match part.get(name) {
        Some(Json::Str(text)) => Ok(text.clone()),
        _ => Err(bad(format!("messages: {name} of a content part is no string"))),
    };
    match part.get("type").and_then(Json::as_str) {
        Some("text") => text("text").map(|text| Some(Part::Text(text))),
        Some("tool_reference") => text("name").map(|name| Some(Part::Reference(name))),
        Some("thinking" | "reasoning") if role != "assistant" => Err(bad("messages: thinking outside the assistant's")),
        Some("thinking" | "reasoning") => {
            match optional_str(part, "thinking")?.is_some() == optional_str(part, "text")?.is_some() {
                true => Err(bad("messages: a thinking part needs one of thinking and text")),
                false => Ok(None),
            }
        }
        Some("image_url" | "video_url" | "audio_url" | "input_audio") => {
            Err(bad("messages: media, for a model that takes only text"))
        }
        _ => Err(bad("messages: a content part of a type that is none")),
    }
}

fn tool_call(call: &Json, parses: bool) -> Result<Json, NoKeyReason> {
    let call = call.as_map().ok_or_else(|| bad("messages: a tool call is no object"))?;
    if call.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(bad("messages: a tool call of a type other than function"));
    }
    let function =
        call.get("function").and_then(Json::as_map).ok_or_else(|| bad("messages: a tool call without function"))?;
    let arguments = match function.get("arguments") {
        Some(Json::Str(text)) if parses => arguments(text.as_str())?,
        None | Some(Json::Null) => Json::Null,
        Some(text @ Json::Str(_)) => text.clone(),
        Some(map @ Json::Map(_)) => as_orjson(map),
        Some(_) => return Err(bad("messages: the arguments of a tool call are neither a string nor an object")),
    };
    let text = |map, name| optional_str(map, name).map(|text| text.map_or(Json::Null, Json::str));
    let name = text(function, "name")?;
    Ok(Json::map(vec![
        entry("id", text(call, "id")?),
        entry("index", optional_int(call, "index")?.map_or(Json::Null, Json::Int)),
        entry("type", Json::str("function")),
        entry("function", Json::map(vec![entry("name", name), entry("arguments", arguments)])),
    ]))
}

/// Arguments of the assistant's calls, parsed.
fn arguments(text: &str) -> Result<Json, NoKeyReason> {
    if text.starts_with('\u{feff}') {
        return Err(bad("messages: the arguments of a tool call begin with a byte order mark"));
    }
    match json::parse_part(text.as_bytes()) {
        Ok(map @ Json::Map(_)) => Ok(as_orjson(&map)),
        Ok(_) => Err(bad("messages: the arguments of a tool call are no object")),
        Err(error) if matches!(error.fault, Fault::Memory) => {
            Err(unsupported(format!("arguments of a tool call: {error}")))
        }
        Err(_) => Err(bad("messages: the arguments of a tool call are not JSON")),
    }
}
