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
    /// `add_bos_token` of tokenizer_config.json: transformers 5 goes by tokenizer.json instead, SGLang by both.
    pub add_bos_token: Option<bool>,
    /// `--tokenizer`: where the tokenizer and the template come from, if not from the model's own directory.
    pub tokenizer: Option<String>,
    /// The context length that the engine derives from config.json when `--max-model-len` is not given.
    pub max_model_len: Option<u64>,
}

/// Renderers of the engine's own, by `architectures` of config.json: no template decides their text.
const OWN_RENDERERS: [(&str, &str); 6] = [
    ("DeepseekV32", "DeepSeek V3.2"),
    ("DeepseekV4", "DeepSeek V4"),
    ("DeepseekV41", "DeepSeek V4.1"),
    ("KimiK3", "Kimi K3"),
    ("MoonshotKimia", "Moonshot Kimi-Audio"),
    ("Inkling", "Inkling"),
];

/// The model that the engine renders by code of its own, if it does so for this architecture.
pub fn own_renderer(architecture: &str) -> Option<&'static str> {
    // "DeepseekV32ForCausalLM": the name goes up to the "For".
    let base = architecture.split("For").next().unwrap_or(architecture);
    OWN_RENDERERS.iter().find(|(known, _)| *known == base).map(|(_, name)| *name)
}

impl TemplateSource {
    /// Takes what `--hf-overrides` replaces in config.json. An error says what of it cannot be followed.
    pub fn override_config(&mut self, overrides: &Value) -> Result<(), String> {
        let parsed;
        let overrides = match overrides {
            Value::String(text) => {
                parsed = serde_json::from_str(text).map_err(|error| format!("hf_overrides: not JSON: {error}"))?;
                &parsed
            }
            other => other,
        };
        let Value::Object(fields) = overrides else {
            return Err("hf_overrides: neither an object nor its JSON text".to_owned());
        };
        if let Some(model_type) = fields.get("model_type").and_then(Value::as_str) {
            self.model_type = Some(model_type.to_owned());
        }
        if let Some(list) = fields.get("architectures").and_then(Value::as_array) {
            self.architectures = list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        }
        let lengths = ["max_position_embeddings", "rope_scaling", "rope_parameters", "text_config"];
        if lengths.into_iter().any(|name| fields.contains_key(name)) {
            // --max-model-len says it.
            self.max_model_len = None;
        }
        Ok(())
    }

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
            add_bos_token: tokenizer_config.get("add_bos_token").and_then(Value::as_bool),
            tokenizer: None,
            max_model_len: config.and_then(|config| max_model_len(config, tokenizer_config)),
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

/// vLLM's derivation: the positions of config.json, scaled where the scaling is not already in them, and at most
/// the tokenizer's `model_max_length`. `None` where config.json does not say.
fn max_model_len(config: &Value, tokenizer_config: &Value) -> Option<u64> {
    const SCALED_ALREADY: [&str; 6] = ["su", "longrope", "llama3", "yarn", "deepseek_yarn", "default"];
    let text_config = config.get("text_config").filter(|nested| nested.is_object()).unwrap_or(config);
    let mut length = text_config.get("max_position_embeddings").and_then(Value::as_u64)?;
    let rope = ["rope_scaling", "rope_parameters"].into_iter().find_map(|name| text_config.get(name));
    if let Some(rope) = rope.filter(|rope| rope.is_object()) {
        let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str);
        if let Some(factor) = rope.get("factor").and_then(Value::as_f64)
            && !kind.is_some_and(|kind| SCALED_ALREADY.contains(&kind))
        {
            length = (length as f64 * factor) as u64;
        }
    }
    let bound = tokenizer_config.get("model_max_length").and_then(Value::as_f64).unwrap_or(f64::INFINITY);
    Some(if (length as f64) > bound { bound as u64 } else { length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chat_template_jinja_wins_and_lists_are_named() {
        let config =
            json!({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]});
        let source = TemplateSource::from_files(&config, None, None, None).unwrap();
        let named = [("default", "a"), ("tool_use", "b")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(source.chat_template, Some(ChatTemplates::Named(named.into())));
        let source = TemplateSource::from_files(&config, Some("c"), None, None).unwrap();
        assert_eq!(source.chat_template, Some(ChatTemplates::Single("c".to_owned())));
        assert!(TemplateSource::from_files(&json!({"chat_template": 5}), None, None, None).is_err());
        let json = serde_json::to_string(&source).unwrap();
        assert_eq!(serde_json::from_str::<TemplateSource>(&json).unwrap(), source);
    }

    #[test]
    fn special_tokens_are_those_that_templates_see() {
        let config = json!({
            "bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": null, "boi_token": "x",
            "additional_special_tokens": ["<a>"], "extra_special_tokens": {"image_token": "<i>"}
        });
        let map = json!({"unk_token": "<unk>", "pad_token": "<pad>"});
        let of = |config: &Value| TemplateSource::from_files(config, None, None, Some(&map)).unwrap().special_tokens;
        let names = |tokens: BTreeMap<String, String>| tokens.into_keys().collect::<Vec<_>>();
        assert_eq!(names(of(&config)), ["bos_token", "eos_token", "image_token", "pad_token"]);
        let mut newer = config.clone();
        newer["added_tokens_decoder"] = json!({});
        assert_eq!(names(of(&newer)), ["bos_token", "eos_token", "image_token"]);
    }

    #[test]
    fn the_context_length_is_the_engines() {
        let of = |config: Value, tokenizer: Value| max_model_len(&config, &tokenizer);
        assert_eq!(of(json!({"max_position_embeddings": 40960}), json!({"model_max_length": 131072})), Some(40960));
        assert_eq!(of(json!({"max_position_embeddings": 40960}), json!({"model_max_length": 8192})), Some(8192));
        assert_eq!(of(json!({"max_position_embeddings": 40960}), json!({"model_max_length": 1e30})), Some(40960));
        let linear = json!({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}});
        assert_eq!(of(linear, json!({})), Some(8192));
        let yarn = json!({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}});
        assert_eq!(of(yarn, json!({})), Some(4096));
        assert_eq!(of(json!({"text_config": {"max_position_embeddings": 7}}), json!({})), Some(7));
        assert_eq!(of(json!({}), json!({"model_max_length": 8192})), None);
    }
}
