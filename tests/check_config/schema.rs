//! The JSON Schema, the reference, README's table and the parser say the same of every field.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use kvroute::config::{Config, describe};
use serde_json::{Value, json};

use super::common::kvroute;
use super::{complete, dotted, places, with};

/// What the keywords that the schema uses say against a value; the first place is enough. A keyword that is not
/// known here is a failure of the test.
fn refuses(schema: &Value, value: &Value, at: &str) -> Option<String> {
    let no = |what: &str| Some(format!("{at}: {what}"));
    let kind = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    };
    for (keyword, says) in schema.as_object().unwrap() {
        let wrong = match keyword.as_str() {
            "$schema" | "title" | "description" | "default" => None,
            "type" => {
                let names = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
                if names.iter().any(|name| kind(name.as_str().unwrap())) { None } else { no("type") }
            }
            "enum" => {
                if says.as_array().unwrap().contains(value) {
                    None
                } else {
                    no("enum")
                }
            }
            "minimum" => match value.as_f64() {
                Some(n) if n < says.as_f64().unwrap() => no("minimum"),
                _ => None,
            },
            "maximum" => match value.as_f64() {
                Some(n) if n > says.as_f64().unwrap() => no("maximum"),
                _ => None,
            },
            "pattern" => {
                assert_eq!(says, "^[a-z0-9_-]+$");
                let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
                match value.as_str() {
                    Some(text) if text.is_empty() || !text.bytes().all(fits) => no("pattern"),
                    _ => None,
                }
            }
            "items" => value.as_array().and_then(|items| {
                items.iter().enumerate().find_map(|(i, item)| refuses(says, item, &format!("{at}[{i}]")))
            }),
            "properties" => value.as_object().and_then(|map| {
                says.as_object()
                    .unwrap()
                    .iter()
                    .find_map(|(name, schema)| refuses(schema, map.get(name)?, &format!("{at}.{name}")))
            }),
            "required" => value.as_object().and_then(|map| {
                says.as_array()
                    .unwrap()
                    .iter()
                    .find(|name| !map.contains_key(name.as_str().unwrap()))
                    .and_then(|n| no(&n.to_string()))
            }),
            "additionalProperties" => value.as_object().and_then(|map| {
                let known = schema["properties"].as_object();
                let mut others = map.iter().filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
                match says {
                    Value::Bool(false) => others.next().and_then(|(name, _)| no(&format!("no field {name}"))),
                    other => others.find_map(|(name, value)| refuses(other, value, &format!("{at}.{name}"))),
                }
            }),
            other => panic!("no keyword {other}"),
        };
        if wrong.is_some() {
            return wrong;
        }
    }
    None
}

fn schema() -> Value {
    let output = kvroute(&["check-config", "--schema"], "");
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_schema_takes_what_the_parser_takes_and_refuses_what_has_another_type() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(refuses(&schema, &complete(), ""), None);
    let (mut objects, mut fields) = (Vec::new(), Vec::new());
    places(&complete(), "", &mut objects, &mut fields);
    let values = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(1.5),
        json!(1u64 << 62),
        json!("x"),
        json!("X Y"),
        json!([]),
        json!(["x"]),
        json!([[]]),
        json!({}),
        json!({"x": "y"}),
    ];
    let (mut by_type, mut taken) = (0, 0);
    for field in &fields {
        for value in &values {
            let config = with(field, value.clone());
            let (schemas, parsers) = (refuses(&schema, &config, ""), Config::from_value(&config));
            match (&schemas, &parsers) {
                (Some(why), Ok(_)) => panic!("the schema refuses {field}: {value} ({why}), the parser takes it"),
                (None, Ok(_)) => taken += 1,
                (_, Err(error)) => {
                    let of_type = [
                        "an object",
                        "a list",
                        "true or false",
                        "a whole number",
                        "a number",
                        "one of",
                        "a string,",
                        "a map",
                    ];
                    if of_type.iter().any(|kind| error.what.starts_with(&format!("must be {kind}"))) {
                        assert!(schemas.is_some(), "the schema takes {field}: {value}, the parser says {error}");
                        by_type += 1;
                    }
                }
            }
        }
    }
    eprintln!(
        "{} fields: {taken} values taken by both, {by_type} refused by both for their type or bounds",
        fields.len()
    );
    assert!(fields.len() > 80 && by_type > 500 && taken > 150);
    for object in &objects {
        let config = with(&format!("{object}/qqqqqqqq"), json!(1));
        assert!(refuses(&schema, &config, "").is_some(), "the schema takes any field in {object}");
    }
    for missing in ["/role", "/models/0/name", "/bridge/cluster", "/replicas/0/address", "/replicas/0/model"] {
        let mut config = complete();
        let (parent, name) = missing.rsplit_once('/').unwrap();
        config.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        assert!(refuses(&schema, &config, "").is_some() && Config::from_value(&config).is_err(), "{missing}");
    }
}

/// Configurations of the filter anywhere in a document: in strings, in documents within strings.
fn configurations(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            if map.get("role").and_then(Value::as_str).is_some_and(|r| ["router", "ingest", "admin"].contains(&r)) {
                found.push(value.clone());
            }
            map.values().for_each(|value| configurations(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| configurations(value, found)),
        Value::String(text) if text.contains("role") => match serde_json::from_str::<Value>(text) {
            Ok(inner) => configurations(&inner, found),
            Err(_) => documents(text, found),
        },
        _ => {}
    }
}

fn documents(text: &str, found: &mut Vec<Value>) {
    use serde::Deserialize;
    for document in serde_norway::Deserializer::from_str(text) {
        match Value::deserialize(document) {
            // A text that is no document but a text is its own value.
            Ok(Value::String(_)) | Err(_) => {}
            Ok(inner) => configurations(&inner, found),
        }
    }
}

