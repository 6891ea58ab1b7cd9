//! The `tokenizers` crate behind [`Tokenizer`]: the reference, and the engine of every pipeline that the own one
//! does not cover.
//!
//! Lazy at added tokens: the crate cuts the text at the added tokens with `normalized: false` before anything
//! else, so the pieces between two of them are encoded one by one with the same result. That holds when none of
//! them strips spaces or asks for word borders; otherwise the text is encoded in one go.

use std::rc::Rc;

use super::{
    Boundary, Encoding, Step, TokenizeError, Tokenizer,
    added::{AddedToken, AddedTokens, boundaries},
};
use crate::blocks::TokenId;
use crate::pack::Specials;

/// A tokenizer of the `tokenizers` crate.
pub struct HfTokenizer {
    inner: tokenizers::Tokenizer,
    specials: Specials,
    /// `None`: no cut is safe.
    added: Option<AddedTokens>,
}

impl HfTokenizer {
    /// Reads a `tokenizer.json`. Its truncation and padding are ignored, as engines ignore them.
    pub fn from_json(json: &[u8], specials: Specials) -> Result<Self, TokenizeError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| error("tokenizer.json", &e))?;
        inner.with_truncation(None).map_err(|e| error("truncation", &e))?;
        inner.with_padding(None);
        let tokens = inner.get_added_tokens_decoder();
        let plain = tokens.values().all(|t| !t.lstrip && !t.rstrip && !t.single_word);
        let added = plain.then(|| {
            let firsts: Vec<_> = tokens.iter().filter(|(_, t)| !t.normalized).collect();
            let contents: Vec<&[u8]> = firsts.iter().map(|(_, t)| t.content.as_bytes()).collect();
            let (boundary, _) = boundaries(&contents, &[]);
            AddedTokens::new(
                firsts.iter().zip(contents).zip(boundary).map(|(((id, _), content), boundary)| AddedToken {
                    content,
                    id: **id,
                    boundary,
                }),
            )
        });
        Ok(HfTokenizer { inner, specials, added })
    }

    /// What the post-processor puts around a text, found by looking. `None`: it does something else.
    pub fn probe_specials(&self) -> Option<Specials> {
        let mut found: Option<Specials> = None;
        for text in ["", "a", "x y", "Hello, world"] {
            let (plain, full) = (self.whole(text, false).ok()?, self.whole(text, true).ok()?);
            let extra = full.len().checked_sub(plain.len())?;
            let specials = match &found {
                // An empty text does not say what comes before and what after it.
                _ if text.is_empty() => continue,
                Some(specials) => specials.clone(),
                None => {
                    let before = (0..=extra).find(|n| full.get(*n..).is_some_and(|rest| rest.starts_with(&plain)))?;
                    let (prefix, rest) = full.split_at_checked(before)?;
                    Specials { prefix: prefix.into(), suffix: rest.get(plain.len()..)?.into() }
                }
            };
            if full != [&specials.prefix[..], &plain[..], &specials.suffix[..]].concat() {
                return None;
            }
            found = Some(specials);
        }
        let found = found?;
        (self.whole("", true).ok()? == [&found.prefix[..], &found.suffix[..]].concat()).then_some(found)
    }

    /// What the added tokens match.
    pub fn added_tokens(&self) -> Vec<String> {
        let tokens = self.inner.get_added_tokens_decoder();
        let mut sorted: Vec<_> = tokens.iter().collect();
        sorted.sort_by_key(|(id, _)| **id);
        sorted.into_iter().map(|(_, token)| token.content.clone()).collect()
    }

    /// The crate's own encoding in one go, its post-processor included.
    pub fn whole(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizeError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens).map_err(|e| error("encode", &e))?;
        Ok(encoding.get_ids().to_vec())
    }
}

fn error(what: &str, e: &dyn std::fmt::Display) -> TokenizeError {
    TokenizeError(format!("{what}: {e}"))
}

impl Tokenizer for HfTokenizer {
    fn start(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool) -> Box<dyn Encoding> {
        Box::new(Pieces {
            tokenizer: self,
            text,
            add: add_special_tokens,
            at: Boundary::default(),
            passed: None,
            state: State::Begin,
        })
    }

    fn resume(self: Rc<Self>, text: Rc<str>, add_special_tokens: bool, at: Boundary) -> Option<Box<dyn Encoding>> {
        self.added.as_ref()?;
        text.is_char_boundary(at.bytes).then(|| -> Box<dyn Encoding> {
            Box::new(Pieces { tokenizer: self, text, add: add_special_tokens, at, passed: None, state: State::Middle })
        })
    }

    fn engine(&self) -> &'static str {
        "tokenizers crate"
    }

    fn ends(self: Rc<Self>, text: &str, add_special_tokens: bool) -> Option<Vec<usize>> {
        let encoding = self.inner.encode(text, add_special_tokens).ok()?;
        let mut reached = 0;
        // Tokens that stand for no text, those of the post-processor, have the offsets (0, 0).
        let ends = encoding.get_offsets().iter().map(|(_, end)| {
            reached = reached.max(*end);
            reached
        });
        Some(ends.collect())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Middle,
    Done,
}

/// Encodes the text piece by piece, an added token or what lies between two of them.
struct Pieces {
    tokenizer: Rc<HfTokenizer>,
    text: Rc<str>,
    add: bool,
    at: Boundary,
    passed: Option<Boundary>,
    state: State,
}

impl Pieces {
    fn give(&mut self, ids: &[TokenId], out: &mut Vec<TokenId>) {
        out.extend_from_slice(ids);
        self.at.tokens += ids.len();
    }
}

impl Encoding for Pieces {
    fn step(&mut self, max_bytes: usize, out: &mut Vec<TokenId>) -> Result<Step, TokenizeError> {
        let tokenizer = self.tokenizer.clone();
        let Some(added) = &tokenizer.added else {
            if self.state != State::Done {
                let ids = tokenizer.whole(&self.text, self.add)?;
                self.give(&ids, out);
                self.at.bytes = self.text.len();
                self.state = State::Done;
            }
            return Ok(Step::Done);
        };
        if self.state == State::Begin && self.add {
            self.give(&tokenizer.specials.prefix, out);
        }
        if self.state != State::Done {
            self.state = State::Middle;
        }
        let text = self.text.clone();
        let begin = self.at.bytes;
        while self.state == State::Middle {
            let rest = text.get(self.at.bytes..).unwrap_or_default();
            if rest.is_empty() {
                if self.add {
                    self.give(&tokenizer.specials.suffix, out);
                }
                self.state = State::Done;
                break;
            }
            if self.at.bytes - begin >= max_bytes.max(1) {
                return Ok(Step::More);
            }
            let found = added.find(rest.as_bytes(), 0);
            let gap = found.as_ref().map_or(rest.len(), |m| m.start);
            if gap > 0 {
                let ids = tokenizer.whole(rest.get(..gap).unwrap_or_default(), false)?;
                self.give(&ids, out);
                self.at.bytes += gap;
            }
            if let Some(found) = found {
                self.give(&[found.id], out);
                self.at.bytes += found.end - found.start;
                if found.boundary {
                    self.passed = Some(self.at);
                }
            }
        }
        Ok(Step::Done)
    }

    fn boundary(&self) -> Option<Boundary> {
        self.passed
    }

    fn remaining_bytes(&self) -> usize {
        self.text.len().saturating_sub(self.at.bytes)
    }
}
