//! transformers' `apply_chat_template`: messages, tools and arguments to text. Every engine ends here.

use super::field::{bad, unsupported};
use super::json::{Json, JsonMap, Text};
use super::profile::Transformers;
use super::{Prepared, PromptInput};
use crate::nokey::{NoKey, NoKeyReason};
use crate::template::text::{rstrip, strip};
use crate::template::{Clock, RenderError, Template, Variables};

/// What does not change from request to request.
#[derive(Debug)]
pub struct Applying {
    /// Special tokens, by the names under which templates see them.
    pub special_tokens: Vec<(Text, Text)>,
    /// The engine host's offset from UTC.
    pub utc_offset_minutes: i32,
    /// What its version does.
    pub transformers: Transformers,
}

/// One call.
#[derive(Debug)]
pub struct Call<'a> {
    /// The template.
    pub template: &'a Template,
    /// The messages.
    pub messages: Vec<Json>,
    /// The tools, an array.
    pub tools: Option<&'a Json>,
    /// The other arguments, by name.
    pub kwargs: &'a JsonMap,
    /// The wall clock.
    pub now_unix_seconds: u64,
    /// About how long the text will be.
    pub body_bytes: usize,
}

/// Why there is no text.
#[derive(Debug)]
pub enum ApplyError {
    /// The arguments.
    Refused(NoKeyReason),
    /// The template.
    Render(RenderError),
}

impl From<NoKeyReason> for ApplyError {
    fn from(reason: NoKeyReason) -> Self {
        ApplyError::Refused(reason)
    }
}

impl From<ApplyError> for NoKeyReason {
    fn from(error: ApplyError) -> Self {
        match error {
            ApplyError::Refused(reason) => reason,
            ApplyError::Render(error) => NoKeyReason::new(NoKey::TemplateError, error.text),
        }
    }
}

impl Applying {
    /// See the module.
    pub fn apply(&self, call: Call<'_>) -> Result<String, ApplyError> {
        let Call { template, messages, tools, kwargs, now_unix_seconds, body_bytes } = call;
        let add_generation_prompt = kwargs.get("add_generation_prompt").cloned().unwrap_or(Json::Bool(false));
        let continued = kwargs.get("continue_final_message").is_some_and(Json::is_truthy);
        if continued && add_generation_prompt.is_truthy() {
            return Err(bad("continue_final_message and add_generation_prompt are both set").into());
        }
        if kwargs.get("continue_final_message").is_some_and(|value| value.as_str().is_some()) {
            return Err(unsupported("continue_final_message names a field").into());
        }
        let mut messages = transformed(messages, self.transformers);
        let continued = if continued { Some(continue_final(&mut messages)?) } else { None };
        let items = messages.len() + tools.and_then(Json::as_seq).map_or(0, <[Json]>::len);
        let mut variables = Variables::new(items);
        variables.expect_text(body_bytes);
        for (name, token) in &self.special_tokens {
            variables.set(name.as_str(), token.to_value());
        }
        for (name, value) in kwargs.iter().filter(|(name, _)| is_variable(name.as_str())) {
            variables.set(name.as_str(), value.to_value());
        }
        let or_none = |value: Option<&Json>| value.unwrap_or(&Json::Null).to_value();
        variables.set("documents", or_none(kwargs.get("documents")));
        variables.set("tools", or_none(tools));
        variables.set("messages", Json::seq(messages).to_value());
        variables.set("add_generation_prompt", add_generation_prompt.to_value());
        let clock = Clock { unix_seconds: now_unix_seconds, offset_minutes: self.utc_offset_minutes };
        let text = template.render(variables, clock).map_err(ApplyError::Render)?;
        match continued {
            Some(last) => Ok(cut_after(text, &last)?),
            None => Ok(text),
        }
    }

    /// The BOS token as text.
    pub fn bos(&self) -> Option<&str> {
        let bos = self.special_tokens.iter().find(|(name, _)| name.as_str() == "bos_token");
        bos.map(|(_, token)| token.as_str()).filter(|token| !token.is_empty())
    }

    /// Where a text gets special tokens, puts the BOS token in front itself, or leaves it out, whatever tokenizer.json
    /// says. `None`: as tokenizer.json says.
    pub fn with_bos(&self, mut prepared: Prepared, add: Option<bool>) -> Result<Prepared, NoKeyReason> {
        let (Some(add), PromptInput::Text(text), true) = (add, &mut prepared.input, prepared.add_special_tokens) else {
            return Ok(prepared);
        };
        if prepared.truncate.is_some() {
            return Err(unsupported("add_bos_token: with truncation"));
        }
        if add {
            let bos = self.bos().ok_or_else(|| unsupported("add_bos_token: the tokenizer has no bos_token"))?;
            prepared.input = PromptInput::Pieces(vec![bos.to_owned(), std::mem::take(text)]);
        }
        prepared.add_special_tokens = false;
        Ok(prepared)
    }
}

/// What newer releases of transformers do to messages before they render them.
fn transformed(messages: Vec<Json>, transformers: Transformers) -> Vec<Json> {
    if !transformers.aliases_reasoning && !transformers.drops_null_fields {
        return messages;
    }
    let one = |message: Json| match message.as_map() {
        Some(map) => with_reasoning(map, transformers.drops_null_fields),
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

fn is_variable(name: &str) -> bool {
    !ARGUMENTS.contains(&name) && !WITHOUT_EFFECT.contains(&name)
}

fn field<'a>(message: &'a Json, name: &str) -> Option<&'a str> {
    message.as_map()?.get(name)?.as_str()
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
