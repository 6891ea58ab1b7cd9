//! vLLM: its Python front end, from 0.22 to 0.33.

use super::apply::Applying;
use super::chat::{Chat, Setup, Templates};
use super::chat_completions::effort_fields;
use super::field::{bad, optional_map, optional_str, unsupported};
use super::json::{Json, JsonMap, Text, budget};
use super::limits::{Limits, reused_ids};
use super::message::has_media;
use super::messages::{self, Habits};
use super::profile::{InlineSystem, Profile, Transformers};
use super::{Api, EngineFlags, Prepared, PromptInput, chat_completions, completions, harmony, responses};
use crate::nokey::NoKeyReason;
use crate::template::{ChatTemplates, Clock, ContentFormat, Template, TemplateSource, own_renderer};

/// Renders the requests of one model.
#[derive(Debug)]
pub struct Vllm {
    setup: Setup,
    flags: EngineFlags,
    habits: Habits,
    is_harmony: bool,
    max_model_len: Option<u64>,
}

impl Vllm {
    /// Compiles the templates of `source` for an engine with these `flags`. An error says what the engine or the
    /// template needs that cannot be rendered exactly here.
    pub fn new(mut source: TemplateSource, flags: &EngineFlags) -> Result<(Vllm, Vec<String>), String> {
        let (profile, mut warnings) = Profile::of(flags)?;
        let (transformers, warning) = Transformers::of(flags)?;
        warnings.extend(warning);
        if !matches!(flags.tokenizer_mode.as_str(), "auto" | "hf" | "slow") {
            return Err(format!("tokenizer_mode: \"{}\" renders without a chat template", flags.tokenizer_mode));
        }
        if let Some(overrides) = &flags.hf_overrides {
            source.override_config(overrides)?;
        }
        if let Some((architecture, name)) = source.architectures.iter().find_map(|a| Some((a, own_renderer(a)?))) {
            return Err(format!("architectures: the engine renders {name} ({architecture}) by code of its own"));
        }
        if let Some(tokenizer) = flags.tokenizer.as_deref()
            && source.tokenizer.as_deref().map(last_part) != Some(last_part(tokenizer))
        {
            let packed = source.tokenizer.as_deref().unwrap_or("the model's own");
            return Err(format!(
                "tokenizer: \"{tokenizer}\" is not the pack's ({packed}); pack the model with --tokenizer"
            ));
        }
        let templates = compile(source.chat_template.as_ref(), flags.chat_template.as_deref())?;
        for template in [&templates.default, &templates.tool_use].into_iter().flatten() {
            warnings.extend(template.facts().time_warning());
        }
        let forced_format = match flags.chat_template_content_format.as_str() {
            "auto" => None,
            "string" => Some(ContentFormat::String),
            "openai" => Some(ContentFormat::OpenAi),
            other => return Err(format!("chat_template_content_format: \"{other}\" is none of auto, string, openai")),
        };
        if flags.utc_offset_minutes.abs() > 14 * 60 {
            return Err("utc_offset_minutes: more than 14 hours".to_owned());
        }
        let special = source.special_tokens.iter();
        let setup = Setup {
            profile,
            templates,
            forced_format,
            default_kwargs: flags.default_kwargs()?,
            applying: Applying {
                special_tokens: special.map(|(name, token)| (name.as_str().into(), token.as_str().into())).collect(),
                utc_offset_minutes: flags.utc_offset_minutes,
                transformers,
            },
        };
        let max_model_len = flags.max_model_len.or(source.max_model_len);
        let is_harmony = source.model_type.as_deref() == Some("gpt_oss");
        let mut habits = habits(&setup, flags);
        let mut flags = flags.clone();
        if is_harmony {
            warnings.push("harmony prints the date: all keys change at the engine's midnight".to_owned());
            // Its parser is always there, and it refuses the effort "none".
            flags.tool_call_parser.get_or_insert_with(|| "openai".to_owned());
            habits.merges_inline_system = profile.inline_system != InlineSystem::Refused;
            if flags.anthropic_disabled_thinking_effort.as_deref().unwrap_or("auto") == "auto" {
                habits.disabled_effort = profile.maps_disabled_thinking.then(|| "low".to_owned());
            }
        }
        Ok((Vllm { setup, flags, habits, is_harmony, max_model_len }, warnings))
    }

    /// Whether chats are rendered by code (gpt-oss), not by a template.
    pub fn is_harmony(&self) -> bool {
        self.is_harmony
    }

