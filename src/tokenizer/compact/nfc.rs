//! NFC, piece by piece, only where a text needs it.
//!
//! A *stable* character is one that NFC leaves alone and that joins nothing before it. Between two stable ones
//! the text can be cut, so only the runs around the others are normalised; the rest is copied. The tables are
//! those of the crate that Hugging Face `tokenizers` uses, so that both know the same version of Unicode.

use unicode_normalization_alignments::UnicodeNormalization;

use super::classes::{Classes, UNSTABLE, back};
use crate::tokenizer::TokenizeError;

/// A longer run without a stable character is refused: nobody writes it, and it cannot be cut.
pub(super) const LONGEST_RUN: usize = 64 << 10;
/// Bytes that were read are dropped when there are this many.
const DROP: usize = 64 << 10;

/// A text under normalisation.
#[derive(Default)]
pub struct Normalized {
    /// The normalised text so far; what was read may be gone.
    pub buf: Vec<u8>,
    /// Where in the source the rest begins.
    pub fed: usize,
}

impl Normalized {
    /// Begins at `from`, where the source up to `scanned` holds only stable characters.
    pub fn begin(text: &str, from: usize, scanned: usize) -> Self {
        // The last character may be joined by what follows.
        let fed = if scanned > from { back(text.as_bytes(), scanned).max(from) } else { from };
        Normalized { buf: text.as_bytes().get(from..fed).unwrap_or_default().to_vec(), fed }
    }

    /// Normalises the source as far as `to`, or, unless it ends there, as far as is certain by then.
    pub fn feed(&mut self, text: &str, classes: Classes<'_>, to: usize, last: bool) -> Result<(), TokenizeError> {
        let bytes = text.as_bytes();
        let mut end = to;
        while !last && end > self.fed {
            end = back(bytes, end);
            if classes.at(bytes, end).is_some_and(|(class, _)| class & UNSTABLE == 0) {
                break;
            }
        }
        if to.saturating_sub(end) > LONGEST_RUN {
            return Err(TokenizeError(format!("more than {LONGEST_RUN} bytes of combining characters in a row")));
        }
        let source = bytes.get(..end).unwrap_or_default();
        let mut at = self.fed;
        while at < end {
            let unstable = classes.find(source, at, UNSTABLE).unwrap_or(end);
            let from = if unstable == end || unstable == at { unstable } else { back(source, unstable) };
            self.buf.extend_from_slice(source.get(at..from).unwrap_or_default());
            at = classes.run(source, unstable, UNSTABLE);
            let mut utf8 = [0; 4];
            for (c, _) in text.get(from..at).unwrap_or_default().nfc() {
                self.buf.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes());
            }
        }
        self.fed = end;
        Ok(())
    }

    /// Drops what was read up to `at`; gives by how much positions move.
    pub fn drop_read(&mut self, at: usize) -> usize {
        if at < DROP || at > self.buf.len() {
            return 0;
        }
        self.buf.drain(..at);
        at
    }
}
