//! The blocks that one replica has named: a slab of nodes linked to trees, found by the engine's hash.
//!
//! A node lives while it is held anywhere or has children: a child names its parent by the engine's hash, and
//! sliding windows look at ancestors, so a removed parent stays as an empty node until its last child goes.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::blocks::BlockHash;
use crate::bridge::wire::EngineHash;

/// Place in the slab.
pub type Ix = u32;
/// No node.
pub const NONE: Ix = u32::MAX;

/// The chain up to this node is known, so `block` holds.
pub const LINKED: u8 = 1;
/// Content that tokens do not tell, here or before: no key.
pub const UNKEYED: u8 = 2;
/// Waits in the list of changed nodes.
pub const DIRTY: u8 = 4;
/// Its counts are from before a gap.
pub const OLD: u8 = 8;
/// A namespace, the root of a tree.
pub const ROOT: u8 = 16;

/// Freed, and not in use again.
const FREE: u8 = 32;

/// One block.
#[derive(Clone, Debug)]
pub struct Node {
    /// The engine's name.
    pub key: EngineHash,
    /// Ours.
    pub block: BlockHash,
    /// What it follows.
    pub parent: Ix,
    first_child: Ix,
    next: Ix,
    prev: Ix,
    lane0: u16,
    /// See the constants.
    pub flags: u8,
    /// What the feed was told: a bit a tier, and [`super::END`].
    pub announced: u8,
    #[allow(clippy::box_collection)] // 8 bytes instead of 24 in each of millions of nodes, and hardly ever there
    more: Option<Box<Vec<u16>>>,
}

impl Node {
    /// References in `lane`.
    pub fn count(&self, lane: usize) -> u16 {
        match (lane, &self.more) {
            (0, _) => self.lane0,
            (_, Some(more)) => more.get(lane - 1).copied().unwrap_or(0),
            _ => 0,
        }
    }

    /// Sets the references in `lane`.
    pub fn set(&mut self, lane: usize, count: u16) {
        if lane == 0 {
            self.lane0 = count;
            return;
        }
        let more = self.more.get_or_insert_default();
        if more.len() < lane {
            more.resize(lane, 0);
        }
        more[lane - 1] = count;
    }

    /// Whether anything refers to it.
    pub fn held(&self) -> bool {
        self.lane0 > 0 || self.more.iter().flat_map(|m| m.iter()).any(|c| *c > 0)
    }

    /// Nothing refers to it any more.
    pub fn drop_counts(&mut self) {
        self.lane0 = 0;
        self.more.iter_mut().flat_map(|m| m.iter_mut()).for_each(|c| *c = 0);
    }

    /// Whether `flag` is set.
    pub fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Counts above 1 become 1.
    pub fn clamp(&mut self) {
        self.lane0 = self.lane0.min(1);
        self.more.iter_mut().flat_map(|m| m.iter_mut()).for_each(|c| *c = (*c).min(1));
    }

    /// Counts of all lanes, trailing zeros left out.
    pub fn counts(&self) -> Vec<u16> {
        let mut all = vec![self.lane0];
        all.extend(self.more.iter().flat_map(|m| m.iter().copied()));
        while all.last() == Some(&0) {
            all.pop();
        }
        all
    }
}

/// The slab.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    slab: Vec<Node>,
    free: Vec<Ix>,
    index: HashMap<EngineHash, Ix>,
    roots: HashMap<BlockHash, Ix>,
}

impl std::ops::Index<Ix> for Nodes {
    type Output = Node;
    fn index(&self, ix: Ix) -> &Node {
        &self.slab[ix as usize]
    }
}

impl std::ops::IndexMut<Ix> for Nodes {
    fn index_mut(&mut self, ix: Ix) -> &mut Node {
        &mut self.slab[ix as usize]
    }
}

impl Nodes {
    /// Named nodes.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// The node of `key`.
    pub fn get(&self, key: EngineHash) -> Option<Ix> {
        self.index.get(&key).copied()
    }

    /// Looks these names up, so that the next look at each does not wait for memory.
    pub fn warm(&self, keys: &[EngineHash]) {
        std::hint::black_box(keys.iter().filter(|key| self.index.contains_key(*key)).count());
    }

