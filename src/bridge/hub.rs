//! What goes to the Envoys: one sequence of batches for all of them, and the state that snapshots are cut from.
//!
//! Changes are collected and sealed into a frame when somebody is ready to send it, so a slow receiver gets fewer
//! and larger frames. Sealed frames stay in a bounded ring; every Envoy's sender keeps its own place in it. A
//! place that fell off the ring skips ahead: the workers see the hole in the numbers and pull snapshots.
//!
//! A new term begins the numbers anew (see [`crate::feed`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use super::shards::Shards;
use crate::blocks::BlockHash;
use crate::feed::batch::{Batch, BatchHeader};
use crate::feed::digest::{Digests, bounds, drawer};
use crate::feed::record::{LoadReport, Record, ReplicaInfo, Tier, Trust, hit_ends_at};
use crate::feed::snapshot::{MAX_ANSWER_BYTES, Snapshot};
use crate::feed::{Epoch, FeedReplicaId};

/// A batch of nothing goes out when there was none for so long.
pub const HEARTBEAT: Duration = Duration::from_millis(100);
/// Changes wait for company until the last batch is so old. The first ones after a pause go out at once; of many, each
/// batch costs every worker a turn, and what an engine does in one of its steps comes in pieces.
const LINGER: Duration = Duration::from_millis(4);
/// Bytes of records in one frame, give or take one record.
const FRAME_BYTES: usize = 256 << 10;
/// Entries looked at for one answer of digests, which takes some milliseconds.
const MAX_DIGESTED: usize = 1 << 20;

/// A sealed batch.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its number.
    pub seq: u64,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A sender's place: the next frame to send, of a term.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    term: u64,
    next: u64,
    /// Frames that it skipped, because they fell off the ring.
    pub skipped: u64,
}

impl Place {
    /// The frame was taken.
    pub fn advance(&mut self) {
        self.next += 1;
    }
}

/// What a sender does next.
#[derive(Clone, Debug)]
pub enum Next {
    /// Send this.
    Send(Frame),
    /// Nothing yet: wait for a change, at most so long.
    Wait(Duration),
}

#[derive(Default)]
struct Entry {
    /// None between [`Hub::reserve`] and [`Hub::replica`].
    info: Option<ReplicaInfo>,
    load: Option<(LoadReport, Instant)>,
}

struct Inner {
    epoch: Epoch,
    seq: u64,
    sealed_at: Instant,
    pending: Vec<Record>,
    pending_bytes: usize,
    ring: VecDeque<Frame>,
    ring_bytes: usize,
    max_ring_bytes: usize,
    replicas: BTreeMap<FeedReplicaId, Entry>,
    shards: Shards,
}

/// See the module.
pub struct Hub {
    inner: Mutex<Inner>,
    changed: watch::Sender<()>,
}

/// Numbers for metrics.
#[derive(Clone, Copy, Debug)]
pub struct HubStats {
    /// Term and epoch.
    pub epoch: Epoch,
    /// Last batch.
    pub seq: u64,
    /// Bytes of frames kept.
    pub ring_bytes: usize,
    /// Blocks times tiers times groups of 64 replicas.
    pub entries: usize,
}

