//! Tables by tier and plane, the columns of the replicas, the byte bound.

use hashbrown::HashMap;

use super::PLANE;
use super::segment::{Seed, Slot};
use super::table::{Headroom, Room, SEGMENTS, TOGETHER, Table, deeper};
use crate::blocks::BlockHash;
use crate::clock::Budget;
use crate::feed::digest::{self, Holders};
use crate::feed::record::{Tier, hit_ends_at};

/// Tiers that have tables of their own.
pub(super) const TIERS: usize = Tier::ALL.len();
/// At most this many planes: 1,024 replicas, and as many columns again that wait for the sweep.
const MAX_PLANES: usize = 32;
/// Tables of a plane: two a tier. Where a hit may end, which with most models is everywhere, a block is held in the
/// first; where none may, in the second.
const TABLES: usize = 2 * TIERS;
/// Hashes that are changed between two looks at the budget.
const STRIDE: usize = 64;

/// Slots that are looked at between two looks at the budget, give or take a segment.
const SLOTS_AT_ONCE: usize = 512;

/// The place of a table.
fn table_of(tier: usize, end: bool) -> usize {
    2 * tier + usize::from(!end)
}

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
    tables: [Option<Box<Table>>; TABLES],
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
    headroom: Headroom,
}

/// One pass of the sweep over everything.
#[derive(Debug)]
struct Sweep {
    dead: Vec<u64>,
    plane: usize,
    table: usize,
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
            headroom: Headroom::new(max_bytes),
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
                table: 0,
                segment: 0,
            });
            let Some(dead) = pass.dead.get(pass.plane).copied() else {
                let done = self.sweep.take().map(|pass| pass.dead).unwrap_or_default();
                self.planes.iter_mut().zip(done).for_each(|(plane, dead)| plane.dead &= !dead);
                continue;
            };
            let plane = self.planes.get_mut(pass.plane);
            let slot = plane.and_then(|p| p.tables.get_mut(pass.table));
            let Some(slot) = slot.filter(|_| dead != 0) else {
                (pass.plane, pass.table, pass.segment) = (pass.plane + 1, 0, 0);
                continue;
            };
            let Some(table) = slot else {
                (pass.table, pass.segment) = (pass.table + 1, 0);
                continue;
            };
            if !budget() {
                return false;
            }
            let before = table.bytes();
            let (mut more, mut looked) = (true, 0);
            while more && looked < SLOTS_AT_ONCE {
                looked += 1 + table.size(pass.segment);
                more = table.sweep(pass.segment, dead, self.seed);
                pass.segment += 1;
            }
            self.bytes = (self.bytes + table.bytes()).saturating_sub(before);
            if !more {
                if table.entries() == 0 {
                    self.bytes = self.bytes.saturating_sub(table.bytes());
                    *slot = None;
                }
                (pass.table, pass.segment) = (pass.table + 1, 0);
            }
        }
        true
    }

    /// `column` now holds `hashes` in `tier`, of which bit i of `ends` (empty: all) says whether a hit may end
    /// there. `parent` is what the first one follows, if known.
    pub fn store(&mut self, column: Column, tier: Tier, parent: Option<BlockHash>, hashes: &[BlockHash], ends: &[u8]) {
        let mut depth = parent.and_then(|p| self.depth(column.plane(), tier, p)).unwrap_or(0);
        for (part, some) in hashes.chunks(STRIDE).enumerate() {
            if ends.is_empty() && self.store_run(column, tier, some, &mut depth) {
                continue;
            }
            self.warm(column.plane(), some);
            for (i, hash) in some.iter().enumerate() {
                depth += deeper(*hash);
                let end = hit_ends_at(ends, part * STRIDE + i);
                let bit = column.bit();
                self.set(column.plane(), tier as usize, *hash, bit, (bit, if end { bit } else { 0 }), depth);
            }
        }
    }

    /// Stores blocks at each of which a hit may end, where the column has no others. False: it does, or there is no
    /// room without thinking.
    fn store_run(&mut self, column: Column, tier: Tier, hashes: &[BlockHash], depth: &mut u64) -> bool {
        let (bit, place) = (column.bit(), table_of(tier as usize, true));
        let Some(plane) = self.planes.get_mut(column.plane()) else { return false };
        let others = plane.tables.get(table_of(tier as usize, false)).is_some_and(Option::is_some);
        if others || plane.live & bit == 0 || self.bytes.saturating_add(STRIDE << 10) >= self.max_bytes {
            return false;
        }
        let Some(Some(table)) = plane.tables.get_mut(place) else { return false };
        let mut lost = Lost::default();
        let free = self.max_bytes.saturating_sub(self.bytes);
        let mut room = Room { free, evicted: &mut |slot| lost.0.push(slot), headroom: &mut self.headroom };
        let before = table.bytes();
        let new = table.set_all(hashes, bit, depth, self.seed, &mut room);
        self.bytes = (self.bytes + table.bytes()).saturating_sub(before);
        count(&mut self.counts, column, tier as usize, new as i32);
        self.lose(column.plane(), place, lost);
        true
    }

    /// `column` no longer holds `hash` in `tier`.
    pub fn remove(&mut self, column: Column, tier: Tier, hash: BlockHash) {
        let Some(plane) = self.planes.get_mut(column.plane()).filter(|p| p.live & column.bit() != 0) else { return };
        for end in [true, false] {
            if let Some(Some(table)) = plane.tables.get_mut(table_of(tier as usize, end))
                && table.remove(hash, column.bit(), self.seed) != 0
            {
                count(&mut self.counts, column, tier as usize, -1);
            }
        }
    }

    /// `column` no longer holds any of `hashes` in `tier`.
    pub fn remove_all(&mut self, column: Column, tier: Tier, hashes: &[BlockHash]) {
        let Some(plane) = self.planes.get_mut(column.plane()).filter(|p| p.live & column.bit() != 0) else { return };
        for end in [true, false] {
            if let Some(Some(table)) = plane.tables.get_mut(table_of(tier as usize, end)) {
                let gone = table.remove_all(hashes, column.bit(), self.seed);
                count(&mut self.counts, column, tier as usize, -(gone as i32));
            }
        }
    }

    /// Brings what lookups of `hashes` will read into the processor's cache. A few dozen at a time make sense.
    pub(super) fn warm(&self, plane: usize, hashes: &[BlockHash]) {
        if hashes.len() < 2 {
            return;
        }
        let tables = self.planes.get(plane).map(|p| p.tables.as_slice()).unwrap_or_default();
        for some in hashes.chunks(TOGETHER) {
            tables.iter().flatten().for_each(|table| _ = table.warm(some, self.seed));
        }
    }

    /// Of each of `hashes`, at most [`TOGETHER`], those holders in one plane that have it on the accelerator and
    /// where a hit may end.
    pub(super) fn get_all(&self, plane: usize, hashes: &[BlockHash]) -> [u64; TOGETHER] {
        let table = self.planes.get(plane).and_then(|p| Some((p.live, p.tables.first()?.as_ref()?)));
        let Some((live, table)) = table else { return [0; TOGETHER] };
        table.get_all(hashes, self.seed).map(|held| held & live)
    }

    /// The holders of `hash` in one tier and plane, and of them those where a hit may end.
    pub(super) fn get(&self, plane: usize, tier: usize, hash: BlockHash) -> (u64, u64) {
        let Some(plane) = self.planes.get(plane) else { return (0, 0) };
        let held = |end| match plane.tables.get(table_of(tier, end)) {
            Some(Some(table)) => table.get(hash, self.seed) & plane.live,
            _ => 0,
        };
        let ends = held(true);
        (ends | held(false), ends)
    }

    /// Slots of a segment.
    fn size(&self, plane: usize, tier: usize, segment: usize) -> usize {
        let of =
            |p: &Plane, end| p.tables.get(table_of(tier, end)).and_then(|t| t.as_ref()).map_or(0, |t| t.size(segment));
        self.planes.get(plane).map_or(0, |p| of(p, true) + of(p, false))
    }

    /// Whether there is a table at all.
    fn has(&self, plane: usize, tier: usize) -> bool {
        let there = |p: &Plane, end| p.tables.get(table_of(tier, end)).is_some_and(Option::is_some);
        self.planes.get(plane).is_some_and(|p| there(p, true) || there(p, false))
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

    /// Of a plane, the columns of which blocks had to be given up.
    pub(super) fn truncated_in(&self, plane: usize) -> u64 {
        self.planes.get(plane).map_or(0, |p| p.truncated)
    }

    /// Whether blocks of a column had to be given up.
    pub fn truncated(&self, column: Column) -> bool {
        self.planes.get(column.plane()).is_some_and(|p| p.truncated & column.bit() != 0)
    }

    /// Blocks held by anybody, counted once a table.
    pub fn entries(&self) -> usize {
        self.planes.iter().flat_map(|p| p.tables.iter().flatten()).map(|t| t.entries()).sum()
    }

    /// What it holds and costs.
    pub fn stats(&self) -> IndexStats {
        IndexStats {
            entries: self.entries(),
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
            for tier in Tier::ALL {
                for end in [true, false] {
                    let Some(Some(table)) = plane.tables.get(table_of(tier as usize, end)) else { continue };
                    for (hash, holders) in (0..SEGMENTS).flat_map(|at| table.segment_entries(at)) {
                        out.extend(bits(holders & plane.live).map(|bit| (Column::at(number, bit), tier, hash, end)));
                    }
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// The digest of a drawer: `of` gives for each plane whom its columns stand for.
    pub fn digest(&self, drawer: usize, of: &[Holders]) -> u64 {
        let mut sum = 0u64;
        for (plane, of) in self.planes.iter().zip(of) {
            for tier in Tier::ALL {
                for end in [true, false] {
                    let Some(Some(table)) = plane.tables.get(table_of(tier as usize, end)) else { continue };
                    for (hash, holders) in table.segment_entries(drawer) {
                        let of = of.sum(holders & plane.live, if end { u64::MAX } else { 0 });
                        sum = sum.wrapping_add(digest::block(hash, tier).wrapping_mul(of));
                    }
                }
            }
        }
        sum
    }

    fn depth(&self, plane: usize, tier: Tier, hash: BlockHash) -> Option<u64> {
        let plane = self.planes.get(plane)?;
        let of = |end| plane.tables.get(table_of(tier as usize, end))?.as_ref()?.depth(hash, self.seed);
        of(true).or_else(|| of(false))
    }

    /// Within `cover`, makes `held` the (holders, ends) of `hash`.
    fn set(&mut self, plane: usize, tier: usize, hash: BlockHash, cover: u64, held: (u64, u64), depth: u64) {
        let Some(cover) = self.planes.get(plane).map(|p| p.live & cover).filter(|cover| *cover != 0) else { return };
        let new = held.0 & cover;
        let ends = self.set_in(plane, table_of(tier, true), hash, cover, new & held.1, depth);
        let others = self.set_in(plane, table_of(tier, false), hash, cover, new & !held.1, depth);
        let old = ends | others;
        if old != new {
            bits(new & !old).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, 1));
            bits(old & !new).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, -1));
        }
    }

    /// Within `cover`, makes `holders` those of `hash` in one table. Gives those before.
    fn set_in(&mut self, plane: usize, place: usize, hash: BlockHash, cover: u64, holders: u64, depth: u64) -> u64 {
        if holders == 0 {
            let table = self.planes.get_mut(plane).and_then(|p| p.tables.get_mut(place)?.as_mut());
            return table.map_or(0, |table| table.remove(hash, cover, self.seed));
        }
        if self.bytes >= self.max_bytes {
            self.balance(plane, place);
        }
        let Some(slot) = self.planes.get_mut(plane).and_then(|p| p.tables.get_mut(place)) else { return 0 };
        let made = slot.is_none();
        let table = slot.get_or_insert_with(|| Box::new(Table::new()));
        let before = if made { 0 } else { table.bytes() };
        let mut lost = Lost::default();
        let free = self.max_bytes.saturating_sub(self.bytes);
        let mut room = Room { free, evicted: &mut |slot| lost.0.push(slot), headroom: &mut self.headroom };
        let old = table.set(hash, (cover, holders), depth, self.seed, &mut room);
        self.bytes = (self.bytes + table.bytes()).saturating_sub(before);
        self.lose(plane, place, lost);
        old
    }

    /// Books what had to be given up.
    fn lose(&mut self, plane: usize, place: usize, lost: Lost) {
        let tier = place >> 1;
        let Some(state) = self.planes.get_mut(plane) else { return };
        for slot in lost.0 {
            self.evicted += 1;
            let holders = slot.holders & state.live;
            state.truncated |= holders;
            bits(holders).for_each(|bit| count(&mut self.counts, Column::at(plane, bit), tier, -1));
        }
    }

    /// Over the bound: a table with less than its share gets room from the largest one.
    fn balance(&mut self, plane: usize, place: usize) {
        let mut tables = 0;
        let (mut largest, mut own) = ((0, 0, 0), 0);
        for (p, state) in self.planes.iter().enumerate() {
            for (t, table) in state.tables.iter().enumerate() {
                let bytes = table.as_ref().map_or(0, |table| table.bytes());
                tables += usize::from(bytes > 0);
                if (p, t) == (plane, place) {
                    own = bytes;
                }
                if bytes > largest.0 {
                    largest = (bytes, p, t);
                }
            }
        }
        let share = self.max_bytes.checked_div(tables.max(1)).unwrap_or(0);
        if own >= share || (largest.1, largest.2) == (plane, place) || largest.0 <= Table::empty_bytes() {
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
                let (mut at, mut looked) = (segment, 0);
                while at <= last && looked < SLOTS_AT_ONCE {
                    looked += 1 + index.size(plane, tier, at as usize);
                    self.repaired += rewrite(index, (plane, tier, at as usize), (self.from, self.through), cover, want);
                    at += 1;
                }
                self.at = Some((plane, tier, at));
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
    let Some(state) = index.planes.get(plane) else { return 0 };
    let cover = cover & state.live;
    let mut here: Vec<BlockHash> = Vec::new();
    for end in [true, false] {
        if let Some(Some(table)) = state.tables.get(table_of(tier, end)) {
            let within = |(hash, _): &(BlockHash, u64)| (from..=through).contains(&hash.0);
            here.extend(table.segment_entries(segment).filter(within).map(|(hash, _)| hash));
        }
    }
    let mut repaired = 0;
    // One that is in both tables is looked at once.
    here.sort_unstable();
    here.dedup();
    for hash in here {
        let (holders, ends) = index.get(plane, tier, hash);
        let (wanted, wanted_ends) = want.remove(&hash.0).unwrap_or_default();
        let (wanted, wanted_ends) = (wanted & cover, wanted_ends & wanted & cover);
        let wrong = ((holders & cover) ^ wanted) | ((ends & cover) ^ wanted_ends);
        if wrong != 0 {
            repaired += u64::from(wrong.count_ones());
            index.set(plane, tier, hash, cover, (wanted, wanted_ends), 0);
        }
    }
    repaired
}
