//! Text to token ids.
//!
//! [`Tokenizer`] is what the rest sees: a whole encoding, or an [`Encoding`] that yields ids as they are needed
//! and can be stopped after any step. Both give exactly the ids of Hugging Face `tokenizers` for the same
//! `tokenizer.json`.

pub mod added;
pub mod compact;
pub mod hf;
pub mod memory;

use std::rc::Rc;

use crate::blocks::TokenId;

/// Why a text has no ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizeError(pub String);

impl std::fmt::Display for TokenizeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TokenizeError {}

/// What one step of an [`Encoding`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more text.
    More,
    /// The last id is out.
    Done,
}

/// A place where the text can be cut without changing any id: the end of a special token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundary {
    /// Bytes of the text up to here.
    pub bytes: usize,
    /// Ids given out up to here, those that `add_special_tokens` put in front included.
    pub tokens: usize,
}

/// A tokenizer of one model.
pub trait Tokenizer {
    /// Starts to encode `text`. `add_special_tokens` has the meaning it has in Hugging Face `tokenizers`.
    fn start(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool) -> Box<dyn Encoding>;

    /// Goes on where an earlier encoding of a text that began with the same `at.bytes` bytes had this boundary:
    /// gives the ids that follow. `None` where the tokenizer has no safe boundaries.
    fn resume(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool, at: Boundary) -> Option<Box<dyn Encoding>>;

    /// The name of the engine that does the work, for `inspect` and logs.
    fn engine(&self) -> &'static str;

    /// The whole encoding at once.
    fn encode(self: Rc<Self>, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizeError> {
        let mut ids = Vec::new();
        let mut encoding = self.start(text.into(), add_special_tokens);
        while encoding.step(usize::MAX, &mut ids)? == Step::More {}
        Ok(ids)
    }

    /// Where in `text` each id of [`Tokenizer::encode`] ends, in bytes, for people to look at; added special
    /// tokens end where they stand. `None` where the engine cannot say.
    fn ends(self: Rc<Self>, text: &str, add_special_tokens: bool) -> Option<Vec<usize>> {
        let _ = (text, add_special_tokens);
        None
    }
}

/// An encoding under way.
pub trait Encoding {
    /// Works on about `max_bytes` more bytes of the text (at least one pre-token, so that it always advances)
    /// and appends the ids that are certain by then. A step may also end early, exactly at a boundary, so that
    /// what was encoded up to there can be remembered.
    fn step(&mut self, max_bytes: usize, out: &mut Vec<TokenId>) -> Result<Step, TokenizeError>;

    /// The last boundary passed, if any since the start.
    fn boundary(&self) -> Option<Boundary>;

    /// Bytes of the text that are not encoded yet.
    fn remaining_bytes(&self) -> usize;
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
pub mod testing;
