//! vLLM's way from the messages of a request to the messages of the template (renderers/chat_utils.py).

use super::field::{bad, unsupported};
use super::json::{self, Fault, Json, JsonMap, Text};
use super::profile::{BadArguments, Profile};
use crate::nokey::NoKeyReason;
use crate::template::ContentFormat;

/// Stands for an image, audio or video part in a prompt that is cut before the first of them.
pub const MEDIA: &str = "\u{f8f0}kvroute-media\u{f8f1}";

/// A list of messages, ready for the template.
#[derive(Debug, Default)]
pub struct Conversation {
    /// The messages.
    pub messages: Vec<Json>,
    /// Whether any of them has media.
    pub has_media: bool,
    /// The same with media parts as the template sees them, where they have a place in it.
    pub with_media: Option<Vec<Json>>,
}

/// Converts a list of messages. `as_built`: see [`super::chat::Chat`].
pub fn conversation(
    messages: &[Json],
    as_built: bool,
    format: ContentFormat,
    profile: &Profile,
) -> Result<Conversation, NoKeyReason> {
    let mut out = Vec::with_capacity(messages.len());
    let mut media = Media::default();
    for message in messages {
        let map = message.as_map().ok_or_else(|| bad("messages: an entry is no object"))?;
        let converted = match stays(map, format, profile) {
            true => message.clone(),
            false => convert(map, as_built, format, profile, &mut media)?,
        };
        json::budget::check()?;
        media.originals.push((out.len(), media.pending.take()));
        out.push(converted);
    }
    if !media.found {
        return Ok(Conversation { messages: out, has_media: false, with_media: None });
    }
    let mut with_media = out.clone();
    for (at, original) in media.originals {
        if let (Some(original), Some(slot)) = (original, with_media.get_mut(at)) {
            *slot = original;
        }
    }
    let with_media = (format == ContentFormat::OpenAi).then_some(with_media);
    Ok(Conversation { messages: out, has_media: true, with_media })
}

/// Whether a message is already as [`convert`] would make it: only a role and a text. Most are, and are shared.
fn stays(message: &JsonMap, format: ContentFormat, profile: &Profile) -> bool {
    let mut entries = message.iter();
    let (Some((first, role)), Some((second, Json::Str(_))), None) = (entries.next(), entries.next(), entries.next())
    else {
        return false;
    };
    let role = match role.as_str() {
        Some("developer") | None => false,
        Some(role) => role != "system" || !profile.strips_billing,
    };
    role && format == ContentFormat::String && first.as_str() == "role" && second.as_str() == "content"
}

/// Whether any message has a part that is neither text nor a reference to a tool.
pub fn has_media(messages: &[Json]) -> bool {
    let parts = messages.iter().filter_map(|message| message.as_map()?.get("content")?.as_seq()).flatten();
    parts.filter_map(Json::as_map).any(|part| match part.get("type").and_then(Json::as_str) {
        Some("text" | "input_text" | "output_text" | "refusal" | "thinking" | "tool_reference") => {
            MEDIA_FIELDS.iter().any(|(field, _)| part.contains(field))
        }
        _ => true,
    })
}

#[derive(Default)]
struct Media {
    found: bool,
    pending: Option<Json>,
    originals: Vec<(usize, Option<Json>)>,
}

