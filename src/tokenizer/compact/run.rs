//! One encoding under way: lazy, and exact wherever it is interrupted.
//!
//! Three cursors run ahead of each other: added tokens of the first pass are looked for in the text, what lies
//! before them is normalised where it must be (the *window*: the text itself, or a buffer), tokens of the second
//! pass are looked for in the window, and words are taken from what is certain.

use std::rc::Rc;

use super::classes::{Classes, UNSTABLE};
use super::memo::Memo;
use super::nfc::Normalized;
use super::scan::{Window, next_word};
use super::stitch::{Progress, Stitch};
use super::words::{IDS, Key, WORD, Words};
use super::{Compact, Scratch, View, Word, common};
use crate::blocks::TokenId;
use crate::tokenizer::added::Found;
use crate::tokenizer::{Boundary, Encoding, Step, TokenizeError};

/// How far to look ahead at a time: least,
const AHEAD: usize = 4096;
/// and most, where a word is longer than what was seen.
const FAR: usize = 16 << 10;
/// A byte of common text costs as much as this many bytes that are only looked at.
const LOOKS: usize = 8;
/// Steps end early at boundaries that are this far apart.
const REST: usize = 2048;
/// A byte of a long word costs as much as this many bytes of common text.
const LONG_BYTES: usize = 8;

pub struct Run {
    compact: Rc<Compact>,
    text: Rc<str>,
    add: bool,
    state: State,
    tokens: usize,
    /// How far the text was searched for tokens of the first pass, and the one found there.
    scanned: usize,
    first: Option<Found>,
    /// The window's text when it is not that of the source.
    normalized: Option<Normalized>,
    /// In the window: what is given out, how far it was searched for tokens of the second pass, the one found.
    at: usize,
    searched: usize,
    second: Option<Found>,
    memo: Memo,
    /// A long word, and where in the window it is.
    long: Option<(Stitch, usize, usize)>,
    passed: Option<Boundary>,
    /// Where the last step ended early for a boundary.
    rested: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Middle,
    Done,
}

/// Why words stopped coming.
enum Stop {
    Budget,
    End,
    /// The word that begins here and ends at the cursor.
    Long(usize),
}

impl Run {
    pub fn new(compact: Rc<Compact>, text: Rc<str>, add: bool, from: Option<Boundary>) -> Self {
        let state = if from.is_some() { State::Middle } else { State::Begin };
        let Boundary { bytes, tokens } = from.unwrap_or_default();
        Run {
            compact,
            text,
            add,
            state,
            tokens,
            scanned: bytes,
            first: None,
            normalized: None,
            at: bytes,
            searched: bytes,
            second: None,
            memo: Memo::default(),
            long: None,
            passed: None,
            rested: bytes,
        }
    }

    /// Whether the text up to `scanned` ends like a text: at its end, or before an added token.
    fn segment_ends(&self) -> bool {
        self.first.is_some() || self.scanned >= self.text.len()
    }

    /// The window's end, and whether it ends like a text.
    fn window(&self) -> (usize, bool) {
        match &self.normalized {
            Some(normalized) => (normalized.buf.len(), self.segment_ends() && normalized.fed >= self.scanned),
            None => (self.scanned, self.segment_ends()),
        }
    }

    /// Where the words of the window end that are certain not to be a part of an added token.
    fn piece(&self) -> (usize, bool) {
        let (end, last) = self.window();
        match &self.second {
            Some(found) => (found.start, true),
            None if self.compact.second.is_none() => (end, last),
            None => (self.searched.min(end), last && self.searched >= end),
        }
    }

