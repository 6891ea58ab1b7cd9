//! Tables by tier and plane, the columns of the replicas, the byte bound.

use hashbrown::HashMap;

use super::PLANE;
use super::segment::{Seed, Slot};
use super::table::{Room, SEGMENTS, Table};
use crate::blocks::BlockHash;
use crate::clock::Budget;
use crate::feed::record::{Tier, hit_ends_at};

/// Tiers that have tables of their own.
pub(super) const TIERS: usize = 3;
/// At most this many planes: 1,024 replicas, and as many columns again that wait for the sweep.
const MAX_PLANES: usize = 32;
/// Hashes that are changed between two looks at the budget.
const STRIDE: usize = 64;

/// The place of one replica in the tables: bit `column % 64` of plane `column / 64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Column(u16);

impl Column {
    /// The number of the plane.
    pub fn plane(self) -> usize {
        usize::from(self.0 >> 6)
    }
    /// The bit within the plane.
    pub fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
    /// The column as an index into a list.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
    pub(super) fn at(plane: usize, bit: u32) -> Column {
        Column(((plane as u16) << 6) | (bit as u16 & 63))
    }
}

#[derive(Debug, Default)]
struct Plane {
    live: u64,
    dead: u64,
    truncated: u64,
    tables: [Option<Box<Table>>; TIERS],
}

/// What the index holds and costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct IndexStats {
    /// Blocks held by anybody, counted once a tier and plane.
    pub entries: usize,
    /// Bytes of the tables.
    pub bytes: usize,
    /// The bound on them.
    pub max_bytes: usize,
    /// Entries given up to stay within the bound.
    pub evicted: u64,
    /// Columns that wait for the sweep.
    pub dead_columns: u32,
}

/// The index. See the [module](super).
#[derive(Debug)]
pub struct Index {
    planes: Vec<Plane>,
    /// Blocks by column and tier.
    counts: Vec<[u32; TIERS]>,
    seed: Seed,
    bytes: usize,
    max_bytes: usize,
    evicted: u64,
    sweep: Option<Sweep>,
}

/// One pass of the sweep over everything.
#[derive(Debug)]
struct Sweep {
    dead: Vec<u64>,
    plane: usize,
    tier: usize,
    segment: usize,
}

impl Index {
    /// An empty index that takes at most `max_bytes`; `random` decides where things go.
    pub fn new(max_bytes: usize, random: u64) -> Self {
        Index {
            planes: Vec::new(),
            counts: Vec::new(),
            seed: Seed::new(random),
            bytes: 0,
            max_bytes,
            evicted: 0,
            sweep: None,
        }
    }

