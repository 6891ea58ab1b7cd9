//! The words that most text is made of, many at a time: those of ASCII letters, digits, signs and white space. Of
//! sixty-four bytes the kinds are found at once, a bit a byte, and from those by a few shifts the places where words
//! begin. So it takes no branch a word, of which one in three would be foreseen wrongly.
//!
//! A block begins where a word does, so nothing is carried from one to the next. Whatever is not certain from its
//! bytes is left to the next block, and what no block is certain of to [`scan`].
//!
//! [`scan`]: super::scan

use super::classes::{LETTER, LOWER, NUMBER, PUNCT, SPACE, UPPER};
use super::scan::Scanner;
use crate::lanes::Lanes;

/// Bytes of a block.
pub const BLOCK: usize = 64;
/// Bytes that are read of a word, wherever in the block it begins.
pub const WIDTH: usize = 16;
/// A block and what is read with its last word.
pub type Bytes = [u8; BLOCK + WIDTH];

/// Whether the classes of a pack say the same of ASCII as this module does.
pub fn agrees(ascii: &[u8; 256]) -> bool {
    let same = |(byte, of): (usize, &u8)| match byte as u8 {
        b' ' | b'\t' | b'\r' | b'\n' => *of == SPACE,
        letter if letter.is_ascii_uppercase() => of & LETTER == UPPER && of & !LETTER == 0,
        letter if letter.is_ascii_lowercase() => of & LETTER == LOWER && of & !LETTER == 0,
        digit if digit.is_ascii_digit() => *of == NUMBER,
        sign if sign.is_ascii_punctuation() => *of == PUNCT,
        _ => true,
    };
    ascii.iter().enumerate().take(128).all(same)
}

/// Of the bytes of a block, which are what.
struct Kinds {
    letters: u64,
    upper: u64,
    digits: u64,
    signs: u64,
    newlines: u64,
    spaces: u64,
    tabs: u64,
    slashes: u64,
    quotes: u64,
    /// Bytes from the first on that are one of these.
    len: usize,
}

#[inline(always)]
fn lowest(count: usize) -> u64 {
    if count < BLOCK { (1 << count) - 1 } else { u64::MAX }
}

/// The bit of the highest one that is set, and all below it; none if none is.
#[inline(always)]
fn up_to_highest(bits: u64) -> u64 {
    u64::MAX.checked_shr(bits.leading_zeros()).unwrap_or(0)
}

impl Kinds {
    #[inline(always)]
    fn of(bytes: &Bytes, end: usize) -> Kinds {
        let (parts, _) = bytes.as_chunks::<16>();
        let [a, b, c, d] = [0, 1, 2, 3].map(|at| Lanes::of(parts.get(at).unwrap_or(&[0; 16])));
        let all = |ask: fn(Lanes) -> u32| {
            let [a, b, c, d] = [a, b, c, d].map(|lanes| u64::from(ask(lanes)));
            a | b << 16 | c << 32 | d << 48
        };
        let (letters, digits) = (all(Lanes::letters), all(Lanes::digits));
        let (newlines, spaces, tabs) = (all(Lanes::newlines), all(Lanes::blanks), all(Lanes::tabs));
        let printed = all(Lanes::printed);
        let known = printed | newlines | spaces | tabs;
        let len = (known.trailing_ones() as usize).min(end);
        let mask = lowest(len);
        Kinds {
            letters: letters & mask,
            upper: all(Lanes::upper) & mask,
            digits: digits & mask,
            signs: printed & !letters & !digits & mask,
            newlines: newlines & mask,
            spaces: spaces & mask,
            tabs: tabs & mask,
            slashes: all(Lanes::slashes) & mask,
            quotes: all(Lanes::apostrophes) & mask,
            len,
        }
    }
}

