//! What earlier prompts began with: the next turn of a conversation, or another request with the same system
//! prompt, starts from the longest remembered beginning and tokenizes only what follows.
//!
//! A beginning ends at a [`Boundary`] and is found by the text up to there, so nothing but equal bytes (of the
//! same model, namespace and block size) can find it. What is remembered is the state of the [`Chain`] there: the
//! block hashes, shared with the beginnings that go on from it, and the tokens of the open block.
//!
//! ```text
//! text    |  chunk 0  |  chunk 1  |  chunk 2  | rest|      a boundary
//! trail   h0 = scope  h1          h2          h3           h[i+1] = XXH3(h[i] ‖ chunk i)
//! key                                         XXH3-128(h3 ‖ rest)
//! lengths of rests known for h3: one bit each, so that a look-up tries only those
//! ```
//!
//! A look-up hashes the text once and then tries, from its end to its beginning, the lengths known for each chunk.
//! Bounded in bytes, what was used longest ago goes first; the cost of a shared part counts once, and ends when the
//! last one that shares it goes.
//!
//! [`Chain`]: crate::blocks::Chain

use std::cell::Cell;
use std::rc::Rc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::Boundary;
use crate::blocks::{BlockHash, Chain, TokenId};

/// Bytes of a chunk. A power of two.
const CHUNK: usize = 256;
const CHUNK_BITS: u32 = CHUNK.ilog2();
/// What an entry costs beside its block hashes and tokens: slot, maps, node.
const ENTRY: usize = 256;

/// What besides its text makes a beginning what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The root of the chain, see [`crate::blocks::namespace`].
    pub root: BlockHash,
    /// Tokens of a block.
    pub block_size: u32,
    /// Which tokenizer, and whether special tokens were added in front.
    pub tokenizer: u64,
}

/// How it went so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Look-ups that found a beginning.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Bytes of text that hits saved.
    pub bytes_saved: u64,
    /// Beginnings that had to go.
    pub evicted: u64,
}

/// A remembered beginning, from which encoding goes on.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// Where it ends.
    pub at: Boundary,
    /// Its full blocks.
    pub hashes: Vec<BlockHash>,
    /// The state from which the next block is hashed.
    pub chain: Chain,
}

/// The place of one text among the remembered ones. Made by [`PromptMemory::find`], used to remember more of the
/// same text.
pub struct Trail {
    /// The chunk hashes, from the scope's own on.
    chunks: Vec<u64>,
    /// The last beginning of this text that was found or remembered.
    node: Option<Rc<Node>>,
}

/// Remembered beginnings, bounded in bytes.
pub struct PromptMemory {
    seed: u64,
    max_bytes: usize,
    used: Rc<Cell<usize>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Most and least recently used.
    newest: usize,
    oldest: usize,
    by_key: HashMap<u128, usize>,
    /// For the hash of whole chunks: how many entries have a rest of which length.
    rests: HashMap<u64, Vec<(u16, u32)>>,
    counters: Counters,
}

const NO_SLOT: usize = usize::MAX;

struct Slot {
    key: u128,
    chunk: u64,
    rest: u16,
    node: Option<Rc<Node>>,
    newer: usize,
    older: usize,
}

/// A part of a chain: what it adds to its parent's.
struct Node {
    parent: Option<Rc<Node>>,
    at: Boundary,
    hashes: Box<[BlockHash]>,
    pending: Box<[TokenId]>,
    /// Full blocks, those of the parents included.
    blocks: usize,
    used: Rc<Cell<usize>>,
}

impl Node {
    fn cost(&self) -> usize {
        ENTRY + size_of_val(&*self.hashes) + size_of_val(&*self.pending)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.used.set(self.used.get().saturating_sub(self.cost()));
        // A chain of parents has no bound: not by recursion.
        let mut next = self.parent.take();
        while let Some(mut parent) = next.and_then(Rc::into_inner) {
            next = parent.parent.take();
        }
    }
}