    /// Changes the bound. A lower one is reached as things change, not at once.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
    }

    /// A column for a replica; `None` while all are taken or wait for the sweep.
    pub fn open(&mut self) -> Option<Column> {
        for (number, plane) in self.planes.iter_mut().enumerate() {
            let free = !(plane.live | plane.dead);
            if free != 0 {
                let bit = free.trailing_zeros();
                plane.live |= 1 << bit;
                return Some(Column::at(number, bit));
            }
        }
        if self.planes.len() >= MAX_PLANES {
            return None;
        }
        self.planes.push(Plane { live: 1, ..Plane::default() });
        self.counts.resize(self.planes.len() * PLANE, [0; TIERS]);
        Some(Column::at(self.planes.len() - 1, 0))
    }

    /// Gives a column back: from now on it holds nothing.
    pub fn close(&mut self, column: Column) {
        if let Some(plane) = self.planes.get_mut(column.plane()) {
            if plane.live & column.bit() == 0 {
                return;
            }
            plane.live &= !column.bit();
            plane.truncated &= !column.bit();
            let counts = self.counts.get_mut(column.index());
            let empty = counts.is_none_or(|counts| std::mem::take(counts) == [0; TIERS]);
            // The last one takes the tables with it, even those that were emptied block by block.
            let last = plane.live == 0 && plane.tables.iter().any(Option::is_some);
            if !empty || last {
                plane.dead |= column.bit();
            }
        }
    }

    /// Whether [`Index::sweep`] has something to do.
    pub fn needs_sweep(&self) -> bool {
        self.sweep.is_some() || self.planes.iter().any(|p| p.dead != 0)
    }

    /// Clears away what closed columns left, as long as `budget` allows. True: nothing is left to do.
    pub fn sweep(&mut self, budget: Budget<'_>) -> bool {
        while self.needs_sweep() {
            let planes = &self.planes;
            let pass = self.sweep.get_or_insert_with(|| Sweep {
                dead: planes.iter().map(|p| p.dead).collect(),
                plane: 0,
                tier: 0,
                segment: 0,
            });
            let Some(dead) = pass.dead.get(pass.plane).copied() else {
                let done = self.sweep.take().map(|pass| pass.dead).unwrap_or_default();
                self.planes.iter_mut().zip(done).for_each(|(plane, dead)| plane.dead &= !dead);
                continue;
            };
            let plane = self.planes.get_mut(pass.plane);
            let slot = plane.and_then(|p| p.tables.get_mut(pass.tier));
            let Some(slot) = slot.filter(|_| dead != 0) else {
                (pass.plane, pass.tier, pass.segment) = (pass.plane + 1, 0, 0);
                continue;
            };
            let Some(table) = slot else {
                (pass.tier, pass.segment) = (pass.tier + 1, 0);
                continue;
            };
            if !budget() {
                return false;
            }
            let before = table.bytes();
            let more = table.sweep(pass.segment, dead, self.seed);
            self.bytes = (self.bytes + table.bytes()).saturating_sub(before);
            pass.segment += 1;
            if !more {
                if table.entries() == 0 {
                    self.bytes = self.bytes.saturating_sub(table.bytes());
                    *slot = None;
                }
                (pass.tier, pass.segment) = (pass.tier + 1, 0);
            }
        }
        true
    }

    /// `column` now holds `hashes` in `tier`, of which bit i of `ends` (empty: all) says whether a hit may end
    /// there. `parent` is what the first one follows, if known.
    pub fn store(&mut self, column: Column, tier: Tier, parent: Option<BlockHash>, hashes: &[BlockHash], ends: &[u8]) {
        self.warm(column.plane(), hashes);
        let mut depth = parent.and_then(|p| self.depth(column.plane(), tier, p)).unwrap_or(0);
        for (i, hash) in hashes.iter().enumerate() {
            // An eighth of the steps, chosen by the hash, count: a unit of depth is 8 blocks, also in runs of one.
            depth += u64::from(hash.0 & 7 == 0);
            let end = hit_ends_at(ends, i);
            let bit = column.bit();
            self.set(column.plane(), tier, *hash, bit, (bit, if end { bit } else { 0 }), depth);
        }
    }

    /// `column` no longer holds `hash` in `tier`.
    pub fn remove(&mut self, column: Column, tier: Tier, hash: BlockHash) {
        let Some(plane) = self.planes.get_mut(column.plane()) else { return };
        let Some(table) = plane.tables.get_mut(tier as usize).and_then(Option::as_mut) else { return };
        if plane.live & column.bit() != 0 && table.remove(hash, column.bit(), self.seed) != 0 {
            count(&mut self.counts, column, tier as usize, -1);
        }
    }

    /// `column` no longer holds any of `hashes` in `tier`.
    pub fn remove_all(&mut self, column: Column, tier: Tier, hashes: &[BlockHash]) {
        self.warm(column.plane(), hashes);
        hashes.iter().for_each(|hash| self.remove(column, tier, *hash));
    }

    /// Brings what lookups of `hashes` will read into the processor's cache. A few dozen at a time make sense.
    pub(super) fn warm(&self, plane: usize, hashes: &[BlockHash]) {
        if hashes.len() < 2 {
            return;
        }
        let tables = self.planes.get(plane).map(|p| p.tables.as_slice()).unwrap_or_default();
        tables.iter().flatten().for_each(|table| table.warm(hashes, self.seed));
    }

    /// The holders of `hash` in one tier and plane, and of them those where a hit may end.
    pub(super) fn get(&self, plane: usize, tier: usize, hash: BlockHash) -> (u64, u64) {
        let Some(plane) = self.planes.get(plane) else { return (0, 0) };
        match plane.tables.get(tier).and_then(Option::as_ref) {
            Some(table) => {
                let (holders, ends) = table.get(hash, self.seed);
                (holders & plane.live, ends & plane.live)
            }
            None => (0, 0),
        }
    }

    /// Whether there is a table at all.
    pub(super) fn has(&self, plane: usize, tier: usize) -> bool {
        self.planes.get(plane).and_then(|p| p.tables.get(tier)).is_some_and(Option::is_some)
    }

    /// Whether `column` holds `hash` in `tier`.
    pub fn holds(&self, column: Column, tier: Tier, hash: BlockHash) -> bool {
        self.get(column.plane(), tier as usize, hash).0 & column.bit() != 0
    }

    /// The blocks were of use to a request that goes to `column`: they are the last to be given up.
    pub fn touch(&mut self, column: Column, hashes: &[BlockHash]) {
        // Far from the bound nothing is given up, so nobody needs to know.
        if self.bytes < self.max_bytes >> 1 {
            return;
        }
        let Some(plane) = self.planes.get_mut(column.plane()) else { return };
        for table in plane.tables.iter_mut().flatten() {
            hashes.iter().for_each(|hash| table.touch(*hash, self.seed));
        }
    }

    /// Blocks of a column by tier.
    pub fn blocks(&self, column: Column) -> [u32; TIERS] {
        self.counts.get(column.index()).copied().unwrap_or_default()
    }

    /// Whether blocks of a column had to be given up.
    pub fn truncated(&self, column: Column) -> bool {
        self.planes.get(column.plane()).is_some_and(|p| p.truncated & column.bit() != 0)
    }

    /// What it holds and costs.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            entries: self.planes.iter().flat_map(|p| p.tables.iter().flatten()).map(|t| t.entries()).sum(),
            bytes: self.bytes,
            max_bytes: self.max_bytes,
            evicted: self.evicted,
            dead_columns: self.planes.iter().map(|p| p.dead.count_ones()).sum(),
        }
    }

    /// Everything that live columns hold: (column, tier, hash, a hit may end there). For tests and dumps.
    pub fn dump(&self) -> Vec<(Column, Tier, BlockHash, bool)> {
        let mut out = Vec::new();
        for (number, plane) in self.planes.iter().enumerate() {
            for tier in [Tier::Gpu, Tier::Cpu, Tier::Disk] {
                let Some(table) = plane.tables.get(tier as usize).and_then(Option::as_ref) else { continue };
                for (hash, holders, ends) in (0..SEGMENTS).flat_map(|at| table.segment_entries(at)) {
                    for bit in bits(holders & plane.live) {
                        out.push((Column::at(number, bit), tier, hash, ends >> bit & 1 != 0));
                    }
                }
            }
        }
        out.sort_unstable();
        out
    }

    fn depth(&self, plane: usize, tier: Tier, hash: BlockHash) -> Option<u64> {
        let table = self.planes.get(plane)?.tables.get(tier as usize)?.as_ref()?;
        table.depth(hash, self.seed)
    }

    /// Within `cover`, makes `held` the (holders, ends) of `hash`.
    fn set(&mut self, plane: usize, tier: Tier, hash: BlockHash, cover: u64, held: (u64, u64), depth: u64) {
        let tier = tier as usize;
        let Some(cover) = self.planes.get(plane).map(|p| p.live & cover).filter(|cover| *cover != 0) else { return };
        if self.bytes >= self.max_bytes {
            self.balance(plane, tier);
        }
        let Some(slot) = self.planes.get_mut(plane).and_then(|p| p.tables.get_mut(tier)) else { return };
        let made = slot.is_none();
        let table = slot.get_or_insert_with(|| Box::new(Table::new()));
        let before = if made { 0 } else { table.bytes() };
        let mut lost = Lost::default();
        let mut room = Room { free: self.max_bytes.saturating_sub(self.bytes), evicted: &mut |slot| lost.0.push(slot) };
        let old = table.set(hash, cover, held, depth, self.seed, &mut room);
        self.bytes = (self.bytes + table.bytes()).saturating_sub(before);
        let new = held.0 & cover;
        if old != new {
            bits(new & !old).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, 1));
            bits(old & !new).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, -1));
        }
        self.lose(plane, tier, lost);
    }

    /// Books what had to be given up.
    fn lose(&mut self, plane: usize, tier: usize, lost: Lost) {
        let Some(state) = self.planes.get_mut(plane) else { return };
        for slot in lost.0 {
            self.evicted += 1;
            let holders = slot.holders & state.live;
            state.truncated |= holders;
            bits(holders).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, -1));
        }
    }

    /// Over the bound: a table with less than its share gets room from the largest one.
    fn balance(&mut self, plane: usize, tier: usize) {
        let mut tables = 0;
        let (mut largest, mut own) = ((0, 0, 0), 0);
        for (p, state) in self.planes.iter().enumerate() {
            for (t, table) in state.tables.iter().enumerate() {
                let bytes = table.as_ref().map_or(0, |table| table.bytes());
                tables += usize::from(bytes > 0);
                if (p, t) == (plane, tier) {
                    own = bytes;
                }
                if bytes > largest.0 {
                    largest = (bytes, p, t);
                }
            }
        }
        let share = self.max_bytes.checked_div(tables.max(1)).unwrap_or(0);
        if own >= share || (largest.1, largest.2) == (plane, tier) || largest.0 <= Table::empty_bytes() {
            return;
        }
        let (_, p, t) = largest;
        let Some(table) = self.planes.get_mut(p).and_then(|s| s.tables.get_mut(t)).and_then(Option::as_mut) else {
            return;
        };
        let mut lost = Lost::default();
        let freed = table.make_room(self.seed, &mut |slot| lost.0.push(slot));
        self.bytes = self.bytes.saturating_sub(freed);
        self.lose(p, t, lost);
    }
}