    /// The prompt that the engine would tokenize for this request. `now_unix_seconds` is the wall clock, for
    /// templates that print the date.
    pub fn prepare(&self, api: Api, body: &JsonMap, now_unix_seconds: u64) -> Result<Prepared, NoKeyReason> {
        let prepared = self.rendered(api, body, now_unix_seconds)?;
        self.setup.applying.with_bos(prepared, self.flags.add_bos_token)
    }

    fn rendered(&self, api: Api, body: &JsonMap, now_unix_seconds: u64) -> Result<Prepared, NoKeyReason> {
        let profile = &self.setup.profile;
        match api {
            Api::ChatCompletions | Api::Messages | Api::Responses if self.is_harmony => {
                self.harmony(api, body, now_unix_seconds)
            }
            Api::Completions => {
                let limits = Limits::of(body, true, profile, self.max_model_len)?;
                limits.prepared(completions::read(body)?, false)
            }
            Api::ChatCompletions => {
                let limits = Limits::of(body, false, profile, self.max_model_len)?;
                let chat = chat_completions::read(body, profile, &self.flags)?;
                self.finish(body, limits, &chat, now_unix_seconds)
            }
            Api::Messages => {
                let limits = Limits::messages(body, profile, self.max_model_len)?;
                let chat = messages::read(body, profile, &self.flags, &self.habits)?;
                self.finish(body, limits, &chat, now_unix_seconds)
            }
            Api::Responses => {
                let limits = Limits::responses(body, profile, self.max_model_len)?;
                let chat = responses::read(body, profile, &self.flags)?;
                self.finish(body, limits, &chat, now_unix_seconds)
            }
            // Rendered by the template in any case: gpt-oss has other prompts over its real APIs.
            Api::Tokenize if body.contains("messages") => {
                let limits = Limits::tokenize(body, false)?;
                let chat = chat_completions::read_tokenize(body, profile, &self.flags)?;
                let rendered = self.setup.render(&chat, now_unix_seconds, budget::body_bytes())?;
                limits.prepared(PromptInput::Text(rendered.text), rendered.open_ended)
            }
            Api::Tokenize => {
                let prompt = body.get("prompt").and_then(Json::as_str).filter(|prompt| !prompt.is_empty());
                let prompt = prompt.ok_or_else(|| bad("prompt: missing, empty or no string"))?;
                Limits::tokenize(body, true)?.prepared(PromptInput::Text(prompt.to_owned()), false)
            }
        }
    }

    fn follows_calls(&self, calls: usize) -> Result<(), NoKeyReason> {
        match calls > 0 && !self.setup.profile.harmony_calls {
            true => Err(unsupported("gpt-oss: tool calls, with vLLM below 0.31")),
            false => Ok(()),
        }
    }

    fn harmony_date(&self, now: u64) -> String {
        let clock = Clock { unix_seconds: now, offset_minutes: self.flags.utc_offset_minutes };
        clock.local().format("%Y-%m-%d").unwrap_or_default()
    }

    /// gpt-oss. Truncation, continuation and template arguments have no effect over chat and messages.
    fn harmony(&self, api: Api, body: &JsonMap, now: u64) -> Result<Prepared, NoKeyReason> {
        let profile = &self.setup.profile;
        if !profile.harmony_conversations {
            return Err(unsupported("gpt-oss: with vLLM below 0.25"));
        }
        let date = self.harmony_date(now);
        let effort = |name: &str| optional_map(body, "reasoning")?.map_or(Ok(None), |map| optional_str(map, name));
        let (mut limits, input) = match api {
            Api::Responses => {
                responses::stateless(body)?;
                let limits = Limits::responses(body, profile, self.max_model_len)?;
                let calls =
                    body.get("input").and_then(Json::as_seq).unwrap_or_default().iter().filter_map(Json::as_map);
                let calls = calls.filter(|item| item.get("type").and_then(Json::as_str) == Some("function_call"));
                self.follows_calls(calls.count())?;
                (limits, harmony::responses(body, effort("effort")?, &date)?)
            }
            _ => {
                let (limits, chat) = match api {
                    Api::Messages => (
                        Limits::messages(body, profile, self.max_model_len)?,
                        messages::read(body, profile, &self.flags, &self.habits)?,
                    ),
                    _ => (
                        Limits::harmony(body, profile, self.max_model_len)?,
                        chat_completions::read(body, profile, &self.flags)?,
                    ),
                };
                let calls = chat.messages.iter().filter_map(|message| message.as_map()?.get_some("tool_calls"));
                self.follows_calls(calls.count())?;
                let effort = chat.fields.iter().find(|(key, _)| key.as_str() == "reasoning_effort");
                let effort = effort.and_then(|(_, value)| value.as_str());
                let input = match reused_ids(body, profile)? {
                    Some(ids) => PromptInput::Ids(ids),
                    None => harmony::chat(&chat.messages, chat.tools.as_deref(), effort, &date)?,
                };
                (limits, input)
            }
        };
        limits.add_special_tokens = false;
        limits.prepared(input, false)
    }

