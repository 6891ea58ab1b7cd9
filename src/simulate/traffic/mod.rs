//! Requests: who asks what, and when.
//!
//! Traffic is a list of [`Session`]s. The turns of one share one text that grows: each prompt is a piece of it from
//! the start, and a turn comes after the answer to the one before. Tokens are drawn from generators, hashed as the
//! filter does it, and dropped: nobody needs them any more.

mod shapes;
mod talk;
mod trace;

use std::sync::Arc;

use crate::blocks::BlockHash;
pub use shapes::Shape;
pub use trace::{TraceError, read as read_trace};

/// A turn of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Nanoseconds since the answer to the turn before it.
    pub after: u64,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub output: usize,
}

/// One conversation, agent or lone request.
#[derive(Clone, Debug)]
pub struct Session {
    /// Nanoseconds from the start of the traffic to its first turn.
    pub start: u64,
    /// Block hashes of everything that is said in it.
    pub chain: Arc<[BlockHash]>,
    /// What hashing on the text goes by: how the user's first message begins.
    pub opening: u64,
    /// The turns.
    pub turns: Vec<Turn>,
}

/// The requests of one run.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Its name.
    pub name: String,
    /// What it is, in a line.
    pub about: String,
    /// The sessions, in no order.
    pub sessions: Vec<Session>,
    /// Tokens per block of the chains.
    pub block_size: u32,
}

impl Traffic {
    /// Requests in it.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|s| s.turns.len()).sum()
    }

    /// The same requests, `times` as fast one after the other.
    pub fn faster(&self, times: f64) -> Traffic {
        let mut traffic = self.clone();
        for session in &mut traffic.sessions {
            session.start = (session.start as f64 / times) as u64;
        }
        traffic
    }
}

/// A request as it reaches a gateway.
#[derive(Clone, Debug)]
pub struct Call {
    /// Numbered as they come.
    pub id: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub output: usize,
    /// Full blocks of the prompt.
    pub prompt_blocks: usize,
    /// Block hashes of the whole session.
    pub chain: Arc<[BlockHash]>,
    /// See [`Session::opening`].
    pub opening: u64,
}

impl Call {
    /// Block hashes of the prompt.
    pub fn prompt_chain(&self) -> &[BlockHash] {
        &self.chain[..self.prompt_blocks.min(self.chain.len())]
    }
}