fn convert(
    message: &JsonMap,
    as_built: bool,
    format: ContentFormat,
    profile: &Profile,
    media: &mut Media,
) -> Result<Json, NoKeyReason> {
    let role = message.get("role").and_then(Json::as_str).ok_or_else(|| bad("messages: an entry has no role"))?;
    let content = match message.get("content") {
        // One text stays as it is, and needs no list.
        Some(text @ Json::Str(_)) if keeps_text(role, format, profile) => Content::Text(text),
        content => Content::Parts(Parts::of(content, role, profile)?),
    };
    let mut rest = Vec::with_capacity(4);
    if role == "assistant" {
        if let Some(calls) = message.get_some("tool_calls") {
            let calls = calls.as_seq().ok_or_else(|| bad("messages: tool_calls is no array"))?;
            if !calls.is_empty() {
                let calls: Result<Vec<Json>, NoKeyReason> =
                    calls.iter().map(|call| tool_call(call, as_built, profile)).collect();
                rest.push((Text::from("tool_calls"), Json::seq(calls?)));
            }
        }
        let reasoning = message.get_some("reasoning").or_else(|| message.get_some("reasoning_content"));
        if let Some(reasoning) = reasoning {
            if reasoning.as_str().is_none() {
                return Err(bad("messages: reasoning is no string"));
            }
            rest.push((Text::from("reasoning"), reasoning.clone()));
            rest.push((Text::from("reasoning_content"), reasoning.clone()));
        }
    } else if role == "tool"
        && let Some(id) = message.get("tool_call_id")
    {
        rest.push((Text::from("tool_call_id"), id.clone()));
    }
    for name in ["name", "task"] {
        if let Some(value @ Json::Str(_)) = message.get(name) {
            rest.push((Text::from(name), value.clone()));
        }
    }
    if role == "developer" {
        rest.push((Text::from("tools"), developer_tools(message.get("tools"))?));
    }
    let build = |content: Json, rest: Vec<(Text, Json)>| {
        let mut out = Vec::with_capacity(rest.len() + 2);
        out.push((Text::from("role"), Json::str(role)));
        out.push((Text::from("content"), content));
        out.extend(rest);
        Json::map(out)
    };
    let parts = match content {
        Content::Text(text) => return Ok(build(text.clone(), rest)),
        Content::Parts(parts) => parts,
    };
    let has_media = parts.list.iter().any(|part| matches!(part, Part::Media(_)));
    if has_media {
        media.found = true;
        media.pending = Some(build(parts.content(format, role, true), rest.clone()));
    }
    Ok(build(parts.content(format, role, false), rest))
}

/// The content of a message.
enum Content<'a> {
    Text(&'a Json),
    Parts(Parts),
}

/// Whether a content that is one text is handed on as that text.
fn keeps_text(role: &str, format: ContentFormat, profile: &Profile) -> bool {
    let strips = role == "system" && profile.strips_billing;
    (format == ContentFormat::String || role == "tool") && !strips
}

/// One part of a message's content.
enum Part {
    Text(Text, Vec<(Text, Json)>),
    Reference(Text),
    Media(&'static str),
}

struct Parts {
    list: Vec<Part>,
}

impl Parts {
    fn of(content: Option<&Json>, role: &str, profile: &Profile) -> Result<Parts, NoKeyReason> {
        let strip = role == "system" && profile.strips_billing;
        let mut list = Vec::new();
        let items = match content {
            None | Some(Json::Null) => &[],
            Some(text @ Json::Str(_)) => std::slice::from_ref(text),
            Some(Json::Seq(parts)) => parts.0.as_slice(),
            Some(other) => return Err(bad(format!("messages: content is {}", other.type_name()))),
        };
        for item in items {
            let (part, strippable) = match item {
                Json::Str(text) => (Some(Part::Text(text.clone(), Vec::new())), strip),
                Json::Map(part) => {
                    (read_part(part, profile)?, strip && part.get("type").and_then(Json::as_str) == Some("text"))
                }
                _ => return Err(bad("messages: a content part is no object")),
            };
            match part {
                Some(Part::Text(text, extras)) if strippable => {
                    list.extend(strip_billing(text).map(|text| Part::Text(text, extras)));
                }
                other => list.extend(other),
            }
        }
        Ok(Parts { list })
    }

