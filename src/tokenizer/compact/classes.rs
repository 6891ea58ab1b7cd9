//! Unicode classes in two stages, and the walk over UTF-8 by them.
//!
//! One byte of class bits a code point. The tables are made when packing, by the regex engine of the
//! `tokenizers` crate, so that both agree on what a letter is.

/// `\p{Lu}` or `\p{Lt}`.
pub const UPPER: u8 = 1;
/// `\p{Ll}`.
pub const LOWER: u8 = 2;
/// `\p{Lm}` or `\p{Lo}`.
pub const CASELESS: u8 = 4;
/// `\p{M}`.
pub const MARK: u8 = 8;
/// `\p{N}`.
pub const NUMBER: u8 = 16;
/// `\s`.
pub const SPACE: u8 = 32;
/// `\p{P}` or `\p{S}`.
pub const PUNCT: u8 = 64;
/// NFC may change this character or let it join the one before.
pub const UNSTABLE: u8 = 128;
/// `\p{L}`.
pub const LETTER: u8 = UPPER | LOWER | CASELESS;

/// Code points of a block of the second stage.
pub const BLOCK_BITS: u32 = 7;

/// A view of the tables.
#[derive(Clone, Copy)]
pub struct Classes<'a> {
    ascii: &'a [u8; 256],
    stage1: &'a [[u8; 2]],
    stage2: &'a [u8],
}

impl<'a> Classes<'a> {
    /// `ascii` from [`Classes::ascii`]. Code points outside the tables have no class.
    pub fn new(ascii: &'a [u8; 256], stage1: &'a [u8], stage2: &'a [u8]) -> Self {
        Classes { ascii, stage1: stage1.as_chunks().0, stage2 }
    }

    /// The classes of bytes that are whole characters, for the fast path.
    pub fn ascii(stage1: &[u8], stage2: &[u8]) -> [u8; 256] {
        let none = [0; 256];
        let slow = Classes::new(&none, stage1, stage2);
        let mut out = [0; 256];
        for (byte, class) in out.iter_mut().enumerate().take(128) {
            *class = slow.of(byte as u32);
        }
        out
    }

    /// The class bits of a code point.
    #[inline]
    pub fn of(&self, code_point: u32) -> u8 {
        let block = self.stage1.get((code_point >> BLOCK_BITS) as usize).map_or(0, |b| u16::from_le_bytes(*b));
        let at = (usize::from(block) << BLOCK_BITS) | (code_point & ((1 << BLOCK_BITS) - 1)) as usize;
        self.stage2.get(at).copied().unwrap_or(0)
    }

    /// The class of an ASCII byte.
    #[inline(always)]
    pub fn byte(&self, byte: u8) -> u8 {
        self.ascii.get(usize::from(byte)).copied().unwrap_or(0)
    }

    /// Class and length of the character at `at`; `None` at the end.
    #[inline(always)]
    pub fn at(&self, text: &[u8], at: usize) -> Option<(u8, usize)> {
        let byte = *text.get(at)?;
        if byte < 128 {
            return Some((self.byte(byte), 1));
        }
        let (code_point, len) = decode(text, at);
        Some((self.of(code_point), len))
    }

    /// Where the run of characters with any of `mask` ends that begins at `at`.
    #[inline]
    pub fn run(&self, text: &[u8], mut at: usize, mask: u8) -> usize {
        while let Some((class, len)) = self.at(text, at) {
            if class & mask == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// Where the run of characters with none of `mask` ends that begins at `at`.
    #[inline]
    pub fn run_without(&self, text: &[u8], mut at: usize, mask: u8) -> usize {
        while let Some((class, len)) = self.at(text, at) {
            if class & mask != 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// Where the first character with any of `mask` begins, if any.
    pub fn find(&self, text: &[u8], at: usize, mask: u8) -> Option<usize> {
        let at = self.run_without(text, at, mask);
        (at < text.len()).then_some(at)
    }
}

/// The code point at `at`, which begins a character of valid UTF-8 with more than one byte, and its length.
#[inline]
pub fn decode(text: &[u8], at: usize) -> (u32, usize) {
    let next = |n: usize| u32::from(text.get(at + n).copied().unwrap_or(0) & 0x3f);
    let first = u32::from(text.get(at).copied().unwrap_or(0));
    match first {
        0..0xe0 => ((first & 0x1f) << 6 | next(1), 2),
        0xe0..0xf0 => ((first & 0x0f) << 12 | next(1) << 6 | next(2), 3),
        _ => ((first & 0x07) << 18 | next(1) << 12 | next(2) << 6 | next(3), 4),
    }
}

/// Where the character begins that ends before `end`.
pub fn back(text: &[u8], end: usize) -> usize {
    let mut at = end.saturating_sub(1);
    while at > 0 && text.get(at).is_some_and(|b| b & 0xc0 == 0x80) {
        at -= 1;
    }
    at
}
