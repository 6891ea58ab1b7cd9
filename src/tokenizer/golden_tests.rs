//! The tokenizers against the ids that a real engine gave.

use std::rc::Rc;

use super::hf::HfTokenizer;
use super::testing::{TOKENIZERS, golden, golden_prompts, tokenizer_dir};
use super::{Step, Tokenizer};

fn reference(name: &str) -> Option<Rc<HfTokenizer>> {
    let json = std::fs::read(tokenizer_dir(name)?.join("tokenizer.json")).unwrap();
    let specials = HfTokenizer::from_json(&json, Default::default()).unwrap().probe_specials().unwrap();
    Some(Rc::new(HfTokenizer::from_json(&json, specials).unwrap()))
}

#[test]
fn the_crate_gives_the_ids_of_the_engine() {
    for name in TOKENIZERS {
        let Some(tokenizer) = reference(name) else { continue };
        let prompts = golden_prompts(name);
        for (prompt, add, ids) in &prompts {
            assert_eq!(tokenizer.clone().encode(prompt, *add).unwrap(), *ids, "{name} {prompt:?}");
        }
        assert!(!prompts.is_empty() || golden(name).is_empty(), "{name}");
    }
}

#[test]
fn pieces_give_the_ids_of_the_whole() {
    let Some(tokenizer) = reference("qwen3") else { return };
    let text = "<|im_start|>user\n  Hi <tool_call>there<|im_end|>\n<|im_start|>assistant\n\n\n<think>";
    let whole = tokenizer.whole(text, true).unwrap();
    let mut ids = Vec::new();
    let mut encoding = tokenizer.clone().start(text.into(), true);
    let mut boundaries = Vec::new();
    while encoding.step(1, &mut ids).unwrap() == Step::More {
        boundaries.extend(encoding.boundary());
    }
    assert_eq!(ids, whole);
    assert_eq!(encoding.remaining_bytes(), 0);
    assert!(boundaries.len() > 3);
    for at in boundaries {
        let mut rest = Vec::new();
        let mut encoding = tokenizer.clone().resume(text.into(), true, at).unwrap();
        while encoding.step(usize::MAX, &mut rest).unwrap() == Step::More {}
        assert_eq!([&whole[..at.tokens], &rest].concat(), whole);
    }
}
