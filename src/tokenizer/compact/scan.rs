//! Cuts text into pre-tokens ("words"), each scanner by hand what a known split pattern does.
//!
//! A scanner sees a window of the text. When the window's end is not the text's end, a word that touches it is
//! not certain yet: the scanner asks for more instead of guessing.

use serde::{Deserialize, Serialize};

use super::classes::{CASELESS, Classes, LETTER, LOWER, MARK, NUMBER, PUNCT, SPACE, UPPER, back};
use super::cuts::Cuts;
use super::memo::Memo;

/// Which pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scanner {
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|
    /// \s*[\r\n]+|\s+(?!\S)|\s+`
    Cl100k {
        /// Longest run of digits in one word.
        digits: u8,
    },
    /// The o200k pattern: words by case, with the contraction at their end.
    O200k {
        /// Longest run of digits in one word.
        digits: u8,
        /// Whether words take `'s`, `'t`, … with them.
        contractions: bool,
    },
    /// Digits, then CJK runs, then the rest: DeepSeek's three nested splits.
    DeepSeek,
    /// No pre-tokens; words end where no token of the vocabulary goes across.
    Vocabulary,
}

/// The longest look ahead of any scanner that is not a run.
const LOOK_AHEAD: usize = 16;

const U: u8 = UPPER | CASELESS | MARK;
const W: u8 = LOWER | CASELESS | MARK;

/// A window of the text, with what there is to know about it.
#[derive(Clone, Copy)]
pub struct Window<'a> {
    /// What a character is.
    pub classes: Classes<'a>,
    /// Where words end that have no pattern.
    pub cuts: Cuts<'a>,
    /// The bytes.
    pub text: &'a [u8],
    /// Whether it ends where the text does.
    pub last: bool,
    /// How far long runs were seen to go already.
    pub memo: &'a Memo,
}

/// Where the word ends that begins at `at`; `None` if the window must grow first.
#[inline]
pub fn next_word(scanner: Scanner, window: Window<'_>, at: usize) -> Option<usize> {
    let text = window.text;
    if !window.last && text.len() < at + LOOK_AHEAD {
        return None;
    }
    let end = match scanner {
        Scanner::Cl100k { digits } => cl100k(window, at, digits),
        Scanner::O200k { digits, contractions } => o200k(window, at, digits, contractions),
        Scanner::DeepSeek => deepseek(window, at),
        Scanner::Vocabulary => window.cuts.word(text, at, window.memo).into(),
    };
    (window.last || end.seen < text.len()).then_some(end.end)
}

impl Window<'_> {
    /// Where the run of characters with any of `mask` ends that begins at `from`.
    #[inline]
    fn run(&self, from: usize, mask: u8) -> usize {
        self.memo.go_on(from, u32::from(mask), |at, _| (self.classes.run(self.text, at, mask), 0)).0
    }

    /// Where the run of characters with none of `mask` ends that begins at `from`.
    #[inline]
    fn run_without(&self, from: usize, mask: u8) -> usize {
        self.memo.go_on(from, 0x100 | u32::from(mask), |at, _| (self.classes.run_without(self.text, at, mask), 0)).0
    }

    /// Where the line breaks end that begin at `from`; slashes may be among them.
    #[inline]
    fn newlines(&self, from: usize, slash: bool) -> usize {
        let is_one = |byte: Option<&u8>| is_newline(byte) || (slash && byte == Some(&b'/'));
        if !is_one(self.text.get(from)) {
            return from;
        }
        let scan = |mut at: usize, _| {
            while is_one(self.text.get(at)) {
                at += 1;
            }
            (at, 0)
        };
        self.memo.go_on(from, 0x200 | u32::from(slash), scan).0
    }

    /// Where the white space ends that begins at `from`, and where the last line break of it does; 0 if it has none.
    /// `more` says whether a character belongs to the piece.
    #[inline]
    fn spaces(&self, from: usize, tag: u32, more: impl Fn(usize) -> Option<(u8, usize)>) -> (usize, usize) {
        self.memo.go_on(from, tag, |mut at, mut newline| {
            while let Some((class, len)) = more(at) {
                if class & SPACE == 0 {
                    break;
                }
                if is_newline(self.text.get(at)) {
                    newline = at + 1;
                }
                at += len;
            }
            (at, newline)
        })
    }
}