#[test]
fn the_schema_takes_every_example() {
    let schema = schema();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy")];
    let mut by_file = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "yaml") {
                let mut found = Vec::new();
                documents(&std::fs::read_to_string(&path).unwrap(), &mut found);
                for config in &found {
                    assert_eq!(refuses(&schema, config, ""), None, "{}: {config}", path.display());
                }
                if !found.is_empty() {
                    by_file.insert(path.display().to_string(), found.len());
                }
            }
        }
    }
    assert!(by_file.len() >= 5 && by_file.values().sum::<usize>() >= 15, "{by_file:?}");
}

/// Rows of README's table: the paths of each, and its default.
fn rows() -> Vec<(Vec<String>, String)> {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let (_, section) = readme.split_once("\n## Configuration of the filter\n").unwrap();
    let lines = section.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let mut paths: Vec<String> = Vec::new();
            for name in cells[0].split('`').skip(1).step_by(2) {
                // `limits.max_job_bytes`, `max_jobs`
                let of_first = paths.first().and_then(|first| first.rsplit_once('.')).filter(|_| !name.contains('.'));
                paths.push(of_first.map_or(name.to_owned(), |(object, _)| format!("{object}.{name}")));
            }
            (paths, cells[1].to_owned())
        })
        .collect()
}

/// A default as README writes it; `None` where it is words.
fn value_of(text: &str) -> Option<Value> {
    if let Some(quoted) = text.strip_prefix('`').and_then(|t| t.strip_suffix('`')) {
        return Some(match quoted {
            "[]" => json!([]),
            r#""""# => return None,
            text => json!(text),
        });
    }
    match text.split_once(' ') {
        Some((number, "MiB")) => Some(json!(number.parse::<u64>().ok()? << 20)),
        None => serde_json::from_str(text).ok(),
        Some(_) => None,
    }
}

#[test]
fn readmes_table_lists_every_field_with_its_default() {
    let fields = describe::fields();
    let rows = rows();
    let named: BTreeSet<String> =
        rows.iter().flat_map(|(paths, _)| paths).map(|p| p.trim_end_matches("[]").to_owned()).collect();
    let known: BTreeSet<&str> = fields.iter().map(|f| f.path.as_str()).collect();
    let gone: Vec<_> = named.iter().filter(|path| !known.contains(path.as_str())).collect();
    assert!(gone.is_empty(), "README has {gone:?}");
    // A row for an object stands for its fields; what is for tests only is not told.
    let told = |path: &str| {
        named.contains(path)
            || path.starts_with("test")
            || named.iter().any(|row| path.starts_with(&format!("{row}.")) || path.starts_with(&format!("{row}[].")))
            || named.iter().any(|row| row.starts_with(&format!("{path}.")) || row.starts_with(&format!("{path}[].")))
    };
    let missing: Vec<_> = known.iter().filter(|path| !told(path)).collect();
    assert!(missing.is_empty(), "README lacks {missing:?}");
    let mut compared = 0;
    for (paths, default) in &rows {
        let defaults: Vec<&str> = default.split(", ").collect();
        for (path, default) in paths.iter().zip(defaults) {
            let field = fields.iter().find(|f| f.path == path.trim_end_matches("[]")).unwrap();
            let (Some(readme), Some(own)) = (value_of(default), &field.default) else { continue };
            assert_eq!((readme.as_f64(), readme.as_str()), (own.as_f64(), own.as_str()), "{path}");
            assert_eq!((readme.as_bool(), readme.as_array()), (own.as_bool(), own.as_array()), "{path}");
            compared += 1;
        }
    }
    assert!(compared > 20, "only {compared} defaults");
}

#[test]
fn the_reference_lists_what_the_complete_configuration_has() {
    let (mut objects, mut fields) = (Vec::new(), Vec::new());
    places(&complete(), "", &mut objects, &mut fields);
    let output = kvroute(&["check-config", "--reference", "--json"], "");
    let reference: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let told: BTreeSet<String> = reference.iter().map(|f| f["field"].as_str().unwrap().to_owned()).collect();
    // Elements of a list of texts are no fields, and an absent one has no place.
    let texts: BTreeSet<&str> =
        reference.iter().filter(|f| f["type"] == "list of texts").map(|f| f["field"].as_str().unwrap()).collect();
    let mut has: BTreeSet<String> = fields.iter().map(|f| dotted(f).replace("[0]", "[]")).collect();
    has.retain(|path| !path.ends_with("[]") || path == "models[]" || path == "replicas[]");
    has.retain(|path| path != "models[]" && path != "replicas[]");
    has.extend(["secret_env", "models[].engine.tokenizer"].map(str::to_owned));
    assert_eq!(told, has);
    assert!(texts.contains("models[].aliases"));
    for field in &reference {
        assert!(field["meaning"].as_str().is_some_and(|m| !m.is_empty()), "{field}");
        // Of each number it is said of what, unless it counts what its name says.
        let counts = ["limits.max_jobs", "replicas[].rank", "policy.candidates", "policy.bound", "receipts.sample"];
        let share = field["type"] == "number, 0 to 1";
        let number = field["type"].as_str().unwrap().contains("number");
        let told = field["unit"] != "" || share || counts.contains(&field["field"].as_str().unwrap());
        assert!(!number || told, "{field}");
    }
    let text = String::from_utf8(kvroute(&["check-config", "--reference"], "").stdout).unwrap();
    for path in &told {
        assert!(text.lines().any(|line| line.starts_with(&format!("{path} "))), "{path}");
    }
}
