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
    Some(pair_of(name, &json))
}

fn pair_of(name: &'static str, json: &[u8]) -> Pair {
    let tables = compile::compile(json).unwrap_or_else(|e| panic!("{name}: {e}"));
    let bytes: HashMap<_, _> = tables.iter().map(|(kind, bytes)| (format!("{kind:?}"), bytes.len())).collect();
    eprintln!("{name}: {:.2} MB {bytes:?}", tables.iter().map(|(_, b)| b.len()).sum::<usize>() as f64 / 1e6);
    let reference = HfTokenizer::from_json(json, Specials::default()).unwrap();
    let specials = reference.probe_specials().unwrap();
    let json: serde_json::Value = serde_json::from_slice(json).unwrap();
    let added = json["added_tokens"].as_array().unwrap();
    let added = added.iter().map(|token| token["content"].as_str().unwrap().to_owned()).collect();
    Pair { name, compact: Rc::new(compile::open(&tables, specials).unwrap()), reference: Rc::new(reference), added }
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
    let letters: String =
        (0..if long() { 1_000_000 } else { 100_000 }).map(|_| char::from(b'a' + random.below(26) as u8)).collect();
    pair.check(&letters);
}

/// Of a word that is given out in several steps, all ids are counted: what is remembered after it has the place of all.
fn boundaries_after_long_words_count_their_ids(pair: &Pair) {
    let mut random = Random(8);
    let specials = pair.specials(&mut random);
    let mut passed = 0;
    for piece in ["xq", "中", "\u{1}", "\u{3000}", "\u{1}\u{378}"] {
        for steps in [1, 300, 100_000, usize::MAX] {
            let text: Rc<str> = format!("{}{}end", piece.repeat(12_000), specials.concat()).into();
            let mut encoding = pair.compact.clone().start(text.clone(), true);
            let mut ids = Vec::new();
            while encoding.step(steps, &mut ids).unwrap() == Step::More {}
            let Some(at) = encoding.boundary() else { continue };
            let before = pair.compact.clone().encode(&text[..at.bytes], true).unwrap();
            let before = before.len() - pair.compact.specials.suffix.len();
            assert_eq!(at.tokens, before, "{}: {piece:?} in steps of {steps}", pair.name);
            passed += 1;
        }
    }
    assert!(passed > 0, "{}: no boundary among {specials:?}", pair.name);
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

/// Runs whose ends lie about where windows end: what was seen of a run is kept from one look to the next.
fn runs_of_any_length_one_after_the_other(pair: &Pair) {
    use super::nfc::LONGEST_RUN;
    const PIECES: &[&str] = &[
        "a",
        "A",
        "aB",
        " ",
        "\t",
        "\n",
        "\r\n",
        "/",
        "=",
        "=-",
        "0",
        "7a",
        "中",
        "の",
        "é",
        "e\u{301}",
        "\u{301}",
        "\u{1}",
        "\u{200d}",
        "😀",
        "\u{3000}",
        "'s",
        "ǅ",
        "ʰ",
        "_",
        "▁",
        "<",
        "\u{378}",
        "\u{e000}x",
    ];
    let seeds = if long() { 400 } else { 10 };
    for seed in 0..seeds {
        let mut random = Random(seed ^ 0x5eed);
        let mut text = String::new();
        for _ in 0..1 + random.below(5) {
            let piece = random.pick(PIECES);
            let about = [20, 4096, 16 << 10, 64 << 10, 72 << 10][random.below(5)] + random.below(40);
            text.push_str(&piece.repeat(about / piece.len() + 1));
        }
        let text: Rc<str> = text.into();
        let expected = pair.reference.whole(&text, false).unwrap();
        for steps in [usize::MAX, 1 + random.below(5000)] {
            let mut ids = Vec::new();
            let mut encoding = pair.compact.clone().start(text.clone(), false);
            let end = loop {
                match encoding.step(steps, &mut ids) {
                    Ok(Step::More) => {}
                    end => break end,
                }
            };
            if let Err(refused) = end {
                let marks = text.split(|c| c != '\u{301}').map(str::len).max();
                assert!(marks > Some(LONGEST_RUN), "{}: seed {seed}: {refused:?}", pair.name);
                continue;
            }
            if ids != expected {
                let at = ids.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                panic!("{}: seed {seed}, steps of {steps}: ids differ from {at} on", pair.name);
            }
        }
    }
}

/// Conversations that go on, change in the middle, or begin like others: block hashes from what is remembered are
/// those of the whole, wherever it is interrupted.
fn remembered_conversations_have_the_same_blocks(pair: &Pair) {
    use crate::blocks::{BlockHash, Chain, namespace};
    use crate::tokenizer::memory::{PromptMemory, Scope};
    let scope = Scope { root: namespace("", "m", None, None), block_size: 16, tokenizer: 1 };
    let mut random = Random(99);
    let specials = pair.specials(&mut random);
    let mut memory = PromptMemory::new(1 << 20, 5);
    let mut texts = vec![text(&mut random, 2000, &specials)];
    let mut reused = 0;
    for _ in 0..if long() { 5000 } else { 150 } {
        let old = &texts[random.below(texts.len())];
        let mut keep = random.below(old.len() + 1);
        while !old.is_char_boundary(keep) {
            keep -= 1;
        }
        let bytes = 50 + random.below(1500);
        let new: Rc<str> = format!("{}{}", &old[..keep], text(&mut random, bytes, &specials)).into();
        let whole = pair.compact.clone().encode(&new, true).unwrap();
        let (mut expected, mut chain) = (Vec::new(), Chain::new(scope.root, scope.block_size));
        chain.extend(&whole, &mut expected);

        let (mut trail, beginning) = memory.find(scope, &new);
        let (at, mut hashes, mut chain) = match beginning {
            Some(beginning) => (beginning.at, beginning.hashes, beginning.chain),
            None => (Boundary::default(), Vec::<BlockHash>::new(), Chain::new(scope.root, scope.block_size)),
        };
        reused += at.bytes;
        let resumed = (at.bytes > 0).then(|| pair.compact.clone().resume(new.clone(), true, at).unwrap());
        let mut encoding = resumed.unwrap_or_else(|| pair.compact.clone().start(new.clone(), true));
        let (mut given, most) = (at.tokens, 1 + random.below(3000));
        loop {
            let mut ids = Vec::new();
            let step = encoding.step(random.below(most), &mut ids).unwrap();
            chain.extend(&ids, &mut hashes);
            given += ids.len();
            if let Some(at) = encoding.boundary().filter(|at| at.tokens == given) {
                memory.remember(&mut trail, &new, at, &hashes, &chain);
            }
            if step == Step::Done {
                break;
            }
        }
        assert_eq!(hashes, expected, "{}: {new:?}", pair.name);
        assert_eq!(given, whole.len());
        if texts.len() < 20 {
            texts.push(new.to_string());
        } else {
            let at = random.below(20);
            texts[at] = new.to_string();
        }
    }
    assert!(reused > 0, "{}: nothing was ever remembered", pair.name);
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
            boundaries_after_long_words_count_their_ids(&pair);
            ends_are_where_the_crate_has_them(&pair);
            runs_of_any_length_one_after_the_other(&pair);
            remembered_conversations_have_the_same_blocks(&pair);
        }
    )*};
}