    /// The node of `key`, made if need be, unless there are `max` already.
    pub fn get_or_insert(&mut self, key: EngineHash, max: usize) -> Option<Ix> {
        let full = self.index.len() >= max;
        match self.index.entry(key) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(_) if full => None,
            Entry::Vacant(new) => {
                let ix = place(&mut self.slab, &mut self.free, key, BlockHash(0), 0);
                new.insert(ix);
                Some(ix)
            }
        }
    }

    /// The root node of a namespace.
    pub fn root(&mut self, namespace: BlockHash) -> Ix {
        if let Some(ix) = self.roots.get(&namespace) {
            return *ix;
        }
        let ix = place(&mut self.slab, &mut self.free, EngineHash(0), namespace, ROOT | LINKED);
        self.roots.insert(namespace, ix);
        ix
    }

    /// Puts a node of a checkpoint into the slab; `None` if its name is taken.
    pub fn restore(&mut self, key: EngineHash, block: BlockHash, flags: u8) -> Option<Ix> {
        let taken = if flags & ROOT != 0 { self.roots.contains_key(&block) } else { self.index.contains_key(&key) };
        if taken {
            return None;
        }
        let ix = place(&mut self.slab, &mut self.free, key, block, flags);
        if flags & ROOT != 0 {
            self.roots.insert(block, ix);
        } else {
            self.index.insert(key, ix);
        }
        Some(ix)
    }

    /// All nodes, parents before their children.
    pub fn in_order(&self) -> Vec<Ix> {
        let loose = self.iter().filter(|ix| self[*ix].parent == NONE);
        let mut order: Vec<Ix> = self.roots.values().copied().chain(loose).collect();
        let mut at = 0;
        while at < order.len() {
            let ix = order[at];
            order.extend(self.children(ix));
            at += 1;
        }
        order
    }

    /// Hangs `child`, which has no parent yet, under `parent`.
    pub fn adopt(&mut self, parent: Ix, child: Ix) {
        let first = self[parent].first_child;
        self[parent].first_child = child;
        if first != NONE {
            self[first].prev = child;
        }
        let node = &mut self[child];
        (node.parent, node.next, node.prev) = (parent, first, NONE);
    }

    /// The children of a node.
    pub fn children(&self, ix: Ix) -> impl Iterator<Item = Ix> + '_ {
        let mut at = self[ix].first_child;
        std::iter::from_fn(move || {
            let child = at;
            if child == NONE {
                return None;
            }
            at = self[child].next;
            Some(child)
        })
    }

    /// Whether a node has children.
    pub fn is_leaf(&self, ix: Ix) -> bool {
        self[ix].first_child == NONE
    }

    /// Frees the node if nothing needs it any more, and so on upwards.
    pub fn release(&mut self, mut ix: Ix) {
        while ix != NONE {
            let node = &self[ix];
            if node.held() || node.first_child != NONE || node.is(DIRTY | FREE) || node.announced != 0 {
                return;
            }
            let (key, block, parent, next, prev, root) =
                (node.key, node.block, node.parent, node.next, node.prev, node.is(ROOT));
            if root {
                self.roots.remove(&block);
            } else {
                self.index.remove(&key);
            }
            if next != NONE {
                self[next].prev = prev;
            }
            if prev != NONE {
                self[prev].next = next;
            } else if parent != NONE {
                self[parent].first_child = next;
            }
            self[ix].more = None;
            self[ix].flags = FREE;
            self.free.push(ix);
            ix = parent;
        }
    }

    /// All named nodes.
    pub fn iter(&self) -> impl Iterator<Item = Ix> + '_ {
        self.index.values().copied()
    }
}

fn place(slab: &mut Vec<Node>, free: &mut Vec<Ix>, key: EngineHash, block: BlockHash, flags: u8) -> Ix {
    let (parent, first_child, next, prev) = (NONE, NONE, NONE, NONE);
    let node = Node { key, block, parent, first_child, next, prev, lane0: 0, flags, announced: 0, more: None };
    match free.pop() {
        Some(ix) => {
            slab[ix as usize] = node;
            ix
        }
        None => {
            slab.push(node);
            (slab.len() - 1) as Ix
        }
    }
}