/// A word's end, and how far the scanner had to look.
struct End {
    end: usize,
    seen: usize,
}

impl From<usize> for End {
    fn from(end: usize) -> Self {
        End { end, seen: end }
    }
}

fn is_newline(byte: Option<&u8>) -> bool {
    matches!(byte, Some(b'\r' | b'\n'))
}

/// `'s`, `'t`, `'re`, … in any case, at `at`. The long s folds to s.
fn contraction(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at) != Some(&b'\'') {
        return None;
    }
    let lower = |n: usize| text.get(at + n).map(u8::to_ascii_lowercase);
    match (lower(1)?, lower(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
        (0xc5, Some(0xbf)) => Some(at + 3),
        _ => None,
    }
}

fn digits_run(window: Window<'_>, at: usize, most: u8) -> End {
    let mut end = at;
    for _ in 0..most {
        match window.classes.at(window.text, end) {
            Some((class, len)) if class & NUMBER != 0 => end += len,
            _ => break,
        }
    }
    End { end, seen: end }
}

/// ` ?[punctuation]+[newlines]*`, where `other` says which classes are none.
fn punctuation(window: Window<'_>, at: usize, other: u8, slash: bool) -> Option<End> {
    let from = at + usize::from(window.text.get(at) == Some(&b' '));
    let end = window.run_without(from, other);
    (end > from).then(|| window.newlines(end, slash).into())
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` for white space at `at`; `end` bounds it like an end of text.
fn spaces(window: Window<'_>, at: usize) -> End {
    let text = window.text;
    let (end, newline) = window.spaces(at, 0x300, |at| window.classes.at(text, at));
    if newline > 0 {
        return End { end: newline, seen: end };
    }
    if end < text.len() {
        let kept = back(text, end);
        if kept > at {
            return End { end: kept, seen: end };
        }
    }
    end.into()
}

fn cl100k(window: Window<'_>, at: usize, digits: u8) -> End {
    let Window { classes, text, .. } = window;
    if let Some(end) = contraction(text, at) {
        return end.into();
    }
    let Some((class, len)) = classes.at(text, at) else { return text.len().into() };
    if class & LETTER != 0 {
        return window.run(at + len, LETTER).into();
    }
    if class & NUMBER != 0 {
        return digits_run(window, at, digits);
    }
    if !is_newline(text.get(at))
        && let Some((next, next_len)) = classes.at(text, at + len)
        && next & LETTER != 0
    {
        return window.run(at + len + next_len, LETTER).into();
    }
    punctuation(window, at, SPACE | LETTER | NUMBER, false).unwrap_or_else(|| spaces(window, at))
}

/// `[U]*[W]+` from `from`, as a backtracking engine matches it.
fn upper_then_lower(window: Window<'_>, from: usize) -> Option<End> {
    let Window { classes, text, .. } = window;
    // How far U* goes, and where the last character of it ends that W+ takes too.
    let (end, kept) = window.memo.go_on(from, 0x400, |mut end, mut kept| {
        while let Some((class, len)) = classes.at(text, end) {
            if class & U == 0 {
                break;
            }
            end += len;
            if class & W != 0 {
                kept = end;
            }
        }
        (end, kept)
    });
    match classes.at(text, end) {
        Some((class, len)) if class & W != 0 => Some(window.run(end + len, W).into()),
        // Given back by U*: the last character that W+ takes too.
        _ => (kept > 0).then_some(End { end: kept, seen: end }),
    }
}

fn o200k(window: Window<'_>, at: usize, digits: u8, contractions: bool) -> End {
    let Window { classes, text, .. } = window;
    let Some((class, len)) = classes.at(text, at) else { return text.len().into() };
    let with_contraction = |word: End| match contractions {
        // A contraction needs up to three bytes more than the word itself.
        true => End { end: contraction(text, word.end).unwrap_or(word.end), seen: word.seen.max(word.end + 3) },
        false => word,
    };
    let prefix = (class & (LETTER | NUMBER) == 0 && !is_newline(text.get(at))).then_some(at + len);
    let starts = [prefix, (class & (U | W) != 0).then_some(at)];
    for from in starts.into_iter().flatten() {
        if let Some(end) = upper_then_lower(window, from) {
            return with_contraction(end);
        }
    }
    for from in starts.into_iter().flatten() {
        let upper = window.run(from, U);
        if upper > from {
            return with_contraction(window.run(upper, W).into());
        }
    }
    if class & NUMBER != 0 {
        return digits_run(window, at, digits);
    }
    punctuation(window, at, SPACE | LETTER | NUMBER, true).unwrap_or_else(|| spaces(window, at))
}

/// `[一-龥぀-ゟ゠-ヿ]`
fn is_cjk(text: &[u8], at: usize) -> bool {
    match text.get(at..at + 3) {
        Some([first @ 0xe3..=0xe9, ..]) if *first != 0xe3 || text.get(at + 1).is_some_and(|b| *b >= 0x81) => {
            let (code_point, _) = super::classes::decode(text, at);
            matches!(code_point, 0x4e00..=0x9fa5 | 0x3040..=0x30ff)
        }
        _ => false,
    }
}

fn deepseek(window: Window<'_>, at: usize) -> End {
    let Window { classes, text, .. } = window;
    let Some((class, _)) = classes.at(text, at) else { return text.len().into() };
    if class & NUMBER != 0 {
        return digits_run(window, at, 3);
    }
    let rest = Rest { window, cjk: is_cjk(text, at) };
    if let Some(end) = rest.matched(at) {
        return end;
    }
    // Nothing matches here: all up to the next match is one word. Whether one begins at the window's last characters
    // is known only when there are more; what is found is how far it is certain that none does.
    let (end, _) = window.memo.go_on(at, 0x500, |from, certain| {
        let mut end = from.min(certain.max(at));
        let mut certain = certain;
        while let Some((_, len)) = rest.at(end) {
            if end > at && rest.matched(end).is_some() {
                break;
            }
            if end + LOOK_AHEAD <= text.len() {
                certain = end;
            }
            end += len;
        }
        (end, certain)
    });
    End { end, seen: (end + 4).min(text.len()) }
}

/// DeepSeek's third pattern. It cuts what the first two left, but also the CJK runs that the second one found;
/// either way the piece ends like a text where the other begins, or digits.
struct Rest<'a> {
    window: Window<'a>,
    cjk: bool,
}

impl Rest<'_> {
    #[inline]
    fn at(&self, at: usize) -> Option<(u8, usize)> {
        let (class, len) = self.window.classes.at(self.window.text, at)?;
        (class & NUMBER == 0 && (len == 3 && is_cjk(self.window.text, at)) == self.cjk).then_some((class, len))
    }

    #[inline]
    fn run(&self, from: usize, mask: u8) -> usize {
        let scan = |mut at: usize, _| {
            while let Some((class, len)) = self.at(at) {
                if class & mask == 0 {
                    break;
                }
                at += len;
            }
            (at, 0)
        };
        self.window.memo.go_on(from, 0x600 | u32::from(mask), scan).0
    }

    fn matched(&self, at: usize) -> Option<End> {
        let text = self.window.text;
        let (class, len) = self.at(at)?;
        let byte = text.get(at).copied()?;
        if byte.is_ascii_punctuation() && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic) {
            let letters = |from: usize, _| {
                let rest = text.get(from..).unwrap_or_default();
                (from + rest.iter().take_while(|b| b.is_ascii_alphabetic()).count(), 0)
            };
            return Some(self.window.memo.go_on(at + 1, 0x700, letters).0.into());
        }
        if class & (LETTER | MARK) != 0 && class & PUNCT == 0 {
            return Some(self.run(at + len, LETTER | MARK).into());
        }
        if class & (LETTER | PUNCT) == 0 && !is_newline(Some(&byte)) {
            let end = self.run(at + len, LETTER | MARK);
            if end > at + len {
                return Some(end.into());
            }
        }
        let from = at + usize::from(byte == b' ');
        let end = self.run(from, PUNCT);
        if end > from {
            return Some(self.window.newlines(end, false).into());
        }
        (class & SPACE != 0).then(|| self.spaces(at))
    }

    fn spaces(&self, at: usize) -> End {
        let (end, newline) = self.window.spaces(at, 0x800, |at| self.at(at));
        let kept = back(self.window.text, end);
        match newline {
            0 if self.at(end).is_some() && kept > at => End { end: kept, seen: end },
            0 => end.into(),
            newline => End { end: newline, seen: end },
        }
    }
}