#[derive(Default)]
struct Lost(Vec<Slot>);

fn count(counts: &mut [[u32; TIERS]], column: Column, tier: usize, by: i32) {
    if let Some(count) = counts.get_mut(column.index()).and_then(|c| c.get_mut(tier)) {
        *count = count.saturating_add_signed(by);
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros();
            mask &= mask - 1;
            bit
        })
    })
}

/// Makes one range of hashes exactly what a snapshot says, step by step. Nothing is taken away before all that
/// is to be there is known.
#[derive(Debug, Default)]
pub struct RangeJob {
    from: u64,
    through: u64,
    /// By plane: the columns that the snapshot speaks of.
    cover: Vec<u64>,
    /// By plane and tier: what is to be held.
    want: Vec<[HashMap<u64, (u64, u64)>; TIERS]>,
    at: Option<(usize, usize, u64)>,
    /// Bits that were not as the snapshot has them.
    pub repaired: u64,
}

impl RangeJob {
    /// The range `from..=through`, for `columns` only.
    pub fn new(from: u64, through: u64, columns: impl Iterator<Item = Column>) -> Self {
        let mut job = RangeJob { from, through, ..RangeJob::default() };
        for column in columns {
            if job.cover.len() <= column.plane() {
                job.cover.resize(column.plane() + 1, 0);
            }
            if let Some(cover) = job.cover.get_mut(column.plane()) {
                *cover |= column.bit();
            }
        }
        job.want.resize_with(job.cover.len(), Default::default);
        job
    }

