//! SGLang 0.5.20 to 0.5.23: what its OpenAI server does between the HTTP body and the ids (entrypoints/openai/serving_chat.py,
//! serving_completions.py).
//!
//! In: a body. Out: the text of the chat template, or ids. It differs from vLLM in nearly everything: the classes of
//! messages and tools, how parts are joined, the template arguments, the last message of the assistant. Never a guess:
//! what was not compared with the engine's own code (models that take images, its own encoders, `/v1/messages`,
//! `/v1/responses`) has no key, or is refused with the model.

mod arguments;
mod messages;
mod models;
mod numbers;
mod schema;
mod tools;

use super::apply::{ApplyError, Applying, Call};
use super::field::{as_int, bad, bool_field, optional_bool, optional_int, unsupported};
use super::json::{Json, JsonMap, Text, budget};
use super::profile::{Transformers, Version, read};
use super::{Api, EngineFlags, Prepared, PromptInput, completions};
use crate::nokey::NoKeyReason;
use crate::template::{ContentFormat, Template, TemplateSource};

/// Versions whose prompts were compared with what the engine's own code makes of the same requests.
pub const PROVEN_SGLANG: [Version; 3] = [Version(0, 5, 20), Version(0, 5, 22), Version(0, 5, 23)];

/// What changes from one release to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules {
    /// Tools keep the client's order of keys, and have `strict` where the client says so (from 0.5.23); before, the
    /// order is the class's and `strict` is always there.
    tools_as_sent: bool,
    /// Messages have `prefix` (from 0.5.23).
    knows_prefix: bool,
    /// `/tokenize` may be told how the prompt ends (from 0.5.23).
    tokenizes_endings: bool,
    /// `chat_template` in the template arguments is refused unless the engine trusts it (from 0.5.21 or 0.5.22).
    asks_for_trust: bool,
}

impl Rules {
    fn of(version: Version) -> Rules {
        let from = |patch: u32| version >= Version(0, 5, patch);
        Rules { tools_as_sent: from(23), knows_prefix: from(23), tokenizes_endings: from(23), asks_for_trust: from(22) }
    }
}

/// Renders the requests of one model.
#[derive(Debug)]
pub struct Sglang {
    rules: Rules,
    template: Option<Template>,
    format: ContentFormat,
    default_kwargs: Vec<(Text, Json)>,
    applying: Applying,
    trusts_template: bool,
    adds_bos: Option<bool>,
    /// The template reads `low_effort`, which the engine sets for the effort low.
    low_effort: bool,
    context_length: Option<u64>,
}

impl Sglang {
    /// Compiles the template of `source` for an engine with these `flags`. An error says what cannot be followed.
    pub fn new(mut source: TemplateSource, flags: &EngineFlags) -> Result<(Sglang, Vec<String>), String> {
        let (version, mut warnings) = proven(flags)?;
        let rules = Rules::of(version);
        let (transformers, warning) = Transformers::of(flags)?;
        warnings.extend(warning);
        models::without_vllms(flags)?;
        if let Some(overrides) = &flags.hf_overrides {
            source.override_config(overrides)?;
        }
        let chosen = models::template(source.chat_template.as_ref(), flags.chat_template.as_deref())?;
        models::followed(&source, flags, chosen.as_ref().map(|chosen| chosen.detected.as_str()))?;
        let compile = |source: &str| Template::compile(source).map_err(|error| format!("chat template: {error}"));
        let template = chosen.as_ref().map(|chosen| compile(&chosen.rendered)).transpose()?;
        if let Some(template) = &template {
            warnings.extend(template.facts().time_warning());
        }
        if flags.utc_offset_minutes.abs() > 14 * 60 {
            return Err("utc_offset_minutes: more than 14 hours".to_owned());
        }
        let default_kwargs = flags.default_kwargs()?;
        if default_kwargs.iter().any(|(name, _)| name.as_str() == "chat_template") {
            return Err("default_chat_template_kwargs: chat_template; give it as chat_template".to_owned());
        }
        let detected = chosen.as_ref().map(|chosen| chosen.detected.as_str()).unwrap_or_default();
        let special = source.special_tokens.iter();
        let engine = Sglang {
            rules,
            format: ContentFormat::of_sglang(detected),
            low_effort: detected.contains("low_effort") && detected.contains("truncate_history_thinking"),
            template,
            default_kwargs,
            applying: Applying {
                special_tokens: special.map(|(name, token)| (name.as_str().into(), token.as_str().into())).collect(),
                utc_offset_minutes: flags.utc_offset_minutes,
                transformers,
            },
            adds_bos: models::adds_bos(&source, flags),
            trusts_template: flags.trust_request_chat_template || !rules.asks_for_trust,
            context_length: flags.max_model_len.or(source.max_model_len),
        };
        Ok((engine, warnings))
    }

