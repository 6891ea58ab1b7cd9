//! What is believed, and how the feed changes it.

use super::approx::Recent;
use super::book::Book;
use super::homes::Homes;
use super::members::{Change, Members, Replica, ReplicaIdx};
use super::peers::Peers;
use super::predict::Predictions;
use crate::blocks::BlockHash;
use crate::clock::{Budget, MS, Time};
use crate::feed::FeedReplicaId;
use crate::feed::digest::Holders;
use crate::feed::record::{LoadReport, Record, ReplicaInfo, Tier, Trust};
use crate::feed::snapshot::Snapshot;
use crate::feed::sync::Target;
use crate::index::{Column, Index, RangeJob};

/// Everything that is believed.
#[derive(Debug)]
pub(super) struct World {
    pub members: Members,
    pub index: Index,
    pub book: Book,
    pub peers: Peers,
    /// What the peers have, by replica.
    pub foreign: Vec<super::book::Load>,
    pub predictions: Predictions,
    pub homes: Homes,
    pub recent: Vec<Recent>,
    ranging: Option<Ranging>,
    /// By plane, whom the columns stand for in the feed.
    holders: Vec<Holders>,
    /// Somebody had no column for a while, so blocks were missed.
    pub missed: bool,
}

/// A snapshot on its way into the index.
#[derive(Debug)]
struct Ranging {
    snapshot: Snapshot,
    record: usize,
    block: usize,
    job: RangeJob,
}

impl World {
    pub fn new(max_bytes: usize, seed: u64) -> Self {
        World {
            members: Members::default(),
            index: Index::new(max_bytes, seed),
            book: Book::default(),
            peers: Peers::default(),
            foreign: Vec::new(),
            predictions: Predictions::new(seed.rotate_left(21)),
            homes: Homes::default(),
            recent: Vec::new(),
            ranging: None,
            holders: Vec::new(),
            missed: false,
        }
    }

    /// Takes in a replica. True: what it is or where its blocks are told has changed.
    pub fn upsert(&mut self, info: &ReplicaInfo, from_feed: bool) -> bool {
        match self.members.upsert(info, from_feed) {
            Some(Change::New(idx)) => {
                self.renew(idx);
                self.refresh_foreign(idx);
                true
            }
            Some(Change::Other(idx)) => {
                self.renew(idx);
                true
            }
            Some(Change::Events(_)) => true,
            Some(Change::Details(_) | Change::Same(_)) | None => false,
        }
    }

    /// A replica holds nothing from here on: a fresh column.
    pub fn renew(&mut self, idx: ReplicaIdx) {
        let fresh = self.index.open();
        let Some(replica) = self.members.get_mut(idx) else { return };
        self.missed |= fresh.is_none();
        if let Some(old) = std::mem::replace(&mut replica.column, fresh) {
            self.close(old);
        }
        if let Some(recent) = self.recent.get_mut(usize::from(idx.0)) {
            *recent = Recent::default();
        }
    }

    /// Lets a replica go with everything about it; one that the configuration names stays, without blocks.
    pub fn leave(&mut self, idx: ReplicaIdx) {
        let Some(replica) = self.members.get_mut(idx) else { return };
        if replica.fixed {
            (replica.trust, replica.reported) = (Trust::NoEvents, None);
            self.renew(idx);
            return;
        }
        if let Some(column) = self.members.remove(idx).and_then(|replica| replica.column) {
            self.close(column);
        }
        self.book.forget(idx);
        self.homes.forget(idx);
        if let Some(foreign) = self.foreign.get_mut(usize::from(idx.0)) {
            *foreign = Default::default();
        }
        if let Some(recent) = self.recent.get_mut(usize::from(idx.0)) {
            *recent = Recent::default();
        }
    }

    /// Columns for those that got none.
    pub fn reopen(&mut self) {
        let without: Vec<_> = self.members.iter().filter(|(_, r)| r.column.is_none()).map(|(idx, _)| idx).collect();
        for idx in without {
            let fresh = self.index.open();
            if let Some(replica) = self.members.get_mut(idx) {
                replica.column = fresh;
            }
        }
    }

    /// The replica without events used these blocks.
    pub fn used(&mut self, idx: ReplicaIdx, hashes: &[BlockHash]) {
        let Some(replica) = self.members.get(idx) else { return };
        let (Some(column), capacity) = (replica.column, replica.capacity_blocks) else { return };
        let at = usize::from(idx.0);
        if self.recent.len() <= at {
            self.recent.resize_with(at + 1, Recent::default);
        }
        if let Some(recent) = self.recent.get_mut(at) {
            recent.used(&mut self.index, column, hashes, capacity);
        }
    }

    /// The sum of what the peers have on a replica is another one.
    pub fn refresh_foreign(&mut self, idx: ReplicaIdx) {
        let Some(key) = self.members.get(idx).map(|r| r.key) else { return };
        let at = usize::from(idx.0);
        if self.foreign.len() <= at {
            self.foreign.resize(at + 1, Default::default());
        }
        if let Some(foreign) = self.foreign.get_mut(at) {
            *foreign = self.peers.load(key);
        }
    }

    fn close(&mut self, column: Column) {
        self.index.close(column);
        self.predictions.close(column);
    }

    fn column(&self, id: FeedReplicaId) -> Option<(ReplicaIdx, Option<Column>)> {
        let idx = self.members.of_feed(id)?;
        Some((idx, self.members.get(idx)?.column))
    }
}

