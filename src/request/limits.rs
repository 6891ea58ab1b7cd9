//! What a request says about tokens: special tokens, truncation, salt, output.

use super::field::{bad, bool_field, optional_bool, optional_int, optional_map, optional_str, unsupported};
use super::json::{Json, JsonMap};
use super::profile::Profile;
use super::{Prepared, PromptInput, Truncate, TruncateSide};
use crate::blocks::TokenId;
use crate::nokey::NoKeyReason;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether the tokenizer adds its special tokens.
    pub add_special_tokens: bool,
    /// The cut after tokenizing.
    pub truncate: Option<Truncate>,
    /// The salt of the block hashes.
    pub cache_salt: Option<String>,
    /// Tokens that the answer may have.
    pub max_output_tokens: Option<u64>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Longer prompts are refused by the engine.
    pub max_prompt_tokens: Option<u64>,
}

impl Limits {
    /// Reads the fields that chat completions and completions share.
    pub fn of(
        body: &JsonMap,
        special_by_default: bool,
        profile: &Profile,
        max_model_len: Option<u64>,
    ) -> Result<Limits, NoKeyReason> {
        let chat_limit = optional_int(body, "max_completion_tokens")?;
        let output = chat_limit.or(optional_int(body, "max_tokens")?).and_then(|tokens| u64::try_from(tokens).ok());
        if let (Some(output), Some(longest)) = (output, max_model_len)
            && output > longest
        {
            return Err(bad("max_tokens: more than the model's length"));
        }
        let mut limits = Limits::plain(body, profile, max_model_len)?;
        limits.add_special_tokens = bool_field(body, "add_special_tokens", special_by_default)?;
        limits.max_output_tokens = output;
        if profile.leaves_room_for_output {
            limits.max_prompt_tokens = max_model_len.map(|longest| longest.saturating_sub(output.unwrap_or(0)));
        }
        limits.truncate = truncation(body, output, profile, limits.max_prompt_tokens, max_model_len)?;
        if limits.truncate.is_some() {
            limits.max_prompt_tokens = None;
        }
        Ok(limits)
    }

    /// Reads the fields of chat completions of gpt-oss, where truncation has no effect.
    pub fn harmony(body: &JsonMap, profile: &Profile, max_model_len: Option<u64>) -> Result<Limits, NoKeyReason> {
        let mut limits = Limits::plain(body, profile, max_model_len)?;
        let output = optional_int(body, "max_completion_tokens")?.or(optional_int(body, "max_tokens")?);
        limits.max_output_tokens = output.and_then(|tokens| u64::try_from(tokens).ok());
        Ok(limits)
    }

    /// Reads the fields of `/tokenize`.
    pub fn tokenize(body: &JsonMap, special_by_default: bool) -> Result<Limits, NoKeyReason> {
        Ok(Limits {
            add_special_tokens: bool_field(body, "add_special_tokens", special_by_default)?,
            truncate: None,
            cache_salt: None,
            max_output_tokens: None,
            stream: false,
            max_prompt_tokens: None,
        })
    }

    /// Reads the fields of messages.
    pub fn messages(body: &JsonMap, profile: &Profile, max_model_len: Option<u64>) -> Result<Limits, NoKeyReason> {
        let mut limits = Limits::plain(body, profile, max_model_len)?;
        limits.max_output_tokens = optional_int(body, "max_tokens")?.and_then(|tokens| u64::try_from(tokens).ok());
        Ok(limits)
    }

    /// Reads the fields of responses, whose prompts get special tokens.
    pub fn responses(body: &JsonMap, profile: &Profile, max_model_len: Option<u64>) -> Result<Limits, NoKeyReason> {
        let mut limits = Limits::plain(body, profile, max_model_len)?;
        limits.add_special_tokens = true;
        let output = optional_int(body, "max_output_tokens")?.and_then(|tokens| u64::try_from(tokens).ok());
        limits.max_output_tokens = output;
        // Null counts as auto.
        let truncates = match body.get("truncation") {
            None => false,
            Some(Json::Null) => true,
            Some(value) => match value.as_str() {
                Some("auto") => true,
                Some("disabled") => false,
                _ => return Err(bad("truncation: neither auto nor disabled")),
            },
        };
        if truncates {
            let longest =
                max_model_len.ok_or_else(|| unsupported("truncation to the model's length, which is not known"))?;
            let tokens = usize::try_from(whole_context(longest, output, profile)).unwrap_or(usize::MAX);
            limits.truncate = Some(Truncate { tokens, side: TruncateSide::Default });
            limits.max_prompt_tokens = None;
        }
        Ok(limits)
    }

