//! The words that most text is made of: up to fifteen ASCII bytes with an ASCII byte after them. Sixteen bytes, seen
//! at once, are enough to find the end of such a word; whatever is not certain from them is left to [`scan`].
//!
//! [`scan`]: super::scan

use super::classes::{LETTER, NUMBER, PUNCT, SPACE};
use super::scan::Scanner;
use super::words::Key;
use crate::lanes::Lanes;

/// What a byte is: a letter,
const ABC: u8 = 1;
/// a digit,
const DIGIT: u8 = 2;
/// the space,
const BLANK: u8 = 4;
/// a tab,
const TAB: u8 = 8;
/// a line feed or carriage return,
const NEWLINE: u8 = 16;
/// anything else that ASCII prints. What else there is has no bit.
const SIGN: u8 = 32;

#[allow(clippy::indexing_slicing)] // while compiling
const KINDS: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let c = byte as u8;
        table[byte] = match c {
            b' ' => BLANK,
            b'\t' => TAB,
            b'\r' | b'\n' => NEWLINE,
            _ if c.is_ascii_alphabetic() => ABC,
            _ if c.is_ascii_digit() => DIGIT,
            _ if c.is_ascii_punctuation() => SIGN,
            _ => 0,
        };
        byte += 1;
    }
    table
};

#[inline(always)]
fn kind(byte: u8) -> u8 {
    KINDS.get(usize::from(byte)).copied().unwrap_or(0)
}

/// Whether the classes of a pack say the same of ASCII as this module does.
pub fn agrees(ascii: &[u8; 256]) -> bool {
    let class = |byte: usize| match KINDS.get(byte).copied().unwrap_or(0) {
        ABC => LETTER,
        DIGIT => NUMBER,
        SIGN => PUNCT,
        0 => 0,
        _ => SPACE,
    };
    let same = |(byte, of): (usize, &u8)| match class(byte) {
        0 => true,
        LETTER => of & LETTER != 0 && of & !LETTER == 0,
        class => *of == class,
    };
    ascii.iter().enumerate().take(128).all(same)
}

/// The word that `bytes` begin with and its length, if it is a common one. What follows them does not matter.
#[inline(always)]
pub fn word(scanner: Scanner, bytes: &[u8; 16]) -> Option<(Key, usize)> {
    word_before::<false>(scanner, bytes, bytes.len())
}

/// The same of the text's last bytes, with zeroes behind them.
#[inline(never)]
pub fn last_word(scanner: Scanner, rest: &[u8]) -> Option<(Key, usize)> {
    let mut bytes = [0; 16];
    bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    word_before::<true>(scanner, &bytes, rest.len())
}

#[inline(always)]
fn word_before<const LAST: bool>(scanner: Scanner, bytes: &[u8; 16], end: usize) -> Option<(Key, usize)> {
    if let Scanner::Vocabulary = scanner {
        return None;
    }
    let raw = u128::from_le_bytes(*bytes);
    let (low, high) = (raw as u64, (raw >> 64) as u64);
    let lanes = Lanes::new(low, high);
    let first = kind(low as u8);
    let letters = lanes.letters();
    let before = u32::from(first & (BLANK | TAB | SIGN) != 0);
    let (len, seen) = if letters >> before & 1 != 0 {
        let len = with_letters(scanner, low, lanes, letters, before);
        (len, len)
    } else {
        without_letters(scanner, first, lanes, if LAST { end as u32 } else { u32::MAX })?
    };
    // The byte that ended it must be one of those that are told apart here.
    let known = (LAST && seen as usize == end) || kind(*bytes.get(seen as usize)?) != 0;
    let contraction =
        matches!(scanner, Scanner::O200k { contractions: true, .. }) && bytes.get(len as usize) == Some(&b'\'');
    (known && !contraction).then(|| (Key::of(low, high, len as usize), len as usize))
}

/// Letters, with `before` others before them.
#[inline(always)]
fn with_letters(scanner: Scanner, low: u64, lanes: Lanes, letters: u32, before: u32) -> u32 {
    match scanner {
        Scanner::O200k { .. } => {
            // Upper ones, then lower ones.
            let upper = lanes.upper();
            let lower_from = before + ones(upper >> before);
            lower_from + ones((letters & !upper) >> lower_from)
        }
        Scanner::Cl100k { .. } if low as u8 == b'\'' => {
            let [_, a, b, ..] = low.to_le_bytes();
            match (a | 0x20, b | 0x20) {
                (b's' | b't' | b'm' | b'd', _) => 2,
                (b'r' | b'v', b'e') | (b'l', b'l') => 3,
                _ => 1 + ones(letters >> 1),
            }
        }
        _ => before + ones(letters >> before),
    }
}

