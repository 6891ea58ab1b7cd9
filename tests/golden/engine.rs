//! HTTP bodies: what vLLM 0.32 rendered and tokenized, and what vLLM 0.33's functions rendered.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use kvroute::conform::cases::{Case, CaseFile};
use kvroute::nokey::LIMITS;
use kvroute::request::{Api, ApiPaths, Body, EngineFlags, Prepared, PromptInput, Renderer, Truncate, TruncateSide};
use kvroute::template::{ChatTemplates, TemplateSource};

use crate::data::{self, Tally};
use crate::jinja::{CLOCK, expected_text, templates};

/// 2026-11-30 12:00:00 UTC, the day on which the cases were recorded.
const NOW: u64 = 1_796_040_000;

#[test]
fn vllm_level() {
    let (Some(dir), Some(templates)) = (data::dir("template-golden"), templates()) else { return };
    let bodies: HashMap<String, String> = raw_bodies(&dir.join("vllm_level.inputs.jsonl"));
    let flags = EngineFlags {
        version: "0.33.0".to_owned(),
        enable_auto_tool_choice: true,
        tool_call_parser: Some("any".to_owned()),
        ..EngineFlags::default()
    };
    let mut tally = Tally::new("vllm_level");
    let (mut current, mut renderer, mut earlier) = (String::new(), Err(String::new()), Vec::new());
    for line in data::lines(&dir.join("vllm_level.expected.jsonl")) {
        let record = data::record(&line);
        let name = record["t"].as_str().unwrap();
        if current != name {
            current = name.to_owned();
            renderer = Renderer::new(plain_source(&templates[name]), &flags);
            earlier.clear();
            if let Err(error) = &renderer {
                data::say(&format!("golden vllm_level: {name} refused: {error}"));
            }
        }
        let expected = expected_text(&record, &earlier);
        earlier.extend(expected.clone());
        let (Ok(renderer), Some(expected)) = (&renderer, expected) else {
            if renderer.is_ok() {
                tally.pass();
            }
            continue;
        };
        let id = record["c"].as_str().unwrap();
        let case = format!("{name} {id}");
        let prepared = Body::parse(bodies[id].as_bytes())
            .and_then(|body| renderer.prepare(Api::ChatCompletions, &body, CLOCK.unix_seconds));
        match prepared {
            Ok(Prepared { input: PromptInput::Text(text), .. }) => tally.compare(&case, &expected, &text),
            Ok(_) => tally.fail(format!("{case}: no text")),
            Err(reason) => tally.fail(format!("{case}: {reason}")),
        }
    }
    assert_eq!(tally.finish(), 0);
}

/// The body of each input as it stands in the file: a JSON library would lose its spelling of numbers.
pub fn raw_bodies(path: &Path) -> HashMap<String, String> {
    let mut out = HashMap::new();
    for line in data::lines(path) {
        let id = data::record(&line)["id"].as_str().unwrap().to_owned();
        let start = line.find("\"body\":").expect("a body") + 7;
        out.insert(id, line[start..].trim().strip_suffix('}').unwrap().to_owned());
    }
    out
}

pub fn plain_source(template: &str) -> TemplateSource {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")];
    TemplateSource {
        chat_template: Some(ChatTemplates::Single(template.to_owned())),
        special_tokens: tokens.iter().map(|(name, token)| (name.to_string(), token.to_string())).collect(),
        ..TemplateSource::default()
    }
}

#[test]
fn recorded_requests() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/recorded");
    let dirs = [data::dir("golden"), Some(own)].into_iter().flatten();
    let mut files: Vec<_> = dirs.flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten()).map(|e| e.path()).collect();
    files.sort();
    let mut tokenizers = BTreeMap::new();
    let mut failed = 0;
    for path in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")) {
        let set = path.file_stem().unwrap().to_string_lossy().into_owned();
        let name = set.split(['-', '.']).next().unwrap().to_owned();
        let Some(models) = data::tokenizer(&name) else { continue };
        let tokenizer = tokenizers
            .entry(name)
            .or_insert_with(|| tokenizers::Tokenizer::from_file(models.join("tokenizer.json")).expect("a tokenizer"));
        failed += run_file(path, &models, tokenizer);
    }
    assert_eq!(failed, 0);
}

