//! The text of one prompt on its way to token ids: from what is remembered of it, and in pieces where it has some.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::blocks::{BlockHash, Chain, TokenId};
use crate::tokenizer::memory::{Beginning, PromptMemory, Scope, Trail};
use crate::tokenizer::{Encoding, Step, TokenizeError, Tokenizer};

/// See the [module](self).
pub struct Text {
    tokenizer: Rc<dyn Tokenizer>,
    add_special_tokens: bool,
    encoding: Box<dyn Encoding>,
    /// By which more of the text is remembered; `None` where nothing is to be.
    trail: Option<(Trail, Rc<str>)>,
    following: VecDeque<String>,
    following_bytes: usize,
    bytes: usize,
}

impl Text {
    /// One text, which goes on after its longest remembered beginning.
    pub fn whole(
        tokenizer: Rc<dyn Tokenizer>,
        text: String,
        add_special_tokens: bool,
        scope: Scope,
        memory: &mut PromptMemory,
    ) -> (Text, Option<Beginning>) {
        let text: Rc<str> = text.into();
        if !memory.is_on() {
            return (Text::new(tokenizer, text, add_special_tokens), None);
        }
        let (trail, found) = memory.find(scope, &text);
        let resumed = found.and_then(|beginning| {
            let encoding = tokenizer.clone().resume(text.clone(), add_special_tokens, beginning.at)?;
            Some((encoding, beginning))
        });
        let mut whole = Text::new(tokenizer, text.clone(), add_special_tokens);
        whole.trail = Some((trail, text));
        let Some((encoding, beginning)) = resumed else { return (whole, None) };
        whole.encoding = encoding;
        (whole, Some(beginning))
    }

    /// Pieces that are tokenized one by one and not remembered.
    pub fn pieces(tokenizer: Rc<dyn Tokenizer>, pieces: Vec<String>, add_special_tokens: bool) -> Text {
        let mut following: VecDeque<String> = pieces.into();
        let first = following.pop_front().unwrap_or_default();
        let mut text = Text::new(tokenizer, first.into(), add_special_tokens);
        text.following_bytes = following.iter().map(String::len).sum();
        text.bytes = text.bytes.saturating_add(text.following_bytes);
        text.following = following;
        text
    }

    fn new(tokenizer: Rc<dyn Tokenizer>, text: Rc<str>, add_special_tokens: bool) -> Text {
        let bytes = text.len();
        let encoding = tokenizer.clone().start(text, add_special_tokens);
        let (following, following_bytes) = (VecDeque::new(), 0);
        Text { tokenizer, add_special_tokens, encoding, trail: None, following, following_bytes, bytes }
    }

    /// All bytes of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Those that are not tokenized yet.
    pub fn remaining_bytes(&self) -> usize {
        self.encoding.remaining_bytes().saturating_add(self.following_bytes)
    }

    /// See [`Encoding::step`].
    pub fn step(&mut self, max_bytes: usize, out: &mut Vec<TokenId>) -> Result<Step, TokenizeError> {
        if self.encoding.step(max_bytes, out)? == Step::More {
            return Ok(Step::More);
        }
        let Some(next) = self.following.pop_front() else { return Ok(Step::Done) };
        self.following_bytes = self.following_bytes.saturating_sub(next.len());
        self.encoding = self.tokenizer.clone().start(next.into(), self.add_special_tokens);
        Ok(Step::More)
    }

    /// Remembers the state after `tokens` ids, if the last step ended at a boundary: that of the chain and its
    /// `hashes`.
    pub fn remember(&mut self, memory: &mut PromptMemory, tokens: usize, hashes: &[BlockHash], chain: &Chain) {
        let Some((trail, text)) = &mut self.trail else { return };
        if let Some(at) = self.encoding.boundary().filter(|at| at.tokens == tokens) {
            memory.remember(trail, text, at, hashes, chain);
        }
    }
}
