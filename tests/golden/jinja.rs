//! Templates alone: source and variables in, text out, against jinja2.

use std::collections::HashMap;

use kvroute::request::json::{Json, parse};
use kvroute::template::{Clock, ContentFormat, Template, Variables};

use crate::data::{self, Tally};

/// 2026-03-05 09:07:03 UTC; the recorded renders used it.
pub const CLOCK: Clock = Clock { unix_seconds: 1772701623, offset_minutes: 0 };

/// The variables of a record.
pub fn variables(json: &Json) -> Variables {
    let mut out = Variables::new(1000);
    for (name, value) in json.as_map().expect("variables are an object").iter() {
        out.set(name.as_str(), value.to_value());
    }
    out
}

/// Rebuilds the text of a record: the middle, between the ends of an earlier record of the same template.
pub fn expected_text(record: &serde_json::Value, earlier: &[String]) -> Option<String> {
    let middle = record.get("m")?.as_str()?;
    let Some(parts) = record.get("p") else {
        return Some(middle.to_owned());
    };
    let part = |at: usize| parts[at].as_u64().unwrap() as usize;
    let base: Vec<char> = earlier[part(0)].chars().collect();
    let prefix: String = base[..part(1)].iter().collect();
    let suffix: String = base[base.len() - part(2)..].iter().collect();
    Some(format!("{prefix}{middle}{suffix}"))
}

/// The templates, by name.
pub fn templates() -> Option<HashMap<String, String>> {
    let dir = data::dir("templates")?;
    let mut out = HashMap::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            out.insert(name, std::fs::read_to_string(&path).unwrap());
        }
    }
    Some(out)
}

#[test]
fn jinja_level() {
    let (Some(dir), Some(templates)) = (data::dir("template-golden"), templates()) else { return };
    let inputs: HashMap<String, Json> = data::lines(&dir.join("jinja_level.inputs.jsonl"))
        .iter()
        .map(|line| {
            let input = parse(line.as_bytes()).unwrap();
            let map = input.as_map().unwrap();
            (map.get("id").unwrap().as_str().unwrap().to_owned(), map.get("vars").unwrap().clone())
        })
        .collect();
    let mut tally = Tally::new("jinja_level");
    let (mut current, mut compiled, mut earlier) = (String::new(), Err(String::new()), Vec::new());
    for line in data::lines(&dir.join("jinja_level.expected.jsonl")) {
        let record = data::record(&line);
        let name = record["t"].as_str().unwrap();
        if current != name {
            current = name.to_owned();
            compiled = Template::compile(&templates[name]);
            earlier.clear();
            if let Err(error) = &compiled {
                data::say(&format!("golden jinja_level: {name} refused: {error}"));
            }
        }
        let expected = expected_text(&record, &earlier);
        earlier.extend(expected.clone());
        let Ok(template) = &compiled else { continue };
        let case = format!("{name} {}", record["c"].as_str().unwrap());
        let got = template.render(variables(&inputs[record["c"].as_str().unwrap()]), CLOCK).map_err(String::from);
        check(&mut tally, &case, expected, got);
    }
    assert_eq!(tally.finish(), 0);
}

fn check(tally: &mut Tally, case: &str, expected: Option<String>, got: Result<String, String>) {
    match (expected, got) {
        (Some(expected), Ok(got)) => tally.compare(case, &expected, &got),
        (Some(_), Err(error)) => tally.fail(format!("{case}: {error}")),
        // Where Python raises, the engine answers an error and caches nothing.
        (None, _) => tally.pass(),
    }
}

#[test]
fn quirks() {
    let Some(dir) = data::dir("template-golden") else { return };
    let text = std::fs::read(dir.join("quirks.vars.json")).unwrap();
    let vars = parse(&text).unwrap();
    let mut tally = Tally::new("quirks");
    let mut refused = Vec::new();
    for line in data::lines(&dir.join("quirks.jsonl")) {
        let record = data::record(&line);
        let case = format!("{} {}", record["id"], record["src"]);
        let expected = record.get("o").and_then(|text| text.as_str());
        let got = Template::compile(record["src"].as_str().unwrap())
            .map_err(|error| format!("refused: {error}"))
            .and_then(|template| template.render(variables(&vars), CLOCK).map_err(String::from));
        match (expected, got) {
            (Some(expected), Ok(got)) => tally.compare(&case, expected, &got),
            // No key is safe; these are corners of Jinja2 that no known chat template uses.
            (Some(_), Err(error)) => refused.push(format!("{case}: {error}")),
            (None, _) => tally.pass(),
        }
    }
    refused.iter().for_each(|line| data::say(&format!("golden quirks: no text for {line:.200}")));
    assert_eq!(tally.finish(), 0);
}

#[test]
fn content_formats() {
    let (Some(dir), Some(templates)) = (data::dir("template-golden"), templates()) else { return };
    let text = std::fs::read_to_string(dir.join("vllm_level.content_formats.json")).unwrap();
    let mut tally = Tally::new("content_formats");
    for (name, expected) in data::record(&text).as_object().unwrap() {
        match Template::compile(&templates[name]) {
            Ok(template) => {
                let got = match template.facts().content_format {
                    ContentFormat::String => "string",
                    ContentFormat::OpenAi => "openai",
                };
                tally.compare(name, expected.as_str().unwrap(), got);
            }
            Err(error) => data::say(&format!("golden content_formats: {name} refused: {error}")),
        }
    }
    assert_eq!(tally.finish(), 0);
}
