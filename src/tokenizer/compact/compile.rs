//! `tokenizer.json` to tables. What is not fully understood is refused with the reason, and the pack then carries
//! the JSON itself.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::utils::SysRegex;
use unicode_normalization_alignments::{IsNormalized, char::canonical_combining_class, is_nfc_quick};

use super::classes::{self, BLOCK_BITS};
use super::cuts::Cuts;
use super::merge::{EMPTY, ID_BITS, NONE, RANK_BITS, slot_of};
use super::scan::Scanner;
use super::{Compact, Header};
use crate::pack::Specials;
use crate::pack::container::{self, PackBytes, SectionKind};
use crate::tokenizer::added::{AddedToken, AddedTokens, boundaries};

/// The sections of a compact tokenizer.
pub type Tables = Vec<(SectionKind, Vec<u8>)>;

/// Makes the tables, or says what is not understood.
pub fn compile(tokenizer_json: &[u8]) -> Result<Tables, String> {
    let json: Value = serde_json::from_slice(tokenizer_json).map_err(|e| e.to_string())?;
    let pipeline = Pipeline::recognise(&json)?;
    let model = Model::read(&json["model"], pipeline.characters)?;
    let (first, second, longest_second) = added_tokens(&json, &pipeline)?;
    let header =
        Header { scanner: pipeline.scanner, nfc: pipeline.nfc, characters: pipeline.characters, longest_second };
    let (stage1, stage2) = class_tables();
    let (slots, ids) = model.merge_tables()?;
    let cuts = match pipeline.scanner {
        Scanner::Vocabulary => Cuts::build(model.vocab.keys().map(String::as_str)),
        _ => Vec::new(),
    };
    let header = serde_json::to_vec(&header).map_err(|e| e.to_string())?;
    let mut tables = vec![
        (SectionKind::Compact, header),
        (SectionKind::MergeSlots, slots),
        (SectionKind::MergeIds, ids),
        (SectionKind::Symbols, model.symbols()?),
        (SectionKind::Classes1, stage1),
        (SectionKind::Classes2, stage2),
        (SectionKind::FirstNodes, first.tables().0.to_vec()),
        (SectionKind::FirstEdges, first.tables().1.to_vec()),
        (SectionKind::SecondNodes, second.tables().0.to_vec()),
        (SectionKind::SecondEdges, second.tables().1.to_vec()),
        (SectionKind::Exceptions, Vec::new()),
        (SectionKind::Characters, model.characters_table()?),
        (SectionKind::CutPairs, cuts),
    ];
    if model.ignore_merges {
        let exceptions = exceptions(&model, &tables)?;
        tables.iter_mut().find(|(kind, _)| *kind == SectionKind::Exceptions).unwrap().1 = exceptions;
    }
    Ok(tables)
}

/// A tokenizer over tables that are not in a pack yet.
pub fn open(tables: &Tables, specials: Specials) -> Result<Compact, String> {
    let sections: Vec<(u32, &[u8])> = tables.iter().map(|(kind, bytes)| (*kind as u32, &bytes[..])).collect();
    let file = container::write(&[sections]);
    let sections = container::read(&file).map_err(|e| e.0)?.remove(0);
    Compact::new(PackBytes::from(file), sections, specials).map_err(|e| e.0)
}

struct Pipeline {
    scanner: Scanner,
    nfc: bool,
    characters: bool,
}

const CL100K: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SHORT|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SHORT|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SHORT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// The scanner of a split pattern.
fn scanner_of(patterns: &[&str]) -> Option<Scanner> {
    if patterns == DEEPSEEK {
        return Some(Scanner::DeepSeek);
    }
    let [pattern] = patterns else { return None };
    for (digits, text) in [(1, r"\p{N}"), (3, r"\p{N}{1,3}")] {
        if *pattern == CL100K.replace("DIGITS", text) {
            return Some(Scanner::Cl100k { digits });
        }
        for (contractions, short) in [(true, SHORT), (false, "")] {
            if *pattern == O200K.replace("DIGITS", text).replace("SHORT", short) {
                return Some(Scanner::O200k { digits, contractions });
            }
        }
    }
    None
}

fn kind(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("none")
}

/// A list of steps: those of a Sequence, the one, or none.
fn steps<'v>(value: &'v Value, list: &str) -> Vec<&'v Value> {
    match kind(value) {
        "none" => Vec::new(),
        "Sequence" => value[list].as_array().into_iter().flatten().flat_map(|v| steps(v, list)).collect(),
        _ => vec![value],
    }
}

