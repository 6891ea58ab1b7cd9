//! The words that most text is made of: ASCII letters, with a space or a sign before them, and an ASCII byte after
//! them. All split patterns agree on those, so that sixteen bytes at a time are enough to find their end.

use super::scan::Scanner;
use super::words::Key;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = ONES << 7;

/// What may come before the letters.
const SIGN: u8 = 1;
/// The same, but for patterns that know contractions.
const APOSTROPHE: u8 = 2;

#[allow(clippy::indexing_slicing)] // while compiling
const FIRST: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 128 {
        let c = byte as u8;
        if c == b'\'' {
            table[byte] = APOSTROPHE;
        } else if !c.is_ascii_alphanumeric() && c != b'\r' && c != b'\n' {
            table[byte] = SIGN;
        }
        byte += 1;
    }
    table
};

/// Marks (by their highest bit) the bytes of a word that are ASCII letters.
#[inline(always)]
fn letters(word: u64) -> u64 {
    let folded = (word | (ONES * 0x20)) & !HIGH;
    // The highest bit of each byte: at least `a`; more than `z`. Seven bits cannot carry over.
    let from_a = folded + ONES * (0x80 - b'a' as u64);
    let past_z = folded + ONES * (0x7f - b'z' as u64);
    from_a & !past_z & !word & HIGH
}

/// The word that `bytes` begin with and its length, if it is a common one. What follows them does not matter.
#[inline(always)]
pub fn word(scanner: Scanner, bytes: &[u8; 16]) -> Option<(Key, usize)> {
    let raw = u128::from_le_bytes(*bytes);
    let (low, high) = (raw as u64, (raw >> 64) as u64);
    let first = FIRST.get(usize::from(low as u8)).copied().unwrap_or(0);
    let allowed = match scanner {
        Scanner::Vocabulary => return None,
        Scanner::DeepSeek => SIGN | APOSTROPHE,
        Scanner::Cl100k { .. } | Scanner::O200k { .. } => SIGN,
    };
    let sign = first & allowed != 0;
    // The sign counts as if it were one of the letters.
    let others = !(letters(low) | if sign { 0x80 } else { 0 }) & HIGH;
    let len = match others {
        0 => 8 + ((!letters(high) & HIGH).trailing_zeros() >> 3),
        _ => others.trailing_zeros() >> 3,
    } as usize;
    let after = *bytes.get(len)?;
    if len <= usize::from(sign) || after >= 0x80 {
        return None;
    }
    if let Scanner::O200k { .. } = scanner {
        // Case matters: lower ones, but for the first.
        let upper_bits = !raw & (u128::from(ONES * 0x20) | u128::from(ONES * 0x20) << 64);
        let from = (usize::from(sign) + 1) * 8;
        let inner = (1u128 << (len * 8)) - 1;
        if (upper_bits & inner) >> from != 0 || after == b'\'' {
            return None;
        }
    }
    Some((Key::of(low, high, len), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_told_from_all_other_bytes() {
        for byte in 0..=255u8 {
            for around in [0, 0x7f, 0x80, 0xff, b'a'] {
                let word = u64::from_le_bytes([around, around, around, byte, around, around, around, around]);
                assert_eq!(letters(word) >> 31 & 1 == 1, byte.is_ascii_alphabetic(), "{byte:x} in {around:x}");
            }
        }
    }

    #[test]
    fn ends_where_the_letters_do() {
        let cl100k = Scanner::Cl100k { digits: 1 };
        let len = |scanner, text: &str| {
            let mut bytes = [b' '; 16];
            bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
            word(scanner, &bytes).map(|(_, len)| len)
        };
        assert_eq!(len(cl100k, " hello world"), Some(6));
        assert_eq!(len(cl100k, "hello, world"), Some(5));
        assert_eq!(len(cl100k, "(hello)"), Some(6));
        assert_eq!(len(cl100k, "abcdefghijklmno1"), Some(15));
        for other in ["abcdefghijklmnop", "'s x", "1a", "\na", "  a", ".. a", "h\u{e9}llo", "ab\u{301}"] {
            assert_eq!(len(cl100k, other), None, "{other}");
        }
        let o200k = Scanner::O200k { digits: 3, contractions: true };
        assert_eq!(len(o200k, " Hello World"), Some(6));
        for other in [" helloWorld", "HELLO ", "it's"] {
            assert_eq!(len(o200k, other), None, "{other}");
        }
        assert_eq!(len(Scanner::DeepSeek, "'tis x"), Some(4));
        assert_eq!(len(Scanner::Vocabulary, "hello x"), None);
    }
}
