//! Cuts text into pre-tokens ("words"), each scanner by hand what a known split pattern does.
//!
//! A scanner sees a window of the text. When the window's end is not the text's end, a word that touches it is
//! not certain yet: the scanner asks for more instead of guessing.

use serde::{Deserialize, Serialize};

use super::classes::{CASELESS, Classes, LETTER, LOWER, MARK, NUMBER, PUNCT, SPACE, UPPER, back};
use super::cuts::Cuts;

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

/// Where the word ends that begins at `at`; `None` if the window must grow first. `last`: the window ends where
/// the text does.
#[inline]
pub fn next_word(
    scanner: Scanner,
    classes: Classes<'_>,
    cuts: Cuts<'_>,
    text: &[u8],
    at: usize,
    last: bool,
) -> Option<usize> {
    if !last && text.len() < at + LOOK_AHEAD {
        return None;
    }
    let end = match scanner {
        Scanner::Cl100k { digits } => cl100k(classes, text, at, digits),
        Scanner::O200k { digits, contractions } => o200k(classes, text, at, digits, contractions),
        Scanner::DeepSeek => deepseek(classes, text, at),
        Scanner::Vocabulary => cuts.word(text, at).into(),
    };
    (last || end.seen < text.len()).then_some(end.end)
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

fn digits_run(classes: Classes<'_>, text: &[u8], at: usize, most: u8) -> End {
    let mut end = at;
    for _ in 0..most {
        match classes.at(text, end) {
            Some((class, len)) if class & NUMBER != 0 => end += len,
            _ => break,
        }
    }
    End { end, seen: end }
}

/// ` ?[punctuation]+[newlines]*`, where `other` says which classes are none.
fn punctuation(classes: Classes<'_>, text: &[u8], at: usize, other: u8, slash: bool) -> Option<End> {
    let from = at + usize::from(text.get(at) == Some(&b' '));
    let mut end = classes.run_without(text, from, other);
    if end == from {
        return None;
    }
    while is_newline(text.get(end)) || (slash && text.get(end) == Some(&b'/')) {
        end += 1;
    }
    Some(end.into())
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+` for white space at `at`; `end` bounds it like an end of text.
fn spaces(classes: Classes<'_>, text: &[u8], at: usize) -> End {
    let (mut end, mut newline) = (at, None);
    while let Some((class, len)) = classes.at(text, end) {
        if class & SPACE == 0 {
            break;
        }
        if is_newline(text.get(end)) {
            newline = Some(end + 1);
        }
        end += len;
    }
    if let Some(newline) = newline {
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

fn cl100k(classes: Classes<'_>, text: &[u8], at: usize, digits: u8) -> End {
    if let Some(end) = contraction(text, at) {
        return end.into();
    }
    let Some((class, len)) = classes.at(text, at) else { return text.len().into() };
    if class & LETTER != 0 {
        return classes.run(text, at + len, LETTER).into();
    }
    if class & NUMBER != 0 {
        return digits_run(classes, text, at, digits);
    }
    if !is_newline(text.get(at))
        && let Some((next, next_len)) = classes.at(text, at + len)
        && next & LETTER != 0
    {
        return classes.run(text, at + len + next_len, LETTER).into();
    }
    punctuation(classes, text, at, SPACE | LETTER | NUMBER, false).unwrap_or_else(|| spaces(classes, text, at))
}

/// `[U]*[W]+` from `from`, as a backtracking engine matches it.
fn upper_then_lower(classes: Classes<'_>, text: &[u8], from: usize) -> Option<End> {
    let (mut end, mut kept) = (from, None);
    while let Some((class, len)) = classes.at(text, end) {
        if class & U == 0 {
            break;
        }
        end += len;
        if class & W != 0 {
            kept = Some(end);
        }
    }
    match classes.at(text, end) {
        Some((class, len)) if class & W != 0 => Some(classes.run(text, end + len, W).into()),
        // Given back by U*: the last character that W+ takes too.
        _ => kept.map(|kept| End { end: kept, seen: end }),
    }
}

fn o200k(classes: Classes<'_>, text: &[u8], at: usize, digits: u8, contractions: bool) -> End {
    let Some((class, len)) = classes.at(text, at) else { return text.len().into() };
    let with_contraction = |word: End| match contractions {
        // A contraction needs up to three bytes more than the word itself.
        true => End { end: contraction(text, word.end).unwrap_or(word.end), seen: word.seen.max(word.end + 3) },
        false => word,
    };
    let prefix = (class & (LETTER | NUMBER) == 0 && !is_newline(text.get(at))).then_some(at + len);
    let starts = [prefix, (class & (U | W) != 0).then_some(at)];
    for from in starts.into_iter().flatten() {
        if let Some(end) = upper_then_lower(classes, text, from) {
            return with_contraction(end);
        }
    }
    for from in starts.into_iter().flatten() {
        let upper = classes.run(text, from, U);
        if upper > from {
            return with_contraction(classes.run(text, upper, W).into());
        }
    }
    if class & NUMBER != 0 {
        return digits_run(classes, text, at, digits);
    }
    punctuation(classes, text, at, SPACE | LETTER | NUMBER, true).unwrap_or_else(|| spaces(classes, text, at))
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

fn deepseek(classes: Classes<'_>, text: &[u8], at: usize) -> End {
    let Some((class, _)) = classes.at(text, at) else { return text.len().into() };
    if class & NUMBER != 0 {
        return digits_run(classes, text, at, 3);
    }
    let rest = Rest { classes, text, cjk: is_cjk(text, at) };
    if let Some(end) = rest.matched(at) {
        return end;
    }
    // Nothing matches here: all up to the next match is one word.
    let mut end = at;
    while let Some((_, len)) = rest.at(end) {
        if end > at && rest.matched(end).is_some() {
            break;
        }
        end += len;
    }
    End { end, seen: (end + 4).min(text.len()) }
}

/// DeepSeek's third pattern. It cuts what the first two left, but also the CJK runs that the second one found;
/// either way the piece ends like a text where the other begins, or digits.
struct Rest<'a> {
    classes: Classes<'a>,
    text: &'a [u8],
    cjk: bool,
}

impl Rest<'_> {
    #[inline]
    fn at(&self, at: usize) -> Option<(u8, usize)> {
        let (class, len) = self.classes.at(self.text, at)?;
        (class & NUMBER == 0 && (len == 3 && is_cjk(self.text, at)) == self.cjk).then_some((class, len))
    }

    #[inline]
    fn run(&self, mut at: usize, mask: u8) -> usize {
        while let Some((class, len)) = self.at(at) {
            if class & mask == 0 {
                break;
            }
            at += len;
        }
        at
    }

    fn matched(&self, at: usize) -> Option<End> {
        let (class, len) = self.at(at)?;
        let byte = self.text.get(at).copied()?;
        if byte.is_ascii_punctuation() && self.text.get(at + 1).is_some_and(u8::is_ascii_alphabetic) {
            let letters = self.text.iter().skip(at + 1).take_while(|b| b.is_ascii_alphabetic()).count();
            return Some((at + 1 + letters).into());
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
        let mut end = self.run(from, PUNCT);
        if end > from {
            while is_newline(self.text.get(end)) {
                end += 1;
            }
            return Some(end.into());
        }
        (class & SPACE != 0).then(|| self.spaces(at))
    }

    fn spaces(&self, at: usize) -> End {
        let (mut end, mut newline) = (at, None);
        while let Some((class, len)) = self.at(end) {
            if class & SPACE == 0 {
                break;
            }
            if is_newline(self.text.get(end)) {
                newline = Some(end + 1);
            }
            end += len;
        }
        let kept = back(self.text, end);
        match newline {
            Some(newline) => End { end: newline, seen: end },
            None if self.at(end).is_some() && kept > at => End { end: kept, seen: end },
            None => end.into(),
        }
    }
}
