//! What one replica holds, from its events: the engine's hashes to ours, with reference counts.
//!
//! In: decoded events, in order. Out: [`Record`]s with set semantics, written when a count goes from 0 to 1 or
//! back, or when a block begins or ceases to be a place where a hit may end.
//!
//! * The engine names a block by its own hash, in `parent` and in removals. It is resolved here and goes no
//!   further: the feed carries hashes of tokens ([`crate::blocks`]).
//! * The same block can be stored several times (vLLM stores the generated tail of identical requests once per
//!   request, and removes it as often), so references are counted per tier and attention group.
//! * Blocks counted before a gap that was not filled are *unconfirmed*, a tier of its own in the feed, until an event
//!   or a request (`hearsay`) speaks for them or against them.
//! * The changes of a batch are looked at once, at its end: groups announce the same blocks one after another.

mod groups;
mod hearsay;
mod nodes;
mod orphans;
mod save;
#[cfg(test)]
mod tests;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::blocks::{BlockHash, block_hash, namespace};
use crate::bridge::wire::{EngineHash, Event, GroupKind, Removed, Skip, SkipCounts, Stored};
use crate::feed::FeedReplicaId;
use crate::feed::record::{Record, Tier};
use groups::Groups;
use hearsay::Hearsay;
pub use hearsay::Word;
use nodes::{DIRTY, Ix, LINKED, NONE, Nodes, OLD, ROOT, UNKEYED};
use orphans::{Orphan, Orphans};

/// In [`nodes::Node::announced`]: a hit may end here. The bits below are the tiers.
const END: u8 = 16;
const GPU: u8 = 1 << Tier::Gpu as u8;
const UNCONFIRMED: u8 = 1 << Tier::Unconfirmed as u8;
/// Blocks looked up ahead at a time.
const WARM: usize = 32;
/// Longest run in one record.
const MAX_RUN: usize = 4096;

/// How a replica's blocks are named and bounded.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// The deployment's seed.
    pub hash_seed: String,
    /// Served model id.
    pub model: String,
    /// Tokens per block; `None` takes what the first event says.
    pub block_size: Option<u32>,
    /// Blocks tracked at most.
    pub max_blocks: usize,
    /// Tokens of blocks without a parent kept at most.
    pub max_orphan_tokens: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            hash_seed: String::new(),
            model: String::new(),
            block_size: None,
            max_blocks: 8 << 20,
            max_orphan_tokens: 1 << 20,
        }
    }
}

/// What the feed was told of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// Nodes that hold it, per tier: two engine hashes can stand for the same tokens.
    holders: [u16; 4],
    /// A hit may end here.
    pub end: bool,
}

impl Presence {
    /// Whether `tier` holds it.
    pub fn in_tier(&self, tier: Tier) -> bool {
        self.holders[tier as usize] > 0
    }
}

/// One replica's cache as its events tell it.
#[derive(Clone, Debug)]
pub struct Cache {
    config: CacheConfig,
    block_size: Option<u32>,
    refused: Option<u32>,
    accepted: bool,
    truncated: bool,
    nodes: Nodes,
    groups: Groups,
    orphans: Orphans,
    blocks: HashMap<BlockHash, Presence>,
    /// Names without and with salt, of engines whose removals do not tell the salt.
    salted: HashMap<EngineHash, Vec<EngineHash>>,
    dirty: Vec<Ix>,
    wiped: Vec<BlockHash>,
    held: [u64; 4],
    old: usize,
    /// Finds those from before a gap; may name nodes that are no such ones any more.
    old_by_block: HashMap<BlockHash, Ix>,
    hearsay: Hearsay,
    /// Blocks on the accelerator that follow one which is not there.
    holes: usize,
    skips: SkipCounts,
    scratch: Vec<u8>,
}