    /// Looks further ahead. `false` if there is nothing more to see.
    fn grow(&mut self, view: &View<'_>) -> Result<bool, TokenizeError> {
        let text = self.text.clone();
        let before = (self.scanned, self.searched, self.window());
        let (end, _) = self.window();
        if !self.segment_ends() {
            let ahead = end.saturating_sub(self.at).saturating_mul(2).clamp(AHEAD, FAR);
            let from = self.scanned;
            let mut to = from.saturating_add(ahead).min(text.len());
            while !text.is_char_boundary(to) {
                to += 1;
            }
            self.first = view.first.find_before(text.as_bytes(), from, to);
            self.scanned = self.first.map_or(to, |found| found.start);
            if self.compact.header.nfc && self.normalized.is_none() && unstable(&text, from, self.scanned, view.classes)
            {
                self.normalized = Some(Normalized::begin(&text, self.at, from));
                self.searched = self.searched.saturating_sub(self.at);
                self.at = 0;
                self.memo.clear();
            }
        }
        let last = self.segment_ends();
        if let Some(normalized) = &mut self.normalized {
            normalized.feed(&text, view.classes, self.scanned, last)?;
            let moved = normalized.drop_read(self.at);
            self.at -= moved;
            self.searched = self.searched.saturating_sub(moved);
            if moved > 0 {
                self.memo.clear();
            }
        }
        self.search_second(view);
        Ok(before != (self.scanned, self.searched, self.window()) || self.second.is_some())
    }

    fn search_second(&mut self, view: &View<'_>) {
        let Some(trie) = view.second else { return };
        if self.second.is_some() {
            return;
        }
        let (end, last) = self.window();
        let text = self.text.clone();
        let window = self.normalized.as_ref().map_or(text.as_bytes(), |n| &n.buf);
        let window = window.get(..end).unwrap_or_default();
        // A token that begins later may go on beyond the window.
        let mut to = if last { end } else { end.saturating_sub(self.compact.header.longest_second) };
        while to > 0 && window.get(to).is_some_and(|b| b & 0xc0 == 0x80) {
            to -= 1;
        }
        if to > self.searched {
            self.second = trie.find_before(window, self.searched, to);
            self.searched = self.second.map_or(to, |found| found.start);
        }
    }

    fn give(&mut self, id: TokenId, out: &mut Vec<TokenId>) {
        out.push(id);
        self.tokens += 1;
    }

    /// At the end of a piece: the added token there. `false` at the end of the text.
    fn pass(&mut self, out: &mut Vec<TokenId>) -> bool {
        let found = match (self.second.take(), self.first) {
            (Some(found), _) => {
                self.at = found.end;
                self.searched = found.end;
                self.give(found.id, out);
                found
            }
            (None, Some(found)) => {
                self.first = None;
                self.normalized = None;
                self.at = found.end;
                (self.scanned, self.searched) = (found.end, found.end);
                self.give(found.id, out);
                found
            }
            (None, None) => return false,
        };
        if found.boundary && self.normalized.is_none() {
            self.passed = Some(Boundary { bytes: self.at, tokens: self.tokens });
        }
        true
    }