/// A word without letters: its length, and where the byte is that ended what was looked at.
#[inline(always)]
fn without_letters(scanner: Scanner, first: u8, lanes: Lanes, end: u32) -> Option<(u32, u32)> {
    if first == DIGIT {
        let most = match scanner {
            Scanner::Cl100k { digits } | Scanner::O200k { digits, .. } => u32::from(digits),
            _ => 3,
        };
        let len = ones(lanes.digits()).min(most);
        return Some((len, len));
    }
    let blank = u32::from(first == BLANK);
    let signs = lanes.signs() >> blank;
    if signs & 1 != 0 {
        let end = blank + ones(signs);
        let mut tail = lanes.newlines();
        if let Scanner::O200k { .. } = scanner {
            tail |= lanes.slashes();
        }
        let len = end + ones(tail >> end);
        return Some((len, len));
    }
    if first & (BLANK | TAB | NEWLINE) == 0 {
        return None;
    }
    let run = ones(lanes.spaces());
    let newlines = lanes.newlines() & ((1 << run) - 1);
    if newlines != 0 {
        return Some((u32::BITS - newlines.leading_zeros(), run));
    }
    // White space leaves its last character to the word after it. A piece of DeepSeek's ends before digits.
    let ends = run == end || (scanner == Scanner::DeepSeek && lanes.digits() >> run & 1 != 0);
    Some((if ends || run == 1 { run } else { run - 1 }, run))
}

#[inline(always)]
fn ones(bits: u32) -> u32 {
    bits.trailing_ones()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(scanner: Scanner, text: &str) -> Option<usize> {
        let mut bytes = [b' '; 16];
        bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        word(scanner, &bytes).map(|(_, len)| len)
    }

    #[test]
    fn ends_where_the_patterns_do() {
        let cl100k = Scanner::Cl100k { digits: 1 };
        for (text, expected) in [
            (" hello world", 6),
            ("hello, world", 5),
            ("(hello)", 6),
            ("abcdefghijklmno1", 15),
            ("'s x", 2),
            ("'REal", 3),
            ("'real", 3),
            ("'tis", 2),
            ("'rest", 3),
            ("'xs", 3),
            ("12", 1),
            (" ==\n\nx", 5),
            ("... a", 3),
            ("\n\n  x", 2),
            (" \n  x", 2),
            ("    x", 3),
            (" 1", 1),
            ("\t1", 1),
            ("\tx", 2),
            ("\t(", 1),
        ] {
            assert_eq!(len(cl100k, text), Some(expected), "{text:?}");
        }
        for other in
            ["abcdefghijklmnop", "h\u{e9}llo", "ab\u{301}", "..\u{a0}", "  \u{a0}", "\n \u{a0}\n", "\u{1}a", "a\u{1}"]
        {
            assert_eq!(len(cl100k, other), None, "{other}");
        }
        let o200k = Scanner::O200k { digits: 3, contractions: true };
        for (text, expected) in [
            (" Hello World", 6),
            (" helloWorld", 6),
            ("HELLO ", 5),
            ("HTTPServer", 10),
            ("//\n/x", 4),
            ("1234", 3),
            ("'tis x", 4),
        ] {
            assert_eq!(len(o200k, text), Some(expected), "{text:?}");
        }
        assert_eq!(len(o200k, "it's"), None);
        for (text, expected) in [("'tis x", 4), ("   1", 3), ("   x", 2), ("1234", 3), (".a1", 2)] {
            assert_eq!(len(Scanner::DeepSeek, text), Some(expected), "{text:?}");
        }
        assert_eq!(len(Scanner::Vocabulary, "hello x"), None);
        let last = |text: &str| last_word(cl100k, text.as_bytes()).map(|(_, len)| len);
        for (text, expected) in
            [("hello", 5), ("  ", 2), (" \n ", 2), ("=\n", 2), ("12", 1), ("\t", 1), ("'s", 2), ("'", 1)]
        {
            assert_eq!(last(text), Some(expected), "{text:?}");
        }
        assert_eq!(last("h\u{e9}"), None);
    }
}
