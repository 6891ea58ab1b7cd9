//! The engine's command line to the fields of [`crate::request::EngineFlags`].

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// Flags with a value that changes prompts, and the fields that they set.
const TEXTS: [(&str, &str); 9] = [
    ("--chat-template-content-format", "chat_template_content_format"),
    ("--default-chat-template-kwargs", "default_chat_template_kwargs"),
    ("--tool-call-parser", "tool_call_parser"),
    ("--reasoning-parser", "reasoning_parser"),
    ("--tokenizer-mode", "tokenizer_mode"),
    ("--tokenizer", "tokenizer"),
    ("--hf-overrides", "hf_overrides"),
    ("--anthropic-disabled-thinking-effort", "anthropic_disabled_thinking_effort"),
    ("--chat-template", "chat_template"),
];

/// Switches that change prompts.
const SWITCHES: [(&str, &str); 3] = [
    ("--enable-auto-tool-choice", "enable_auto_tool_choice"),
    ("--exclude-tools-when-tool-choice-none", "exclude_tools_when_tool_choice_none"),
    ("--trust-request-chat-template", "trust_request_chat_template"),
];

/// Reads a command line as vLLM does (`--flag value` or `--flag=value`). Gives the fields, and the flags that are
/// not known to change prompts.
pub fn command_line(args: &[&str]) -> Result<(Value, Vec<String>)> {
    let (mut fields, mut others) = (Map::new(), Vec::new());
    let mut args = args.iter().copied().peekable();
    while let Some(arg) = args.next() {
        if !arg.starts_with("--") {
            bail!("flags: {arg:?} belongs to no flag");
        }
        let (flag, mut value) = match arg.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (arg, None),
        };
        let flag = flag.replace('_', "-");
        if let Some((_, field)) = SWITCHES.iter().find(|(known, _)| *known == flag) {
            fields.insert((*field).to_owned(), true.into());
            continue;
        }
        // A value never begins with a dash here.
        value = value.or_else(|| args.next_if(|next| !next.starts_with("--")));
        let text = || value.with_context(|| format!("flags: {flag} has no value"));
        if let Some((_, field)) = TEXTS.iter().find(|(known, _)| *known == flag) {
            let text = text()?;
            // A template may be the path of a file, as on the command line.
            let file = if *field == "chat_template" { std::fs::read_to_string(text).ok() } else { None };
            fields.insert((*field).to_owned(), file.unwrap_or_else(|| text.to_owned()).into());
        } else if flag == "--max-model-len" {
            fields.insert("max_model_len".to_owned(), length(text()?)?.into());
        } else if flag == "--reasoning-effort" {
            let map: Value = serde_json::from_str(text()?).context("flags: --reasoning-effort")?;
            fields.insert("reasoning_effort".to_owned(), map);
        } else {
            others.push(flag);
        }
    }
    Ok((Value::Object(fields), others))
}

/// A number as the engine reads it: `8k` is 8,000, `8K` is 8,192.
fn length(text: &str) -> Result<u64> {
    let wrong = || format!("flags: --max-model-len {text:?}");
    let (digits, unit) = match text.strip_suffix('k') {
        Some(digits) => (digits, 1000.0),
        None => text.strip_suffix('K').map_or((text, 1.0), |digits| (digits, 1024.0)),
    };
    let number: f64 = digits.parse().with_context(wrong)?;
    Ok((number * unit) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_line_sets_the_fields_that_it_names() {
        let (fields, others) = command_line(&[
            "--max-model-len",
            "8K",
            "--enable-auto-tool-choice",
            "--tool-call-parser=hermes",
            "--default-chat-template-kwargs",
            r#"{"enable_thinking": false}"#,
            "--enforce-eager",
            "--dtype",
            "bfloat16",
            "--trust_request_chat_template",
        ])
        .unwrap();
        let expected = json!({
            "max_model_len": 8192, "enable_auto_tool_choice": true, "tool_call_parser": "hermes",
            "default_chat_template_kwargs": "{\"enable_thinking\": false}", "trust_request_chat_template": true,
        });
        assert_eq!((fields, others), (expected, vec!["--enforce-eager".to_owned(), "--dtype".to_owned()]));
        let flags: crate::request::EngineFlags = serde_json::from_value(command_line(&[]).unwrap().0).unwrap();
        assert_eq!(flags, crate::request::EngineFlags::default());
    }

    #[test]
    fn every_flag_sets_a_field_that_exists() {
        for (flag, _) in TEXTS {
            let (fields, _) = command_line(&[flag, "x"]).unwrap();
            serde_json::from_value::<crate::request::EngineFlags>(fields).unwrap();
        }
        for (flag, _) in SWITCHES {
            let (fields, _) = command_line(&[flag]).unwrap();
            serde_json::from_value::<crate::request::EngineFlags>(fields).unwrap();
        }
        assert!(command_line(&["--tool-call-parser"]).is_err());
        assert!(command_line(&["hermes"]).is_err());
        assert!(command_line(&["--max-model-len", "auto"]).is_err());
    }
}
