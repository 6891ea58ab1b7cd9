//! Models and flags that are followed, and those that are refused by name.

use crate::request::EngineFlags;
use crate::template::{ChatTemplates, TemplateSource};

/// A template: the engine looks at one text and renders another.
pub struct Chosen {
    /// Where it looks for the content format.
    pub detected: String,
    /// What it renders.
    pub rendered: String,
}

/// The template of the model, or of `--chat-template`.
pub fn template(templates: Option<&ChatTemplates>, flag: Option<&str>) -> Result<Option<Chosen>, String> {
    let same = |text: &str| Chosen { detected: text.to_owned(), rendered: text.to_owned() };
    let named = |name: &str| match templates {
        Some(ChatTemplates::Named(list)) => list.get(name),
        _ => None,
    };
    match flag {
        // --hf-chat-template-name
        Some(flag) if named(flag).is_some() => Ok(named(flag).map(|text| same(text))),
        Some(flag) if !flag.contains(['{', '}', '\n']) => Err(format!(
            "chat_template: \"{flag}\" is neither a template's text nor the name of one of the model's; SGLang's own \
             conversations are code"
        )),
        Some(flag) => {
            let detected = flag.trim_matches('\n').to_owned();
            let rendered = detected.replace("\\n", "\n");
            Ok(Some(Chosen { detected, rendered }))
        }
        None => match templates {
            None => Ok(None),
            Some(ChatTemplates::Single(text)) => Ok(Some(same(text))),
            Some(ChatTemplates::Named(list)) if list.len() == 1 => Ok(list.values().next().map(|text| same(text))),
            Some(ChatTemplates::Named(list)) => {
                let names: Vec<&str> = list.keys().map(String::as_str).collect();
                Err(format!(
                    "chat_template: SGLang takes the first of the model's templates, or the one of \
                     --hf-chat-template-name: name it ({})",
                    names.join(", ")
                ))
            }
        },
    }
}

/// Flags of vLLM that SGLang has not.
pub fn without_vllms(flags: &EngineFlags) -> Result<(), String> {
    let set = [
        ("exclude_tools_when_tool_choice_none", flags.exclude_tools_when_tool_choice_none),
        ("enable_auto_tool_choice", flags.enable_auto_tool_choice),
        ("reasoning_effort", !flags.reasoning_effort.is_empty()),
        ("anthropic_disabled_thinking_effort", flags.anthropic_disabled_thinking_effort.is_some()),
        ("chat_template_content_format", flags.chat_template_content_format != "auto"),
    ];
    match set.into_iter().find(|(_, set)| *set) {
        Some((name, _)) => Err(format!("{name}: SGLang has no such flag")),
        None if !matches!(flags.tokenizer_mode.as_str(), "auto" | "slow") => {
            Err(format!("tokenizer_mode: \"{}\" was not compared", flags.tokenizer_mode))
        }
        None => Ok(()),
    }
}

/// Beginnings of architectures that SGLang renders by code of its own, or whose prompts it hands to the model's
/// processor as text.
const NOT_FOLLOWED: [&str; 24] = [
    "BailingMM",
    "DeepseekOCR",
    "DeepseekV32",
    "DeepseekV4",
    "DeepseekVL",
    "Dots3Note",
    "DotsOCR",
    "DotsVLM",
    "Grok1A",
    "Grok1V",
    "Inkling",
    "JetVLM",
    "KimiK3",
    "Llava",
    "MiDasheng",
    "MiMoV2",
    "MultiModality",
    "NVILA",
    "Phi4MM",
    "Sarashina2Vision",
    "StepVL",
    "Step3VL",
    "UnlimitedOCR",
    "Whisper",
];

/// Architectures that say that a model takes only text.
const TEXT_ONLY: [&str; 2] = ["ForCausalLM", "LMHeadModel"];

/// Classes of tokenizers that get a BOS token where tokenizer_config.json does not forbid it, whatever tokenizer.json
/// says (utils/hf_transformers/tokenizer.py).
const WITH_BOS: [&str; 7] = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "CodeLlamaTokenizer",
    "CodeLlamaTokenizerFast",
    "GemmaTokenizer",
    "GemmaTokenizerFast",
    "CohereTokenizerFast",
];

/// Whether a text gets a BOS token; `None`: as tokenizer.json says.
pub fn adds_bos(source: &TemplateSource, flags: &EngineFlags) -> Option<bool> {
    let by_class = source.tokenizer_class.as_deref().is_some_and(|class| WITH_BOS.contains(&class));
    flags.add_bos_token.or_else(|| by_class.then(|| source.add_bos_token.unwrap_or(true)))
}

/// Whether the model is one that was compared, or like one.
pub fn followed(source: &TemplateSource, flags: &EngineFlags, template: Option<&str>) -> Result<(), String> {
    for architecture in &source.architectures {
        let text_only = TEXT_ONLY.iter().any(|end| architecture.ends_with(end));
        if !text_only || NOT_FOLLOWED.iter().any(|known| architecture.starts_with(known)) {
            return Err(format!(
                "architectures: {architecture}: with SGLang only models that take nothing but text were compared, and \
                 are rendered by their template"
            ));
        }
        if architecture.starts_with("DeepseekV3") && template.is_none() {
            return Err(format!("architectures: SGLang renders {architecture} without a template by code of its own"));
        }
    }
    if source.tokenizer != flags.tokenizer && flags.tokenizer.is_some() {
        return Err("tokenizer: not the pack's; pack the model with --tokenizer".to_owned());
    }
    let own = ["deepseekv32", "deepseekv4", "deepseekv41", "kimi_k3", "muse"];
    if let Some(parser) = flags.tool_call_parser.as_deref().filter(|parser| own.contains(parser)) {
        return Err(format!("tool_call_parser: with {parser} SGLang renders by code of its own"));
    }
    let own = ["hunyuan", "kimi_k3", "inkling", "response_template", "beam", "minimax-m3"];
    if let Some(parser) = flags.reasoning_parser.as_deref().filter(|parser| own.contains(parser)) {
        return Err(format!("reasoning_parser: with {parser} SGLang's prompts were not compared"));
    }
    let has = |needle: &str| template.is_some_and(|template| template.contains(needle));
    let glm = ["[gMASK]<sop>", "Reasoning Effort:", "<tool_call>", "<arg_key>", "<arg_value>"];
    if glm.into_iter().all(has) && !has("enable_thinking") {
        return Err("chat template: SGLang renders GLM-5.3 by code of its own".to_owned());
    }
    Ok(())
}