    fn finish(&self, body: &JsonMap, limits: Limits, chat: &Chat, now: u64) -> Result<Prepared, NoKeyReason> {
        if let Some(ids) = reused_ids(body, &self.setup.profile)?
            && !(self.setup.profile.checks_prompt_ids && has_media(&chat.messages))
        {
            return limits.prepared(PromptInput::Ids(ids), false);
        }
        let rendered = self.setup.render(chat, now, budget::body_bytes())?;
        limits.prepared(PromptInput::Text(rendered.text), rendered.open_ended)
    }
}

/// What vLLM finds out about a template by trying it.
fn habits(setup: &Setup, flags: &EngineFlags) -> Habits {
    let templates = [&setup.templates.default, &setup.templates.tool_use];
    let refuses = |list: &[&Option<Template>]| {
        list.iter().filter_map(|template| template.as_ref()).any(|template| template.facts().refuses_inline_system)
    };
    let merges = match setup.profile.inline_system {
        InlineSystem::Refused => false,
        InlineSystem::Merged => true,
        InlineSystem::ProbesFlag => flags.chat_template.is_none() || refuses(&[&setup.templates.default]),
        InlineSystem::ProbesTemplates => setup.templates.default.is_none() || refuses(&templates),
    };
    let disabled_effort = match flags.anthropic_disabled_thinking_effort.as_deref() {
        _ if !setup.profile.maps_disabled_thinking => None,
        Some(effort) if effort != "auto" => Some(effort.to_owned()),
        _ => Some(probe_disabled_effort(setup, flags).to_owned()),
    };
    Habits { merges_inline_system: merges, disabled_effort }
}

/// `low` where the template fails with the effort `none`, or renders the same as with another one.
fn probe_disabled_effort(setup: &Setup, flags: &EngineFlags) -> &'static str {
    let render = |effort: &str| {
        let message = vec![(Text::from("role"), Json::str("user")), (Text::from("content"), Json::str("Hi"))];
        let mut fields = vec![(Text::from("add_generation_prompt"), Json::Bool(true))];
        effort_fields(effort, &[], flags, &mut fields);
        let chat =
            Chat { messages: vec![Json::map(message)], tools: None, kwargs: Vec::new(), fields, as_built: false };
        setup.render(&chat, 0, 0).ok()
    };
    match render("none") {
        None => "low",
        none if ["low", "medium", "high", "xhigh", "max"].into_iter().any(|effort| render(effort) == none) => "low",
        Some(_) => "none",
    }
}

fn compile(templates: Option<&ChatTemplates>, flag: Option<&str>) -> Result<Templates, String> {
    let one = |source: &str| Template::compile(source).map_err(|error| format!("chat template: {error}"));
    let named = |name: &str| match templates {
        Some(ChatTemplates::Named(list)) => list.get(name),
        _ => None,
    };
    if let Some(flag) = flag {
        if let Some(source) = named(flag) {
            return Ok(Templates { default: Some(one(source)?), tool_use: None });
        }
        if !flag.contains(['{', '}', '\n']) {
            return Err(format!("chat_template: \"{flag}\" is neither a template's text nor the name of one"));
        }
        return Ok(Templates { default: Some(one(flag)?), tool_use: None });
    }
    match templates {
        None => Ok(Templates { default: None, tool_use: None }),
        Some(ChatTemplates::Single(source)) => Ok(Templates { default: Some(one(source)?), tool_use: None }),
        Some(ChatTemplates::Named(list)) => Ok(Templates {
            default: list.get("default").map(|source| one(source)).transpose()?,
            tool_use: list.get("tool_use").map(|source| one(source)).transpose()?,
        }),
    }
}

/// The last part of a path or of a repository's name.
fn last_part(name: &str) -> &str {
    let name = name.trim_end_matches('/');
    name.rsplit('/').next().unwrap_or(name)
}
