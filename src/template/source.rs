//! What of a model directory decides the prompt text. Plain data: the pack carries it as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The chat templates of a tokenizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChatTemplates {
    /// One template for everything.
    Single(String),
    /// Several, by name: `default`, `tool_use`, …
    Named(BTreeMap<String, String>),
}

/// What the renderer needs of a model. Made by [`TemplateSource::from_files`], stored in the pack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateSource {
    /// The chat templates; `None` where the model has none (completions still work).
    pub chat_template: Option<ChatTemplates>,
    /// The special tokens that a template sees as variables: `bos_token`, `eos_token`, …, and the named ones of
    /// `extra_special_tokens`.
    pub special_tokens: BTreeMap<String, String>,
    /// `model_type` of config.json: selects renderers that are not templates (`gpt_oss`).
    pub model_type: Option<String>,
    /// `architectures` of config.json.
    pub architectures: Vec<String>,
    /// `tokenizer_class` of tokenizer_config.json.
    pub tokenizer_class: Option<String>,
    /// The context length that the engine derives from config.json when `--max-model-len` is not given.
    pub max_model_len: Option<u64>,
}

impl TemplateSource {
    /// Decides, as the engine would, from the files of a model directory. `chat_template_jinja` is the text of
    /// chat_template.jinja (it wins over tokenizer_config.json), `special_tokens_map` of special_tokens_map.json
    /// (asked only by old directories whose tokenizer_config.json has no `added_tokens_decoder`).
    /// An error names the file, the field and what is wrong with it.
    pub fn from_files(
        tokenizer_config: &Value,
        chat_template_jinja: Option<&str>,
        config: Option<&Value>,
        special_tokens_map: Option<&Value>,
    ) -> Result<TemplateSource, String> {
        let chat_template = match chat_template_jinja {
            Some(text) => Some(ChatTemplates::Single(text.to_owned())),
            None => chat_templates(tokenizer_config.get("chat_template"))?,
        };
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let architectures = config.and_then(|config| config.get("architectures")).and_then(Value::as_array);
        Ok(TemplateSource {
            chat_template,
            special_tokens: special_tokens(tokenizer_config, special_tokens_map),
            model_type: text(config.and_then(|config| config.get("model_type"))),
            architectures: architectures.into_iter().flatten().filter_map(|name| text(Some(name))).collect(),
            tokenizer_class: text(tokenizer_config.get("tokenizer_class")),
            max_model_len: config.and_then(max_model_len),
        })
    }
}

fn chat_templates(value: Option<&Value>) -> Result<Option<ChatTemplates>, String> {
    let shape = || "tokenizer_config.json: chat_template is neither a string nor a list of {name, template}".to_owned();
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(ChatTemplates::Single(text.clone()))),
        Some(Value::Array(list)) => {
            let mut named = BTreeMap::new();
            for entry in list {
                let field = |name| entry.get(name).and_then(Value::as_str).map(str::to_owned).ok_or_else(shape);
                named.insert(field("name")?, field("template")?);
            }
            Ok(Some(ChatTemplates::Named(named)))
        }
        Some(_) => Err(shape()),
    }
}

/// The attributes of transformers' `special_tokens_map`.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

fn special_tokens(tokenizer_config: &Value, legacy_map: Option<&Value>) -> BTreeMap<String, String> {
    let legacy = legacy_map.filter(|_| tokenizer_config.get("added_tokens_decoder").is_none());
    let mut out = BTreeMap::new();
    for name in SPECIAL_TOKENS {
        let value = tokenizer_config.get(name).or_else(|| legacy.and_then(|map| map.get(name)));
        if let Some(text) = value.and_then(token_text) {
            out.insert(name.to_owned(), text.to_owned());
        }
    }
    // Only the dict form names its tokens; a list form is not visible to templates.
    if let Some(Value::Object(extra)) = tokenizer_config.get("extra_special_tokens") {
        for (name, value) in extra {
            if let Some(text) = token_text(value) {
                out.insert(name.clone(), text.to_owned());
            }
        }
    }
    out
}

/// A token is a string, or an AddedToken object.
fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

fn max_model_len(config: &Value) -> Option<u64> {
    let text_config = config.get("text_config").unwrap_or(config);
    text_config.get("max_position_embeddings").and_then(Value::as_u64)
}