    fn run(&mut self, max_bytes: usize, out: &mut Vec<TokenId>) -> Result<Step, TokenizeError> {
        let compact = self.compact.clone();
        let view = compact.view().ok_or_else(broken)?;
        let mut scratch = compact.scratch.try_borrow_mut().map_err(|_| broken())?;
        let text = self.text.clone();
        let mut budget = max_bytes.max(1);
        loop {
            if let Some((long, from, to)) = &mut self.long {
                let window = self.normalized.as_ref().map_or(text.as_bytes(), |n| &n.buf);
                let word = window.get(*from..*to).unwrap_or_default();
                let (ids, kept) = (out.len(), long.kept());
                let bytes = budget >> LONG_BYTES.ilog2();
                let progress = long.advance(&compact, &view, &mut scratch.merging, word, bytes, out);
                // Also of a word that goes on: boundaries count them.
                self.tokens += out.len() - ids;
                match progress {
                    Progress::More => return Ok(Step::More),
                    Progress::TooLong => return Err(TokenizeError("a word of many million characters".into())),
                    Progress::Done => {}
                }
                let cost = word.len().saturating_sub(kept).saturating_mul(LONG_BYTES);
                budget = budget.saturating_sub(cost);
                self.long = None;
            }
            let (end, last) = self.piece();
            if self.at == end && last && self.window().0 >= end {
                let more = self.pass(out);
                if !more {
                    return Ok(Step::Done);
                }
                // A rest here lets the caller remember the state at a boundary.
                if let Some(passed) = self.passed.filter(|at| at.tokens == self.tokens)
                    && passed.bytes >= self.rested + REST
                {
                    self.rested = passed.bytes;
                    return Ok(Step::More);
                }
            } else {
                let before = out.len();
                let window = self.normalized.as_ref().map_or(text.as_bytes(), |n| &n.buf);
                let piece = Window {
                    classes: view.classes,
                    cuts: view.cuts,
                    text: window.get(..end).unwrap_or_default(),
                    last,
                    memo: &self.memo,
                };
                let stop = take_words(&compact, &view, &mut scratch, window, piece, &mut self.at, &mut budget, out);
                self.tokens += out.len() - before;
                match stop {
                    Stop::Budget => return Ok(Step::More),
                    Stop::Long(from) => self.long = Some((Stitch::default(), from, self.at)),
                    Stop::End if self.at < end || !last => {
                        let before = self.scanned;
                        if !self.grow(&view)? && self.piece() == (end, last) {
                            return Err(broken());
                        }
                        budget = budget.saturating_sub(self.scanned.wrapping_sub(before) >> LOOKS.ilog2());
                    }
                    Stop::End => {}
                }
            }
            if budget == 0 {
                return Ok(Step::More);
            }
        }
    }
}

fn broken() -> TokenizeError {
    TokenizeError("the tables of the pack do not fit each other; pack the model again".into())
}

fn unstable(text: &str, from: usize, to: usize, classes: Classes<'_>) -> bool {
    let bytes = text.as_bytes().get(from..to).unwrap_or_default();
    !bytes.is_ascii() && classes.find(bytes, 0, UNSTABLE).is_some()
}

/// Gives words of `piece` until it ends, the budget does, or a long word comes. `window` goes on behind the piece.
#[allow(clippy::too_many_arguments)] // on the hottest path
fn take_words(
    compact: &Compact,
    view: &View<'_>,
    scratch: &mut Scratch,
    window: &[u8],
    piece: Window<'_>,
    at: &mut usize,
    budget: &mut usize,
    out: &mut Vec<TokenId>,
) -> Stop {
    let scanner = compact.header.scanner;
    let text = piece.text;
    while *at < text.len() {
        if *budget == 0 {
            return Stop::Budget;
        }
        let begin = *at;
        if compact.common && is_common(text, begin) {
            if let Some(long) = common_words(compact, view, scratch, window, piece, at, *budget, out) {
                return long;
            }
            *budget = budget.saturating_sub(*at - begin);
            if *at > begin {
                piece.memo.clear();
                continue;
            }
        }
        let Some(end) = next_word(scanner, piece, begin) else { return Stop::End };
        piece.memo.clear();
        // A scanner always advances; a damaged table must not stop it.
        let end = end.max(begin + 1);
        *budget = budget.saturating_sub(end - begin);
        *at = end;
        if let Word::Long = compact.word(view, scratch, text, begin, end, out) {
            return Stop::Long(begin);
        }
    }
    Stop::End
}

/// Whether a block may have words: not so where other than ASCII comes first.
#[inline(always)]
fn is_common(text: &[u8], at: usize) -> bool {
    let ascii = |at: usize| text.get(at).is_none_or(u8::is_ascii);
    ascii(at) && ascii(at + 1)
}

/// Ids that are given out at a time.
const ROOM: usize = 256;
/// Those, and as many as the words of a block can have, each written without a look at how many there are.
pub type Room = [TokenId; ROOM + common::BLOCK * IDS + IDS];
/// A room, whatever is in it.
pub const NO_IDS: Room = [0; ROOM + common::BLOCK * IDS + IDS];

