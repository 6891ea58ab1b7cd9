//! The own engine: byte-pair tokenizers over flat tables that are used where they lie in the pack.
//!
//! `compile` (native) reads a `tokenizer.json`, recognises its pipeline and makes the tables; whatever it does
//! not fully understand it refuses, and the pack then carries the JSON for the `tokenizers` crate. Running it:
//!
//! | step | module |
//! |---|---|
//! | added tokens that are cut out first | [`super::added`] |
//! | NFC, where the text needs it | [`nfc`] |
//! | added tokens that are cut out after normalising | [`super::added`] |
//! | words | `common` (most of them), [`scan`] (by split patterns), [`cuts`] (where there is none), over [`classes`], [`memo`] |
//! | words seen before | [`words`] |
//! | merges | [`few`] at a time, `stitch` for long words, over [`merge`] |
//! | all of it, lazily and in steps | `run` |
//! | where ids end, for people | `ends` |
//!
//! The ids are those of the crate for every text: a window never ends where the next bytes could change what was
//! given out. Memory: the tables, 1.3 MiB of remembered words, and 8 bytes an id of the word under way.

pub mod classes;
mod common;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::integer_division_remainder_used)]
pub mod compile;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::integer_division_remainder_used)]
pub mod corpus;
pub mod cuts;
mod ends;
pub mod few;
pub mod memo;
pub mod merge;
pub mod nfc;
mod run;
pub mod scan;
mod stitch;
#[cfg(test)]
mod tests;
pub mod words;

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::added::{FirstBytes, Trie};
use super::{Boundary, Encoding, Tokenizer};
use crate::blocks::TokenId;
use crate::pack::container::{PackBytes, Section, SectionKind};
use crate::pack::{PackError, Specials};
use classes::Classes;
use cuts::Cuts;
use few::{Few, Pairs};
use merge::{Filter, Merges, NONE};
use scan::Scanner;
use words::{Key, Words};

/// What the tables are for, as the pack says it in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// How words are cut.
    pub scanner: Scanner,
    /// The text is brought to NFC first.
    pub nfc: bool,
    /// Symbols are characters (with a space written as `▁`) instead of bytes; those without an id become bytes.
    pub characters: bool,
    /// Bytes of the longest token of the second pass.
    pub longest_second: usize,
}

/// A tokenizer over the tables of a pack.
pub struct Compact {
    bytes: PackBytes,
    sections: Vec<Section>,
    header: Header,
    specials: Specials,
    ascii: [u8; 256],
    /// Words may be taken by `common`.
    common: bool,
    first: FirstBytes,
    second: Option<FirstBytes>,
    /// Ids of bytes, or of ASCII characters.
    symbols: [TokenId; 256],
    /// Ids of bytes that stand for characters without an id.
    fallback: [TokenId; 256],
    /// Words whose id is not what merging makes of them.
    exceptions: HashMap<Box<[u8]>, TokenId>,
    longest_exception: usize,
    filter: Filter,
    scratch: RefCell<Scratch>,
}

/// What words are looked up and merged in.
struct Scratch {
    words: Words,
    merging: Merging,
    room: run::Room,
}

impl Default for Scratch {
    fn default() -> Self {
        Scratch { words: Words::default(), merging: Merging::default(), room: run::NO_IDS }
    }
}

#[derive(Default)]
struct Merging {
    pairs: Pairs,
    few: Few,
}

/// The tables, ready to use.
#[derive(Clone, Copy)]
struct View<'a> {
    classes: Classes<'a>,
    cuts: Cuts<'a>,
    merges: Merges<'a>,
    first: Trie<'a>,
    second: Option<Trie<'a>>,
    /// (code point, id) of characters beyond ASCII.
    characters: &'a [[u8; 8]],
}

