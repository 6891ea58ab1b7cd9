//! A recorded trace in the form of the Mooncake release: one JSON object a line, `timestamp` in milliseconds,
//! `input_length` and `output_length` in tokens, `hash_ids` one id per 512 tokens of the prompt.

use std::io::BufRead;

use serde::Deserialize;

use super::{Session, Traffic, Turn};
use crate::blocks::{BlockHash, Chain, TokenId, namespace};
use crate::clock::MS;
use crate::simulate::Dice;

/// Tokens that an id stands for.
const SPAN: usize = 512;
/// Times in the trace are full multiples of this, in milliseconds: what came in between is spread over it.
const GRAIN: u64 = 3000;

#[derive(Debug, Deserialize)]
struct Line {
    timestamp: u64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// Why a trace cannot be read.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read.
    Io(std::io::Error),
    /// A line is not what it should be: its number, and why.
    Line(usize, String),
    /// There is no request in it.
    Empty,
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::Io(error) => write!(f, "cannot be read: {error}"),
            TraceError::Line(number, why) => write!(
                f,
                "line {number}: {why}; a line is an object with timestamp (ms), input_length, output_length and hash_ids \
                 (one per 512 tokens)"
            ),
            TraceError::Empty => write!(f, "has no requests"),
        }
    }
}

impl std::error::Error for TraceError {}

/// The first `most` requests of a trace. Each id becomes a run of tokens drawn from it.
pub fn read(from: impl BufRead, most: usize, block_size: u32, seed: u64) -> Result<Traffic, TraceError> {
    let mut dice = Dice::new(seed, 11);
    let root = namespace("", "simulated", None, None);
    let (mut sessions, mut first) = (Vec::new(), None);
    for (at, line) in from.lines().enumerate() {
        if sessions.len() == most {
            break;
        }
        let text = line.map_err(TraceError::Io)?;
        if text.trim().is_empty() {
            continue;
        }
        let wrong = |why: String| TraceError::Line(at + 1, why);
        let line: Line = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if line.input_length == 0 || line.input_length.div_ceil(SPAN) > line.hash_ids.len() {
            let (tokens, ids) = (line.input_length, line.hash_ids.len());
            return Err(wrong(format!("input_length is {tokens}, with {ids} hash_ids")));
        }
        let start = *first.get_or_insert(line.timestamp);
        let output = line.output_length.max(1);
        let (mut chain, mut hashes): (_, Vec<BlockHash>) = (Chain::new(root, block_size), Vec::new());
        let mut left = line.input_length;
        for id in &line.hash_ids {
            let mut words = Dice::new(*id, 12);
            let tokens: Vec<TokenId> = (0..SPAN.min(left)).map(|_| words.draw() as TokenId).collect();
            left -= tokens.len();
            chain.extend(&tokens, &mut hashes);
        }
        let mut words = Dice::new(sessions.len() as u64, 13);
        let answer: Vec<TokenId> = (0..output).map(|_| words.draw() as TokenId).collect();
        chain.extend(&answer, &mut hashes);
        let spread = (dice.share() * (GRAIN * MS) as f64) as u64;
        sessions.push(Session {
            start: line.timestamp.saturating_sub(start) * MS + spread,
            chain: hashes.into(),
            // The first id is the same in most: what they all begin with.
            opening: line.hash_ids.get(1).or(line.hash_ids.first()).copied().unwrap_or_default(),
            turns: vec![Turn { after: 0, prompt: line.input_length, output }],
        });
    }
    if sessions.is_empty() {
        return Err(TraceError::Empty);
    }
    let about = format!("{} requests of a recorded trace", sessions.len());
    Ok(Traffic { name: "trace".into(), about, sessions, block_size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_are_equal_blocks_and_bad_lines_are_named() {
        let text = r#"{"timestamp": 3000, "input_length": 1000, "output_length": 20, "hash_ids": [1, 2]}
            {"timestamp": 6000, "input_length": 600, "output_length": 5, "hash_ids": [1, 3]}"#;
        let traffic = read(text.as_bytes(), 10, 16, 1).unwrap();
        let [a, b] = &traffic.sessions[..] else { panic!() };
        assert_eq!((a.turns[0].prompt, a.chain.len()), (1000, 1020 / 16));
        assert_eq!(a.chain[..32], b.chain[..32]);
        assert_ne!(a.chain[32], b.chain[32]);
        assert!(a.start < GRAIN * MS && b.start >= GRAIN * MS);
        let short = r#"{"timestamp": 0, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}"#;
        let error = read(format!("{text}\n{short}").as_bytes(), 10, 16, 1).unwrap_err().to_string();
        assert!(error.starts_with("line 3: input_length is 1025, with 2 hash_ids"), "{error}");
        assert_eq!(read("".as_bytes(), 10, 16, 1).unwrap_err().to_string(), "has no requests");
    }
}