    /// Only salt and streaming.
    fn plain(body: &JsonMap, profile: &Profile, max_model_len: Option<u64>) -> Result<Limits, NoKeyReason> {
        Ok(Limits {
            add_special_tokens: false,
            truncate: None,
            cache_salt: salt(body, profile)?,
            max_output_tokens: None,
            stream: optional_bool(body, "stream")?.unwrap_or(false),
            max_prompt_tokens: max_model_len,
        })
    }

    /// The request, with what to tokenize.
    pub fn prepared(self, input: PromptInput, open_ended: bool) -> Result<Prepared, NoKeyReason> {
        if open_ended && self.truncate.is_some_and(|cut| cut.side != TruncateSide::Right) {
            return Err(unsupported("truncation of a prompt with media"));
        }
        Ok(Prepared {
            input,
            add_special_tokens: self.add_special_tokens,
            truncate: self.truncate,
            cache_salt: self.cache_salt,
            open_ended,
            max_output_tokens: self.max_output_tokens,
            stream: self.stream,
            max_prompt_tokens: self.max_prompt_tokens,
        })
    }
}

fn salt(body: &JsonMap, profile: &Profile) -> Result<Option<String>, NoKeyReason> {
    let Some(salt) = optional_str(body, "cache_salt")? else {
        return Ok(None);
    };
    let refused = salt.is_empty()
        || salt.chars().count() > profile.longest_salt
        || (profile.checks_salt && salt.contains(['@', '/', '\\', '\0']));
    if refused {
        return Err(bad("cache_salt: empty, too long, or with a character that is not allowed"));
    }
    Ok(Some(salt.to_owned()))
}

fn truncation(
    body: &JsonMap,
    output: Option<u64>,
    profile: &Profile,
    longest_prompt: Option<u64>,
    max_model_len: Option<u64>,
) -> Result<Option<Truncate>, NoKeyReason> {
    let side = match optional_str(body, "truncation_side")? {
        None => TruncateSide::Default,
        Some("left") => TruncateSide::Left,
        Some("right") => TruncateSide::Right,
        Some(_) => return Err(bad("truncation_side: neither left nor right")),
    };
    let Some(tokens) = optional_int(body, "truncate_prompt_tokens")? else {
        return Ok(None);
    };
    let longest = || max_model_len.ok_or_else(|| unsupported("truncation to the model's length, which is not known"));
    let tokens = match u64::try_from(tokens) {
        Ok(tokens) => tokens,
        Err(_) if tokens == -1 => whole_context(longest()?, output, profile),
        Err(_) => return Err(bad("truncate_prompt_tokens: negative")),
    };
    if tokens == 0 || longest_prompt.is_some_and(|longest| tokens > longest) {
        return Err(bad("truncate_prompt_tokens: nothing left, or more than the model's length"));
    }
    Ok(Some(Truncate { tokens: usize::try_from(tokens).unwrap_or(usize::MAX), side }))
}

/// What truncation to the whole context leaves.
pub fn whole_context(longest: u64, output: Option<u64>, profile: &Profile) -> u64 {
    match output {
        Some(output) if profile.leaves_room_for_output => longest.saturating_sub(output),
        Some(output) if output > 0 => longest.saturating_sub(1),
        _ => longest,
    }
}

/// Prompt ids that a prefill stage sent along; they replace the prompt.
pub fn reused_ids(body: &JsonMap, profile: &Profile) -> Result<Option<Vec<TokenId>>, NoKeyReason> {
    if !profile.reuses_prompt_ids {
        return Ok(None);
    }
    let ids = optional_map(body, "kv_transfer_params")?.and_then(|params| params.get_some("prompt_token_ids"));
    let Some(ids) = ids else {
        return Ok(None);
    };
    let ignored = match profile.checks_prompt_ids {
        true => bool_field(body, "echo", false)?,
        false => !ids.is_truthy(),
    };
    if ignored {
        return Ok(None);
    }
    let wrong = || bad("kv_transfer_params.prompt_token_ids: no list of token ids");
    let ids = ids.as_seq().filter(|ids| !ids.is_empty()).ok_or_else(wrong)?;
    let id = |id: &Json| match id {
        Json::Int(id) => TokenId::try_from(*id).map_err(|_| wrong()),
        _ => Err(wrong()),
    };
    ids.iter().map(id).collect::<Result<Vec<TokenId>, NoKeyReason>>().map(Some)
}
