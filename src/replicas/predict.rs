//! Blocks that replicas are about to hold: a layer of its own over the index.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_table::{Entry, HashTable};

use super::book::BookingId;
use crate::blocks::BlockHash;
use crate::clock::Time;
use crate::index::Column;

/// Predicted blocks kept at most; past it the oldest bookings lose theirs.
const MAX_BLOCKS: usize = 1 << 17;

#[derive(Clone, Copy, Debug)]
struct Predicted {
    hash: BlockHash,
    holders: u64,
    /// The booking that predicted it last, as long as that stands; else [`NOBODY`].
    by: BookingId,
}

/// No booking has this number.
const NOBODY: BookingId = BookingId(0);

#[derive(Debug)]
struct Group {
    column: Column,
    hashes: Vec<BlockHash>,
    /// Of `hashes`, at most so many are still predicted because of this booking.
    left: usize,
}

/// The layer.
#[derive(Debug)]
pub struct Predictions {
    /// Of this VM: nobody outside can prepare hashes that lie in one place.
    seed: u64,
    planes: Vec<HashTable<Predicted>>,
    groups: HashMap<BookingId, Group>,
    oldest: VecDeque<BookingId>,
    expiring: VecDeque<(Time, BookingId)>,
    blocks: usize,
}

/// Where a block lies: it is a hash already, so one multiplication is enough.
fn place(seed: u64, hash: BlockHash) -> u64 {
    let mixed = (hash.0 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ (seed << 1));
    mixed ^ (mixed >> 32)
}

impl Predictions {
    /// Empty. `seed` must be secret.
    pub fn new(seed: u64) -> Self {
        Predictions {
            seed,
            planes: Vec::new(),
            groups: HashMap::new(),
            oldest: VecDeque::new(),
            expiring: VecDeque::new(),
            blocks: 0,
        }
    }

    /// `column` will hold `hashes` because of `by`. Those predicted there already stay with their booking.
    pub fn add(&mut self, by: BookingId, column: Column, mut hashes: Vec<BlockHash>) {
        if self.planes.len() <= column.plane() {
            self.planes.resize_with(column.plane() + 1, HashTable::new);
        }
        let Some(plane) = self.planes.get_mut(column.plane()) else { return };
        let group = self.groups.entry(by).or_insert_with(|| {
            self.oldest.push_back(by);
            Group { column, hashes: Vec::new(), left: 0 }
        });
        if group.column != column {
            return;
        }
        let (seed, bit) = (self.seed, column.bit());
        hashes.retain(|hash| {
            let hasher = |other: &Predicted| place(seed, other.hash);
            match plane.entry(place(seed, *hash), |other| other.hash == *hash, hasher) {
                Entry::Vacant(free) => drop(free.insert(Predicted { hash: *hash, holders: bit, by })),
                Entry::Occupied(entry) if entry.get().holders & bit != 0 => return false,
                Entry::Occupied(mut entry) => {
                    entry.get_mut().holders |= bit;
                    entry.get_mut().by = by;
                }
            }
            true
        });
        group.left += hashes.len();
        self.blocks += hashes.len();
        match group.hashes.is_empty() {
            true => group.hashes = hashes,
            false => group.hashes.extend(hashes),
        }
        while self.blocks > MAX_BLOCKS {
            let Some(oldest) = self.oldest.pop_front() else { break };
            self.drop(oldest);
        }
        // Bookings that are gone leave their number in the queue.
        if self.oldest.len() > 64 + 4 * self.groups.len() {
            let groups = &self.groups;
            self.oldest.retain(|id| groups.contains_key(id));
        }
    }

    /// The predicted holders of a block.
    pub fn holders(&self, plane: usize, hash: BlockHash) -> u64 {
        match self.planes.get(plane) {
            Some(table) if !table.is_empty() => {
                table.find(place(self.seed, hash), |p| p.hash == hash).map_or(0, |p| p.holders)
            }
            _ => 0,
        }
    }

    /// Nothing is predicted.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Blocks predicted, counted once a replica.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks predicted for each column, by its index.
    pub fn by_column(&self) -> Vec<u32> {
        let mut counts = vec![[0u32; 64]; self.planes.len()];
        for (plane, counts) in self.planes.iter().zip(&mut counts) {
            for predicted in plane {
                let mut holders = predicted.holders;
                while holders != 0 {
                    if let Some(count) = counts.get_mut(holders.trailing_zeros() as usize) {
                        *count += 1;
                    }
                    holders &= holders - 1;
                }
            }
        }
        counts.concat()
    }

    /// An event says that `column` holds these blocks: no predictions any more. `seen` is told the bookings that made
    /// them, with how many in a row.
    pub fn stored(&mut self, column: Column, hashes: &[BlockHash], mut seen: impl FnMut(BookingId, usize)) {
        let mut run: Option<(BookingId, usize)> = None;
        for hash in hashes {
            let Some(predicted) = self.take(column, *hash) else { continue };
            match &mut run {
                Some((by, count)) if *by == predicted.by => *count += 1,
                _ => {
                    if let Some((by, count)) = run.replace((predicted.by, 1)) {
                        self.taken(by, column, count);
                        seen(by, count);
                    }
                }
            }
        }
        if let Some((by, count)) = run {
            self.taken(by, column, count);
            seen(by, count);
        }
    }