impl Cache {
    /// An empty one.
    pub fn new(config: CacheConfig) -> Cache {
        Cache {
            block_size: config.block_size,
            config,
            refused: None,
            accepted: false,
            truncated: false,
            nodes: Nodes::default(),
            groups: Groups::default(),
            orphans: Orphans::default(),
            blocks: HashMap::new(),
            salted: HashMap::new(),
            dirty: Vec::new(),
            wiped: Vec::new(),
            held: [0; 4],
            old: 0,
            old_by_block: HashMap::new(),
            hearsay: Hearsay::default(),
            holes: 0,
            skips: SkipCounts::default(),
            scratch: Vec::new(),
        }
    }

    /// Tokens per block, once known.
    pub fn block_size(&self) -> Option<u32> {
        self.block_size
    }

    /// The block size that the engine uses instead of the configured one: nothing of it can be used.
    pub fn refused(&self) -> Option<u32> {
        self.refused
    }

    /// Why its content is not exact even when no event was lost.
    pub fn not_exact(&self) -> Option<&'static str> {
        self.groups.not_exact().or(self.truncated.then_some("more_blocks_than_the_bound"))
    }

    /// Blocks held, per tier.
    pub fn held(&self) -> [u64; 4] {
        self.held
    }

    /// Blocks known only from before a gap, or by hearsay.
    pub fn unconfirmed(&self) -> usize {
        self.old + self.hearsay.len()
    }

    /// Whether of each chain a beginning without a hole is on the accelerator, and a hit may end at all its blocks.
    pub fn dense(&self) -> bool {
        self.holes == 0 && self.groups.is_simple()
    }

    /// Runs that wait for their parent.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// What was left out, by reason.
    pub fn skips(&self) -> &SkipCounts {
        &self.skips
    }

    /// Counts what the decoder left out.
    pub fn count_skips(&mut self, skips: &[Skip]) {
        skips.iter().for_each(|s| self.skips.add(*s, 1));
    }

    /// Every block held, as the feed was told.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockHash, Presence)> + '_ {
        self.blocks.iter().map(|(h, p)| (*h, *p))
    }

    /// Applies the events of one batch; what changed goes to `out`.
    pub fn apply(&mut self, replica: FeedReplicaId, events: Vec<Event>, out: &mut Vec<Record>) {
        for event in events {
            match event {
                Event::Stored(stored) => self.stored(stored),
                Event::Removed(removed) => self.removed(&removed),
                Event::Cleared => self.clear(replica, out),
            }
        }
        self.flush(replica, out);
    }

    /// Everything is gone: the engine cleared its cache, or began anew.
    pub fn clear(&mut self, replica: FeedReplicaId, out: &mut Vec<Record>) {
        if !self.blocks.is_empty() {
            out.push(Record::Cleared(replica));
            self.wiped.extend(self.blocks.keys());
        }
        self.nodes = Nodes::default();
        self.orphans = Orphans::default();
        self.blocks = HashMap::new();
        self.salted = HashMap::new();
        self.dirty.clear();
        self.held = [0; 4];
        self.old = 0;
        self.old_by_block = HashMap::new();
        self.hearsay = Hearsay::default();
        self.holes = 0;
        self.truncated = false;
    }

    /// The blocks that [`Record::Cleared`] took away since the last call.
    pub fn take_wiped(&mut self) -> Vec<BlockHash> {
        std::mem::take(&mut self.wiped)
    }

    /// Forgets what was learned of the engine itself too: it began anew, maybe with another configuration.
    pub fn restart(&mut self, replica: FeedReplicaId, out: &mut Vec<Record>) {
        self.clear(replica, out);
        self.block_size = self.config.block_size;
        self.groups = Groups::default();
        (self.refused, self.accepted) = (None, false);
    }

    /// Events were lost for good: references counted so far may be too many or too few. Each block is taken as
    /// referenced once, so that the next removal of it counts, and is unconfirmed until something speaks for it.
    pub fn gap(&mut self, replica: FeedReplicaId, out: &mut Vec<Record>) {
        let all: Vec<Ix> = self.nodes.iter().collect();
        for ix in all {
            if self.nodes[ix].held() {
                self.nodes[ix].clamp();
                if !self.nodes[ix].is(OLD) {
                    self.nodes[ix].flags |= OLD;
                    self.old += 1;
                }
                self.old_by_block.insert(self.nodes[ix].block, ix);
                self.mark(ix);
            }
        }
        self.flush(replica, out);
    }

    /// Gives up blocks from before a gap while more are held on the accelerator than it can hold.
    pub fn trim(&mut self, replica: FeedReplicaId, capacity: u64, out: &mut Vec<Record>) {
        let held = self.held[Tier::Gpu as usize] + self.held[Tier::Unconfirmed as usize];
        if self.unconfirmed() == 0 || capacity == 0 || held <= capacity {
            return;
        }
        let mut over = held - capacity;
        // Ends of chains first: what is before them is of use to more requests.
        let mut candidates: Vec<Ix> =
            self.nodes.iter().filter(|ix| self.nodes[*ix].is(OLD) && self.nodes.is_leaf(*ix)).collect();
        while over > 0 {
            let Some(ix) = candidates.pop() else { break };
            let parent = self.nodes[ix].parent;
            self.nodes[ix].drop_counts();
            self.confirm(ix);
            over -= 1;
            if parent != NONE
                && self.nodes[parent].is(OLD)
                && self.nodes.children(parent).all(|c| !self.nodes[c].held())
            {
                candidates.push(parent);
            }
        }
        if over > 0 {
            let oldest = self.hearsay.oldest(over as usize);
            self.forget(replica, &oldest, out);
        }
        self.flush(replica, out);
    }

    /// What is counted of the block is from after the last gap, or as good as that.
    fn confirm(&mut self, ix: Ix) {
        if self.nodes[ix].is(OLD) {
            self.nodes[ix].flags &= !OLD;
            self.old -= 1;
            self.mark(ix);
            if self.old == 0 {
                self.old_by_block = HashMap::new();
            }
        }
    }

    /// A request had the block in its table when it filled the next one, and all before it: none of them was lost
    /// in the gap, or an event after it would have said that it was computed anew.
    fn confirm_up(&mut self, mut ix: Ix) {
        while ix != NONE && self.nodes[ix].is(OLD) {
            self.confirm(ix);
            ix = self.nodes[ix].parent;
        }
    }

    /// A block from before a gap is stored again: the engine had lost it in between, or counts it twice now. It
    /// is taken as held by nothing but what is announced from here on (all groups are, one after another).
    fn recount(&mut self, ix: Ix, tier: Tier) {
        for lane in 0..self.nodes[ix].counts().len() {
            if self.groups.tier_of(lane) == Some(tier) && self.nodes[ix].count(lane) > 0 {
                self.nodes[ix].set(lane, 0);
                self.touched(ix, lane);
            }
        }
        self.confirm(ix);
    }

    fn stored(&mut self, event: Stored) {
        let bs = event.block_size;
        let whole = event.tokens.len() as u64 == event.hashes.len() as u64 * u64::from(bs);
        let needs_all = matches!(event.kind, GroupKind::Full | GroupKind::Unknown);
        if needs_all && !event.tokens.is_empty() {
            if !whole {
                // Before kinds were named, a group that keeps only the end of a range shows like this.
                self.groups.nameless_hybrid |= event.kind == GroupKind::Unknown && !event.hashes.is_empty();
                return self.skips.add(Skip::Length, 1);
            }
            if bs != *self.block_size.get_or_insert(bs) {
                if !self.accepted {
                    self.refused = Some(bs);
                }
                return self.skips.add(Skip::BlockSize, 1);
            }
            self.accepted = true;
            self.refused = None;
        }
        let Some((slot, changed)) = self.groups.learn(event.group, event.kind, bs) else {
            return self.skips.add(Skip::TooManyGroups, 1);
        };
        if changed {
            let all: Vec<Ix> = self.nodes.iter().collect();
            all.into_iter().for_each(|ix| self.mark(ix));
        }
        let lane = self.groups.lane(event.tier(), slot);
        if event.salt_mask != 0 {
            for hash in &event.hashes {
                let names = self.salted.entry(EngineHash(hash.0 ^ event.salt_mask)).or_default();
                if !names.contains(hash) && names.len() < 1024 {
                    names.push(*hash);
                }
            }
        }
        if self.old > 0
            && self.groups.is_simple()
            && let Some(ix) = event.parent.and_then(|parent| self.nodes.get(parent))
        {
            self.confirm_up(ix);
        }
        self.nodes.warm(&event.hashes);
        if whole && !event.tokens.is_empty() && Some(bs) == self.block_size {
            self.chain(&event);
        } else if needs_all {
            let unknown = event.hashes.iter().filter(|h| self.nodes.get(**h).is_none()).count();
            self.skips.add(Skip::NoTokens, unknown as u64);
        }
        if self.told_again(&event, lane) {
            return;
        }
        for hash in &event.hashes {
            match self.nodes.get_or_insert(*hash, self.config.max_blocks) {
                Some(ix) => {
                    if self.nodes[ix].is(OLD) {
                        self.recount(ix, event.tier());
                    }
                    let before = self.nodes[ix].count(lane);
                    self.nodes[ix].set(lane, before.saturating_add(1));
                    if before == 0 {
                        self.touched(ix, lane);
                    }
                }
                None => {
                    self.truncated = true;
                    self.skips.add(Skip::OverBound, 1);
                }
            }
        }
    }

    /// Whether this is no new copy, but what a request found cached: vLLM 0.32 announces that once more, always
    /// from the first block on, where the request says `kv_cache_report_mode: full`, and no removal will follow.
    /// The event of a second copy looks the same, but only a request that skips the look into the cache
    /// (`prompt_logprobs`) or, of one block, one that ends with it, makes one. Taken for told again, the block is
    /// believed gone when the first copy goes; taken for a copy, it would be believed held for ever.
    fn told_again(&self, event: &Stored, lane: usize) -> bool {
        let held = |hash: &EngineHash| {
            self.nodes.get(*hash).is_some_and(|ix| self.nodes[ix].count(lane) > 0 && !self.nodes[ix].is(OLD))
        };
        event.parent.is_none() && event.hashes.len() > 1 && self.groups.is_simple() && event.hashes.iter().all(held)
    }

    /// Links the blocks of an event that carries all their tokens.
    fn chain(&mut self, event: &Stored) {
        let base = match event.parent {
            None => {
                let (lora, salt) = (event.lora.as_deref(), event.salt.as_deref());
                self.nodes.root(namespace(&self.config.hash_seed, &self.config.model, lora, salt))
            }
            Some(parent) => match self.nodes.get(parent).filter(|ix| self.nodes[*ix].is(LINKED)) {
                Some(ix) => ix,
                None => return self.orphan(parent, event),
            },
        };
        self.link(base, &event.hashes, &event.tokens, event.unkeyed_from);
        if self.orphans.len() > 0 {
            self.adopt_waiting(event.hashes.clone());
        }
        // A namespace under which nothing could be put.
        self.nodes.release(base);
    }

    fn orphan(&mut self, parent: EngineHash, event: &Stored) {
        let known = |h: &EngineHash| self.nodes.get(*h).is_some_and(|ix| self.nodes[ix].is(LINKED));
        if event.hashes.iter().all(known) {
            return;
        }
        self.skips.add(Skip::Orphan, event.hashes.len() as u64);
        let orphan = Orphan {
            parent,
            hashes: event.hashes.clone(),
            tokens: event.tokens.clone(),
            unkeyed_from: event.unkeyed_from,
        };
        let dropped = self.orphans.add(orphan, self.config.max_orphan_tokens);
        self.skips.add(Skip::OrphanDropped, dropped as u64);
    }

    fn adopt_waiting(&mut self, mut linked: Vec<EngineHash>) {
        while let Some(hash) = linked.pop() {
            let Some(base) = self.nodes.get(hash).filter(|ix| self.nodes[*ix].is(LINKED)) else { continue };
            for orphan in self.orphans.take(hash) {
                self.link(base, &orphan.hashes, &orphan.tokens, orphan.unkeyed_from);
                linked.extend(orphan.hashes);
            }
        }
    }

    fn link(&mut self, mut base: Ix, hashes: &[EngineHash], tokens: &[u32], unkeyed_from: Option<usize>) {
        let bs = self.block_size.unwrap_or(1).max(1) as usize;
        for (i, (hash, tokens)) in hashes.iter().zip(tokens.chunks_exact(bs)).enumerate() {
            let Some(ix) = self.nodes.get_or_insert(*hash, self.config.max_blocks) else { return };
            if !self.nodes[ix].is(LINKED) {
                if self.nodes[base].is(UNKEYED) || unkeyed_from.is_some_and(|from| i >= from) {
                    self.nodes[ix].flags |= UNKEYED;
                    self.skips.add(Skip::Unkeyed, 1);
                } else {
                    self.nodes[ix].block = block_hash(self.nodes[base].block, tokens, &mut self.scratch);
                }
                self.nodes[ix].flags |= LINKED;
                self.nodes.adopt(base, ix);
                self.mark(ix);
            }
            base = ix;
        }
    }

    fn removed(&mut self, event: &Removed) {
        self.nodes.warm(&event.hashes);
        let lane = self.groups.known_lane(event.tier, event.group);
        for hash in &event.hashes {
            if !self.salted.is_empty()
                && let Some(names) = self.salted.remove(hash)
                && self.nodes.get(*hash).is_none()
            {
                names.into_iter().for_each(|name| self.remove(name, lane));
            } else {
                self.remove(*hash, lane);
            }
        }
    }

    fn remove(&mut self, name: EngineHash, lane: Option<usize>) {
        let found = self.nodes.get(name).zip(lane);
        let Some((ix, lane)) = found.filter(|(ix, lane)| self.nodes[*ix].count(*lane) > 0) else {
            return self.skips.add(Skip::UnknownRemoved, 1);
        };
        let left = self.nodes[ix].count(lane) - 1;
        self.nodes[ix].set(lane, left);
        if left == 0 {
            self.touched(ix, lane);
        }
        if !self.nodes[ix].held() {
            self.confirm(ix);
        }
    }

    fn mark(&mut self, ix: Ix) {
        if !self.nodes[ix].is(DIRTY) {
            self.nodes[ix].flags |= DIRTY;
            self.dirty.push(ix);
        }
    }

    /// A count of `lane` became 0 or ceased to be 0.
    fn touched(&mut self, ix: Ix, lane: usize) {
        self.mark(ix);
        if !self.groups.decides_ends(lane) {
            return;
        }
        let mut level = vec![ix];
        for _ in 1..self.groups.reach() {
            level = level.iter().flat_map(|ix| self.nodes.children(*ix)).collect();
            for child in &level {
                self.mark(*child);
            }
            if level.is_empty() {
                break;
            }
        }
    }

    /// Looks up what [`Cache::flush`] will look up for these, so that it does not wait for memory at each: these reads
    /// do not depend on one another, and the processor does them at once.
    fn warm(&self, dirty: &[Ix]) {
        let known = |ix: &Ix| self.blocks.contains_key(&self.nodes[*ix].block);
        std::hint::black_box(dirty.iter().filter(|ix| known(ix)).count());
    }

    /// The block came to the accelerator (`here`), or left it.
    fn count_holes(&mut self, ix: Ix, here: bool) {
        let parent = self.nodes[ix].parent;
        let follows = parent != NONE && (self.nodes[parent].is(ROOT) || self.nodes[parent].announced & GPU != 0);
        let own = usize::from(!follows);
        let below = self.nodes.children(ix).filter(|child| self.nodes[*child].announced & GPU != 0).count();
        self.holes =
            if here { (self.holes + own).saturating_sub(below) } else { (self.holes + below).saturating_sub(own) };
    }

    /// Tells what changed since the last call.
    fn flush(&mut self, replica: FeedReplicaId, out: &mut Vec<Record>) {
        let simple = self.groups.is_simple();
        let dirty = std::mem::take(&mut self.dirty);
        let mut gone: [Vec<BlockHash>; 4] = Default::default();
        let mut runs = Runs { replica, simple, out: Vec::new(), last: [NONE; 4], at: [usize::MAX; 4] };
        for (at, ix) in dirty.iter().enumerate() {
            if at % WARM == 0 {
                self.warm(dirty.get(at..dirty.len().min(at + WARM)).unwrap_or_default());
            }
            let node = &self.nodes[*ix];
            let keyed = node.is(LINKED) && !node.is(UNKEYED) && !node.is(ROOT);
            let mut tiers = if keyed { self.groups.tiers(&self.nodes, *ix) } else { 0 };
            if tiers != 0 && self.nodes[*ix].is(OLD) {
                tiers = UNCONFIRMED;
            }
            let end = tiers != 0 && (simple || self.groups.may_end(&self.nodes, *ix));
            let (was, parent, block) = (node.announced, node.parent, node.block);
            let node = &mut self.nodes[*ix];
            node.flags &= !DIRTY;
            node.announced = tiers | if end { END } else { 0 };
            if node.announced == was {
                continue;
            }
            if (was ^ tiers) & GPU != 0 {
                self.count_holes(*ix, tiers & GPU != 0);
            }
            let mut entry = match self.blocks.entry(block) {
                Entry::Occupied(known) => known,
                Entry::Vacant(new) => new.insert_entry(Presence::default()),
            };
            let presence = entry.get_mut();
            let end_changed = presence.end != end;
            presence.end = end;
            for tier in Tier::ALL {
                let (bit, t) = (1 << tier as u8, tier as usize);
                if was & bit != 0 && tiers & bit == 0 {
                    presence.holders[t] -= 1;
                    if presence.holders[t] == 0 {
                        self.held[t] -= 1;
                        gone[t].push(block);
                    }
                } else if tiers & bit != 0 {
                    let new = was & bit == 0;
                    if new {
                        presence.holders[t] += 1;
                    }
                    let first = new && presence.holders[t] == 1;
                    self.held[t] += u64::from(first);
                    if first || end_changed {
                        let before = (parent != NONE).then(|| self.nodes[parent].block);
                        runs.push(tier, *ix, parent, before, block, end);
                    }
                }
            }
            if tiers != 0 && self.hearsay.named(block) {
                let holders = &mut presence.holders[Tier::Unconfirmed as usize];
                *holders -= 1;
                if *holders == 0 {
                    self.held[Tier::Unconfirmed as usize] -= 1;
                    gone[Tier::Unconfirmed as usize].push(block);
                }
            }
            if presence.holders == [0; 4] {
                entry.remove();
            }
        }
        for tier in Tier::ALL {
            for hashes in gone[tier as usize].chunks(MAX_RUN) {
                out.push(Record::Removed { replica, tier, hashes: hashes.to_vec() });
            }
        }
        out.append(&mut runs.out);
        dirty.into_iter().for_each(|ix| self.nodes.release(ix));
        if self.nodes.len() == 0 {
            self.salted.clear();
        }
    }
}

