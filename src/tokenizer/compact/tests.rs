//! The own engine against the crate, for all tokenizers that are installed.
//!
//! `KVROUTE_LONG_TESTS=1` sweeps all of Unicode and a larger corpus.

use std::collections::HashMap;
use std::rc::Rc;

use super::corpus::{Random, contexts, text};
use super::{Compact, compile};
use crate::blocks::TokenId;
use crate::pack::Specials;
use crate::tokenizer::hf::HfTokenizer;
use crate::tokenizer::testing::{golden_prompts, tokenizer_dir};
use crate::tokenizer::{Boundary, Step, Tokenizer};

struct Pair {
    name: &'static str,
    compact: Rc<Compact>,
    reference: Rc<HfTokenizer>,
    added: Vec<String>,
}

fn pair(name: &'static str) -> Option<Pair> {
    let json = std::fs::read(tokenizer_dir(name)?.join("tokenizer.json")).unwrap();
    let tables = compile::compile(&json).unwrap_or_else(|e| panic!("{name}: {e}"));
    let bytes: HashMap<_, _> = tables.iter().map(|(kind, bytes)| (format!("{kind:?}"), bytes.len())).collect();
    eprintln!("{name}: {:.2} MB {bytes:?}", tables.iter().map(|(_, b)| b.len()).sum::<usize>() as f64 / 1e6);
    let reference = HfTokenizer::from_json(&json, Specials::default()).unwrap();
    let specials = reference.probe_specials().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let added = added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
    Some(Pair {
        name,
        compact: Rc::new(compile::open(&tables, specials).unwrap()),
        reference: Rc::new(reference),
        added,
    })
}

impl Pair {
    fn check(&self, text: &str) -> Vec<TokenId> {
        let expected = self.reference.whole(text, false).unwrap();
        let ids = self.compact.clone().encode(text, false).unwrap_or_else(|e| panic!("{}: {e}: {text:?}", self.name));
        self.equal(text, &ids, &expected);
        ids
    }

    fn equal(&self, text: &str, ids: &[TokenId], expected: &[TokenId]) {
        if ids != expected {
            let at = ids.iter().zip(expected).take_while(|(a, b)| a == b).count();
            let near = |ids: &[TokenId]| ids[at.saturating_sub(3)..(at + 5).min(ids.len())].to_vec();
            panic!("{}: id {at}: {:?}, expected {:?}, in {text:?}", self.name, near(ids), near(expected));
        }
    }

    /// A few seeds mix all added tokens, the others some.
    fn specials(&self, random: &mut Random) -> Vec<String> {
        (0..8).map(|_| self.added[random.below(self.added.len())].clone()).collect()
    }
}

fn long() -> bool {
    std::env::var_os("KVROUTE_LONG_TESTS").is_some()
}

fn golden_prompts_have_the_engines_ids(pair: &Pair) {
    for (prompt, add, ids) in golden_prompts(pair.name) {
        pair.equal(&prompt, &pair.compact.clone().encode(&prompt, add).unwrap(), &ids);
    }
}

fn generated_text_has_the_crates_ids(pair: &Pair) {
    let seeds = if long() { 20_000 } else { 120 };
    for seed in 0..seeds {
        let mut random = Random(seed);
        let specials = pair.specials(&mut random);
        let bytes = [40, 300, 3000, 12_000][random.below(4)];
        pair.check(&text(&mut random, bytes, &specials));
    }
}

fn every_code_point_in_its_contexts(pair: &Pair) {
    let step = if long() { 1 } else { 37 };
    let points: Vec<char> = (0..=0x10ffffu32).filter_map(char::from_u32).collect();
    // Beyond the third plane nearly everything is unassigned.
    let sampled = points.iter().enumerate().filter(|(i, c)| {
        (**c as u32) < 0x800 || i % (step * if (**c as u32) > 0x32400 && step > 1 { 60 } else { 1 }) == 0
    });
    let sampled: Vec<char> = sampled.map(|(_, c)| *c).collect();
    for block in sampled.chunks(256) {
        pair.check(&contexts(block.iter().copied()));
    }
}