    /// The prompt that the engine would tokenize for this request.
    pub fn prepare(&self, api: Api, body: &JsonMap, now_unix_seconds: u64) -> Result<Prepared, NoKeyReason> {
        let apart = ["extra_key", "lora_path", "session_params"];
        if let Some(name) = apart.iter().find(|name| api != Api::Tokenize && body.get_some(name).is_some()) {
            return Err(unsupported(format!("{name}: SGLang keeps these prompts apart")));
        }
        match api {
            Api::ChatCompletions => {
                let input = self.chat(body, now_unix_seconds, Form::Chat)?;
                self.prepared(body, input, false)
            }
            Api::Completions => {
                let input = completions::prompt(body)?;
                self.prepared(body, input, true)
            }
            Api::Messages | Api::Responses => Err(unsupported("sglang: only chat completions and completions")),
            Api::Tokenize if body.get_some("messages").is_some() => {
                let opens = optional_bool(body, "add_generation_prompt")?.filter(|_| self.rules.tokenizes_endings);
                let input = self.chat(body, now_unix_seconds, Form::Tokenize(opens))?;
                let special = opens.is_some() && body.contains("add_special_tokens");
                let special = special && bool_field(body, "add_special_tokens", false)?;
                self.prepared(body, input, special)
            }
            Api::Tokenize => {
                let prompt = body.get("prompt").and_then(Json::as_str).ok_or_else(|| bad("prompt: no string"))?;
                let special = bool_field(body, "add_special_tokens", true)?;
                self.prepared(body, PromptInput::Text(prompt.to_owned()), special)
            }
        }
    }

    fn chat(&self, body: &JsonMap, now: u64, form: Form) -> Result<PromptInput, NoKeyReason> {
        let list = body.get("messages").and_then(Json::as_seq).ok_or_else(|| bad("messages: not an array"))?;
        if list.is_empty() {
            return Err(bad("messages: empty"));
        }
        let mut messages = messages::messages(list, self.format, self.rules)?;
        let tools = tools::chosen(body, &messages, self.rules)?;
        let mut kwargs = arguments::of(body, &self.default_kwargs, self.trusts_template, form == Form::Chat)?;
        if let Some(ids) = body.get_some("input_ids") {
            return input_ids(ids).map(PromptInput::Ids);
        }
        if self.low_effort && kwargs.get("reasoning_effort").and_then(Json::as_str) == Some("low") {
            return Err(unsupported("reasoning_effort: low, with a template that reads low_effort"));
        }
        let continued = bool_field(body, "continue_final_message", false)?;
        let (opens, as_given) = match form {
            Form::Tokenize(Some(opens)) => (opens, true),
            _ => (true, false),
        };
        if continued && !opens {
            return Err(bad("continue_final_message: without add_generation_prompt"));
        }
        let prefix = if as_given && !continued { None } else { last_assistant(&mut messages, continued) };
        if messages.is_empty() {
            return Err(bad("continue_final_message: no message before"));
        }
        kwargs.insert(Text::from("add_generation_prompt"), Json::Bool(opens));
        let text = self.render(messages, tools, &kwargs, now)?;
        match prefix.filter(|prefix| !prefix.is_empty()) {
            None => Ok(PromptInput::Text(text)),
            // The engine takes a BOS token from the front of it, whoever put it there.
            Some(prefix) if self.applying.bos().is_some_and(|bos| prefix.starts_with(bos)) => {
                Err(unsupported("continue_final_message: the text begins with the BOS token"))
            }
            Some(prefix) => Ok(PromptInput::Pieces(vec![text, prefix])),
        }
    }