/// Joins blocks that follow each other to runs.
struct Runs {
    replica: FeedReplicaId,
    simple: bool,
    out: Vec<Record>,
    /// Last node of the open run, per tier.
    last: [Ix; 4],
    /// Its record.
    at: [usize; 4],
}

impl Runs {
    fn push(&mut self, tier: Tier, ix: Ix, parent: Ix, before: Option<BlockHash>, block: BlockHash, end: bool) {
        let t = tier as usize;
        if parent != NONE
            && self.last[t] == parent
            && let Some(Record::Stored { ends, hashes, .. }) = self.out.get_mut(self.at[t])
            && hashes.len() < MAX_RUN
        {
            if !self.simple {
                set_end(ends, hashes.len(), end);
            }
            hashes.push(block);
        } else {
            let mut ends = Vec::new();
            if !self.simple {
                set_end(&mut ends, 0, end);
            }
            self.at[t] = self.out.len();
            let hashes = vec![block];
            self.out.push(Record::Stored { replica: self.replica, tier, parent: before, ends, hashes });
        }
        self.last[t] = ix;
    }
}

fn set_end(ends: &mut Vec<u8>, i: usize, end: bool) {
    if ends.len() <= i / 8 {
        ends.push(0);
    }
    ends[i / 8] |= u8::from(end) << (i % 8);
}