fn interrupted_and_resumed_is_the_same(pair: &Pair) {
    for seed in 0..if long() { 5000 } else { 60 } {
        let mut random = Random(seed ^ 0xabcdef);
        let specials = pair.specials(&mut random);
        let bytes = 200 + random.below(12_000);
        let text: Rc<str> = text(&mut random, bytes, &specials).into();
        let whole = pair.compact.clone().encode(&text, true).unwrap();
        let mut encoding = pair.compact.clone().start(text.clone(), true);
        let (mut ids, mut boundaries) = (Vec::new(), Vec::<Boundary>::new());
        let most = 1 + random.below(700);
        loop {
            let step = encoding.step(random.below(most), &mut ids).unwrap();
            assert_eq!(ids[..], whole[..ids.len()], "{}: {text:?}", pair.name);
            boundaries.extend(encoding.boundary().filter(|at| boundaries.last() != Some(at)));
            if step == Step::Done {
                break;
            }
        }
        assert_eq!(ids, whole, "{}: {text:?}", pair.name);
        assert_eq!(encoding.remaining_bytes(), 0);
        // What follows a boundary may be any text.
        let Some(at) = boundaries.get(random.below(boundaries.len())).copied() else { continue };
        let tail = super::corpus::text(&mut random, 500, &specials);
        let other: Rc<str> = format!("{}{tail}", &text[..at.bytes]).into();
        let expected = pair.reference.whole(&other, true).unwrap();
        let mut encoding = pair.compact.clone().resume(other.clone(), true, at).unwrap();
        let mut ids = whole[..at.tokens].to_vec();
        while encoding.step(random.below(most), &mut ids).unwrap() == Step::More {}
        pair.equal(&other, &ids, &expected);
    }
}

fn long_words_and_runs(pair: &Pair) {
    for piece in ["a", " ", "\n", "ab", "中", "\u{301}", "=-", "\u{e9}", "x\u{301}", "\t", "QUJD", "0", " a", "'s"] {
        for len in [49, 1000, 20_000] {
            pair.check(&piece.repeat(len));
        }
    }
    let mut random = Random(5);
    let letters: String = (0..100_000).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    pair.check(&letters);
}

/// Of an id that stands for white space only the crate may give an end without it, so those are not compared.
fn ends_are_where_the_crate_has_them(pair: &Pair) {
    let mut compared = 0;
    for seed in 0..20 {
        let mut random = Random(seed ^ 0x5eed);
        let specials = pair.specials(&mut random);
        let text = text(&mut random, 2000, &specials);
        let Some(ends) = pair.compact.clone().ends(&text, true) else { continue };
        let expected = pair.reference.clone().ends(&text, true).unwrap();
        assert_eq!(ends.len(), expected.len(), "{}: {text:?}", pair.name);
        for (end, expected) in ends.iter().zip(&expected) {
            let between = &text[*end.min(expected)..*end.max(expected)];
            assert!(between.trim().is_empty(), "{}: {end} for {expected} in {text:?}", pair.name);
        }
        compared += ends.len();
    }
    assert_eq!(compared > 0, pair.name != "gemma3", "{}: {compared} ends", pair.name);
}

/// One test a tokenizer: loading it is what takes the time.
macro_rules! tokenizer_tests {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let Some(pair) = pair(stringify!($name)) else { return };
            golden_prompts_have_the_engines_ids(&pair);
            generated_text_has_the_crates_ids(&pair);
            every_code_point_in_its_contexts(&pair);
            interrupted_and_resumed_is_the_same(&pair);
            long_words_and_runs(&pair);
            ends_are_where_the_crate_has_them(&pair);
        }
    )*};
}

tokenizer_tests! { qwen3 llama3_1 deepseek_v3 gemma3 gptoss }

#[test]
fn damaged_tables_do_no_harm() {
    let Some(pair) = pair("qwen3") else { return };
    let json = std::fs::read(tokenizer_dir(pair.name).unwrap().join("tokenizer.json")).unwrap();
    let tables = compile::compile(&json).unwrap();
    let mut random = Random(3);
    for seed in 0..200 {
        let mut broken = tables.clone();
        let len = broken.len();
        let (_, table) = &mut broken[1 + random.below(len - 1)];
        match random.below(3) {
            0 => table.truncate(random.below(table.len() + 1)),
            1 => table.iter_mut().for_each(|byte| *byte = random.number() as u8),
            _ => table.fill(0xff),
        }
        let Ok(compact) = compile::open(&broken, Specials::default()) else { continue };
        let compact = Rc::new(compact);
        let text = text(&mut Random(seed), 2000, &pair.added);
        let _ = compact.encode(&text, true);
    }
}
