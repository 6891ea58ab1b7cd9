//! The bytes of strings, sixteen at a time.

use crate::lanes::Lanes;

/// Bytes at a time.
const WIDTH: usize = 16;

/// A string with escapes, as far as it is read. Its bytes are not yet known to be UTF-8.
#[derive(Debug, Default)]
pub struct Unescaped(Vec<u8>);

/// Where reading stopped; nothing of it is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// At a quote.
    Quote,
    /// At a backslash, beyond the limit or before what is no simple escape.
    Backslash,
    /// At a control character, or at the end.
    Other,
}

impl Unescaped {
    /// Empties it; the memory stays.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The memory that it holds.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Adds a character.
    pub fn push(&mut self, c: char) {
        let mut bytes = [0; 4];
        let len = c.encode_utf8(&mut bytes).len();
        // Stored whole, as in `read`.
        self.0.extend_from_slice(&bytes);
        self.0.truncate((self.0.len() + len).saturating_sub(bytes.len()));
    }

    /// Adds what `text` stands for, up to a stop: bytes that stand for themselves, and escapes that begin before `limit`
    /// and are of one letter or one code point. Returns how much of `text` that was.
    pub fn read(&mut self, text: &[u8], limit: usize) -> (usize, Stop) {
        let mut at = 0;
        loop {
            let plain = match text.get(at..).and_then(<[u8]>::first_chunk::<WIDTH>) {
                Some(bytes) => {
                    if self.0.capacity() - self.0.len() < WIDTH {
                        // In large steps, as growing moves all of it; never beyond what is left of the body.
                        let more = self.0.len().saturating_mul(3).saturating_add(1024);
                        self.0.reserve(more.min(text.len() - at).max(WIDTH));
                    }
                    // Stored whole, which costs less than to copy what is wanted of it.
                    self.0.extend_from_slice(bytes);
                    let plain = plain_in(bytes);
                    self.0.truncate(self.0.len().saturating_sub(WIDTH - plain));
                    plain
                }
                None => {
                    let rest = text.get(at..).unwrap_or_default();
                    let plain = plain_bytes(rest);
                    self.0.extend_from_slice(rest.get(..plain).unwrap_or_default());
                    plain
                }
            };
            at += plain;
            if plain == WIDTH {
                continue;
            }
            match text.get(at) {
                Some(b'"') => return (at, Stop::Quote),
                Some(b'\\') if at < limit => match text.get(at + 1).copied().unwrap_or_default() {
                    b'u' => match text.get(at + 2..).and_then(code_point) {
                        Some(c) => {
                            self.push(c);
                            at += 6;
                        }
                        None => return (at, Stop::Backslash),
                    },
                    letter => match simple_escape(letter) {
                        0 => return (at, Stop::Backslash),
                        byte => {
                            self.0.push(byte);
                            at += 2;
                        }
                    },
                },
                Some(b'\\') => return (at, Stop::Backslash),
                _ => return (at, Stop::Other),
            }
        }
    }
}

/// The character of four digits, unless it is one of a pair.
#[inline]
fn code_point(text: &[u8]) -> Option<char> {
    let mut code = 0;
    for digit in text.first_chunk::<4>()? {
        code = code << 4 | char::from(*digit).to_digit(16)?;
    }
    char::from_u32(code)
}

/// What a letter after a backslash stands for; 0: nothing, or more letters follow.
#[inline(always)]
fn simple_escape(letter: u8) -> u8 {
    SIMPLE.get(usize::from(letter)).copied().unwrap_or_default()
}

#[allow(clippy::indexing_slicing)] // while compiling
const SIMPLE: [u8; 256] = {
    let mut table = [0; 256];
    let pairs = [*b"\"\"", *b"\\\\", *b"//", *b"b\x08", *b"f\x0c", *b"n\n", *b"r\r", *b"t\t"];
    let mut at = 0;
    while at < pairs.len() {
        let [letter, byte] = pairs[at];
        table[letter as usize] = byte;
        at += 1;
    }
    table
};

/// How many bytes from the start are none of `"`, `\` and control characters.
pub fn plain_prefix(bytes: &[u8]) -> usize {
    let mut passed = 0;
    while let Some(some) = bytes.get(passed..).and_then(<[u8]>::first_chunk::<WIDTH>) {
        let plain = plain_in(some);
        passed += plain;
        if plain < WIDTH {
            return passed;
        }
    }
    passed + plain_bytes(bytes.get(passed..).unwrap_or_default())
}

/// The same of sixteen bytes.
#[inline(always)]
fn plain_in(bytes: &[u8; WIDTH]) -> usize {
    (Lanes::of(bytes).json_stops() | 1 << WIDTH).trailing_zeros() as usize
}

/// The same, one at a time.
fn plain_bytes(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_at_a_time_come_to_the_same_as_one() {
        let mut random = 7u64;
        let mut byte = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (random >> 56) as u8;
            // Often one of those that end a run, or one beside them.
            match random >> 32 & 7 {
                0 => [b'"', b'\\', 0x1f, 0x20, 0x21, 0x23, 0x5b, 0x5d][byte as usize & 7],
                1 => byte,
                _ => b'a' + (byte & 15),
            }
        };
        for round in 0..6000 {
            let mut text: Vec<u8> = (0..round % 67).map(|_| byte()).collect();
            if round % 3 == 0 {
                let escape = ["\\u00e9", "\\u1F6a", "\\ud83d\\ude00", "\\u12", "\\u+123", "\\u12g4"][round / 3 % 6];
                text.splice(text.len() / 2..text.len() / 2, escape.bytes());
            }
            assert_eq!(plain_prefix(&text), plain_bytes(&text), "{text:?}");
            let limit = round % 50;
            let (mut expected, mut at) = (b"before".to_vec(), 0);
            let stop = loop {
                match text.get(at) {
                    Some(b'"') => break Stop::Quote,
                    Some(b'\\') => match text.get(at + 1).map(|letter| simple_escape(*letter)) {
                        Some(byte @ 1..) if at < limit => {
                            expected.push(byte);
                            at += 2;
                        }
                        Some(0) if at < limit && text[at + 1] == b'u' => {
                            let digits = text.get(at + 2..at + 6).and_then(|digits| std::str::from_utf8(digits).ok());
                            let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
                            let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                            let Some(c) = code.and_then(char::from_u32) else { break Stop::Backslash };
                            expected.extend(c.to_string().bytes());
                            at += 6;
                        }
                        _ => break Stop::Backslash,
                    },
                    None | Some(..=0x1f) => break Stop::Other,
                    Some(byte) => {
                        expected.push(*byte);
                        at += 1;
                    }
                }
            };
            let mut out = Unescaped::default();
            "before".chars().for_each(|c| out.push(c));
            assert_eq!(out.read(&text, limit), (at, stop), "{text:?}");
            assert_eq!(out.bytes(), expected, "{text:?}");
            out.push('\u{1f600}');
            assert!(out.bytes().ends_with("\u{1f600}".as_bytes()));
            out.clear();
            assert_eq!(out.bytes(), b"");
        }
    }
}
