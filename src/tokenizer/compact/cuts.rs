//! Where a tokenizer without pre-tokens may be cut: between two characters that stand side by side in no token.
//!
//! A table over pairs of ASCII characters, with one more row and column for all others; two others are never cut
//! apart. `▁` counts as the space that it stands for.

use super::memo::Memo;

/// Rows and columns: ASCII, then everything else.
pub const SIDE: usize = 129;
/// The row of everything that is not ASCII.
const OTHER: usize = 128;

/// A view of the table: 1 where some token has the pair.
#[derive(Clone, Copy)]
pub struct Cuts<'a>(&'a [u8]);

impl<'a> Cuts<'a> {
    /// A view. Pairs outside the table are never cut apart.
    pub fn new(table: &'a [u8]) -> Self {
        Cuts(table)
    }

    /// The table for a vocabulary.
    pub fn build<'t>(tokens: impl Iterator<Item = &'t str>) -> Vec<u8> {
        let mut table = vec![0; SIDE * SIDE];
        let mut join = |a: usize, b: usize| {
            if let Some(cell) = table.get_mut(a * SIDE + b) {
                *cell = 1;
            }
        };
        join(OTHER, OTHER);
        for token in tokens {
            for (a, b) in token.chars().zip(token.chars().skip(1)) {
                join(row_of(a), row_of(b));
            }
        }
        table
    }

    fn joined(&self, a: usize, b: usize) -> bool {
        self.0.get(a * SIDE + b).is_none_or(|cell| *cell != 0)
    }

    /// Where the word ends that begins at `at`.
    pub fn word(&self, text: &[u8], at: usize, memo: &Memo) -> usize {
        // What is found is the row before, plus one.
        let (end, _) = memo.go_on(at, 0x900, |mut end, mut before| {
            while let Some(byte) = text.get(end) {
                let (row, len) = match byte {
                    0..0x80 => (usize::from(*byte), 1),
                    0xe2 if text.get(end + 1) == Some(&0x96) && text.get(end + 2) == Some(&0x81) => {
                        (usize::from(b' '), 3)
                    }
                    0..0xe0 => (OTHER, 2),
                    0..0xf0 => (OTHER, 3),
                    _ => (OTHER, 4),
                };
                if before > 0 && !self.joined(before - 1, row) {
                    break;
                }
                before = row + 1;
                end += len;
            }
            (end, before)
        });
        end.min(text.len())
    }
}

fn row_of(c: char) -> usize {
    match c {
        '▁' => usize::from(b' '),
        c if c.is_ascii() => c as usize,
        _ => OTHER,
    }
}
