//! Files of recorded cases, one JSON object a line:
//!
//! ```text
//! {"meta": {"vllm": "0.32.0", "flags": ["--max-model-len", "40960"]}}
//! {"name": "plain", "endpoint": "/v1/chat/completions", "body": "{…}", "status": 200, "token_ids": [1, 2], "prompt": "…"}
//! ```
//!
//! | field | |
//! |---|---|
//! | `meta.vllm` or `meta.sglang` | the engine's version |
//! | `meta.flags` | its command line, as far as it changes prompts |
//! | `meta.engine` | the same as the configuration of a model has it; `--flags` of a recording |
//! | `meta.date` | the day of the recording, for templates that print it |
//! | `body` | the request as text, byte for byte; an object will do where its spelling does not matter |
//! | `status` | the engine's; 200 unless said |
//! | `token_ids`, or `token_ids_list` for a list of prompts | the ids |
//! | `prompt`, or `decoded` | the text, where it is known |
//!
//! The meta line may be missing. The name of the file up to its first `-` or `.` names the tokenizer.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::flags::command_line;
use crate::blocks::TokenId;
use crate::request::EngineFlags;
use crate::request::json::{Json, JsonMap, parse, to_ascii_json_text};

/// A request, and what the engine made of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Case {
    /// For reports.
    pub name: String,
    /// Path of the API.
    pub endpoint: String,
    /// The request.
    pub body: String,
    /// The engine's status.
    pub status: u16,
    /// The engine's prompt.
    pub prompt: Option<String>,
    /// Its ids: one list a prompt.
    pub ids: Vec<Vec<TokenId>>,
}

/// What a file says about the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    /// Flags, as JSON; [`Meta::flags`] reads them.
    pub engine: Value,
    /// Flags of the meta line that are not known to change prompts.
    pub other_flags: Vec<String>,
    /// `model_type` of the model's config.json.
    pub model_type: Option<String>,
    /// Seconds since 1970 of the recording.
    pub unix_seconds: Option<u64>,
}

impl Meta {
    /// The engine's flags, with the fields of `over` in place of those that the file says.
    pub fn flags(&self, over: Option<&Value>) -> Result<EngineFlags> {
        let mut value = self.engine.clone();
        if !value.is_object() {
            value = json!({});
        }
        match over {
            None => {}
            Some(Value::Object(fields)) => {
                for (name, field) in fields {
                    value[name] = field.clone();
                }
            }
            Some(_) => bail!("engine flags: no JSON object"),
        }
        serde_json::from_value(value).context("engine flags")
    }
}

/// A file of cases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaseFile {
    /// The file's name without its extension.
    pub name: String,
    /// Its first line.
    pub meta: Meta,
    /// The others.
    pub cases: Vec<Case>,
}

impl CaseFile {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<CaseFile> {
        let at = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(at)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        CaseFile::parse(&name, &text).with_context(at)
    }

    /// Reads the text of a file.
    pub fn parse(name: &str, text: &str) -> Result<CaseFile> {
        let mut out = CaseFile { name: name.to_owned(), ..CaseFile::default() };
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = || format!("line {}", number + 1);
            let record = parse(line.as_bytes()).map_err(|error| anyhow::anyhow!("{error}")).with_context(at)?;
            let record = record.as_map().context("no JSON object").with_context(at)?;
            match record.get("meta") {
                Some(_) if out.cases.is_empty() => {
                    let meta: Value = serde_json::from_str(line).with_context(at)?;
                    out.meta = read_meta(&meta["meta"]).with_context(at)?;
                }
                Some(_) => bail!("line {}: a second meta line", number + 1),
                None => {
                    let case = read_case(record, number + 1).with_context(at)?;
                    out.cases.push(case);
                }
            }
        }
        Ok(out)
    }

    /// The name of the tokenizer: that of the file up to its first `-` or `.`.
    pub fn tokenizer(&self) -> &str {
        self.name.split(['-', '.']).next().unwrap_or(&self.name)
    }
}

