//! The bytes of strings, eight at a time.

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

    /// Adds bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds a character.
    pub fn push(&mut self, c: char) {
        self.0.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }

    /// Adds what `text` stands for, up to a stop: bytes that stand for themselves, and escapes of one letter that begin
    /// before `limit`. Returns how much of `text` that was.
    pub fn read(&mut self, text: &[u8], limit: usize) -> (usize, Stop) {
        let mut at = 0;
        loop {
            let word = text.get(at..).and_then(<[u8]>::first_chunk::<8>);
            let plain = match word {
                Some(word) => {
                    // Stored whole, which costs less than to copy what is wanted of it.
                    self.0.extend_from_slice(word);
                    let plain = plain_in(*word);
                    self.0.truncate(self.0.len().saturating_sub(8 - plain));
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
            if plain == 8 {
                continue;
            }
            match text.get(at) {
                Some(b'"') => return (at, Stop::Quote),
                Some(b'\\') if at < limit => match text.get(at + 1).map_or(0, |letter| simple_escape(*letter)) {
                    0 => return (at, Stop::Backslash),
                    byte => self.0.push(byte),
                },
                Some(b'\\') => return (at, Stop::Backslash),
                _ => return (at, Stop::Other),
            }
            at += 2;
        }
    }
}

/// What a letter after a backslash stands for; 0: nothing, or more letters follow.
fn simple_escape(letter: u8) -> u8 {
    match letter {
        b'"' | b'\\' | b'/' => letter,
        b'b' => 8,
        b'f' => 12,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => 0,
    }
}

/// How many bytes from the start are none of `"`, `\` and control characters.
pub fn plain_prefix(bytes: &[u8]) -> usize {
    let mut passed = 0;
    while let Some(word) = bytes.get(passed..).and_then(<[u8]>::first_chunk::<8>) {
        let plain = plain_in(*word);
        passed += plain;
        if plain < 8 {
            return passed;
        }
    }
    passed + plain_bytes(bytes.get(passed..).unwrap_or_default())
}

/// The same of eight bytes.
fn plain_in(word: [u8; 8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(word);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    // The lowest marked byte is always right; a borrow can only mark bytes above it.
    let marked = (word.wrapping_sub(ONES * 0x20) & !word)
        | (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash);
    // No byte marked: 64 zeros.
    ((marked & HIGH).trailing_zeros() >> 3) as usize
}

/// The same, one at a time.
fn plain_bytes(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_at_a_time_come_to_the_same_as_one() {
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
            let text: Vec<u8> = (0..round % 41).map(|_| byte()).collect();
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
            out.extend(b"before");
            assert_eq!(out.read(&text, limit), (at, stop), "{text:?}");
            assert_eq!(out.bytes(), expected, "{text:?}");
            out.push('\u{1f600}');
            assert!(out.bytes().ends_with("\u{1f600}".as_bytes()));
            out.clear();
            assert_eq!(out.bytes(), b"");
        }
    }
}