impl Compact {
    /// Reads the sections of a pack.
    pub fn new(bytes: PackBytes, sections: Vec<Section>, specials: Specials) -> Result<Self, PackError> {
        let table = |kind: SectionKind| match sections.iter().find(|s| s.kind == kind as u32) {
            Some(section) => bytes.section(section),
            None => {
                Err(PackError::new(format!("no {} section; pack the model again", SectionKind::label(kind as u32))))
            }
        };
        let header: Header = serde_json::from_slice(table(SectionKind::Compact)?)
            .map_err(|e| PackError::new(format!("compact section: {e}; pack the model again with this kvroute")))?;
        let mut ids = table(SectionKind::Symbols)?.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id));
        let (mut symbols, mut fallback) = ([NONE; 256], [NONE; 256]);
        symbols.iter_mut().chain(&mut fallback).zip(&mut ids).for_each(|(to, from)| *to = from);
        let exceptions = read_exceptions(table(SectionKind::Exceptions)?);
        let longest_exception = exceptions.keys().map(|word| word.len()).max().unwrap_or(0);
        let first = Trie::first_bytes(table(SectionKind::FirstNodes)?, table(SectionKind::FirstEdges)?);
        let second = Trie::first_bytes(table(SectionKind::SecondNodes)?, table(SectionKind::SecondEdges)?);
        let second = Some(second).filter(|bytes| !bytes.is_empty());
        let filter = Filter::new(table(SectionKind::MergeSlots)?);
        let ascii = Classes::ascii(table(SectionKind::Classes1)?, table(SectionKind::Classes2)?);
        let compact = Compact {
            bytes,
            sections,
            header,
            specials,
            ascii,
            common: header.scanner != Scanner::Vocabulary && common::agrees(&ascii),
            first,
            second,
            symbols,
            fallback,
            exceptions,
            longest_exception,
            filter,
            scratch: RefCell::default(),
        };
        if compact.view().is_none() {
            return Err(PackError::new("the merge table has an impossible size; pack the model again"));
        }
        Ok(compact)
    }

    fn table(&self, kind: SectionKind) -> &[u8] {
        let section = self.sections.iter().find(|s| s.kind == kind as u32);
        section.and_then(|s| self.bytes.section(s).ok()).unwrap_or_default()
    }

    fn view(&self) -> Option<View<'_>> {
        use SectionKind::*;
        Some(View {
            classes: Classes::new(&self.ascii, self.table(Classes1), self.table(Classes2)),
            cuts: Cuts::new(self.table(CutPairs)),
            merges: Merges::new(self.table(MergeSlots), self.table(MergeIds), &self.filter)?,
            first: Trie::new(self.table(FirstNodes), self.table(FirstEdges), &self.first),
            second: self
                .second
                .as_ref()
                .map(|first| Trie::new(self.table(SecondNodes), self.table(SecondEdges), first)),
            characters: self.table(Characters).as_chunks().0,
        })
    }

    /// Gives the ids of the word `text[at..end]`, or a long word to work on.
    #[inline(always)]
    fn word(
        &self,
        view: &View<'_>,
        scratch: &mut Scratch,
        text: &[u8],
        at: usize,
        end: usize,
        out: &mut Vec<TokenId>,
    ) -> Word {
        let key = Key::new(text, at, end);
        if let Some((ids, count)) = key.and_then(|key| scratch.words.get(key)) {
            out.extend(ids.iter().take(count));
            return Word::Given;
        }
        self.new_word(view, scratch, key, text.get(at..end).unwrap_or_default(), out)
    }

    #[inline(never)]
    fn new_word(
        &self,
        view: &View<'_>,
        scratch: &mut Scratch,
        key: Option<Key>,
        word: &[u8],
        out: &mut Vec<TokenId>,
    ) -> Word {
        if scratch.words.get_long(word, out) {
            return Word::Given;
        }
        let begin = out.len();
        if let Some(id) = self.exception(word) {
            out.push(id);
        } else if self.merged(view, &mut scratch.merging, word) {
            out.extend(scratch.merging.few.left().map(|(_, id)| id));
        } else {
            return Word::Long;
        }
        scratch.words.put(key, word, out.get(begin..).unwrap_or_default());
        Word::Given
    }

    /// Merges a word; `false` if it is too long for [`Few`].
    #[inline]
    fn merged(&self, view: &View<'_>, merging: &mut Merging, word: &[u8]) -> bool {
        let Merging { pairs, few } = merging;
        if self.header.characters {
            return few.symbols(view.merges, Symbols::new(self, view, word));
        }
        let fits = word.len() <= few::MOST;
        if fits {
            few.bytes(view.merges, pairs, &self.symbols, word);
        }
        fits
    }

    fn exception(&self, word: &[u8]) -> Option<TokenId> {
        if word.len() > self.longest_exception {
            return None;
        }
        self.exceptions.get(word).copied()
    }
}