/// Where words begin among the first `end` of `bytes`, at whose first one does: a bit each. The word from each one to
/// the next is certain; where the last one ends is not known. `last`: the text ends there.
#[inline(always)]
pub fn starts(scanner: Scanner, bytes: &Bytes, end: usize, last: bool) -> u64 {
    let kinds = Kinds::of(bytes, end);
    let Kinds { letters, upper, digits, signs, newlines, spaces, tabs, slashes, quotes, len } = kinds;
    // An end that has a place in the bits.
    let last = last && len == end && len < BLOCK;
    let blanks = spaces | tabs;
    let no_space = letters | digits | signs;

    // Line breaks right after signs belong to them; the rest is white space.
    let after_signs = newlines & signs << 1;
    let joined = newlines & !newlines.wrapping_add(after_signs);
    let white = (blanks | newlines) & !joined;
    let white_begins = white & !(white << 1);
    // White space goes up to its last line break. Blanks after that are words of their own,
    let indents = blanks & !(blanks << 1) & (newlines & !joined) << 1;
    // which ends before the last blank, for that one belongs to what follows.
    let followed = match scanner {
        // Its pieces end like a text before digits.
        Scanner::DeepSeek => letters | signs,
        _ => no_space,
    };
    let last_blanks = blanks & followed >> 1;

    let signs_begin = signs & !(signs << 1) & !(spaces << 1);
    // Of letters the one before is a part: a blank, or a sign that is no other word's.
    let alone = signs_begin & !(signs >> 1);
    let letters_begin = letters & !(letters << 1);
    let mut starts = 1
        | white_begins
        | indents
        | last_blanks
        | signs_begin
        | (letters_begin & !((blanks | alone) << 1))
        | digits_begin(scanner, digits);

    // Up to here it is certain. Blanks between line breaks are no indent: left to the next one who looks.
    let inner = blanks.wrapping_add(indents) & !blanks & newlines;
    let mut certain = match last {
        true => u64::MAX,
        // White space at the end may go on.
        false if white >> len.saturating_sub(1) & 1 != 0 => up_to_highest(lowest(len) & !white) << 1 | 1,
        false => lowest(len),
    };
    if inner != 0 {
        let before = (inner & inner.wrapping_neg()).wrapping_sub(1);
        certain &= up_to_highest(before & !white) << 1 | 1;
    }
    match scanner {
        Scanner::Cl100k { .. } => {
            let mut quoted = quotes & alone & letters >> 1;
            while quoted != 0 {
                let at = quoted.trailing_zeros() as usize;
                quoted &= quoted.wrapping_sub(1);
                match contraction(bytes, at, len, last) {
                    Some(to) => starts |= letters & 1u64.checked_shl(to as u32).unwrap_or(0),
                    None => certain &= lowest(at + 1),
                }
            }
        }
        Scanner::O200k { contractions, .. } => {
            // Upper ones, then lower ones.
            starts |= upper & (letters & !upper) << 1;
            // A slash after line breaks belongs to the signs before them. Contractions belong to the word.
            let mut unsure = joined << 1 & slashes;
            if contractions {
                unsure |= quotes & letters << 1;
            }
            certain &= (unsure & unsure.wrapping_neg()).wrapping_sub(1);
        }
        Scanner::DeepSeek | Scanner::Vocabulary => {}
    }
    if last {
        starts |= 1 << len;
    }
    starts & certain | 1
}

#[inline(always)]
fn digits_begin(scanner: Scanner, digits: u64) -> u64 {
    let most = match scanner {
        Scanner::Cl100k { digits } | Scanner::O200k { digits, .. } => digits,
        _ => 3,
    };
    if most == 1 {
        return digits;
    }
    let mut begins = digits & !(digits << 1);
    let mut all = begins;
    while begins != 0 {
        for _ in 0..most {
            begins = begins << 1 & digits;
        }
        all |= begins;
    }
    all
}

