//! What a request that was sent to the replica tells of its cache, where its events do not tell all.
//!
//! A router VM says which blocks the prompt has, how many of them it thought cached, and how many the engine then
//! reported in `cached_tokens`. That
//! * links blocks that wait for a parent nobody announced, when the prompt passes through them;
//! * confirms blocks from before a gap, or contradicts them;
//! * tells of blocks that the engine holds though no event named them. They have no name of the engine's, so no
//!   removal reaches them: they are unconfirmed for as long as they are known, and the first to go when there are
//!   more than the replica can hold.

use hashbrown::HashMap;

use super::nodes::{LINKED, OLD, UNKEYED};
use super::{Cache, MAX_RUN};
use crate::blocks::{BlockHash, block_hash};
use crate::feed::FeedReplicaId;
use crate::feed::record::{Record, Tier};

/// Blocks known by hearsay at most.
const MAX_HEARSAY: usize = 1 << 20;
/// Waiting runs that one prompt is compared with, the latest first.
const MAX_COMPARED: usize = 256;

/// What a router VM says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// The blocks of its prompt, from the start.
    pub chain: &'a [BlockHash],
    /// How many of them it thought cached.
    pub claimed: usize,
    /// How many the engine found cached; `None` when it did not say.
    pub cached: Option<usize>,
}

/// Blocks without a name, and when they were last heard of.
#[derive(Clone, Debug, Default)]
pub struct Hearsay {
    blocks: HashMap<BlockHash, u64>,
    clock: u64,
}

impl Hearsay {
    /// Blocks known so.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// An event names the block. True: it was known so.
    pub fn named(&mut self, block: BlockHash) -> bool {
        !self.blocks.is_empty() && self.blocks.remove(&block).is_some()
    }

    /// The `most` that were not heard of for longest, of one prompt the deepest.
    pub fn oldest(&self, most: usize) -> Vec<BlockHash> {
        let mut all: Vec<_> = self.blocks.iter().map(|(block, at)| (*at, *block)).collect();
        all.sort_unstable();
        all.into_iter().take(most).map(|(_, block)| block).collect()
    }
}

impl Cache {
    /// Takes in what a router VM says of a request. `partial`: events from before are known to be missing.
    pub fn heard(
        &mut self,
        replica: FeedReplicaId,
        word: Word<'_>,
        partial: bool,
        capacity: u64,
        out: &mut Vec<Record>,
    ) {
        let linked = self.link_orphans(word.chain);
        let simple = self.groups.is_simple();
        let mut known = if simple { linked } else { 0 };
        if let Some(cached) = word.cached {
            let cached = cached.min(word.chain.len());
            let (found, rest) = word.chain.split_at(cached);
            // Of a window only its last blocks are proven to be there.
            let proven = if simple { 0 } else { cached.saturating_sub(self.groups.reach() as usize) };
            found.iter().skip(proven).for_each(|block| self.affirm(*block));
            let denied: Vec<BlockHash> = rest.iter().take(word.claimed.saturating_sub(cached)).copied().collect();
            denied.iter().for_each(|block| self.deny(*block));
            self.forget(replica, &denied, out);
            if simple {
                known = known.max(cached);
            }
        }
        if partial {
            self.hear(replica, word.chain.get(..known).unwrap_or_default(), capacity, out);
        }
        self.flush(replica, out);
    }