    fn render(
        &self,
        messages: Vec<Json>,
        tools: Option<Vec<Json>>,
        kwargs: &JsonMap,
        now_unix_seconds: u64,
    ) -> Result<String, NoKeyReason> {
        let template = self.template.as_ref().ok_or_else(|| bad("the model has no chat template"))?;
        let apply = |messages, tools: Option<&Json>| {
            let body_bytes = budget::body_bytes();
            self.applying.apply(Call { template, messages, tools, kwargs, now_unix_seconds, body_bytes })
        };
        let Some(tools) = tools else {
            return Ok(apply(messages, None)?);
        };
        let tools = Json::seq(tools);
        match apply(messages.clone(), Some(&tools)) {
            Ok(text) => Ok(text),
            // The engine tries again with the functions alone.
            Err(ApplyError::Render(error)) if error.raised => {
                let flat = tools::flat(tools.as_seq().unwrap_or_default());
                Ok(apply(messages, Some(&Json::seq(flat)))?)
            }
            Err(ApplyError::Render(error)) => Err(unsupported(format!("tools: the template fails: {}", error.text))),
            Err(refused) => Err(refused.into()),
        }
    }

    fn prepared(&self, body: &JsonMap, input: PromptInput, special: bool) -> Result<Prepared, NoKeyReason> {
        let output = |name| -> Result<Option<u64>, NoKeyReason> {
            Ok(optional_int(body, name)?.and_then(|tokens| u64::try_from(tokens).ok()))
        };
        let output = output("max_completion_tokens")?.filter(|tokens| *tokens > 0).or(output("max_tokens")?);
        let cache_salt = match body.get_some("cache_salt") {
            None => None,
            Some(Json::Str(salt)) => Some(salt.as_str().to_owned()).filter(|salt| !salt.is_empty()),
            Some(_) => return Err(unsupported("cache_salt: one for each prompt")),
        };
        let longest = self.context_length.map(|length| {
            let room = length.saturating_sub(output.unwrap_or(0));
            room.min(length.saturating_sub(1))
        });
        let prepared = Prepared {
            input,
            add_special_tokens: special,
            truncate: None,
            cache_salt,
            open_ended: false,
            max_output_tokens: output,
            stream: optional_bool(body, "stream")?.unwrap_or(false),
            max_prompt_tokens: longest,
        };
        self.applying.with_bos(prepared, self.adds_bos)
    }
}

/// Where a chat comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `/v1/chat/completions`
    Chat,
    /// `/tokenize`, which may be told how the prompt ends: then messages stay what they are.
    Tokenize(Option<bool>),
}

/// A last message of the assistant with a text: it is taken off and returned to be continued, or else becomes one of
/// the user.
fn last_assistant(messages: &mut Vec<Json>, continued: bool) -> Option<String> {
    let last = messages.last_mut()?;
    let map = last.as_map()?;
    if map.get("role").and_then(Json::as_str) != Some("assistant") {
        return None;
    }
    let text = map.get("content")?.as_str()?.to_owned();
    if continued {
        messages.pop();
        return Some(text);
    }
    *last = Json::map(vec![(Text::from("role"), Json::str("user")), (Text::from("content"), Json::str(text))]);
    None
}

/// Ids that replace the prompt.
fn input_ids(ids: &Json) -> Result<Vec<u32>, NoKeyReason> {
    let wrong = || bad("input_ids: no list of token ids");
    let ids = ids.as_seq().filter(|ids| !ids.is_empty()).ok_or_else(wrong)?;
    ids.iter().map(|id| as_int(id).and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong)).collect()
}

/// The version, with a warning where it was not compared.
fn proven(flags: &EngineFlags) -> Result<(Version, Vec<String>), String> {
    let version = read("version", &flags.version)?;
    if version < Version(0, 5, 20) || version >= Version(0, 6, 0) {
        return Err(format!(
            "version: sglang {version} is none that kvroute follows (0.5.20 and later ones of 0.5); set enabled to \
             false for this model"
        ));
    }
    let list: Vec<String> = PROVEN_SGLANG.iter().map(Version::to_string).collect();
    let list = list.join(", ");
    let warning = format!("sglang {version} was not compared with recorded prompts (proven: {list})");
    Ok((version, if PROVEN_SGLANG.contains(&version) { Vec::new() } else { vec![warning] }))
}
