//! Long words, a window at a time.
//!
//! Merging always takes the lowest rank and of equal ones the leftmost, so a sequence of tokens is the encoding of
//! its text exactly when each two neighbours are the encoding of theirs: the first merge across a border would
//! have to happen between the two alone as well. So a word of any length is encoded in windows: the tokens of a
//! window, but for its uncertain end, are kept when the token before and the first of them stay two by
//! themselves. If not, the last kept token is given back and the window begins earlier.
//!
//! A run of one repeated token needs no merging at all: as long as the text repeats, so does the token.

use super::merge::{LONGEST, LongWord};
use super::{Compact, Merging, Symbols, View};
use crate::blocks::TokenId;

/// Bytes of a window.
const WINDOW: usize = 248;
/// A window gives up this many bytes at its end, unless the word ends there.
const UNCERTAIN: usize = 40;
/// Bytes of a run that are passed in one step.
const REPEAT: usize = 256 << 10;
/// Ids that are given out in one step.
const GIVE: usize = 4096;
/// Words of more bytes are refused.
const MOST: usize = 64 << 20;

/// What an advance came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Not there yet.
    More,
    /// All ids are out.
    Done,
    /// The word is too long.
    TooLong,
}

/// A long word under way. Its bytes are given anew at each step.
#[derive(Default)]
pub struct Stitch {
    /// Tokens kept so far and where each begins.
    ids: Vec<TokenId>,
    starts: Vec<u32>,
    /// Kept tokens that are given out already, once the word is at its end.
    given: usize,
    /// Where the next window begins, and its size.
    at: usize,
    window: usize,
    /// Tokens given back.
    backs: usize,
    scratch: LongWord,
    /// The way without windows, for words on which they find no seam.
    whole: Option<LongWord>,
    /// Ids and starts of one window.
    tokens: Vec<(TokenId, u32)>,
    /// The same of what lies about a seam.
    pair: Vec<(TokenId, u32)>,
}

/// In place of a start: inside a character.
const INSIDE: u32 = u32::MAX;

impl Stitch {
    /// Bytes that are kept so far.
    pub fn kept(&self) -> usize {
        self.at
    }

    /// Works on at least one window and about `bytes` bytes.
    pub fn advance(
        &mut self,
        compact: &Compact,
        view: &View<'_>,
        merging: &mut Merging,
        word: &[u8],
        bytes: usize,
        out: &mut Vec<TokenId>,
    ) -> Progress {
        if word.len() > MOST {
            return Progress::TooLong;
        }
        let mut done = 0;
        while done <= bytes {
            if let Some(whole) = &mut self.whole {
                let finished = whole.advance(view.merges, bytes.max(WINDOW), out);
                return if finished { Progress::Done } else { Progress::More };
            }
            if self.at >= word.len() {
                let more = self.ids.get(self.given..).unwrap_or_default();
                let more = more.get(..GIVE).unwrap_or(more);
                out.extend_from_slice(more);
                self.given += more.len();
                done += more.len();
                if self.given == self.ids.len() {
                    return Progress::Done;
                }
                continue;
            }
            let before = self.at;
            if !self.step(compact, view, merging, word) {
                if word.len() > LONGEST {
                    return Progress::TooLong;
                }
                self.whole = LongWord::new(Symbols::new(compact, view, word));
            }
            done += WINDOW.max(self.at.saturating_sub(before) >> 5);
        }
        Progress::More
    }