impl PromptMemory {
    /// An empty one. `seed` should be random, so that nobody outside can prepare equal hashes.
    pub fn new(max_bytes: usize, seed: u64) -> Self {
        PromptMemory {
            seed,
            max_bytes,
            used: Rc::default(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NO_SLOT,
            oldest: NO_SLOT,
            by_key: HashMap::new(),
            rests: HashMap::new(),
            counters: Counters::default(),
        }
    }

    /// Changes the bound; what exceeds it is forgotten. With 0 it is off.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.keep_bound();
    }

    /// Whether it may remember anything.
    pub fn is_on(&self) -> bool {
        self.max_bytes > 0
    }

    /// Hits, misses and the like since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.used.get()
    }

    /// Beginnings remembered.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The longest remembered beginning of `text`, and the trail by which to remember more of it.
    pub fn find(&mut self, scope: Scope, text: &str) -> (Trail, Option<Beginning>) {
        let mut trail = Trail { chunks: self.chunks(scope, text.as_bytes()), node: None };
        let Some(slot) = self.longest(&trail, text.as_bytes()) else {
            self.counters.misses += 1;
            return (trail, None);
        };
        self.unlink(slot);
        self.link_newest(slot);
        trail.node = self.slots.get(slot).and_then(|slot| slot.node.clone());
        let beginning = trail.node.as_ref().map(|node| beginning(scope, node));
        self.counters.hits += 1;
        self.counters.bytes_saved += beginning.as_ref().map_or(0, |b| b.at.bytes as u64);
        (trail, beginning)
    }

    /// Remembers the beginning of `text` that ends at `at`, where `chain` stands and `hashes` are its blocks so
    /// far. `trail` and `text` are those of one [`PromptMemory::find`], and boundaries come in their order.
    pub fn remember(&mut self, trail: &mut Trail, text: &str, at: Boundary, hashes: &[BlockHash], chain: &Chain) {
        let Some((key, chunk, rest)) = self.key(trail, text.as_bytes(), at.bytes) else { return };
        if let Some(slot) = self.by_key.get(&key).copied() {
            trail.node = self.slots.get(slot).and_then(|slot| slot.node.clone());
            self.unlink(slot);
            self.link_newest(slot);
            return;
        }
        let parent = trail.node.take().filter(|node| node.at.bytes < at.bytes && node.blocks <= hashes.len());
        let shared = parent.as_ref().map_or(0, |node| node.blocks);
        let node = Node {
            parent,
            at,
            hashes: hashes.get(shared..).unwrap_or_default().into(),
            pending: chain.pending().into(),
            blocks: hashes.len(),
            used: self.used.clone(),
        };
        self.used.set(self.used.get() + node.cost());
        let node = Rc::new(node);
        trail.node = Some(node.clone());
        let entry = Slot { key, chunk, rest, node: Some(node), newer: NO_SLOT, older: NO_SLOT };
        let slot = match self.free.pop() {
            Some(free) => {
                if let Some(slot) = self.slots.get_mut(free) {
                    *slot = entry;
                }
                free
            }
            None => {
                self.slots.push(entry);
                self.slots.len() - 1
            }
        };
        self.by_key.insert(key, slot);
        let lengths = self.rests.entry(chunk).or_default();
        match lengths.iter_mut().find(|(length, _)| *length == rest) {
            Some((_, count)) => *count += 1,
            None => lengths.push((rest, 1)),
        }
        self.link_newest(slot);
        self.keep_bound();
    }

    fn keep_bound(&mut self) {
        while self.used.get() > self.max_bytes && self.oldest != NO_SLOT {
            self.evict(self.oldest);
        }
    }

    fn chunks(&self, scope: Scope, text: &[u8]) -> Vec<u64> {
        let mut head = [0; 20];
        let parts = scope.root.0.to_le_bytes().into_iter().chain(scope.block_size.to_le_bytes());
        head.iter_mut().zip(parts.chain(scope.tokenizer.to_le_bytes())).for_each(|(to, from)| *to = from);
        let mut hash = xxh3_64_with_seed(&head, self.seed);
        let mut out = Vec::with_capacity((text.len() >> CHUNK_BITS) + 1);
        out.push(hash);
        for chunk in text.as_chunks::<CHUNK>().0 {
            // The hash before goes in as the seed: no copy, and no state between the chunks.
            hash = xxh3_64_with_seed(chunk, hash);
            out.push(hash);
        }
        out
    }

    /// Key, chunk hash and length of the rest of a beginning of `bytes` bytes.
    fn key(&self, trail: &Trail, text: &[u8], bytes: usize) -> Option<(u128, u64, u16)> {
        let whole = bytes >> CHUNK_BITS;
        let chunk = *trail.chunks.get(whole)?;
        let rest = text.get(whole << CHUNK_BITS..bytes)?;
        Some((xxh3_128_with_seed(rest, chunk), chunk, rest.len() as u16))
    }

    fn longest(&self, trail: &Trail, text: &[u8]) -> Option<usize> {
        if self.by_key.is_empty() {
            return None;
        }
        for (whole, chunk) in trail.chunks.iter().enumerate().rev() {
            let Some(lengths) = self.rests.get(chunk) else { continue };
            let begin = whole << CHUNK_BITS;
            let mut best: Option<(u16, usize)> = None;
            for (length, _) in lengths {
                if best.is_some_and(|(longest, _)| longest >= *length) {
                    continue;
                }
                let Some(rest) = text.get(begin..begin + usize::from(*length)) else { continue };
                if let Some(slot) = self.by_key.get(&xxh3_128_with_seed(rest, *chunk)) {
                    best = Some((*length, *slot));
                }
            }
            if let Some((_, slot)) = best {
                return Some(slot);
            }
        }
        None
    }

    fn evict(&mut self, at: usize) {
        self.unlink(at);
        let Some(slot) = self.slots.get_mut(at) else { return };
        let (key, chunk, rest) = (slot.key, slot.chunk, slot.rest);
        slot.node = None;
        self.free.push(at);
        self.by_key.remove(&key);
        self.counters.evicted += 1;
        if let Some(lengths) = self.rests.get_mut(&chunk) {
            lengths.iter_mut().filter(|(length, _)| *length == rest).for_each(|(_, count)| *count -= 1);
            lengths.retain(|(_, count)| *count > 0);
            if lengths.is_empty() {
                self.rests.remove(&chunk);
            }
        }
    }

    fn unlink(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at) else { return };
        let (newer, older) = (slot.newer, slot.older);
        (slot.newer, slot.older) = (NO_SLOT, NO_SLOT);
        match self.slots.get_mut(newer) {
            Some(slot) => slot.older = older,
            None => self.newest = older,
        }
        match self.slots.get_mut(older) {
            Some(slot) => slot.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn link_newest(&mut self, at: usize) {
        let newest = self.newest;
        if let Some(slot) = self.slots.get_mut(newest) {
            slot.newer = at;
        } else {
            self.oldest = at;
        }
        if let Some(slot) = self.slots.get_mut(at) {
            (slot.newer, slot.older) = (NO_SLOT, newest);
        }
        self.newest = at;
    }
}

fn beginning(scope: Scope, node: &Rc<Node>) -> Beginning {
    let mut parts = Vec::new();
    let mut next = Some(node);
    while let Some(node) = next {
        parts.push(&node.hashes);
        next = node.parent.as_ref();
    }
    let mut hashes = Vec::with_capacity(node.blocks);
    parts.iter().rev().for_each(|part| hashes.extend_from_slice(part));
    let tip = hashes.last().copied().unwrap_or(scope.root);
    Beginning { at: node.at, hashes, chain: Chain::resume(tip, scope.block_size, &node.pending) }
}

#[cfg(test)]
mod tests;
