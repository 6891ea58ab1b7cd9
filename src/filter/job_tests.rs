use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::explain::explain;
use crate::filter::models::Tokenizers;
use crate::pack::Pack;
use crate::pack::build::{BuildOptions, SourceOptions, build};
use crate::request::ApiPaths;
use crate::tokenizer::memory::PromptMemory;
use crate::tokenizer::testing::{golden, tokenizer_dir};

const MODEL: &str = "m";

fn setup(tokenizer: &str) -> Option<Rc<Setup>> {
    let model_type = (tokenizer == "gptoss").then(|| "gpt_oss".to_owned());
    let source = SourceOptions { model_type, ..Default::default() };
    let options = BuildOptions { name: Some(MODEL.into()), source };
    let packs = Pack::parse(build(&tokenizer_dir(tokenizer)?, &options).unwrap()).unwrap();
    let config = json!({"role": "router", "hash_seed": "s",
        "models": [{"name": MODEL, "block_size": 4}],
        "replicas": [{"address": "127.0.0.1:1", "model": MODEL}]});
    let config = Config::from_value(&config).unwrap();
    Some(Rc::new(Setup::new(config, &packs).unwrap()))
}

fn tools(memory: usize) -> Tools {
    Tools { tokenizers: Tokenizers::default(), memory: PromptMemory::new(memory, 7) }
}

/// Block hashes, tokens and the kind of failure of a request that is worked on in the smallest steps.
fn run(setup: &Rc<Setup>, tools: &mut Tools, api: Api, body: &Value) -> (Vec<BlockHash>, f64, Option<NoKey>) {
    let mut job = Job::new(1, setup.clone(), api, body.to_string().into_bytes(), Time(0));
    while !job.is_done() {
        if let Err(reason) = job.step(tools, 0, &mut || false) {
            return (job.hashes, 0.0, Some(reason.kind));
        }
    }
    let (tokens, exact) = job.tokens();
    assert!(exact);
    (job.hashes, tokens, None)
}

fn explained(setup: &Setup, tools: &mut Tools, api: Api, body: &Value) -> (Vec<BlockHash>, f64, Option<NoKey>) {
    let model = setup.models[0].explainable(&mut tools.tokenizers, None, "s").unwrap();
    let body = Body::parse(body.to_string().as_bytes()).unwrap();
    let out = explain(&model, api, &body, 0);
    let hash = |hex: &String| BlockHash(u64::from_str_radix(hex, 16).unwrap());
    let kind = out.no_key.map(|reason| NoKey::ALL.iter().copied().find(|kind| kind.label() == reason.reason).unwrap());
    (out.block_hashes.iter().map(hash).collect(), out.token_ids.len() as f64, kind.filter(|k| *k != NoKey::TooShort))
}

/// The golden requests that name no other model, as (API, body).
fn requests(tokenizer: &str) -> Vec<(Api, Value)> {
    let cases = golden(tokenizer).into_iter().filter_map(|case| {
        let api = Api::from_path(case["endpoint"].as_str()?, &ApiPaths::default())?;
        let mut body: Value = serde_json::from_str(case["body"].as_str()?).ok()?;
        body.as_object()?;
        body["model"] = MODEL.into();
        Some((api, body))
    });
    cases.collect()
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn cut<'t>(&mut self, text: &'t str) -> &'t str {
        let at = self.below(text.len() + 1);
        &text[..(0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap()]
    }
}

#[test]
fn golden_requests_come_to_what_explain_says() {
    for tokenizer in ["qwen3", "llama3_1", "gptoss"] {
        let Some(setup) = setup(tokenizer) else { continue };
        let mut tools = tools(1 << 20);
        let (mut keyed, mut pieces) = (0, 0);
        let requests = requests(tokenizer);
        for (api, body) in &requests {
            let expected = explained(&setup, &mut tools, *api, body);
            // The second time what the first one left is remembered.
            for _ in 0..2 {
                let got = run(&setup, &mut tools, *api, body);
                assert_eq!((&got.0, got.2), (&expected.0, expected.2), "{tokenizer}: {body}");
                assert!(got.2.is_some() || got.1 == expected.1, "{tokenizer}: {body}");
            }
            keyed += usize::from(!expected.0.is_empty());
            let parsed = Body::parse(body.to_string().as_bytes());
            let prepared = parsed.and_then(|parsed| setup.models[0].renderer()?.prepare(*api, &parsed, 0));
            pieces += usize::from(prepared.is_ok_and(|p| matches!(p.input, PromptInput::Pieces(_))));
        }
        eprintln!("{tokenizer}: {keyed} prompts with a key, {pieces} of them in pieces");
        assert!(requests.is_empty() || keyed > 50, "{keyed}");
        assert!(requests.is_empty() || tokenizer != "gptoss" || pieces > 0);
    }
}

