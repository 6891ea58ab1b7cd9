//! A text that grows, as token counts and block hashes.

use super::{Session, Turn};
use crate::blocks::{BlockHash, Chain, TokenId, namespace};
use crate::simulate::Dice;

/// See the module.
#[derive(Clone, Debug)]
pub struct Talk {
    chain: Chain,
    hashes: Vec<BlockHash>,
    tokens: usize,
    opening: Option<u64>,
    turns: Vec<Turn>,
}

impl Talk {
    /// Nothing was said yet. An adapter has blocks of its own.
    pub fn new(block_size: u32, adapter: Option<&str>) -> Talk {
        let root = namespace("", "simulated", adapter, None);
        Talk { chain: Chain::new(root, block_size), hashes: Vec::new(), tokens: 0, opening: None, turns: Vec::new() }
    }

    /// A text that everybody has who says the same `seed`.
    pub fn shared(mut self, seed: u64, tokens: usize) -> Talk {
        self.say(seed, tokens);
        self
    }

    fn say(&mut self, seed: u64, tokens: usize) {
        let mut dice = Dice::new(seed, 7);
        let text: Vec<TokenId> = (0..tokens).map(|_| dice.draw() as TokenId).collect();
        self.chain.extend(&text, &mut self.hashes);
        self.tokens += tokens;
    }

    /// A turn: the user says something new, the model answers.
    pub fn turn(&mut self, dice: &mut Dice, after: u64, tokens: usize, output: usize) {
        let seed = dice.draw();
        self.opening.get_or_insert(seed);
        self.say(seed, tokens);
        let (prompt, output) = (self.tokens.max(1), output.max(1));
        self.turns.push(Turn { after, prompt, output });
        self.say(dice.draw(), output);
    }

    /// What the user's first message begins with, where others say the same.
    pub fn opened(mut self, seed: u64) -> Talk {
        self.opening = Some(seed);
        self
    }

    /// All of it, from `start` nanoseconds on.
    pub fn session(self, start: u64) -> Session {
        let opening = self.opening.unwrap_or_default();
        Session { start, chain: self.hashes.into(), opening, turns: self.turns }
    }
}