/// Takes words block by block, as long as blocks have some.
#[allow(clippy::too_many_arguments)] // on the hottest path
#[inline(always)]
fn common_words(
    compact: &Compact,
    view: &View<'_>,
    scratch: &mut Scratch,
    window: &[u8],
    piece: Window<'_>,
    at: &mut usize,
    budget: usize,
    out: &mut Vec<TokenId>,
) -> Option<Stop> {
    let until = at.saturating_add(budget);
    let mut given = 0;
    let mut padded = [0; common::BLOCK + common::WIDTH];
    while *at < until {
        let begin = *at;
        let rest = window.get(begin..).unwrap_or_default();
        let bytes: &common::Bytes = match rest.first_chunk() {
            Some(bytes) => bytes,
            None => {
                padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
                &padded
            }
        };
        let end = piece.text.len().saturating_sub(begin);
        let mut starts = common::starts(compact.header.scanner, bytes, end, piece.last);
        loop {
            starts = known_words(&scratch.words, bytes, starts, &mut scratch.room, &mut given);
            let here = begin + starts.trailing_zeros() as usize;
            *at = here;
            let rest = starts & starts.wrapping_sub(1);
            if rest == 0 {
                break;
            }
            out.extend_from_slice(scratch.room.get(..given).unwrap_or_default());
            given = 0;
            let next = begin + rest.trailing_zeros() as usize;
            *at = next;
            let word = window.get(here..next).unwrap_or_default();
            if let Word::Long = compact.new_word(view, scratch, Key::new(window, here, next), word, out) {
                piece.memo.clear();
                return Some(Stop::Long(here));
            }
            starts = rest;
        }
        if given >= ROOM {
            out.extend_from_slice(scratch.room.get(..given).unwrap_or_default());
            given = 0;
        }
        if *at == begin {
            break;
        }
    }
    out.extend_from_slice(scratch.room.get(..given).unwrap_or_default());
    None
}

/// Gives the ids of the words between `starts` as long as they are known. Gives the starts that are left.
#[inline(always)]
fn known_words(words: &Words, bytes: &common::Bytes, starts: u64, room: &mut Room, given: &mut usize) -> u64 {
    let mut here = starts.trailing_zeros() as usize;
    let mut rest = starts & starts.wrapping_sub(1);
    while rest != 0 {
        let next = rest.trailing_zeros() as usize;
        let raw = bytes.get(here & (common::BLOCK - 1)..).and_then(|rest| rest.first_chunk::<{ common::WIDTH }>());
        let raw = u128::from_le_bytes(*raw.unwrap_or(&[0; 16]));
        let len = next - here;
        if len > WORD {
            break;
        }
        let Some((four, count)) = words.get(Key::of(raw as u64, (raw >> 64) as u64, len)) else { break };
        let Some(place) = room.get_mut(*given..).and_then(|rest| rest.first_chunk_mut::<IDS>()) else { break };
        // All four are written, whatever their number.
        *place = four;
        *given += count;
        here = next;
        rest &= rest.wrapping_sub(1);
    }
    rest | 1u64.checked_shl(here as u32).unwrap_or(0)
}

impl Encoding for Run {
    fn step(&mut self, max_bytes: usize, out: &mut Vec<TokenId>) -> Result<Step, TokenizeError> {
        let compact = self.compact.clone();
        if self.state == State::Begin {
            if self.add {
                compact.specials.prefix.iter().for_each(|id| self.give(*id, out));
            }
            self.state = State::Middle;
        }
        if self.state == State::Middle {
            if self.run(max_bytes, out)? == Step::More {
                return Ok(Step::More);
            }
            if self.add {
                compact.specials.suffix.iter().for_each(|id| self.give(*id, out));
            }
            self.state = State::Done;
        }
        Ok(Step::Done)
    }

    fn boundary(&self) -> Option<Boundary> {
        self.passed
    }

    fn remaining_bytes(&self) -> usize {
        let rest = match &self.normalized {
            Some(normalized) => self.text.len().saturating_sub(normalized.fed) + normalized.buf.len() - self.at,
            None => self.text.len().saturating_sub(self.at),
        };
        rest + self.long.as_ref().map_or(0, |(long, from, to)| (to - from).saturating_sub(long.kept()))
    }
}