/// All texts of the golden requests, one after another.
fn corpus(requests: &[(Api, Value)], between: &str) -> String {
    let messages = requests.iter().flat_map(|(_, body)| body["messages"].as_array().into_iter().flatten());
    messages.filter_map(|message| message["content"].as_str()).collect::<Vec<_>>().join(between)
}

#[test]
fn remembered_prompts_come_to_the_same_after_any_edit() {
    for tokenizer in ["qwen3", "llama3_1", "gptoss"] {
        let Some(setup) = setup(tokenizer) else { continue };
        // A special token in a message makes pieces of a prompt of gpt-oss, which are not remembered.
        let corpus = corpus(&requests(tokenizer), if tokenizer == "gptoss" { "\n" } else { "\n<|im_end|>" });
        if corpus.is_empty() {
            continue;
        }
        let (mut plain, mut small, mut large) = (tools(0), tools(12_000), tools(1 << 20));
        let mut dice = Dice(3);
        let mut conversations: Vec<Vec<Value>> = vec![vec![]];
        for round in 0..60 {
            // A turn more, a branch, or a cut in the middle of a text.
            let mut messages = conversations[dice.below(conversations.len())].clone();
            if dice.below(3) == 0 {
                messages.truncate(dice.below(messages.len() + 1));
            }
            if let (0, Some(last)) = (dice.below(4), messages.last_mut()) {
                let text = dice.cut(last["content"].as_str().unwrap()).to_owned();
                last["content"] = text.into();
            }
            for _ in 0..=dice.below(2) {
                let from = dice.cut(&corpus).len();
                let length = dice.below(3000);
                let text: String = corpus[from..].chars().take(length).collect();
                let role = if messages.len().is_multiple_of(2) { "user" } else { "assistant" };
                messages.push(json!({"role": role, "content": text}));
            }
            let mut body = json!({"model": MODEL, "messages": messages});
            if dice.below(8) == 0 {
                body["cache_salt"] = "salted".into();
            }
            let expected = run(&setup, &mut plain, Api::ChatCompletions, &body);
            for tools in [&mut small, &mut large] {
                let got = run(&setup, tools, Api::ChatCompletions, &body);
                assert_eq!(got, expected, "{tokenizer}, round {round}");
            }
            assert!(small.memory.bytes() <= 12_000 && large.memory.bytes() <= 1 << 20);
            if messages.len() > 6 {
                messages.truncate(4);
            }
            conversations.push(messages);
        }
        let (few, many) = (small.memory.counters(), large.memory.counters());
        eprintln!("{tokenizer}: {many:?}; with little room {few:?}");
        assert!(many.hits > 20 && many.bytes_saved > 50_000 && few.evicted > 10, "{many:?}, {few:?}");
        assert_eq!(plain.memory.counters(), Default::default());
    }
}

#[test]
fn the_next_turn_tokenizes_only_what_is_new() {
    let Some(setup) = setup("qwen3") else { return };
    let mut tools = tools(1 << 20);
    let mut messages = vec![json!({"role": "system", "content": "Rules of the house. ".repeat(400)})];
    for turn in 0..8 {
        messages.push(json!({"role": "user", "content": format!("Question {turn}. ").repeat(200)}));
        let body = json!({"model": MODEL, "messages": messages});
        let before = tools.memory.counters().bytes_saved;
        let (hashes, tokens, none) = run(&setup, &mut tools, Api::ChatCompletions, &body);
        assert_eq!((none, hashes.len() as f64), (None, (tokens / 4.0).floor()));
        let saved = tools.memory.counters().bytes_saved - before;
        // All but the last answer and question: some 6,000 bytes.
        let whole = body.to_string().len() as u64;
        assert!(turn == 0 || saved + 8_000 > whole, "turn {turn}: {saved} of {whole}");
        messages.push(json!({"role": "assistant", "content": format!("Answer {turn}. ").repeat(200)}));
    }
}