impl Pipeline {
    fn recognise(json: &Value) -> Result<Self, String> {
        if kind(&json["model"]) != "BPE" {
            return Err(format!("model: type {} is not BPE", kind(&json["model"])));
        }
        let (mut nfc, mut characters) = (false, false);
        for step in steps(&json["normalizer"], "normalizers") {
            match kind(step) {
                "NFC" if !characters => nfc = true,
                "Replace" if !nfc && !characters && step["pattern"]["String"] == " " && step["content"] == "▁" => {
                    characters = true;
                }
                other => return Err(format!("normalizer: {other} is not known here")),
            }
        }
        let pre = steps(&json["pre_tokenizer"], "pretokenizers");
        if characters {
            // After the normalizer there is no space left to split at.
            let idle = |step: &&Value| kind(step) == "Split" && step["pattern"]["String"] == " ";
            if let Some(step) = pre.iter().find(|step| !idle(step)) {
                return Err(format!("pre_tokenizer: {} is not known with spaces replaced", kind(step)));
            }
            return Ok(Pipeline { scanner: Scanner::Vocabulary, nfc, characters });
        }
        let Some((bytes, splits)) = pre.split_last() else { return Err("pre_tokenizer: none".into()) };
        if kind(bytes) != "ByteLevel" || bytes["add_prefix_space"] != false || bytes["use_regex"] != false {
            return Err("pre_tokenizer: does not end with a plain ByteLevel".into());
        }
        let mut patterns = Vec::new();
        for split in splits {
            let pattern = split["pattern"]["Regex"].as_str();
            match pattern {
                Some(pattern)
                    if kind(split) == "Split" && split["behavior"] == "Isolated" && split["invert"] == false =>
                {
                    patterns.push(pattern);
                }
                _ => return Err(format!("pre_tokenizer: this {} is not known", kind(split))),
            }
        }
        let scanner = scanner_of(&patterns).ok_or_else(|| format!("pre_tokenizer: no scanner for {patterns:?}"))?;
        Ok(Pipeline { scanner, nfc, characters })
    }
}

struct Model {
    vocab: HashMap<String, u32>,
    /// In order of rank: left, right, result.
    merges: Vec<(u32, u32, u32)>,
    characters: bool,
    ignore_merges: bool,
    bytes: HashMap<char, u8>,
}

impl Model {
    fn read(json: &Value, characters: bool) -> Result<Self, String> {
        let empty = |field: &str| json[field].is_null() || json[field] == "";
        let off = |field: &str| json[field].is_null() || json[field] == false;
        if !(json["dropout"].is_null() || json["dropout"] == 0.0) {
            return Err("model: dropout is on".into());
        }
        if !empty("continuing_subword_prefix") || !empty("end_of_word_suffix") {
            return Err("model: has a subword prefix or a word suffix".into());
        }
        if off("byte_fallback") == characters {
            return Err("model: byte_fallback does not fit the normalizer".into());
        }
        let vocab = json["vocab"].as_object().ok_or("model: no vocab")?;
        let vocab: HashMap<String, u32> = vocab
            .iter()
            .map(|(token, id)| Some((token.clone(), u32::try_from(id.as_u64()?).ok()?)))
            .collect::<Option<_>>()
            .ok_or("model: an id of the vocab is no number")?;
        if let Some(id) = vocab.values().find(|id| **id >= (1 << ID_BITS) - 1) {
            return Err(format!("model: id {id} is too large"));
        }
        let list = json["merges"].as_array().ok_or("model: no merges")?;
        if list.len() >= (1 << RANK_BITS) - 1 {
            return Err("model: too many merges".into());
        }
        let mut merges = Vec::with_capacity(list.len());
        for (rank, merge) in list.iter().enumerate() {
            let parts: Vec<&str> = match merge {
                Value::String(text) => text.split(' ').collect(),
                Value::Array(parts) => parts.iter().filter_map(Value::as_str).collect(),
                _ => Vec::new(),
            };
            let [left, right] = parts[..] else { return Err(format!("model: merge {rank} is no pair")) };
            let id = |token: &str| vocab.get(token).copied().ok_or(format!("model: merge {rank} is not in the vocab"));
            merges.push((id(left)?, id(right)?, id(&format!("{left}{right}"))?));
        }
        let model = Model { vocab, merges, characters, ignore_merges: !off("ignore_merges"), bytes: byte_characters() };
        if characters {
            model.check_fallback()?;
        }
        Ok(model)
    }