tokenizer_tests! { qwen3 llama3_1 deepseek_v3 gemma3 gptoss }

/// Added tokens that are looked for in the normalised text, where a mark after one may take its last character away.
#[test]
fn tokens_found_after_normalising_have_the_crates_ids() {
    let Some(dir) = tokenizer_dir("qwen3") else { return };
    let json = std::fs::read(dir.join("tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (content, id) in [("<tool>", 151_669), ("<arg", 151_670), ("key=", 151_671), ("[END]", 151_672)] {
        added.push(serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": false}));
    }
    let mut pair = pair_of("qwen3", &serde_json::to_vec(&json).unwrap());
    pair.added.drain(..pair.added.len() - 4);
    generated_text_has_the_crates_ids(&pair);
    runs_of_any_length_one_after_the_other(&pair);
    for token in &pair.added {
        for filler in ["", "é", "x\u{301}"] {
            let text: Rc<str> = format!("{filler} a {token}").into();
            for mark in ["\u{338}", "\u{301}", "b"] {
                let whole: Rc<str> = format!("{text}{mark} c").into();
                let expected = pair.check(&whole);
                let mut encoding = pair.compact.clone().start(text.clone(), true);
                let mut ids = Vec::new();
                while encoding.step(1, &mut ids).unwrap() == Step::More {}
                let Some(at) = encoding.boundary() else { continue };
                ids.truncate(at.tokens);
                let mut encoding = pair.compact.clone().resume(whole.clone(), true, at).unwrap();
                while encoding.step(1, &mut ids).unwrap() == Step::More {}
                pair.equal(&whole, &ids, &expected);
            }
        }
    }
}

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