impl Hub {
    /// An empty one of a new epoch; keeps `max_ring_bytes` of sealed frames.
    pub fn new(max_ring_bytes: usize) -> Arc<Hub> {
        let inner = Inner {
            epoch: Epoch { term: 1, id: rand::random::<u64>().max(1) },
            seq: 0,
            sealed_at: Instant::now(),
            pending: Vec::new(),
            pending_bytes: 0,
            ring: VecDeque::new(),
            ring_bytes: 0,
            max_ring_bytes,
            replicas: BTreeMap::new(),
            shards: Shards::default(),
        };
        Arc::new(Hub { inner: Mutex::new(inner), changed: watch::Sender::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes when there may be something to send.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The lowest number that no replica has; the replica is told to the feed by [`Hub::replica`].
    pub fn reserve(&self) -> FeedReplicaId {
        let mut inner = self.lock();
        let id = FeedReplicaId((0..).find(|n| !inner.replicas.contains_key(&FeedReplicaId(*n))).unwrap_or(u32::MAX));
        inner.replicas.insert(id, Entry::default());
        id
    }

    /// A replica is new, or something about it changed.
    pub fn replica(&self, info: ReplicaInfo) {
        let mut inner = self.lock();
        let Some(entry) = inner.replicas.get_mut(&info.id) else { return };
        if entry.info.as_ref() != Some(&info) {
            entry.info = Some(info.clone());
            inner.add(Record::Replica(info));
            self.changed.send_replace(());
        }
    }

    /// A replica is gone; `held` are its blocks.
    pub fn gone(&self, id: FeedReplicaId, held: &[BlockHash]) {
        let mut inner = self.lock();
        if inner.replicas.remove(&id).is_some() {
            inner.wipe(id, held);
            inner.add(Record::Gone(id));
            self.changed.send_replace(());
        }
    }

    /// A reading of a replica's load.
    pub fn load(&self, id: FeedReplicaId, load: LoadReport) {
        let mut inner = self.lock();
        if let Some(entry) = inner.replicas.get_mut(&id) {
            entry.load = Some((load, Instant::now()));
            inner.add(Record::Load(id, load));
            self.changed.send_replace(());
        }
    }

    /// Changes of what a replica holds; `wiped` are the blocks that a [`Record::Cleared`] among them took away.
    pub fn publish(&self, records: Vec<Record>, wiped: &[BlockHash]) {
        if records.is_empty() {
            return;
        }
        let mut inner = self.lock();
        for record in records {
            match &record {
                Record::Stored { replica, tier, ends, hashes, .. } => {
                    inner.shards.store(*replica, *tier, hashes, |i| hit_ends_at(ends, i));
                }
                Record::Removed { replica, tier, hashes } => inner.shards.remove(*replica, *tier, hashes),
                Record::Cleared(replica) => inner.wipe(*replica, wiped),
                _ => {}
            }
            inner.add(record);
        }
        self.changed.send_replace(());
    }

    /// What the sender at `place` does next.
    pub fn next(&self, place: &mut Place) -> Next {
        let mut inner = self.lock();
        if place.term != inner.epoch.term {
            *place = Place { term: inner.epoch.term, next: 1, ..*place };
        }
        if place.next > inner.seq {
            let age = inner.sealed_at.elapsed();
            let due = if inner.pending.is_empty() { HEARTBEAT } else { LINGER };
            if age < due && inner.pending_bytes < FRAME_BYTES {
                return Next::Wait(due - age);
            }
            inner.seal();
        }
        let first = inner.ring.front().map_or(inner.seq, |f| f.seq);
        if place.next < first {
            place.skipped += first - place.next;
            place.next = first;
        }
        match inner.ring.get((place.next - first) as usize) {
            Some(frame) => Next::Send(frame.clone()),
            None => Next::Wait(LINGER),
        }
    }

    /// Moves a place to the newest frame: the receiver lost what it had, and pulls.
    pub fn skip_to_newest(&self, place: &mut Place) {
        let inner = self.lock();
        if place.term == inner.epoch.term {
            place.next = place.next.max(inner.seq);
        }
    }

    /// Begins a term above `term`, if this one is not.
    pub fn raise_term(&self, term: u64) {
        let mut inner = self.lock();
        if inner.epoch.term <= term {
            inner.epoch.term = term.saturating_add(1);
            inner.seq = 0;
            inner.ring.clear();
            inner.ring_bytes = 0;
            (inner.pending, inner.pending_bytes) = (Vec::new(), 0);
            let all: Vec<_> = inner.replicas.values().filter_map(|e| e.info.clone()).map(Record::Replica).collect();
            all.into_iter().for_each(|r| inner.add(r));
            self.changed.send_replace(());
        }
    }

    /// The digests of the drawers from that of `from` on.
    pub fn digests(&self, from: u64) -> Digests {
        let mut inner = self.lock();
        self.settle(&mut inner);
        let infos = || inner.replicas.values().filter_map(|entry| entry.info.as_ref());
        let told: Vec<_> = infos().filter(|info| info.trust != Trust::NoEvents).map(|info| info.id).collect();
        let first = drawer(from);
        let drawers = inner.shards.digests(first, &told, MAX_DIGESTED);
        let replicas = infos().cloned().map(Record::Replica).collect();
        Digests { epoch: inner.epoch, seq: inner.seq, from: bounds(first).0, drawers, replicas }
    }

    /// Seals what waits, so that a batch stands for all that is known.
    fn settle(&self, inner: &mut Inner) {
        if !inner.pending.is_empty() || inner.seq == 0 {
            inner.seal();
            self.changed.send_replace(());
        }
    }

    /// The snapshot of the range that begins at `from` and ends at `to` or before.
    pub fn snapshot(&self, from: u64, to: u64) -> Snapshot {
        let mut inner = self.lock();
        self.settle(&mut inner);
        let mut records = Vec::new();
        for (id, entry) in &inner.replicas {
            let Some(info) = &entry.info else { continue };
            records.push(Record::Replica(info.clone()));
            if let Some((load, at)) = entry.load {
                let age = at.elapsed().as_millis().min(u128::from(u32::MAX)) as u32;
                records.push(Record::Load(*id, LoadReport { age_ms: load.age_ms.saturating_add(age), ..load }));
            }
        }
        let told: usize = records.iter().map(size).sum();
        let (held, through) = inner.shards.range(from, to, MAX_ANSWER_BYTES.saturating_sub(told + 1024).max(64 << 10));
        records.extend(held);
        Snapshot { epoch: inner.epoch, seq: inner.seq, from, through, records }
    }

    /// Numbers for metrics.
    pub fn stats(&self) -> HubStats {
        let inner = self.lock();
        HubStats { epoch: inner.epoch, seq: inner.seq, ring_bytes: inner.ring_bytes, entries: inner.shards.entries() }
    }
}

impl Inner {
    fn add(&mut self, record: Record) {
        self.pending_bytes += size(&record);
        self.pending.push(record);
        if self.pending_bytes >= FRAME_BYTES {
            self.seal();
        }
    }

    fn seal(&mut self) {
        self.seq += 1;
        let records = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        let batch = Batch { header: BatchHeader { epoch: self.epoch, seq: self.seq }, records };
        let bytes = Bytes::from(batch.encode());
        self.ring_bytes += bytes.len();
        self.ring.push_back(Frame { seq: self.seq, bytes });
        self.sealed_at = Instant::now();
        while self.ring_bytes > self.max_ring_bytes && self.ring.len() > 1 {
            self.ring_bytes -= self.ring.pop_front().map_or(0, |f| f.bytes.len());
        }
    }

    fn wipe(&mut self, replica: FeedReplicaId, held: &[BlockHash]) {
        Tier::ALL.into_iter().for_each(|tier| self.shards.remove(replica, tier, held));
    }
}

/// About the bytes of a record.
fn size(record: &Record) -> usize {
    32 + match record {
        Record::Stored { hashes, ends, .. } => hashes.len() * 8 + ends.len(),
        Record::Removed { hashes, .. } => hashes.len() * 8,
        Record::Replica(info) => {
            let names: usize = info.adapters.list.iter().map(|adapter| adapter.name.len() + 5).sum();
            info.address.len() + info.model.len() + info.reason.len() + names
        }
        Record::Held { blocks, .. } => blocks.len() * 24,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
