//! The paged prefix cache: a fixed number of blocks, reference counts, a free queue in eviction order.
//!
//! A block that no request uses stays in the cache until the free queue hands it out again. The queue is an
//! intrusive list, so touching a cached block in the middle of it is O(1).

use hashbrown::HashMap;

use super::events::{Event, EventHash};

/// Number of a block. 0 is the null block, which engines never hand out.
pub type BlockId = u32;

/// Where the blocks of a finished request go in the free queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeOrder {
    /// All to the end, tail of the request first (vLLM 0.22).
    Append,
    /// As [`FreeOrder::Append`], but blocks without content go to the front, to be used first (vLLM 0.32).
    EmptyFirst,
}

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    references: u32,
    hash: Option<EventHash>,
    previous: BlockId,
    next: BlockId,
}

/// See the module.
#[derive(Debug)]
pub struct BlockPool {
    // One more than there are blocks: the last entry is the sentinel of the free queue.
    blocks: Vec<Block>,
    cached: HashMap<EventHash, Vec<BlockId>>,
    free: usize,
    filled: usize,
    order: FreeOrder,
    events: Vec<Event>,
}

impl BlockPool {
    /// A pool of `blocks` blocks (as the engine counts them: one of them is the null block).
    pub fn new(blocks: u32, order: FreeOrder) -> Self {
        let blocks = blocks.max(2);
        let mut pool = BlockPool {
            blocks: vec![Block::default(); blocks as usize + 1],
            cached: HashMap::new(),
            free: 0,
            filled: 0,
            order,
            events: Vec::new(),
        };
        let sentinel = pool.sentinel();
        pool.blocks[sentinel as usize].previous = sentinel;
        pool.blocks[sentinel as usize].next = sentinel;
        for id in 1..blocks {
            pool.push_back(id);
        }
        pool
    }

    /// Blocks that can be handed out, cached ones included.
    pub fn free_blocks(&self) -> usize {
        self.free
    }

    /// Blocks that requests can use at all.
    pub fn usable_blocks(&self) -> usize {
        self.blocks.len() - 2
    }

    /// Blocks with content.
    pub fn cached_blocks(&self) -> usize {
        self.filled
    }

    /// The block that holds `hash`, if any.
    pub fn find(&self, hash: EventHash) -> Option<BlockId> {
        self.cached.get(&hash).and_then(|ids| ids.first().copied())
    }

    /// Whether no request uses the block now.
    pub fn is_free(&self, id: BlockId) -> bool {
        self.blocks[id as usize].references == 0
    }

    /// Takes one more reference on a cached block.
    pub fn touch(&mut self, id: BlockId) {
        if self.is_free(id) {
            self.unlink(id);
        }
        self.blocks[id as usize].references += 1;
    }

    /// Hands out `count` blocks, least recently used first; what they held is evicted. The caller has asked
    /// [`BlockPool::free_blocks`] before.
    pub fn allocate(&mut self, count: usize, out: &mut Vec<BlockId>) {
        for _ in 0..count {
            let id = self.blocks[self.sentinel() as usize].next;
            assert_ne!(id, self.sentinel(), "the free queue is empty");
            self.unlink(id);
            if let Some(hash) = self.blocks[id as usize].hash.take() {
                self.forget(hash, id);
                self.events.push(Event::Removed { hash });
            }
            self.blocks[id as usize].references = 1;
            out.push(id);
        }
    }

    /// Gives content to a block. Two blocks may hold the same: a prefix that was computed twice.
    pub fn set_hash(&mut self, id: BlockId, hash: EventHash) {
        self.blocks[id as usize].hash = Some(hash);
        self.cached.entry(hash).or_default().push(id);
        self.filled += 1;
    }

    /// Drops one reference of each block of a request, given from its first block to its last.
    pub fn release(&mut self, ids: &[BlockId]) {
        for &id in ids.iter().rev() {
            let block = &mut self.blocks[id as usize];
            block.references -= 1;
            if block.references > 0 {
                continue;
            }
            if block.hash.is_none() && self.order == FreeOrder::EmptyFirst {
                self.push_front(id);
            } else {
                self.push_back(id);
            }
        }
    }

    /// Empties the cache; refused while requests use blocks.
    pub fn reset(&mut self) -> bool {
        if self.free != self.usable_blocks() {
            return false;
        }
        self.cached.clear();
        self.filled = 0;
        for block in &mut self.blocks {
            block.hash = None;
        }
        self.events.push(Event::Cleared);
        true
    }

    /// Adds an event behind those that the pool made.
    pub fn push_event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn forget(&mut self, hash: EventHash, id: BlockId) {
        self.filled -= 1;
        if let Some(ids) = self.cached.get_mut(&hash) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.cached.remove(&hash);
            }
        }
    }

    fn sentinel(&self) -> BlockId {
        (self.blocks.len() - 1) as BlockId
    }

    fn push_back(&mut self, id: BlockId) {
        let last = self.blocks[self.sentinel() as usize].previous;
        self.link(last, id);
    }

    fn push_front(&mut self, id: BlockId) {
        self.link(self.sentinel(), id);
    }

    fn link(&mut self, after: BlockId, id: BlockId) {
        let before = self.blocks[after as usize].next;
        self.blocks[id as usize].previous = after;
        self.blocks[id as usize].next = before;
        self.blocks[after as usize].next = id;
        self.blocks[before as usize].previous = id;
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let Block { previous, next, .. } = self.blocks[id as usize];
        self.blocks[previous as usize].next = next;
        self.blocks[next as usize].previous = previous;
        self.free -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate(pool: &mut BlockPool, count: usize) -> Vec<BlockId> {
        let mut ids = Vec::new();
        pool.allocate(count, &mut ids);
        ids
    }

    #[test]
    fn the_tail_of_a_request_is_evicted_first() {
        let mut pool = BlockPool::new(6, FreeOrder::Append);
        let ids = allocate(&mut pool, 5);
        for (i, id) in ids.iter().enumerate() {
            pool.set_hash(*id, EventHash(i as u64));
        }
        pool.release(&ids);
        allocate(&mut pool, 2);
        assert_eq!(pool.take_events(), [Event::Removed { hash: EventHash(4) }, Event::Removed { hash: EventHash(3) }]);
        assert_eq!(pool.find(EventHash(3)), None);
        assert_eq!(pool.find(EventHash(2)), Some(ids[2]));
    }

    #[test]
    fn empty_blocks_go_first_only_in_the_newer_order() {
        for (order, next) in [(FreeOrder::Append, 3), (FreeOrder::EmptyFirst, 2)] {
            let mut pool = BlockPool::new(4, order);
            let ids = allocate(&mut pool, 2);
            pool.set_hash(ids[0], EventHash(1));
            pool.release(&ids);
            assert_eq!(allocate(&mut pool, 1), [next]);
        }
    }

    #[test]
    fn a_touched_block_is_not_handed_out_and_a_hash_lives_as_long_as_one_of_its_blocks() {
        let mut pool = BlockPool::new(3, FreeOrder::Append);
        let ids = allocate(&mut pool, 2);
        pool.set_hash(ids[0], EventHash(7));
        pool.set_hash(ids[1], EventHash(7));
        pool.release(&ids);
        pool.touch(ids[0]);
        assert_eq!(allocate(&mut pool, 1), [ids[1]]);
        assert_eq!(pool.free_blocks(), 0);
        assert_eq!(pool.find(EventHash(7)), Some(ids[0]));
        assert!(!pool.reset());
        pool.release(&ids);
        assert!(pool.reset());
        assert_eq!(pool.cached_blocks(), 0);
    }
}