    /// The booking failed or moved: nothing will come of its predictions.
    pub fn drop(&mut self, by: BookingId) {
        let Some(group) = self.groups.remove(&by) else { return };
        for hash in group.hashes {
            // What was stored meanwhile may be predicted again, by a younger booking.
            let whose = self.planes.get(group.column.plane());
            let whose = whose.and_then(|p| p.find(place(self.seed, hash), |p| p.hash == hash)).map(|p| p.by);
            let column = |by: &BookingId| self.groups.get(by).map(|group| group.column);
            if whose.is_none_or(|whose| whose == by || column(&whose) != Some(group.column)) {
                self.take(group.column, hash);
            }
        }
    }

    /// The predictions of a booking go at `at`, if no event has come by then.
    pub fn expire(&mut self, by: BookingId, at: Time) {
        if self.groups.contains_key(&by) {
            self.expiring.push_back((at, by));
        }
    }

    /// Lets go of what has expired.
    pub fn tick(&mut self, now: Time) {
        while let Some((at, by)) = self.expiring.front().copied()
            && at <= now
        {
            self.expiring.pop_front();
            self.drop(by);
        }
    }

    /// The column belongs to nobody any more.
    pub fn close(&mut self, column: Column) {
        let gone: Vec<_> = self.groups.iter().filter(|(_, g)| g.column == column).map(|(by, _)| *by).collect();
        for by in gone {
            self.drop(by);
        }
    }

    /// The VM of this slot is dead.
    pub fn drop_slot(&mut self, slot: u32) {
        let first = super::peers::foreign_booking(slot, 0).0 >> 40;
        let gone: Vec<_> = self.groups.keys().filter(|by| by.0 >> 40 == first).copied().collect();
        for by in gone {
            self.drop(by);
        }
    }

    /// So many blocks of a booking are none of it any more.
    fn taken(&mut self, by: BookingId, column: Column, count: usize) {
        // Another one's, if it was predicted for another replica last.
        let Some(group) = self.groups.get_mut(&by).filter(|group| group.column == column) else { return };
        group.left = group.left.saturating_sub(count);
        if group.left == 0 {
            group.hashes = Vec::new();
        }
    }

    fn take(&mut self, column: Column, hash: BlockHash) -> Option<Predicted> {
        let plane = self.planes.get_mut(column.plane())?;
        let mut entry = plane.find_entry(place(self.seed, hash), |p| p.hash == hash).ok()?;
        let predicted = entry.get_mut();
        if predicted.holders & column.bit() == 0 {
            return None;
        }
        predicted.holders &= !column.bit();
        let found = *predicted;
        if found.holders == 0 {
            entry.remove();
        } else if self.groups.get(&found.by).is_none_or(|group| group.column == column) {
            predicted.by = NOBODY;
        }
        self.blocks = self.blocks.saturating_sub(1);
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::index::Index;

    fn columns() -> [Column; 2] {
        let mut index = Index::new(1 << 20, 1);
        [index.open().unwrap(), index.open().unwrap()]
    }

    fn hashes(range: std::ops::Range<u64>) -> Vec<BlockHash> {
        range.map(|i| BlockHash(i.wrapping_mul(0xD6E8_FEB8_6659_FD93))).collect()
    }

    /// Random bookings, events and expiries beside a plain map of who predicted what. Of a block that several replicas
    /// are to hold only the last booking is known, so more may go than should, and then belong to another booking.
    fn beside_a_plain_map(columns: &[Column]) {
        let exact = columns.len() == 1;
        let all = hashes(0..300);
        let mut layer = Predictions::new(7);
        let mut plain: BTreeMap<(BlockHash, usize), Vec<u64>> = BTreeMap::new();
        let mut places: BTreeMap<u64, usize> = BTreeMap::new();
        let mut state = 1u64;
        let mut dice = |sides: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % sides
        };
        for step in 0..3000 {
            let (at, from, len, by) = (dice(columns.len()), dice(280), dice(20), 1 + dice(40) as u64);
            let (column, run) = (columns[at], &all[from..from + len]);
            match dice(4) {
                0 | 1 => {
                    layer.add(BookingId(by), column, run.to_vec());
                    if *places.entry(by).or_insert(at) == at {
                        for hash in run {
                            let owners = plain.entry((*hash, at)).or_default();
                            if !exact || owners.is_empty() {
                                owners.push(by);
                            }
                        }
                    }
                }
                2 => {
                    let mut seen = 0;
                    layer.stored(column, run, |_, count| seen += count);
                    let known = run.iter().filter(|hash| plain.remove(&(**hash, at)).is_some()).count();
                    assert!(seen == known || !exact && seen < known);
                }
                _ => {
                    layer.drop(BookingId(by));
                    places.remove(&by);
                    plain.retain(|_, owners| {
                        owners.retain(|owner| *owner != by);
                        !owners.is_empty()
                    });
                }
            }
            for (hash, (at, column)) in all.iter().flat_map(|hash| columns.iter().enumerate().map(move |c| (hash, c))) {
                let (held, known) = (layer.holders(0, *hash) & column.bit() != 0, plain.contains_key(&(*hash, at)));
                assert!(held == known || !exact && !held, "step {step}: {hash:?} on {at}");
            }
        }
        assert!(!layer.is_empty());
        (1..=40).for_each(|by| layer.drop(BookingId(by)));
        assert!(layer.is_empty() && layer.planes.iter().all(|plane| plane.is_empty()));
    }

    #[test]
    fn of_one_replica_is_what_a_plain_map_says() {
        beside_a_plain_map(&columns()[..1]);
    }

    #[test]
    fn of_several_replicas_is_never_more_than_a_plain_map_says() {
        beside_a_plain_map(&columns());
    }
}
