//! A conversation to prompt text: template, content format, template arguments, developer messages, media.
//!
//! Every API that carries messages ends here; see [`Chat`].

use super::field::{bad, unsupported};
use super::json::{Json, JsonMap, Text};
use super::message::{self, MEDIA};
use super::profile::Profile;
use crate::nokey::{NoKey, NoKeyReason};
use crate::template::text::{rstrip, strip};
use crate::template::{Clock, ContentFormat, Template, Variables};

/// What an API makes of its body.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Messages in the shape of chat completions.
    pub messages: Vec<Json>,
    /// Tools as the template gets them; `None` renders none.
    pub tools: Option<Vec<Json>>,
    /// `chat_template_kwargs` of the request.
    pub kwargs: Vec<(Text, Json)>,
    /// What other fields of the request say; wins over `kwargs` unless null or "auto".
    pub fields: Vec<(Text, Json)>,
    /// The engine has put the messages together itself: its classes do not reorder the keys of tool calls.
    pub as_built: bool,
}

/// Rendered text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt, or its beginning.
    pub text: String,
    /// It is only the beginning: media follow.
    pub open_ended: bool,
}

/// The templates of a model, compiled.
#[derive(Debug)]
pub struct Templates {
    /// For requests without tools.
    pub default: Option<Template>,
    /// For requests with tools, where it is another one.
    pub tool_use: Option<Template>,
}

impl Templates {
    fn choose(&self, has_tools: bool) -> Option<&Template> {
        self.tool_use.as_ref().filter(|_| has_tools).or(self.default.as_ref())
    }
}

/// How to render: what does not change from request to request.
#[derive(Debug)]
pub struct Setup {
    /// The engine's behaviour.
    pub profile: Profile,
    /// The templates.
    pub templates: Templates,
    /// `--chat-template-content-format`, unless auto.
    pub forced_format: Option<ContentFormat>,
    /// `--default-chat-template-kwargs`
    pub default_kwargs: Vec<(Text, Json)>,
    /// Special tokens, by the names under which templates see them.
    pub special_tokens: Vec<(Text, Text)>,
    /// The engine host's offset from UTC.
    pub utc_offset_minutes: i32,
}

impl Setup {
    /// Renders a conversation of a body of so many bytes.
    pub fn render(&self, chat: &Chat, now_unix_seconds: u64, body_bytes: usize) -> Result<Rendered, NoKeyReason> {
        if chat.messages.is_empty() {
            return Err(bad("messages: empty"));
        }
        let kwargs = Kwargs::merged(self, chat)?;
        let tools = match kwargs.get("tools").cloned().or_else(|| chat.tools.clone().map(Json::seq)) {
            None | Some(Json::Null) => None,
            Some(tools @ Json::Seq(_)) => Some(tools),
            Some(other) => return Err(bad(format!("chat_template_kwargs: tools is {}", other.type_name()))),
        };
        let Some(template) = self.templates.choose(tools.is_some()) else {
            return Err(unsupported("the model has no chat template"));
        };
        let detected = match self.profile.format_through_macros {
            true => template.facts().content_format,
            false => template.facts().format_without_macros,
        };
        let format = self.forced_format.unwrap_or(detected);
        let mut conversation = message::conversation(&chat.messages, chat.as_built, format, &self.profile)?;
        if self.profile.converts_developer && !template.facts().knows_developer {
            conversation.messages = without_developer(conversation.messages);
            conversation.with_media = conversation.with_media.map(without_developer);
        }
        let clock = Clock { unix_seconds: now_unix_seconds, offset_minutes: self.utc_offset_minutes };
        let render = |messages: Vec<Json>| self.apply(template, messages, tools.as_ref(), &kwargs, (clock, body_bytes));
        let has_media = conversation.messages.iter().any(mentions_media);
        let text = render(conversation.messages)?;
        if !has_media {
            return Ok(Rendered { text, open_ended: false });
        }
        let mut end = text.find(MEDIA).ok_or_else(|| unsupported("the template drops media parts"))?;
        if let Some(messages) = conversation.with_media {
            // The template decides what stands around a part: only what both renders begin with is certain.
            let real = render(messages)?;
            end = end.min(common_prefix(&text, &real));
        }
        Ok(Rendered { text: text.get(..end).unwrap_or_default().to_owned(), open_ended: true })
    }