impl Target for World {
    fn new_epoch(&mut self) {
        self.members.forget_numbers();
    }

    fn replica(&mut self, info: &ReplicaInfo, _now: Time) -> bool {
        self.upsert(info, true)
    }

    fn gone(&mut self, id: FeedReplicaId, _now: Time) {
        if let Some(idx) = self.members.of_feed(id) {
            self.leave(idx);
        }
    }

    fn cleared(&mut self, id: FeedReplicaId, _now: Time) {
        if let Some(idx) = self.members.of_feed(id) {
            self.renew(idx);
        }
    }

    fn load(&mut self, id: FeedReplicaId, load: &LoadReport, now: Time) {
        let read = Time(now.0.saturating_sub(u64::from(load.age_ms).saturating_mul(MS)));
        let Some(idx) = self.members.of_feed(id) else { return };
        let foreign = self.foreign.get(usize::from(idx.0)).copied().unwrap_or_default();
        let booked = self.book.own(idx).plus(foreign).requests;
        if let Some(replica) = self.members.get_mut(idx) {
            replica.reported = Some((*load, read));
            // Told apart now: what is booked or ends later says nothing of those that others sent.
            replica.others = load.running.saturating_add(load.waiting).saturating_sub(booked);
        }
    }

    fn stored(
        &mut self,
        id: FeedReplicaId,
        tier: Tier,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        ends: &[u8],
    ) -> bool {
        let Some((idx, column)) = self.column(id) else { return false };
        let Some(column) = column else { return true };
        self.index.store(column, tier, parent, hashes, ends);
        if !self.predictions.is_empty() {
            let block_size = self.members.get(idx).map_or(0, |r| r.block_size);
            let book = &mut self.book;
            let blocks = |count| f64::from(block_size) * count as f64;
            self.predictions.stored(column, hashes, |by, count| book.prefilled(by, idx, blocks(count)));
        }
        true
    }

    fn removed(&mut self, id: FeedReplicaId, tier: Tier, hashes: &[BlockHash]) {
        if let Some((_, Some(column))) = self.column(id) {
            self.index.remove_all(column, tier, hashes);
        }
    }

    fn only(&mut self, ids: &[FeedReplicaId], _now: Time) {
        let listed = |feed: Option<FeedReplicaId>| feed.is_some_and(|id| ids.contains(&id));
        let only_named = |r: &Replica| r.fixed && r.feed.is_none() && r.trust == Trust::NoEvents;
        let members = self.members.iter();
        let gone: Vec<_> = members.filter(|(_, r)| !(listed(r.feed) || only_named(r))).map(|(idx, _)| idx).collect();
        gone.into_iter().for_each(|idx| self.leave(idx));
    }

    fn range_begin(&mut self, snapshot: Snapshot) {
        // What is held without events is not the bridge's to say.
        let columns = self.members.iter().filter(|(_, r)| r.feed.is_some() && r.trust != Trust::NoEvents);
        let job = RangeJob::new(snapshot.from, snapshot.through, columns.filter_map(|(_, r)| r.column));
        self.ranging = Some(Ranging { snapshot, record: 0, block: 0, job });
    }

    fn digest_begin(&mut self) -> usize {
        self.holders.clear();
        let told = self.members.iter().filter(|(_, r)| r.trust != Trust::NoEvents);
        for (id, column) in told.filter_map(|(_, r)| Some((r.feed?, r.column?))) {
            if self.holders.len() <= column.plane() {
                self.holders.resize(column.plane() + 1, Holders::default());
            }
            if let Some(holders) = self.holders.get_mut(column.plane()) {
                holders.set(column.bit().trailing_zeros(), id);
            }
        }
        self.index.entries()
    }

    fn digest(&mut self, drawer: usize) -> u64 {
        self.index.digest(drawer, &self.holders)
    }

    fn range_apply(&mut self, budget: Budget<'_>) -> Option<u64> {
        let Some(mut ranging) = self.ranging.take() else { return Some(0) };
        if self.gather(&mut ranging, budget) && ranging.job.apply(&mut self.index, budget) {
            return Some(ranging.job.repaired);
        }
        self.ranging = Some(ranging);
        None
    }
}

/// Blocks of a snapshot taken up between two looks at the budget.
const STRIDE: usize = 256;

impl World {
    /// Hands the blocks of the snapshot to the job. True: all of them.
    fn gather(&self, ranging: &mut Ranging, budget: Budget<'_>) -> bool {
        while let Some(record) = ranging.snapshot.records.get(ranging.record) {
            let Record::Held { tier, replicas, blocks } = record else {
                ranging.record += 1;
                continue;
            };
            let columns: Vec<Option<Column>> =
                replicas.iter().map(|id| self.column(*id).and_then(|(_, column)| column)).collect();
            while let Some(some) = blocks.get(ranging.block..).filter(|rest| !rest.is_empty()) {
                if !budget() {
                    return false;
                }
                for (hash, holders, ends) in some.iter().take(STRIDE) {
                    for (bit, column) in columns.iter().enumerate() {
                        if let Some(column) = column
                            && holders >> bit & 1 != 0
                        {
                            ranging.job.hold(*column, *tier, *hash, ends >> bit & 1 != 0);
                        }
                    }
                }
                ranging.block += some.len().min(STRIDE);
            }
            (ranging.record, ranging.block) = (ranging.record + 1, 0);
        }
        true
    }
}