    /// Bytes that stand for characters must stay what they are.
    fn check_fallback(&self) -> Result<(), String> {
        let bytes: Vec<u32> = (0..=255).map(|byte| self.fallback(byte)).collect::<Result<_, _>>()?;
        if self.merges.iter().any(|(a, b, _)| bytes.contains(a) || bytes.contains(b)) {
            return Err("model: merges bytes of unknown characters".into());
        }
        match self.ignore_merges {
            true => Err("model: ignore_merges without pre-tokens".into()),
            false => Ok(()),
        }
    }

    fn fallback(&self, byte: u8) -> Result<u32, String> {
        let token = format!("<{byte:#04X}>");
        self.vocab.get(&token).copied().ok_or(format!("model: no {token} to fall back to"))
    }

    fn merge_tables(&self) -> Result<(Vec<u8>, Vec<u8>), String> {
        // The last merge of a pair counts, as in the crate.
        let ranks: HashMap<(u32, u32), u32> =
            self.merges.iter().enumerate().map(|(rank, (a, b, _))| ((*a, *b), rank as u32)).collect();
        let mut size = 16usize;
        while (size as f64) * 0.65 < ranks.len() as f64 {
            size *= 2;
        }
        let mut slots = vec![EMPTY; size];
        // By rank: common pairs get the first place.
        for (rank, (left, right, _)) in self.merges.iter().enumerate() {
            if ranks[&(*left, *right)] != rank as u32 {
                continue;
            }
            let key = u64::from(*left) << ID_BITS | u64::from(*right);
            let mut at = slot_of(key, size - 1);
            while slots[at] != EMPTY {
                at = (at + 1) & (size - 1);
            }
            slots[at] = key << RANK_BITS | rank as u64;
        }
        let slots = slots.iter().flat_map(|slot| slot.to_le_bytes()).collect();
        Ok((slots, self.merges.iter().flat_map(|(_, _, id)| id.to_le_bytes().into_iter().take(3)).collect()))
    }

    fn symbols(&self) -> Result<Vec<u8>, String> {
        let mut ids = [[NONE; 256]; 2];
        if self.characters {
            for byte in 0..=255u8 {
                ids[1][usize::from(byte)] = self.fallback(byte)?;
                if byte < 128 {
                    let c = if byte == b' ' { '▁' } else { char::from(byte) };
                    ids[0][usize::from(byte)] = self.vocab.get(c.to_string().as_str()).copied().unwrap_or(NONE);
                }
            }
        } else {
            for (c, byte) in &self.bytes {
                let id =
                    self.vocab.get(c.to_string().as_str()).ok_or(format!("model: no token for byte {byte:#04x}"))?;
                ids[0][usize::from(*byte)] = *id;
            }
        }
        Ok(ids.iter().flatten().flat_map(|id| id.to_le_bytes()).collect())
    }

    fn characters_table(&self) -> Result<Vec<u8>, String> {
        if !self.characters {
            return Ok(Vec::new());
        }
        let single = self.vocab.iter().filter_map(|(token, id)| {
            let mut chars = token.chars();
            let c = chars.next().filter(|c| !c.is_ascii() && chars.next().is_none())?;
            Some((c as u32, *id))
        });
        let single: Vec<(u32, u32)> = single.collect();
        let size = (single.len() * 2).next_power_of_two().max(16);
        let mut slots = vec![u64::MAX; size];
        for (code_point, id) in single {
            let mut at = slot_of(u64::from(code_point), size - 1);
            while slots[at] != u64::MAX {
                at = (at + 1) & (size - 1);
            }
            slots[at] = u64::from(code_point) | u64::from(id) << 32;
        }
        Ok(slots.iter().flat_map(|slot| slot.to_le_bytes()).collect())
    }
}

/// The characters that stand for bytes in a byte-level vocabulary: printable Latin-1 for itself, the others
/// counted up from U+0100.
fn byte_characters() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut others = (0x100u32..).filter_map(char::from_u32);
    (0..=255)
        .map(|byte| if printable(byte) { (char::from(byte), byte) } else { (others.next().unwrap(), byte) })
        .collect()
}

/// Words of the vocabulary that merging makes something else of.
fn exceptions(model: &Model, tables: &Tables) -> Result<Vec<u8>, String> {
    let table = |kind| &tables.iter().find(|(k, _)| *k == kind).unwrap().1[..];
    let filter = super::merge::Filter::default();
    let merges = super::merge::Merges::new(table(SectionKind::MergeSlots), table(SectionKind::MergeIds), &filter);
    let merges = merges.ok_or("merges")?;
    let symbols: Vec<u32> =
        table(SectionKind::Symbols).as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
    let mut out = Vec::new();
    let mut sorted: Vec<(&String, &u32)> = model.vocab.iter().collect();
    sorted.sort_by_key(|(_, id)| **id);
    for (token, id) in sorted {
        let Some(bytes) = token.chars().map(|c| model.bytes.get(&c).copied()).collect::<Option<Vec<u8>>>() else {
            continue;
        };
        let mut word =
            super::merge::LongWord::new(bytes.iter().map(|b| symbols[usize::from(*b)])).ok_or("long token")?;
        let mut ids = Vec::new();
        word.advance(merges, usize::MAX, &mut ids);
        if ids != [*id] {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&bytes);
        }
    }
    Ok(out)
}