    /// Links what waits for a parent that the chain has. Gives how many blocks of the chain must have been held when
    /// it was stored.
    fn link_orphans(&mut self, chain: &[BlockHash]) -> usize {
        let Some(bs) = self.block_size.map(|bs| bs as usize).filter(|_| self.orphans.len() > 0) else { return 0 };
        let mut places = Vec::new();
        for orphan in self.orphans.latest(MAX_COMPARED) {
            let Some(first) = orphan.tokens.get(..bs).filter(|_| orphan.unkeyed_from != Some(0)) else { continue };
            let place = chain.windows(2).position(|pair| block_hash(pair[0], first, &mut self.scratch) == pair[1]);
            places.extend(place.map(|at| (orphan.parent, at)));
        }
        for (parent, at) in &places {
            let Some(ix) = self.nodes.get_or_insert(*parent, self.config.max_blocks) else { continue };
            if !self.nodes[ix].is(LINKED) {
                self.nodes[ix].block = chain[*at];
                self.nodes[ix].flags |= LINKED;
                self.mark(ix);
                self.adopt_waiting(vec![*parent]);
            }
            self.nodes.release(ix);
        }
        places.iter().map(|(_, at)| at + 1).max().unwrap_or(0)
    }

    fn affirm(&mut self, block: BlockHash) {
        if let Some(ix) = self.old_node(block) {
            self.confirm(ix);
        }
    }

    fn deny(&mut self, block: BlockHash) {
        if let Some(ix) = self.old_node(block) {
            self.nodes[ix].drop_counts();
            self.confirm(ix);
        }
    }

    fn old_node(&self, block: BlockHash) -> Option<super::nodes::Ix> {
        let ix = *self.old_by_block.get(&block)?;
        let node = &self.nodes[ix];
        (node.block == block && node.is(OLD) && node.is(LINKED) && !node.is(UNKEYED)).then_some(ix)
    }

    /// The blocks are held, though no event named them.
    fn hear(&mut self, replica: FeedReplicaId, blocks: &[BlockHash], capacity: u64, out: &mut Vec<Record>) {
        let full = |cache: &Cache| {
            let held = cache.held[Tier::Gpu as usize] + cache.held[Tier::Unconfirmed as usize];
            cache.hearsay.len() >= MAX_HEARSAY || (capacity > 0 && held >= capacity)
        };
        self.hearsay.clock += blocks.len() as u64;
        let mut new = Vec::new();
        for (depth, block) in blocks.iter().enumerate() {
            let at = self.hearsay.clock - depth as u64;
            if let Some(last) = self.hearsay.blocks.get_mut(block) {
                *last = at;
                continue;
            }
            let presence = self.blocks.entry(*block).or_default();
            if presence.holders != [0; 4] {
                continue;
            }
            if full(self) {
                self.blocks.remove(block);
                break;
            }
            let presence = self.blocks.entry(*block).or_default();
            presence.holders[Tier::Unconfirmed as usize] = 1;
            presence.end = true;
            self.held[Tier::Unconfirmed as usize] += 1;
            self.hearsay.blocks.insert(*block, at);
            new.push(*block);
        }
        for run in new.chunks(MAX_RUN) {
            let (tier, parent, ends, hashes) = (Tier::Unconfirmed, None, Vec::new(), run.to_vec());
            out.push(Record::Stored { replica, tier, parent, ends, hashes });
        }
    }

    /// Nothing is known of these blocks by hearsay any more.
    pub(super) fn forget(&mut self, replica: FeedReplicaId, blocks: &[BlockHash], out: &mut Vec<Record>) {
        let mut gone = Vec::new();
        for block in blocks {
            if self.hearsay.named(*block) && self.release_hearsay(*block) {
                gone.push(*block);
            }
        }
        for hashes in gone.chunks(MAX_RUN) {
            out.push(Record::Removed { replica, tier: Tier::Unconfirmed, hashes: hashes.to_vec() });
        }
    }

    /// Takes the reference off that hearsay had. True: it was the last one of the tier.
    fn release_hearsay(&mut self, block: BlockHash) -> bool {
        let Some(presence) = self.blocks.get_mut(&block) else { return false };
        let holders = &mut presence.holders[Tier::Unconfirmed as usize];
        *holders = holders.saturating_sub(1);
        let last = *holders == 0;
        if presence.holders == [0; 4] {
            self.blocks.remove(&block);
        }
        if last {
            self.held[Tier::Unconfirmed as usize] -= 1;
        }
        last
    }
}
