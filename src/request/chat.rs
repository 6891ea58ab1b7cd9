//! A conversation to prompt text: template, content format, template arguments, developer messages, media.
//!
//! Every API that carries messages ends here; see [`Chat`].

use super::apply::{Applying, Call};
use super::field::{bad, unsupported};
use super::json::{Json, JsonMap, Text};
use super::message::{self, MEDIA};
use super::profile::Profile;
use crate::nokey::NoKeyReason;
use crate::template::{ContentFormat, Template};

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
    /// The call of transformers.
    pub applying: Applying,
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
        let (tools, kwargs) = (tools.as_ref(), &kwargs.0);
        let render = |messages: Vec<Json>| {
            let call = Call { template, messages, tools, kwargs, now_unix_seconds, body_bytes };
            self.applying.apply(call).map_err(NoKeyReason::from)
        };
        let text = render(conversation.messages)?;
        if !conversation.has_media {
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
}

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

fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    (0..=same).rev().find(|at| a.is_char_boundary(*at)).unwrap_or(0)
}
