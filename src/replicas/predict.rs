//! Blocks that replicas are about to hold: a layer of its own over the index.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::book::BookingId;
use crate::blocks::BlockHash;
use crate::clock::Time;
use crate::index::Column;

/// Predicted blocks kept at most; past it the oldest bookings lose theirs.
const MAX_BLOCKS: usize = 1 << 17;

#[derive(Clone, Copy, Debug)]
struct Predicted {
    holders: u64,
    /// The booking that predicted it last.
    by: BookingId,
}

#[derive(Debug)]
struct Group {
    column: Column,
    hashes: Vec<BlockHash>,
}

/// The layer.
#[derive(Debug, Default)]
pub struct Predictions {
    planes: Vec<HashMap<BlockHash, Predicted>>,
    groups: HashMap<BookingId, Group>,
    oldest: VecDeque<BookingId>,
    expiring: VecDeque<(Time, BookingId)>,
    blocks: usize,
}

impl Predictions {
    /// `column` will hold `hashes` because of `by`. Those predicted there already stay with their booking.
    pub fn add(&mut self, by: BookingId, column: Column, hashes: &[BlockHash]) {
        if self.planes.len() <= column.plane() {
            self.planes.resize_with(column.plane() + 1, HashMap::new);
        }
        let Some(plane) = self.planes.get_mut(column.plane()) else { return };
        let group = self.groups.entry(by).or_insert_with(|| {
            self.oldest.push_back(by);
            Group { column, hashes: Vec::new() }
        });
        if group.column != column {
            return;
        }
        for hash in hashes {
            let predicted = plane.entry(*hash).or_insert(Predicted { holders: 0, by });
            if predicted.holders & column.bit() == 0 {
                *predicted = Predicted { holders: predicted.holders | column.bit(), by };
                group.hashes.push(*hash);
                self.blocks += 1;
            }
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
            Some(map) if !map.is_empty() => map.get(&hash).map_or(0, |p| p.holders),
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
            for predicted in plane.values() {
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

    /// An event says that `column` holds the block: no prediction any more. Gives the booking that made it.
    pub fn stored(&mut self, column: Column, hash: BlockHash) -> Option<BookingId> {
        let predicted = self.take(column, hash)?;
        Some(predicted.by)
    }

    /// The booking failed or moved: nothing will come of its predictions. Gives what they were.
    pub fn drop(&mut self, by: BookingId) -> Vec<BlockHash> {
        let Some(group) = self.groups.remove(&by) else { return Vec::new() };
        group.hashes.into_iter().filter(|hash| self.take(group.column, *hash).is_some()).collect()
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

    fn take(&mut self, column: Column, hash: BlockHash) -> Option<Predicted> {
        let plane = self.planes.get_mut(column.plane())?;
        let predicted = plane.get_mut(&hash).filter(|p| p.holders & column.bit() != 0)?;
        predicted.holders &= !column.bit();
        let found = *predicted;
        if found.holders == 0 {
            plane.remove(&hash);
        }
        self.blocks = self.blocks.saturating_sub(1);
        Some(found)
    }
}