    /// transformers' `apply_chat_template`.
    fn apply(
        &self,
        template: &Template,
        messages: Vec<Json>,
        tools: Option<&Json>,
        kwargs: &Kwargs,
        (clock, body_bytes): (Clock, usize),
    ) -> Result<String, NoKeyReason> {
        let add_generation_prompt = kwargs.get("add_generation_prompt").cloned().unwrap_or(Json::Bool(false));
        let continued = kwargs.get("continue_final_message").is_some_and(Json::is_truthy);
        if continued && add_generation_prompt.is_truthy() {
            return Err(bad("continue_final_message and add_generation_prompt are both set"));
        }
        if kwargs.get("continue_final_message").is_some_and(|value| value.as_str().is_some()) {
            return Err(unsupported("continue_final_message names a field"));
        }
        let mut messages = transformed(messages, &self.profile);
        let continued = if continued { Some(continue_final(&mut messages)?) } else { None };
        let items = messages.len() + tools.and_then(Json::as_seq).map_or(0, <[Json]>::len);
        let mut variables = Variables::new(items);
        variables.expect_text(body_bytes);
        for (name, token) in &self.special_tokens {
            variables.set(name.as_str(), token.to_value());
        }
        for (name, value) in kwargs.variables() {
            variables.set(name, value.to_value());
        }
        let or_none = |value: Option<&Json>| value.unwrap_or(&Json::Null).to_value();
        variables.set("documents", or_none(kwargs.get("documents")));
        variables.set("tools", or_none(tools));
        variables.set("messages", Json::seq(messages).to_value());
        variables.set("add_generation_prompt", add_generation_prompt.to_value());
        let text = template.render(variables, clock).map_err(|error| NoKeyReason::new(NoKey::TemplateError, error))?;
        match continued {
            Some(last) => cut_after(text, &last),
            None => Ok(text),
        }
    }
}

/// What newer releases of transformers do to messages before they render them.
fn transformed(messages: Vec<Json>, profile: &Profile) -> Vec<Json> {
    if !profile.aliases_reasoning && !profile.drops_null_fields {
        return messages;
    }
    let one = |message: Json| match message.as_map() {
        Some(map) => with_reasoning(map, profile.drops_null_fields),
        None => message,
    };
    messages.into_iter().map(one).collect()
}

/// A message with its reasoning under the names that templates read: `thinking` first, `reasoning_content` in its
/// place or last.
fn with_reasoning(map: &JsonMap, drop_nulls: bool) -> Json {
    let mut entries: Vec<(Text, Json)> = Vec::new();
    for (key, value) in map.iter().filter(|(_, value)| !(drop_nulls && value.is_null())) {
        entries.push((key.clone(), value.clone()));
    }
    let reasoning = ["reasoning_content", "thinking", "reasoning"].into_iter().find_map(|name| map.get_some(name));
    if let Some(reasoning) = reasoning {
        match entries.iter_mut().find(|(key, _)| key.as_str() == "reasoning_content") {
            Some((_, old)) => *old = reasoning.clone(),
            None => entries.push((Text::from("reasoning_content"), reasoning.clone())),
        }
        if let Some(at) = entries.iter().position(|(key, _)| key.as_str() == "thinking") {
            let thinking = entries.remove(at);
            entries.insert(0, thinking);
        } else {
            entries.insert(0, (Text::from("thinking"), reasoning.clone()));
        }
    }
    Json::map(entries)
}

/// Arguments of `apply_chat_template` that change how the tokenizer is called; with the text they have nothing
/// to do, since the engine tokenizes by itself.
const WITHOUT_EFFECT: [&str; 8] = [
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "tokenizer_kwargs",
    "tokenize",
    "chat_template",
];

/// Its other arguments, which are no variables of the template.
const ARGUMENTS: [&str; 5] =
    ["continue_final_message", "documents", "add_generation_prompt", "tools", "return_assistant_tokens_mask"];

/// The merged template arguments.
struct Kwargs(JsonMap);

impl Kwargs {
    fn merged(setup: &Setup, chat: &Chat) -> Result<Kwargs, NoKeyReason> {
        let named = |name: &str| chat.kwargs.iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value);
        if named("chat_template").is_some_and(|value| !value.is_null()) {
            return Err(bad("chat_template_kwargs: chat_template"));
        }
        if named("tokenize").is_some() && setup.profile.refuses_tokenize_kwarg {
            return Err(bad("chat_template_kwargs: tokenize"));
        }
        let mut out = JsonMap::default();
        for (key, value) in &setup.default_kwargs {
            out.insert(key.clone(), value.clone());
        }
        let given = |value: &Json| !value.is_null() && value.as_str() != Some("auto");
        for (key, value) in chat.kwargs.iter().chain(&chat.fields).filter(|(_, value)| given(value)) {
            out.insert(key.clone(), value.clone());
        }
        for name in ["messages", "conversation"] {
            if out.contains(name) {
                return Err(bad(format!("chat_template_kwargs: {name}")));
            }
        }
        if out.get("return_assistant_tokens_mask").is_some_and(Json::is_truthy) {
            return Err(unsupported("chat_template_kwargs: return_assistant_tokens_mask"));
        }
        Ok(Kwargs(out))
    }

    fn get(&self, name: &str) -> Option<&Json> {
        self.0.get(name)
    }

    fn variables(&self) -> impl Iterator<Item = (&str, &Json)> {
        let all = self.0.iter().map(|(key, value)| (key.as_str(), value));
        all.filter(|(key, _)| !ARGUMENTS.contains(key) && !WITHOUT_EFFECT.contains(key))
    }
}