fn added_tokens(json: &Value, pipeline: &Pipeline) -> Result<(AddedTokens, AddedTokens, usize), String> {
    let list: Vec<Value> = json["added_tokens"].as_array().cloned().unwrap_or_default();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for token in &list {
        let content = token["content"].as_str().ok_or("added_tokens: a token without content")?;
        let id = token["id"].as_u64().filter(|id| *id < 1 << 31).ok_or("added_tokens: a token without id")? as u32;
        for flag in ["single_word", "lstrip", "rstrip"] {
            if token[flag] == true {
                return Err(format!("added_tokens: {content:?} has {flag}"));
            }
        }
        let mut content = content.to_owned();
        if token["normalized"] == true {
            if pipeline.characters {
                content = content.replace(' ', "▁");
            }
            if pipeline.nfc && !content.is_ascii() {
                return Err(format!("added_tokens: {content:?} is normalised and not ASCII"));
            }
            if pipeline.characters {
                // The window is the text before the spaces are replaced.
                return Err(format!("added_tokens: {content:?} is normalised"));
            }
            second.push((content, id));
        } else {
            first.push((content, id));
        }
    }
    let bytes =
        |tokens: &'_ [(String, u32)]| -> Vec<Vec<u8>> { tokens.iter().map(|(c, _)| c.clone().into_bytes()).collect() };
    let (firsts, seconds) = (bytes(&first), bytes(&second));
    let slices = |list: &'_ [Vec<u8>]| -> Vec<Vec<u8>> { list.to_vec() };
    let (a, b) = (slices(&firsts), slices(&seconds));
    let (a, b): (Vec<&[u8]>, Vec<&[u8]>) = (a.iter().map(|v| &v[..]).collect(), b.iter().map(|v| &v[..]).collect());
    let (first_ends, mut second_ends) = boundaries(&a, &b);
    if pipeline.nfc {
        // A mark that follows may join the last character, and then there is no token.
        second_ends.fill(false);
    }
    let make = |tokens: &[(String, u32)], ends: &[bool]| {
        AddedTokens::new(tokens.iter().zip(ends).map(|((content, id), boundary)| AddedToken {
            content: content.as_bytes(),
            id: *id,
            boundary: *boundary,
        }))
    };
    let longest = seconds.iter().map(Vec::len).max().unwrap_or(0);
    Ok((make(&first, &first_ends), make(&second, &second_ends), longest))
}

/// Class bits of every code point, in two stages.
fn class_tables() -> (Vec<u8>, Vec<u8>) {
    let all: String = (0..=0x10ffff).filter_map(char::from_u32).collect();
    let mut of = vec![0u8; 0x110000];
    for (bit, pattern) in [
        (classes::UPPER, r"[\p{Lu}\p{Lt}]+"),
        (classes::LOWER, r"\p{Ll}+"),
        (classes::CASELESS, r"[\p{Lm}\p{Lo}]+"),
        (classes::MARK, r"\p{M}+"),
        (classes::NUMBER, r"\p{N}+"),
        (classes::SPACE, r"\s+"),
        (classes::PUNCT, r"[\p{P}\p{S}]+"),
    ] {
        let regex = SysRegex::new(pattern).expect("a pattern of our own");
        for (from, to) in regex.find_iter(&all) {
            for c in all.get(from..to).unwrap_or_default().chars() {
                of[c as usize] |= bit;
            }
        }
    }
    for c in all.chars() {
        let stable = canonical_combining_class(c) == 0 && is_nfc_quick(std::iter::once(c)) == IsNormalized::Yes;
        if !stable {
            of[c as usize] |= classes::UNSTABLE;
        }
    }
    let (mut stage1, mut stage2, mut seen) = (Vec::new(), Vec::new(), HashMap::new());
    for block in of.chunks(1 << BLOCK_BITS) {
        let index = *seen.entry(block).or_insert_with(|| {
            stage2.extend_from_slice(block);
            ((stage2.len() >> BLOCK_BITS) - 1) as u16
        });
        stage1.extend_from_slice(&index.to_le_bytes());
    }
    (stage1, stage2)
}