/// Where a word ends that begins with the apostrophe at `at` and a letter, as a contraction; anywhere beyond `len` if it is
/// none. `None`: that is not known.
#[inline(always)]
fn contraction(bytes: &Bytes, at: usize, len: usize, last: bool) -> Option<usize> {
    let letter = |at: usize| match bytes.get(at) {
        Some(byte) if at < len => Some(byte | 0x20),
        _ if last => Some(0),
        _ => None,
    };
    match letter(at + 1)? {
        b's' | b't' | b'm' | b'd' => Some(at + 2),
        b'r' | b'v' if letter(at + 2)? == b'e' => Some(at + 3),
        b'l' if letter(at + 2)? == b'l' => Some(at + 3),
        _ => Some(BLOCK),
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::Classes;
    use super::super::corpus::Random;
    use super::super::cuts::Cuts;
    use super::super::memo::Memo;
    use super::super::scan::{Window, next_word};
    use super::*;

    fn ascii() -> [u8; 256] {
        let mut table = [0; 256];
        for (byte, class) in table.iter_mut().enumerate().take(128) {
            *class = match byte as u8 {
                b'\t'..=b'\r' | b' ' => SPACE,
                b'A'..=b'Z' => UPPER,
                b'a'..=b'z' => LOWER,
                b'0'..=b'9' => NUMBER,
                sign if sign.is_ascii_punctuation() => PUNCT,
                _ => 0,
            };
        }
        table
    }

    const SCANNERS: [Scanner; 6] = [
        Scanner::Cl100k { digits: 1 },
        Scanner::Cl100k { digits: 3 },
        Scanner::O200k { digits: 3, contractions: true },
        Scanner::O200k { digits: 1, contractions: false },
        Scanner::DeepSeek,
        Scanner::O200k { digits: 2, contractions: true },
    ];

    /// The words of the first `end` bytes that are certain by a block, and by the slow twin.
    fn both(scanner: Scanner, text: &[u8], end: usize, last: bool) -> (Vec<usize>, Vec<usize>) {
        let mut bytes = [b'z'; BLOCK + WIDTH];
        bytes.iter_mut().zip(text).for_each(|(to, from)| *to = *from);
        let starts = starts(scanner, &bytes, end, last);
        let fast: Vec<usize> = (1..=end.min(BLOCK - 1)).filter(|at| starts >> at & 1 != 0).collect();
        assert_eq!(starts & 1, 1);
        assert_eq!(starts & !(lowest(end) << 1 | 1), 0, "beyond the end");
        let (ascii, memo) = (ascii(), Memo::default());
        let (classes, cuts) = (Classes::new(&ascii, &[], &[]), Cuts::new(&[]));
        let window = Window { classes, cuts, text: &text[..end], last: true, memo: &memo };
        let (mut slow, mut at) = (Vec::new(), 0);
        while at < end {
            memo.clear();
            at = next_word(scanner, window, at).unwrap();
            slow.push(at);
        }
        (fast, slow)
    }

    #[test]
    fn the_pack_of_the_tests_agrees() {
        assert!(agrees(&ascii()));
        let mut other = ascii();
        other[usize::from(b'_')] = LOWER;
        assert!(!agrees(&other));
    }

    #[test]
    fn words_are_those_of_the_slow_twin_and_none_changes_by_what_follows() {
        let pieces: [&[u8]; 40] = [
            b" ", b" ", b"  ", b"\t", b"\n", b"\r\n", b"\n\n", b"a", b"B", b"the", b"Word", b"XML", b"1", b"12",
            b"345", b"67890", b"'", b"'s", b"'S", b"'re", b"'rest", b"'ll", b"'l", b"'ve", b"'v", b"'tis", b"'d", b"(",
            b"((", b"//", b"/", b".", b"...", b"_", b"=", b"{", b"\"", b"\x0b", b"\x01", b"\x7f",
        ];
        let mut random = Random(11);
        let (mut words, mut blocks) = (0, 0);
        for round in 0..60_000 {
            let mut text = Vec::new();
            // Without and with bytes that end what is known.
            let most = [pieces.len(), pieces.len() - 3, 16, 27][random.below(4)];
            while text.len() < 100 {
                text.extend_from_slice(pieces[random.below(most)]);
            }
            let scanner = SCANNERS[round % SCANNERS.len()];
            let end = random.below(90);
            // As the text's end: these words and no others, as far as they go.
            let (fast, slow) = both(scanner, &text, end, true);
            assert_eq!(fast[..], slow[..fast.len()], "{scanner:?} {end} {:?}", text.escape_ascii().to_string());
            // As a window's end: whatever follows.
            let (fast, _) = both(scanner, &text, end, false);
            for more in [end, end + 1, end + 2, text.len()] {
                let (_, slow) = both(scanner, &text, more.min(text.len()), true);
                assert_eq!(fast[..], slow[..fast.len()], "{scanner:?} {end} {:?}", text.escape_ascii().to_string());
            }
            words += fast.len();
            blocks += 1;
        }
        // Most words are found.
        assert!(words > blocks * 6, "{words} words in {blocks} blocks");
    }

    #[test]
    fn all_of_common_text_is_found() {
        let text = b"fn main() {\n    println!(\"{}\", it's + 1234);\n}\n\n// don't\n- we'll see  it\n";
        for scanner in [Scanner::Cl100k { digits: 1 }, Scanner::Cl100k { digits: 3 }, Scanner::DeepSeek] {
            let (fast, slow) = both(scanner, text, 60, true);
            assert_eq!(fast, slow, "{scanner:?}");
            let (fast, slow) = both(scanner, text, 64, false);
            assert_eq!(fast[..], slow[..slow.len() - 1], "{scanner:?}");
        }
    }
}