    /// `column` holds `hash` in `tier`.
    pub fn hold(&mut self, column: Column, tier: Tier, hash: BlockHash, end: bool) {
        if hash.0 < self.from || hash.0 > self.through {
            return;
        }
        if let Some(want) = self.want.get_mut(column.plane()).and_then(|w| w.get_mut(tier as usize)) {
            let held = want.entry(hash.0).or_default();
            held.0 |= column.bit();
            held.1 |= if end { column.bit() } else { 0 };
        }
    }

    /// Applies it as long as `budget` allows. True: done.
    pub fn apply(&mut self, index: &mut Index, budget: Budget<'_>) -> bool {
        let first = self.from >> super::segment::KEY_BITS;
        let last = self.through >> super::segment::KEY_BITS;
        loop {
            let (plane, tier, segment) = *self.at.get_or_insert((0, 0, first));
            let Some(cover) = self.cover.get(plane).copied() else { return true };
            if tier >= TIERS {
                self.at = Some((plane + 1, 0, first));
                continue;
            }
            if !budget() {
                return false;
            }
            let Some(want) = self.want.get_mut(plane).and_then(|w| w.get_mut(tier)) else { return true };
            if segment <= last && index.has(plane, tier) {
                self.repaired +=
                    rewrite(index, (plane, tier, segment as usize), (self.from, self.through), cover, want);
                self.at = Some((plane, tier, segment + 1));
                continue;
            }
            // What is left was not there at all, and is not to be looked at again.
            self.at = Some((plane, tier, last + 1));
            let some: Vec<u64> = want.keys().copied().take(STRIDE).collect();
            if some.is_empty() {
                self.at = Some((plane, tier + 1, first));
                continue;
            }
            for hash in some {
                let held = want.remove(&hash).unwrap_or_default();
                let Some(tier) = Tier::from_u8(tier as u8) else { continue };
                self.repaired += u64::from(held.0.count_ones());
                index.set(plane, tier, BlockHash(hash), cover, held, 0);
            }
        }
    }
}

/// Makes the entries of one segment what `want` says of them, and takes them off it. Gives the bits changed.
fn rewrite(
    index: &mut Index,
    (plane, tier, segment): (usize, usize, usize),
    (from, through): (u64, u64),
    cover: u64,
    want: &mut HashMap<u64, (u64, u64)>,
) -> u64 {
    let Some(state) = index.planes.get_mut(plane) else { return 0 };
    let cover = cover & state.live;
    let Some(table) = state.tables.get_mut(tier).and_then(Option::as_mut) else { return 0 };
    let (counts, mut repaired) = (&mut index.counts, 0);
    table.rewrite(segment, index.seed, &mut |hash, holders, ends| {
        if hash.0 < from || hash.0 > through {
            return (holders, ends);
        }
        let (to_holders, to_ends) = want.remove(&hash.0).unwrap_or_default();
        let to_holders = (holders & !cover) | (to_holders & cover);
        let to_ends = (ends & !cover) | (to_ends & to_holders & cover);
        repaired += u64::from(((to_holders ^ holders) | (to_ends ^ ends)).count_ones());
        bits(to_holders & !holders).for_each(|bit| count(counts, Column::at(plane, bit), tier, 1));
        bits(holders & !to_holders).for_each(|bit| count(counts, Column::at(plane, bit), tier, -1));
        (to_holders, to_ends)
    });
    repaired
}