/// What became of a word.
enum Word {
    Given,
    Long,
}

/// The symbols that a word begins as.
struct Symbols<'a> {
    compact: &'a Compact,
    view: &'a View<'a>,
    word: &'a [u8],
    at: usize,
    /// The rest of a character that became bytes.
    pending: [TokenId; 4],
}

impl Iterator for Symbols<'_> {
    type Item = TokenId;

    #[inline]
    fn next(&mut self) -> Option<TokenId> {
        if self.compact.header.characters {
            return self.next_character();
        }
        let byte = *self.word.get(self.at)?;
        self.at += 1;
        self.compact.symbols.get(usize::from(byte)).copied()
    }
}

impl<'a> Symbols<'a> {
    fn new(compact: &'a Compact, view: &'a View<'a>, word: &'a [u8]) -> Self {
        Symbols { compact, view, word, at: 0, pending: [NONE; 4] }
    }

    /// Whether the next one begins a character.
    fn pending_none(&self) -> bool {
        self.pending.first().is_none_or(|id| *id == NONE)
    }

    fn next_character(&mut self) -> Option<TokenId> {
        let [first, a, b, c] = self.pending;
        if first != NONE {
            self.pending = [a, b, c, NONE];
            return Some(first);
        }
        let byte = *self.word.get(self.at)?;
        let (id, len) = match byte {
            0..0x80 => (self.compact.symbols.get(usize::from(byte)).copied().unwrap_or(NONE), 1),
            _ => {
                let (code_point, len) = classes::decode(self.word, self.at);
                (self.character(code_point), len)
            }
        };
        let bytes = self.word.get(self.at..self.at + len).unwrap_or_default();
        self.at += len;
        if id != NONE {
            return Some(id);
        }
        let mut ids = bytes.iter().filter_map(|b| self.compact.fallback.get(usize::from(*b)).copied());
        let first = ids.next();
        self.pending = [NONE; 4];
        self.pending.iter_mut().zip(ids).for_each(|(to, from)| *to = from);
        first
    }

    fn character(&self, code_point: u32) -> TokenId {
        let table = self.view.characters;
        let mask = table.len().wrapping_sub(1);
        let mut at = merge::slot_of(u64::from(code_point), mask);
        for _ in 0..table.len() {
            match table.get(at) {
                Some([a, b, c, d, id @ ..]) if u32::from_le_bytes([*a, *b, *c, *d]) == code_point => {
                    return u32::from_le_bytes(*id);
                }
                Some(slot) if *slot != [0xff; 8] => at = (at + 1) & mask,
                _ => return NONE,
            }
        }
        NONE
    }
}

/// Length, id, bytes of each.
fn read_exceptions(mut table: &[u8]) -> HashMap<Box<[u8]>, TokenId> {
    let mut out = HashMap::new();
    while let Some((head, rest)) = table.split_first_chunk::<8>() {
        let [a, b, c, d, id @ ..] = *head;
        let Some((word, rest)) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize) else { break };
        out.insert(word.into(), u32::from_le_bytes(id));
        table = rest;
    }
    out
}

impl Tokenizer for Compact {
    fn start(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool) -> Box<dyn Encoding> {
        Box::new(run::Run::new(self, text, add_special_tokens, None))
    }

    fn resume(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool, at: Boundary) -> Option<Box<dyn Encoding>> {
        text.is_char_boundary(at.bytes)
            .then(|| -> Box<dyn Encoding> { Box::new(run::Run::new(self, text, add_special_tokens, Some(at))) })
    }

    fn engine(&self) -> &'static str {
        "compact"
    }

    fn ends(self: Rc<Self>, text: &str, add_special_tokens: bool) -> Option<Vec<usize>> {
        let ids = self.clone().encode(text, add_special_tokens).ok()?;
        ends::ends(&self, &self.view()?, text, &ids, add_special_tokens)
    }
}
