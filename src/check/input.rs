//! What is to be checked: text from a file or standard input, and the files that Envoy would read besides.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::tree::At;
use super::{Findings, Level};

/// Where the text came from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The folder of its file. Files that it names are looked for where Envoy would, then here.
    pub folder: Option<PathBuf>,
}

/// One JSON or YAML document.
#[derive(Clone, Debug)]
pub struct Document {
    /// The name of its file, where it is not the input itself; it begins every path.
    pub prefix: String,
    /// Its content.
    pub value: Value,
}

impl Document {
    /// The whole of it.
    pub fn root(&self) -> At<'_> {
        At { path: self.prefix.clone(), value: &self.value }
    }
}

/// What a text is.
#[derive(Clone, Debug)]
pub enum Input {
    /// The configuration of one instance of the filter.
    Plugin,
    /// Envoy's configuration, with the files that it names.
    Envoy(Vec<Document>),
    /// Neither; a finding says why.
    Nothing,
}

/// More files than this are not followed.
const MAX_FILES: usize = 64;

/// Tells what a text is and reads what it refers to.
pub fn read(text: &[u8], source: &Source, findings: &mut Findings) -> Input {
    let mut documents = match parse(text) {
        // The filter itself says best what is wrong with something that looks like its configuration.
        Err(_) if text.trim_ascii_start().starts_with(b"{") || text.trim_ascii().is_empty() => return Input::Plugin,
        Err(error) => {
            let mend = "give the plugin's configuration as JSON, or Envoy's as JSON or YAML";
            findings.add(Level::Error, "", "", format!("is neither JSON nor YAML: {error}"), mend);
            return Input::Nothing;
        }
        Ok(values) if !values.iter().any(is_envoys) => return Input::Plugin,
        Ok(values) => {
            let documents = values.into_iter().map(|value| Document { prefix: String::new(), value });
            documents.collect::<Vec<_>>()
        }
    };
    let mut at = 0;
    let mut seen: Vec<String> = Vec::new();
    while at < documents.len() && documents.len() < MAX_FILES {
        let mut names = Vec::new();
        files_of(&documents[at].root(), &mut names);
        for (place, name) in names {
            if seen.contains(&name) {
                continue;
            }
            match open(&name, source).map_err(|e| e.to_string()).and_then(|text| parse(&text)) {
                Ok(values) => {
                    let prefix = Path::new(&name).file_name().map_or(name.clone(), |n| n.to_string_lossy().into());
                    let new = values.into_iter().map(|value| Document { prefix: format!("{prefix}: "), value });
                    documents.extend(new);
                }
                Err(error) => {
                    let what = format!("{name} could not be read here: what stands in it was not checked ({error})");
                    findings.add(Level::Note, "", &place, what, "");
                }
            }
            seen.push(name);
        }
        at += 1;
    }
    Input::Envoy(documents)
}

/// All documents of a JSON or YAML text.
fn parse(text: &[u8]) -> Result<Vec<Value>, String> {
    if let Ok(value) = serde_json::from_slice(text) {
        return Ok(vec![value]);
    }
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    let documents = serde_norway::Deserializer::from_str(text);
    let values = documents.map(|d| Value::deserialize(d).map_err(|e| e.to_string()));
    let values: Vec<Value> = values.collect::<Result<_, _>>()?;
    if values.iter().any(|v| v.is_object() || v.is_null()) { Ok(values) } else { Err("no mapping in it".into()) }
}

/// Whether it is something that holds filters or resources of Envoy's, and no configuration of the filter.
fn is_envoys(value: &Value) -> bool {
    let names = [
        "static_resources",
        "staticResources",
        "dynamic_resources",
        "dynamicResources",
        "resources",
        "admin",
        "http_filters",
        "httpFilters",
        "@type",
        "apiVersion",
    ];
    names.iter().any(|name| value.get(name).is_some())
}

/// Files that are named as sources of further configuration.
fn files_of(at: &At<'_>, names: &mut Vec<(String, String)>) {
    let is_source = ["lds_config", "cds_config", "config_source"].iter().any(|name| at.path.ends_with(name));
    let old_way = || at.text(&["path"]).filter(|_| is_source);
    if let Some(path) = at.text(&["path_config_source", "path"]).or_else(old_way) {
        names.push((at.path.clone(), path.to_owned()));
    }
    for child in at.children() {
        // Endpoints come and go: they are no configuration.
        if !child.path.ends_with(".eds_config") && !child.path.ends_with(".edsConfig") {
            files_of(&child, names);
        }
    }
}

fn open(name: &str, source: &Source) -> std::io::Result<Vec<u8>> {
    std::fs::read(name).or_else(|error| match &source.folder {
        Some(folder) if Path::new(name).is_relative() => std::fs::read(folder.join(name)),
        _ => Err(error),
    })
}