    fn content(&self, format: ContentFormat, role: &str, real_media: bool) -> Json {
        if format == ContentFormat::String {
            // Media placeholders of a message stand before its texts.
            let marker = self.list.iter().any(|part| matches!(part, Part::Media(_))).then(|| Text::from(MEDIA));
            let texts = self.list.iter().filter_map(|part| match part {
                Part::Text(text, _) | Part::Reference(text) => Some(text),
                Part::Media(_) => None,
            });
            return joined(marker.iter().chain(texts.filter(|text| !text.as_str().is_empty())));
        }
        let only_text = !self.list.iter().any(|part| !matches!(part, Part::Text(..)));
        if role == "tool" && only_text {
            return joined(self.list.iter().filter_map(|part| match part {
                Part::Text(text, _) => Some(text),
                _ => None,
            }));
        }
        let text_part = |text: Json, extras: &[(Text, Json)]| {
            let mut out = vec![(Text::from("type"), Json::str("text")), (Text::from("text"), text)];
            out.extend(extras.iter().cloned());
            Json::map(out)
        };
        let parts = self.list.iter().map(|part| match part {
            Part::Text(text, extras) => text_part(Json::Str(text.clone()), extras),
            Part::Reference(name) => Json::map(vec![
                (Text::from("type"), Json::str("tool_reference")),
                (Text::from("name"), Json::Str(name.clone())),
            ]),
            Part::Media(kind) if real_media => Json::map(vec![(Text::from("type"), Json::str(*kind))]),
            Part::Media(_) => text_part(Json::str(MEDIA), &[]),
        });
        Json::seq(parts.collect())
    }
}

/// The texts with line breaks between; one text is shared, not copied.
fn joined<'a>(texts: impl Iterator<Item = &'a Text>) -> Json {
    let list: Vec<&Text> = texts.collect();
    match list.as_slice() {
        [] => Json::str(""),
        [one] => Json::Str((*one).clone()),
        many => Json::str(many.iter().map(|text| text.as_str()).collect::<Vec<&str>>().join("\n")),
    }
}

/// Fields of the part classes that the engine knows; others are handed on in the openai format.
const KNOWN_PART_FIELDS: [&str; 20] = [
    "type",
    "text",
    "image_url",
    "input_audio",
    "file",
    "refusal",
    "audio_url",
    "video_url",
    "image_pil",
    "image_embeds",
    "audio_embeds",
    "video_embeds",
    "data",
    "uuid",
    "thinking",
    "closed",
    "name",
    "detail",
    "file_id",
    "prompt_embeds",
];

/// Fields that make a part without a type, or with a uuid, a media part.
const MEDIA_FIELDS: [(&str, &str); 8] = [
    ("image_url", "image"),
    ("image_pil", "image"),
    ("image_embeds", "image"),
    ("audio_embeds", "audio"),
    ("video_embeds", "video"),
    ("audio_url", "audio"),
    ("input_audio", "audio"),
    ("video_url", "video"),
];

fn read_part(part: &JsonMap, profile: &Profile) -> Result<Option<Part>, NoKeyReason> {
    let kind = match part.get("type") {
        None | Some(Json::Null) => None,
        Some(kind) => Some(kind.as_str().ok_or_else(|| bad("messages: the type of a content part is no string"))?),
    };
    let by_field = || MEDIA_FIELDS.iter().find(|(field, _)| part.contains(field)).map(|(_, kind)| Part::Media(kind));
    let text_field = match kind {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        Some("thinking") => "thinking",
        Some("tool_reference") => "name",
        Some("image_url" | "input_image" | "image_pil" | "image_embeds") => return Ok(Some(Part::Media("image"))),
        Some("audio_url" | "input_audio" | "audio_embeds") => return Ok(Some(Part::Media("audio"))),
        Some("video_url" | "video_embeds") => return Ok(Some(Part::Media("video"))),
        Some("prompt_embeds") => return Ok(Some(Part::Media("text"))),
        Some(other) => {
            return by_field().map(Some).ok_or_else(|| bad(format!("messages: a content part of type {other}")));
        }
        None => return by_field().map(Some).ok_or_else(|| bad("messages: a content part without a type")),
    };
    if part.get_some("uuid").is_some()
        && let Some(media) = by_field()
    {
        return Ok(Some(media));
    }
    let text = match part.get(text_field) {
        Some(Json::Str(text)) => text.clone(),
        None | Some(Json::Null) if matches!(text_field, "text" | "refusal") => return Ok(None),
        _ => return Err(bad(format!("messages: {text_field} of a content part is no string"))),
    };
    if kind == Some("tool_reference") {
        return Ok(Some(Part::Reference(text)));
    }
    let unknown = |key: &str| profile.keeps_part_extras && !KNOWN_PART_FIELDS.contains(&key);
    let extras = part.iter().filter(|(key, _)| unknown(key.as_str()));
    Ok(Some(Part::Text(text, extras.map(|(key, value)| (key.clone(), value.clone())).collect())))
}

/// The first line of a client, different in each request; the engine takes it from system messages.
const BILLING: &str = "x-anthropic-billing-header";