fn without_developer(messages: Vec<Json>) -> Vec<Json> {
    let any = messages.iter().any(|message| field(message, "role") == Some("developer"));
    if any { merge_systems(messages) } else { messages }
}

fn field<'a>(message: &'a Json, name: &str) -> Option<&'a str> {
    message.as_map()?.get(name)?.as_str()
}

/// vLLM's answer to a template that does not know developer messages: they become system messages, and all
/// system messages one, in front.
fn merge_systems(messages: Vec<Json>) -> Vec<Json> {
    let converted: Vec<Json> = messages
        .into_iter()
        .map(|message| match (field(&message, "role"), message.as_map()) {
            (Some("developer"), Some(map)) => {
                let entries = map.iter().filter(|(key, _)| key.as_str() != "tools");
                let renamed = entries.map(|(key, value)| match key.as_str() {
                    "role" => (key.clone(), Json::str("system")),
                    _ => (key.clone(), value.clone()),
                });
                Json::map(renamed.collect())
            }
            _ => message,
        })
        .collect();
    let is_system = |message: &Json| field(message, "role") == Some("system");
    let systems: Vec<usize> = converted.iter().enumerate().filter(|(_, m)| is_system(m)).map(|(at, _)| at).collect();
    if matches!(systems.as_slice(), [] | [0]) {
        return converted;
    }
    let mut texts = Vec::new();
    for message in converted.iter().filter(|message| is_system(message)) {
        let text = match message.as_map().and_then(|map| map.get("content")) {
            Some(Json::Str(text)) => text.as_str().to_owned(),
            Some(Json::Seq(parts)) => parts.0.iter().filter_map(part_text).collect::<Vec<&str>>().join("\n"),
            _ => String::new(),
        };
        if !text.is_empty() {
            texts.push(text);
        }
    }
    let merged = Json::map(vec![
        (Text::from("role"), Json::str("system")),
        (Text::from("content"), Json::str(texts.join("\n\n"))),
    ]);
    let rest = converted.into_iter().filter(|message| !is_system(message));
    std::iter::once(merged).chain(rest).collect()
}

fn part_text(part: &Json) -> Option<&str> {
    part.as_str().or_else(|| field(part, "text"))
}

fn mentions_media(message: &Json) -> bool {
    let content = message.as_map().and_then(|map| map.get("content"));
    match content {
        Some(Json::Str(text)) => text.as_str().contains(MEDIA),
        Some(Json::Seq(parts)) => parts.0.iter().filter_map(part_text).any(|text| text.contains(MEDIA)),
        _ => false,
    }
}

fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|at| a.is_char_boundary(*at)).unwrap_or(0)
}

/// What transformers appends to the last text to find it again; with the blank.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Appends the tag to the last message's text and returns the text.
fn continue_final(messages: &mut [Json]) -> Result<String, NoKeyReason> {
    let nothing = || bad("continue_final_message: the final message has no text to continue");
    let last = messages.last_mut().ok_or_else(nothing)?;
    let map = last.as_map().ok_or_else(nothing)?;
    let (text, content) = match map.get("content") {
        Some(Json::Str(text)) => (text.as_str().to_owned(), Json::str(format!("{}{TAG}", text.as_str()))),
        Some(Json::Seq(parts)) => {
            let at = parts.0.iter().rposition(|part| field(part, "text").is_some()).ok_or_else(nothing)?;
            let text = parts.0.get(at).and_then(|part| field(part, "text")).ok_or_else(nothing)?.to_owned();
            let tagged = parts.0.iter().enumerate().map(|(place, part)| match part.as_map() {
                Some(map) if place == at => with_field(map.iter(), "text", Json::str(format!("{text}{TAG}"))),
                _ => part.clone(),
            });
            (text.clone(), Json::seq(tagged.collect()))
        }
        _ => return Err(nothing()),
    };
    *last = with_field(map.iter(), "content", content);
    Ok(text)
}

fn with_field<'a>(entries: impl Iterator<Item = (&'a Text, &'a Json)>, name: &str, value: Json) -> Json {
    let replaced = entries.map(|(key, old)| match key.as_str() == name {
        true => (key.clone(), value.clone()),
        false => (key.clone(), old.clone()),
    });
    Json::map(replaced.collect())
}

/// Cuts the rendered text after the final message.
fn cut_after(text: String, last: &str) -> Result<String, NoKeyReason> {
    let tag = TAG.trim_end();
    let at = text.rfind(tag).filter(|_| text.contains(strip(last)));
    let Some(at) = at else {
        return Err(bad("continue_final_message: the template changes the final message"));
    };
    let (before, tail) = text.split_at_checked(at).unwrap_or((&text, ""));
    Ok(if tail.starts_with(TAG) { before } else { rstrip(before) }.to_owned())
}