fn run_file(path: &Path, models: &Path, tokenizer: &tokenizers::Tokenizer) -> usize {
    let file = CaseFile::read(path).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(file.meta.other_flags, [""; 0], "{}: flags that are not known to change prompts", file.name);
    let config = std::fs::read_to_string(models.join("tokenizer_config.json")).unwrap();
    let source = TemplateSource {
        model_type: file.meta.model_type.clone(),
        // What the engine was started with.
        max_model_len: Some(40960),
        ..TemplateSource::from_files(&data::record(&config), None, None, None).unwrap()
    };
    let flags = file.meta.flags(None).unwrap();
    let renderer = Renderer::new(source, &flags).unwrap_or_else(|error| panic!("{}: {error}", file.name));
    let mut tally = Tally::new(&file.name);
    let mut refused = Vec::new();
    for case in &file.cases {
        run_case(case, &renderer, tokenizer, &mut tally, &mut refused);
    }
    refused.iter().for_each(|line: &String| data::say(&format!("golden {}: refused {line}", file.name)));
    tally.finish()
}

fn run_case(
    case: &Case,
    renderer: &Renderer,
    tokenizer: &tokenizers::Tokenizer,
    tally: &mut Tally,
    refused: &mut Vec<String>,
) {
    let name = &case.name;
    let api = Api::of_check(&case.endpoint, &ApiPaths::default()).expect("a known endpoint");
    let prepared = Body::parse(case.body.as_bytes()).and_then(|body| renderer.prepare(api, &body, NOW));
    if case.status != 200 {
        // Anything but a crash is right.
        return tally.pass();
    }
    let prepared = match prepared {
        Ok(prepared) => prepared,
        Err(reason) => {
            refused.push(format!("{name}: {reason}"));
            return match LIMITS.iter().any(|limit| reason.detail.starts_with(limit)) {
                true => tally.pass(),
                false => tally.fail(format!("{name}: {reason}")),
            };
        }
    };
    let text = match &prepared.input {
        PromptInput::Text(text) => Some(text.clone()),
        PromptInput::Pieces(pieces) => Some(pieces.concat()),
        PromptInput::Ids(_) => None,
    };
    if let (Some(expected), Some(text)) = (&case.prompt, &text)
        && expected != text
        // The recorded text of a truncated prompt is that of its ids.
        && prepared.truncate.is_none()
    {
        return tally.compare(name, expected, text);
    }
    let got = ids(&prepared, tokenizer);
    // A list of prompts is routed by one of them.
    if case.ids.contains(&got) {
        return tally.pass();
    }
    let expected = case.ids.first().cloned().unwrap_or_default();
    let at = got.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    tally.fail(format!(
        "{name}: ids differ at {at}: expected {:?}, got {:?}",
        &expected[at..expected.len().min(at + 8)],
        &got[at..got.len().min(at + 8)]
    ));
}

/// The ids of a prepared request, tokenized and cut by the reference.
fn ids(prepared: &Prepared, tokenizer: &tokenizers::Tokenizer) -> Vec<u32> {
    let encode = |text: &str, special| tokenizer.encode(text, special).unwrap().get_ids().to_vec();
    let (all, added) = match &prepared.input {
        PromptInput::Ids(ids) => (ids.clone(), 0),
        PromptInput::Pieces(pieces) => (pieces.iter().flat_map(|piece| encode(piece, false)).collect(), 0),
        PromptInput::Text(text) => {
            let all = encode(text, prepared.add_special_tokens);
            let added = all.len() - encode(text, false).len();
            (all, added)
        }
    };
    match prepared.truncate {
        None => all,
        Some(Truncate { tokens, .. }) if all.len() <= tokens => all,
        Some(Truncate { tokens, side: TruncateSide::Right }) => all[..tokens].to_vec(),
        Some(Truncate { tokens, side: TruncateSide::Left }) => all[all.len() - tokens..].to_vec(),
        Some(Truncate { tokens, side: TruncateSide::Default }) => {
            let kept = tokens.saturating_sub(added);
            [&all[..added.min(tokens)], &all[all.len() - kept..]].concat()
        }
    }
}
