//! An engine: a cache of blocks that evicts the least recently used, and what it publishes of that.

use std::collections::{BTreeMap, HashMap};

use kvroute::blocks::{BlockHash, TokenId, block_hash, namespace};
use rmpv::Value;

/// Tokens per block.
pub const BLOCK: usize = 4;
/// Messages that it can replay.
const BUFFER: usize = 400;

/// The tokens of a block with this content.
pub fn tokens(content: u32) -> [TokenId; BLOCK] {
    [content, content ^ 1, content ^ 2, content ^ 3]
}

/// The hashes of a prompt of these contents.
pub fn chain(contents: &[u32]) -> Vec<BlockHash> {
    let (mut tip, mut scratch) = (namespace("", "m", None, None), Vec::new());
    let next = |content: &u32| {
        tip = block_hash(tip, &tokens(*content), &mut scratch);
        tip
    };
    contents.iter().map(next).collect()
}

/// One message.
#[derive(Clone)]
pub struct Message {
    pub seq: u64,
    pub payload: Vec<u8>,
}

/// One engine process after another.
pub struct Engine {
    room: usize,
    /// Block to its name and when it was last used.
    held: HashMap<BlockHash, (u64, u64)>,
    by_use: BTreeMap<u64, BlockHash>,
    clock: u64,
    /// Goes into the names, as after a restart another random does.
    process: u64,
    next: u64,
    /// The last messages, oldest first.
    pub log: Vec<Message>,
    events: Vec<Value>,
    /// Events published by all processes.
    pub published: u64,
}

impl Engine {
    pub fn new(room: usize, process: u64) -> Engine {
        Engine {
            room,
            held: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            process,
            next: 0,
            log: Vec::new(),
            events: Vec::new(),
            published: 0,
        }
    }

    /// What it holds.
    pub fn held(&self) -> impl Iterator<Item = BlockHash> + '_ {
        self.held.keys().copied()
    }

    /// Blocks at the beginning of the chain that it holds.
    pub fn matched(&self, chain: &[BlockHash]) -> usize {
        chain.iter().take_while(|block| self.held.contains_key(*block)).count()
    }

    fn name(&self, block: BlockHash) -> u64 {
        block.0.rotate_left(17) ^ self.process
    }

    /// Computes a prompt. Gives how many of its blocks were cached; the last one never counts.
    pub fn compute(&mut self, contents: &[u32], chain: &[BlockHash]) -> usize {
        let cached = self.matched(chain).min(chain.len().saturating_sub(1));
        // Its own blocks are in use. The end of a prompt goes before its beginning.
        self.clock += chain.len() as u64;
        for (depth, block) in chain.iter().enumerate() {
            if let Some((_, at)) = self.held.get_mut(block) {
                self.by_use.remove(at);
                *at = self.clock - depth as u64;
                self.by_use.insert(*at, *block);
            }
        }
        let new: Vec<usize> = (0..chain.len()).filter(|at| !self.held.contains_key(&chain[*at])).collect();
        while self.held.len() + new.len() > self.room {
            let Some((_, block)) = self.by_use.pop_first() else { break };
            self.held.remove(&block);
            let name = self.name(block);
            self.say(vec![("type", "BlockRemoved".into()), ("block_hashes", Value::Array(vec![name.into()]))]);
        }
        let mut at = 0;
        while at < new.len() {
            let first = new[at];
            let run = new[at..].iter().enumerate().take_while(|(i, n)| **n == first + i).count();
            let blocks = first..first + run;
            let names = blocks.clone().map(|n| self.name(chain[n]).into()).collect();
            let parent = first.checked_sub(1).map_or(Value::Nil, |n| self.name(chain[n]).into());
            let ids = blocks.clone().flat_map(|n| tokens(contents[n])).map(Value::from).collect();
            self.say(vec![
                ("type", "BlockStored".into()),
                ("block_hashes", Value::Array(names)),
                ("parent_block_hash", parent),
                ("token_ids", Value::Array(ids)),
                ("block_size", (BLOCK as u64).into()),
                ("medium", "GPU".into()),
            ]);
            for n in blocks {
                let at = self.clock - n as u64;
                self.held.insert(chain[n], (0, at));
                self.by_use.insert(at, chain[n]);
            }
            at += run;
        }
        cached
    }

    /// Its cache is emptied, which its next message will say.
    pub fn clear(&mut self) {
        self.held.clear();
        self.by_use.clear();
        self.say(vec![("type", "AllBlocksCleared".into())]);
    }

    /// Another process takes its place.
    pub fn restart(&mut self, process: u64) {
        *self = Engine { published: self.published, ..Engine::new(self.room, process) };
    }

    fn say(&mut self, event: Vec<(&str, Value)>) {
        self.events.push(Value::Map(event.into_iter().map(|(k, v)| (k.into(), v)).collect()));
        self.published += 1;
    }

    /// What a step of it publishes, if anything.
    pub fn step(&mut self) -> Option<Message> {
        if self.events.is_empty() {
            return None;
        }
        let mut payload = Vec::new();
        let batch =
            Value::Array(vec![(self.next as f64).into(), Value::Array(std::mem::take(&mut self.events)), 0.into()]);
        rmpv::encode::write_value(&mut payload, &batch).unwrap();
        let message = Message { seq: self.next, payload };
        self.next += 1;
        self.log.push(message.clone());
        if self.log.len() > BUFFER {
            self.log.drain(..BUFFER / 4);
        }
        Some(message)
    }
}