fn strip_billing(text: Text) -> Option<Text> {
    if !text.as_str().starts_with(BILLING) {
        return Some(text);
    }
    match text.as_str().split_once('\n') {
        Some((_, rest)) if !rest.is_empty() => Some(Text::from(rest)),
        _ => None,
    }
}

/// A tool call with its keys in the order of the engine's classes and its arguments parsed.
fn tool_call(call: &Json, as_built: bool, profile: &Profile) -> Result<Json, NoKeyReason> {
    let call = call.as_map().ok_or_else(|| bad("messages: a tool call is no object"))?;
    if call.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(bad("messages: a tool call of a type other than function"));
    }
    let function =
        call.get("function").and_then(Json::as_map).ok_or_else(|| bad("messages: a tool call without function"))?;
    let name = function.get("name").filter(|name| name.as_str().is_some());
    let name = name.ok_or_else(|| bad("messages: a tool call without a name"))?;
    let given = function.get("arguments").and_then(Json::as_str);
    let given = given.ok_or_else(|| bad("messages: the arguments of a tool call are no string"))?;
    let mut inner = vec![(Text::from("arguments"), arguments(given, profile)?), (Text::from("name"), name.clone())];
    if as_built {
        inner.reverse();
    }
    inner.extend(extras(function, &["arguments", "name"]));
    let mut out = Vec::with_capacity(3);
    out.extend(call.get("id").map(|id| (Text::from("id"), id.clone())));
    out.push((Text::from("function"), Json::map(inner)));
    out.extend(call.get("type").map(|kind| (Text::from("type"), kind.clone())));
    out.extend(extras(call, &["id", "function", "type"]));
    Ok(Json::map(out))
}

fn extras(map: &JsonMap, known: &[&str]) -> Vec<(Text, Json)> {
    let unknown = map.iter().filter(|(key, _)| !known.contains(&key.as_str()));
    unknown.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The tools of a developer message, with their keys in the order of the engine's classes.
fn developer_tools(tools: Option<&Json>) -> Result<Json, NoKeyReason> {
    let ordered = |map: &JsonMap, names: &[&str]| -> Vec<(Text, Json)> {
        let known = names.iter().filter_map(|name| Some((Text::from(*name), map.get(name)?.clone())));
        known.chain(extras(map, names)).collect()
    };
    let other = || unsupported("messages: the tools of a developer message are not functions");
    let tool = |tool: &Json| {
        let tool = tool.as_map().filter(|tool| tool.get("type").and_then(Json::as_str) == Some("function"));
        let tool = tool.ok_or_else(other)?;
        let function = tool.get("function").and_then(Json::as_map).filter(|function| function.contains("name"));
        let function = ordered(function.ok_or_else(other)?, &["name", "description", "parameters", "strict"]);
        let mut out = vec![(Text::from("function"), Json::map(function)), (Text::from("type"), Json::str("function"))];
        out.extend(extras(tool, &["function", "type"]));
        Ok(Json::map(out))
    };
    match tools {
        None | Some(Json::Null) => Ok(Json::Null),
        Some(Json::Seq(list)) => Ok(Json::seq(list.0.iter().map(tool).collect::<Result<_, NoKeyReason>>()?)),
        Some(_) => Err(other()),
    }
}

fn arguments(text: &str, profile: &Profile) -> Result<Json, NoKeyReason> {
    if text.is_empty() {
        return Ok(Json::empty_map());
    }
    // Python's json.loads of a str refuses the mark that it skips in bytes.
    let parsed = if text.starts_with('\u{feff}') { None } else { Some(json::parse_part(text.as_bytes())) };
    match (parsed, profile.bad_arguments) {
        (Some(Ok(map @ Json::Map(_))), _) => Ok(map),
        (Some(Err(error)), _) if error.fault != Fault::Syntax => {
            Err(unsupported(format!("arguments of a tool call: {error}")))
        }
        (Some(Ok(Json::Null)), BadArguments::RefuseText) if profile.empties_null_arguments => Ok(Json::empty_map()),
        (Some(Ok(other)), BadArguments::RefuseText) => Ok(other),
        (_, BadArguments::RefuseText) => Err(bad("messages: the arguments of a tool call are not JSON")),
        (_, BadArguments::Empty) => Ok(Json::empty_map()),
    }
}
