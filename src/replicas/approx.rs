//! What a replica without events probably holds: the blocks of the prompts sent there, as many as its cache has
//! room for, least recently used first out.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::blocks::BlockHash;
use crate::feed::record::Tier;
use crate::index::{Column, Index};

/// Blocks assumed where the capacity is unknown.
const DEFAULT_BLOCKS: usize = 8192;
const MAX_BLOCKS: usize = 1 << 20;

/// The order in which one replica's blocks were used. The blocks themselves are in the index.
#[derive(Debug, Default)]
pub struct Recent {
    /// Every use, oldest first; a block used again is here again.
    uses: VecDeque<BlockHash>,
    /// How often each block is in `uses`.
    counts: HashMap<BlockHash, u32>,
}

impl Recent {
    /// The replica computed or used these blocks.
    pub fn used(&mut self, index: &mut Index, column: Column, hashes: &[BlockHash], capacity: u64) {
        let capacity = match usize::try_from(capacity) {
            Ok(0) => DEFAULT_BLOCKS,
            Ok(blocks) => blocks.min(MAX_BLOCKS),
            Err(_) => MAX_BLOCKS,
        };
        let hashes = hashes.get(..capacity).unwrap_or(hashes);
        index.store(column, Tier::Gpu, None, hashes, &[]);
        // Deepest first, so that of one prompt the tail goes first.
        for hash in hashes.iter().rev() {
            self.uses.push_back(*hash);
            *self.counts.entry(*hash).or_insert(0) += 1;
        }
        while self.counts.len() > capacity || self.uses.len() > capacity.saturating_mul(4) {
            let Some(hash) = self.uses.pop_front() else { break };
            if let Some(count) = self.counts.get_mut(&hash) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&hash);
                    index.remove(column, Tier::Gpu, hash);
                }
            }
        }
    }
}
