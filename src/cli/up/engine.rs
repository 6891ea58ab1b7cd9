//! What the filter has to know of the engines: what the arguments say, and for the rest the engines themselves.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::bridge::facts::Facts;
use crate::conform::flags::command_line;
use crate::request::Version;

/// What the arguments say.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// `--served-model-name`
    pub name: Option<String>,
    /// What the model is called where nobody says it.
    pub default_name: String,
    /// `--block-size`
    pub block_size: Option<u32>,
    /// `--engine` and the engine's own flags: fields of [`crate::request::EngineFlags`].
    pub flags: Map<String, Value>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The name under which the replicas serve the model.
    pub name: String,
    /// The model's entry in the filter's configuration, without its pack.
    pub model: Value,
    /// What people should know.
    pub notes: Vec<String>,
}

/// `--engine JSON` and the flags behind `--`.
pub fn flags(json: Option<&str>, flags: &[String]) -> Result<Map<String, Value>> {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (mut fields, _) = command_line(&flags).context("the engine's flags behind --")?;
    if let Some(json) = json {
        let more: Map<String, Value> = serde_json::from_str(json).context("--engine: no JSON object")?;
        for (name, value) in more {
            fields[&name] = value;
        }
    }
    match fields {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// Puts the two together. `answers`: each replica by its URL.
pub fn known(told: &Told, answers: &[(String, Result<Facts, String>)]) -> Result<Known> {
    let mut notes = Vec::new();
    let mut asked: Vec<(&str, &Facts)> = Vec::new();
    for (url, answer) in answers {
        match answer {
            Ok(facts) => asked.push((url, facts)),
            Err(why) => notes.push(format!("{url} does not answer yet ({why})")),
        }
    }
    let name = name(told, &asked)?;
    let first = asked.first().map(|(_, facts)| *facts);
    let mut model = json!({"name": name, "block_size": block_size(told, &asked, &mut notes)?});
    if let Some(facts) = first {
        let aliases: Vec<&str> = facts.names().into_iter().filter(|other| *other != name).collect();
        let adapters = facts.adapters(&name);
        for (field, names) in [("aliases", aliases), ("adapters", adapters)] {
            if !names.is_empty() {
                model[field] = json!(names);
            }
        }
    }
    let mut flags = told.flags.clone();
    if !flags.contains_key("version")
        && let Some((engine, version)) = version(&asked, &mut notes)
    {
        if engine != "vllm" {
            flags.insert("engine".into(), engine.into());
        }
        flags.insert("version".into(), version.into());
    }
    let lengths: Vec<u64> = asked.iter().filter_map(|(_, facts)| facts.served(&name)?.max_model_len).collect();
    if let Some(length) = lengths.iter().min()
        && !flags.contains_key("max_model_len")
    {
        flags.insert("max_model_len".into(), (*length).into());
    }
    if !flags.is_empty() {
        model["engine"] = flags.into();
    }
    if asked.is_empty() {
        notes.push("no engine could be asked for its names, block size, version and length".into());
    }
    Ok(Known { name, model, notes })
}

fn name(told: &Told, asked: &[(&str, &Facts)]) -> Result<String> {
    let serves = |facts: &Facts, name: &str| facts.served(name).is_some();
    let name = told.name.clone().unwrap_or_else(|| {
        let default = told.default_name.clone();
        match asked.first() {
            Some((_, facts)) if !serves(facts, &default) => facts.names().first().map_or(default, |n| (*n).to_owned()),
            _ => default,
        }
    });
    match asked.iter().find(|(_, facts)| !facts.models.is_empty() && !serves(facts, &name)) {
        Some((url, facts)) => bail!(
            "{url} serves {}, not {name:?}: all replicas must serve the model under one name (--served-model-name)",
            facts.names().join(", ")
        ),
        None => Ok(name),
    }
}

fn block_size(told: &Told, asked: &[(&str, &Facts)], notes: &mut Vec<String>) -> Result<u32> {
    let sizes: Vec<(&str, u32)> = asked.iter().filter_map(|(url, facts)| Some((*url, facts.block_size()?))).collect();
    let size = told.block_size.or(sizes.first().map(|(_, size)| *size));
    let Some(size) = size else {
        notes.push("no engine says its block size: taking 16 (--block-size)".into());
        return Ok(16);
    };
    if let Some((url, other)) = sizes.iter().find(|(_, other)| *other != size) {
        match told.block_size {
            Some(_) => notes.push(format!("{url} says that its blocks have {other} tokens, --block-size says {size}")),
            None => bail!(
                "blocks of {} have {size} tokens, of {url} {other}: start all engines with one --block-size",
                sizes[0].0
            ),
        }
    }
    Ok(size)
}

fn version(asked: &[(&str, &Facts)], notes: &mut Vec<String>) -> Option<(&'static str, String)> {
    let versions: Vec<(&str, &'static str, String)> = asked
        .iter()
        .filter_map(|(url, facts)| Some((*url, facts.engine?, Version::parse(facts.version.as_deref()?)?.to_string())))
        .collect();
    let (first, engine, version) = versions.first()?.clone();
    if let Some((url, _, other)) = versions.iter().find(|(_, e, v)| (*e, v) != (engine, &version)) {
        notes.push(format!("{first} is {engine} {version}, {url} {other}: prompts are rendered as by the first"));
    }
    Some((engine, version))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::facts::Served;
    use crate::bridge::scrape::Reading;

    fn facts(id: &str, block_size: u32) -> Facts {
        let served = |id: &str, parent: Option<&str>| Served {
            id: id.into(),
            parent: parent.map(str::to_owned),
            max_model_len: Some(4096),
        };
        Facts {
            engine: Some("vllm"),
            version: Some("0.30.1.dev3+cpu".into()),
            models: vec![served(id, None), served("other", None), served("lora", Some(id))],
            reading: Some(Reading { block_size: Some(block_size), ..Reading::default() }),
            ..Facts::default()
        }
    }

    fn told() -> Told {
        Told { default_name: "dir".into(), ..Told::default() }
    }

    fn answers(all: &[Facts]) -> Vec<(String, Result<Facts, String>)> {
        all.iter().enumerate().map(|(i, facts)| (format!("http://r{i}"), Ok(facts.clone()))).collect()
    }

    #[test]
    fn what_nobody_says_the_engines_do() {
        let known = known(&told(), &answers(&[facts("m", 32), facts("m", 32)])).unwrap();
        let expected = json!({
            "name": "m", "block_size": 32, "aliases": ["other"], "adapters": ["lora"],
            "engine": {"version": "0.30.1", "max_model_len": 4096},
        });
        assert_eq!((known.name.as_str(), known.model, known.notes), ("m", expected, Vec::new()));
    }

    #[test]
    fn what_is_said_holds() {
        let mut told = Told { name: Some("other".into()), block_size: Some(16), ..told() };
        let args = ["--tool-call-parser", "hermes", "--max-model-len=8K"].map(str::to_owned);
        told.flags = flags(Some(r#"{"version": "0.32.0"}"#), &args).unwrap();
        let known = known(&told, &answers(&[facts("m", 32)])).unwrap();
        let expected = json!({"version": "0.32.0", "tool_call_parser": "hermes", "max_model_len": 8192});
        assert_eq!((known.name.as_str(), &known.model["engine"]), ("other", &expected));
        assert_eq!(known.model["block_size"], 16);
        assert!(known.notes[0].contains("--block-size says 16"), "{:?}", known.notes);
    }

    #[test]
    fn engines_that_are_not_there_yet_leave_the_defaults() {
        let silent = vec![("http://r0".to_owned(), Err("Connection refused".to_owned()))];
        let known = known(&told(), &silent).unwrap();
        assert_eq!(known.model, json!({"name": "dir", "block_size": 16}));
        assert_eq!(known.notes.len(), 3, "{:?}", known.notes);
    }

    #[test]
    fn engines_that_do_not_go_together_are_refused() {
        let of = |a: Facts, b: Facts| known(&told(), &answers(&[a, b])).unwrap_err().to_string();
        assert!(of(facts("m", 16), facts("n", 16)).contains("serves n, other, not \"m\""));
        assert!(of(facts("m", 16), facts("m", 32)).contains("one --block-size"));
        let mut older = facts("m", 16);
        older.version = Some("0.24.0".into());
        let known = known(&told(), &answers(&[facts("m", 16), older])).unwrap();
        assert!(known.notes[0].contains("0.24.0"), "{:?}", known.notes);
    }
}