    /// One window. `false` where windows do not work.
    fn step(&mut self, compact: &Compact, view: &View<'_>, merging: &mut Merging, word: &[u8]) -> bool {
        let window = WINDOW.max(self.window);
        let mut end = self.at.saturating_add(window).min(word.len());
        while word.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
            end -= 1;
        }
        let text = word.get(self.at..end).unwrap_or_default();
        encode(&mut self.scratch, merging, compact, view, text, &mut self.tokens);
        let Some((first, _)) = self.tokens.first().copied() else { return false };
        let first_end = self.tokens.get(1).map_or(text.len(), |(_, start)| *start as usize);
        if !self.seam_holds(compact, view, merging, word, first, first_end) {
            // The next try begins at the token before.
            self.backs += 1;
            while let (Some(_), Some(start)) = (self.ids.pop(), self.starts.pop()) {
                if start != INSIDE {
                    self.at = start as usize;
                    return self.backs < 64 + (word.len() >> 6);
                }
            }
            return false;
        }
        if end == word.len() {
            self.keep(self.tokens.len());
            self.at = end;
            return true;
        }
        let certain = text.len().saturating_sub(UNCERTAIN.max(window >> 2)) as u32;
        let cut =
            self.tokens.iter().rposition(|(_, start)| *start != INSIDE && *start <= certain).filter(|cut| *cut > 0);
        let Some((cut, start)) = cut.and_then(|cut| Some((cut, self.tokens.get(cut)?.1))) else {
            // One token goes over most of the window.
            self.window = window * 2;
            return self.window <= LONGEST;
        };
        self.keep(cut);
        self.at += start as usize;
        self.window = 0;
        self.repeat(word);
        true
    }

    /// Moves the first tokens of the window to the kept ones.
    fn keep(&mut self, count: usize) {
        let at = self.at as u32;
        self.ids.extend(self.tokens.iter().take(count).map(|(id, _)| *id));
        self.starts.extend(self.tokens.iter().take(count).map(|(_, s)| if *s == INSIDE { INSIDE } else { at + s }));
    }

    /// Whether the last kept token and the window's first one stay two.
    fn seam_holds(
        &mut self,
        compact: &Compact,
        view: &View<'_>,
        merging: &mut Merging,
        word: &[u8],
        first: TokenId,
        first_end: usize,
    ) -> bool {
        let Some(last) = self.ids.last().copied() else { return true };
        // Back to a place where a character begins.
        let from = self.starts.iter().rposition(|start| *start != INSIDE).unwrap_or(0);
        let Some(start) = self.starts.get(from).copied() else { return false };
        if first_end == INSIDE as usize {
            // A character of several byte tokens: they merge with nothing.
            return true;
        }
        let mut pair = std::mem::take(&mut self.pair);
        let text = word.get(start as usize..self.at + first_end).unwrap_or_default();
        encode(&mut self.scratch, merging, compact, view, text, &mut pair);
        let expected = self.ids.iter().skip(from).copied().chain([first]);
        let holds = last != super::merge::NONE && pair.iter().map(|(id, _)| *id).eq(expected);
        self.pair = pair;
        holds
    }

    /// Repeats the last token while the text repeats; the end of the word is left to a window.
    fn repeat(&mut self, word: &[u8]) {
        let two = |list: &[u32]| list.split_last().and_then(|(last, rest)| Some((*rest.last()?, *last)));
        let (Some((before, id)), Some((from, start))) = (two(&self.ids), two(&self.starts)) else { return };
        if before != id || from == INSIDE || start == INSIDE {
            return;
        }
        let (from, start) = (from as usize, start as usize);
        let len = self.at.wrapping_sub(start);
        if start.wrapping_sub(from) != len || word.get(from..start) != word.get(start..self.at) {
            return;
        }
        // A step must not take too long, however long the run is.
        let most = self.at.saturating_add(REPEAT);
        while self.at < most
            && self.at + len + WINDOW <= word.len()
            && word.get(self.at..self.at + len) == word.get(start..start + len)
        {
            self.ids.push(id);
            self.starts.push(self.at as u32);
            self.at += len;
        }
    }
}

/// Encodes a text in one go; ids and starts.
fn encode(
    scratch: &mut LongWord,
    merging: &mut Merging,
    compact: &Compact,
    view: &View<'_>,
    text: &[u8],
    out: &mut Vec<(TokenId, u32)>,
) {
    out.clear();
    if compact.merged(view, merging, text) {
        out.extend(merging.few.left().map(|(at, id)| (id, at)));
    } else {
        scratch.begin(Symbols::new(compact, view, text));
        scratch.finish(view.merges);
        out.extend(scratch.left().map(|(at, id)| (id, at)));
    }
    if !compact.header.characters {
        return;
    }
    // Symbols are characters, or bytes of one.
    let mut starts = Vec::with_capacity(text.len());
    let mut symbols = Symbols::new(compact, view, text);
    loop {
        let start = if symbols.pending_none() { symbols.at as u32 } else { INSIDE };
        if symbols.next().is_none() {
            break;
        }
        starts.push(start);
    }
    out.iter_mut().for_each(|(_, at)| *at = starts.get(*at as usize).copied().unwrap_or(INSIDE));
}