/// The lines of a file of these cases.
pub fn to_lines(meta: &Value, cases: &[Case]) -> String {
    let mut out = format!("{}\n", json!({"meta": meta}));
    for case in cases {
        let mut record = json!({
            "name": case.name, "endpoint": case.endpoint, "body": case.body, "status": case.status,
        });
        match case.ids.as_slice() {
            [] => {}
            [ids] => record["token_ids"] = json!(ids),
            lists => record["token_ids_list"] = json!(lists),
        }
        if let Some(prompt) = &case.prompt {
            record["prompt"] = json!(prompt);
        }
        out.push_str(&format!("{record}\n"));
    }
    out
}

fn read_meta(meta: &Value) -> Result<Meta> {
    let flags: Vec<&str> = meta["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (mut engine, other_flags) = command_line(&flags)?;
    for (name, field) in [("vllm", "vllm"), ("sglang", "sglang")] {
        if let Some(version) = meta[field].as_str() {
            engine["engine"] = name.into();
            engine["version"] = version.into();
        }
    }
    for (name, value) in meta["engine"].as_object().into_iter().flatten() {
        engine[name] = value.clone();
    }
    let date = meta["date"].as_str().map(|date| unix_seconds(date).with_context(|| format!("date: {date:?}")));
    Ok(Meta {
        engine,
        other_flags,
        model_type: meta["model_type"].as_str().map(str::to_owned),
        unix_seconds: date.transpose()?,
    })
}

fn read_case(record: &JsonMap, number: usize) -> Result<Case> {
    let text = |name: &str| record.get(name).and_then(Json::as_str).map(str::to_owned);
    let (body, bare) = match record.get("body") {
        Some(Json::Str(body)) => (body.as_str().to_owned(), false),
        Some(body @ Json::Map(_)) => (to_ascii_json_text(body), false),
        Some(_) => bail!("body: neither text nor an object"),
        // A body by itself.
        None => (to_ascii_json_text(&Json::map(record.iter().map(|(k, v)| (k.clone(), v.clone())).collect())), true),
    };
    let guess = || ["messages", "prompt", "input"].into_iter().find(|name| record.contains(name));
    let endpoint = match (text("endpoint"), bare.then(guess).flatten()) {
        (Some(endpoint), _) => endpoint,
        (None, Some("messages")) => "/v1/chat/completions".to_owned(),
        (None, Some("prompt")) => "/v1/completions".to_owned(),
        (None, Some(_)) => "/v1/responses".to_owned(),
        (None, None) => bail!("endpoint: missing"),
    };
    let status = match record.get("status") {
        None => 200,
        Some(Json::Int(status)) => u16::try_from(*status).context("status")?,
        Some(_) => bail!("status: no number"),
    };
    let lists = match (record.get("token_ids"), record.get("token_ids_list")) {
        (Some(ids), _) => vec![read_ids(ids)?],
        (None, Some(lists)) => {
            let lists = lists.as_seq().context("token_ids_list: no array")?;
            lists.iter().map(read_ids).collect::<Result<_>>()?
        }
        (None, None) => Vec::new(),
    };
    Ok(Case {
        name: text("name").unwrap_or_else(|| format!("line {number}")),
        endpoint,
        body,
        status,
        prompt: text("prompt").or_else(|| text("decoded")),
        ids: lists,
    })
}

fn read_ids(list: &Json) -> Result<Vec<TokenId>> {
    let id = |id: &Json| match id {
        Json::Int(id) => TokenId::try_from(*id).context("a token id"),
        _ => bail!("a token id that is no number"),
    };
    list.as_seq().context("token_ids: no array")?.iter().map(id).collect()
}

/// Seconds since 1970 at noon of a day written `2026-11-30`, or of seconds written as such.
pub fn unix_seconds(text: &str) -> Option<u64> {
    if let Ok(seconds) = text.parse() {
        return Some(seconds);
    }
    let mut parts = text.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years begin in March, so that the odd day comes last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + 43_200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read() {
        let text = concat!(
            r#"{"meta": {"vllm": "0.33.0", "date": "2026-11-30", "engine": {"max_model_len": 4096}, "#,
            r#""flags": ["--enable-auto-tool-choice", "--tool-call-parser=hermes", "--gpu-memory-utilization", "0.9"]}}"#,
            "\n\n",
            r#"{"name": "a", "endpoint": "/v1/completions", "body": "{\"prompt\":\"x\"}", "token_ids": [1, 2]}"#,
            "\n",
            r#"{"endpoint": "/v1/chat/completions", "body": {"b": 1e3, "a": "é"}, "status": 400, "token_ids_list": [[1], [2]]}"#,
            "\n",
            r#"{"messages": []}"#,
        );
        let file = CaseFile::parse("qwen3-autotools", text).unwrap();
        assert_eq!(file.tokenizer(), "qwen3");
        let flags = file.meta.flags(Some(&json!({"tool_call_parser": "other"}))).unwrap();
        assert_eq!((flags.engine.as_str(), flags.version.as_str()), ("vllm", "0.33.0"));
        assert!(flags.enable_auto_tool_choice);
        assert_eq!((flags.tool_call_parser.as_deref(), flags.max_model_len), (Some("other"), Some(4096)));
        assert_eq!(file.meta.other_flags, ["--gpu-memory-utilization"]);
        assert_eq!(file.meta.unix_seconds, Some(1_796_040_000));
        let [a, b, bare] = file.cases.as_slice() else { panic!() };
        assert_eq!((a.name.as_str(), a.status, &a.ids), ("a", 200, &vec![vec![1, 2]]));
        assert_eq!((b.name.as_str(), b.status, b.body.as_str()), ("line 4", 400, r#"{"b": 1000.0, "a": "\u00e9"}"#));
        assert_eq!((bare.endpoint.as_str(), bare.body.as_str()), ("/v1/chat/completions", r#"{"messages": []}"#));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let one = Case {
            name: "a".into(),
            endpoint: "/v1/completions".into(),
            body: r#"{"prompt": "é"}"#.into(),
            status: 200,
            prompt: Some("é".into()),
            ids: vec![vec![1]],
        };
        let list = Case { name: "b".into(), ids: vec![vec![1], vec![2, 3]], prompt: None, ..one.clone() };
        let refused = Case { name: "c".into(), status: 400, ids: Vec::new(), prompt: None, ..one.clone() };
        let cases = vec![one, list, refused];
        let meta = json!({"vllm": "0.32.0", "engine": {"tool_call_parser": "hermes"}});
        let file = CaseFile::parse("x", &to_lines(&meta, &cases)).unwrap();
        assert_eq!(file.cases, cases);
        assert_eq!(file.meta.flags(None).unwrap().tool_call_parser.as_deref(), Some("hermes"));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, what) in [
            ("{", "line 1"),
            (r#"{"name": "a", "body": "{}"}"#, "endpoint"),
            (r#"{"endpoint": "/v1/completions", "body": "{}", "token_ids": ["x"]}"#, "token id"),
            (r#"{"endpoint": "/v1/completions", "body": 5}"#, "body"),
            (r#"{"meta": {"date": "yesterday"}}"#, "yesterday"),
        ] {
            let error = format!("{:#}", CaseFile::parse("m", text).unwrap_err());
            assert!(error.contains("line 1") && error.contains(what), "{error}");
        }
        assert!(CaseFile::parse("m", r#"{"meta": {"flags": ["--max-model-len"]}}"#).is_err());
    }

    #[test]
    fn days_are_counted_as_the_calendar_does() {
        assert_eq!(unix_seconds("1970-01-01"), Some(43_200));
        assert_eq!(unix_seconds("2024-02-29"), Some(1_709_208_000));
        assert_eq!(unix_seconds("2026-11-30"), Some(1_796_040_000));
        assert_eq!(unix_seconds("1796040000"), Some(1_796_040_000));
        assert_eq!(unix_seconds("2026-13-01"), None);
        assert_eq!(unix_seconds("soon"), None);
    }
}
