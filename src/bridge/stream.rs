//! One stream of one engine: its place, its cache, its trust. No sockets here: a source feeds it messages and asks
//! for replays as it says.
//!
//! A replay begins with the last message that was taken, which proves by its digest that it is still the same
//! process. One that is not there, while the engine's buffer always has the latest, proves a restart.

use super::cache::{Cache, CacheConfig, Word};
use super::cursor::{Cursor, Seen};
use super::scrape::Reading;
use super::trust::{CacheFacts, TrustMachine};
use super::wire::{self, Event, Skip};
use crate::blocks::BlockHash;
use crate::feed::FeedReplicaId;
use crate::feed::record::{Record, Trust};

/// What the source does next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Step {
    /// Nothing: go on.
    #[default]
    Done,
    /// Ask for all messages from this number on, then hand in the one at hand again.
    Replay(u64),
}

/// All that can happen to a stream. The same inputs come to the same state.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// The engine says where it publishes; the configuration did not.
    Announced,
    /// The connection came up.
    Connected,
    /// It ended.
    Disconnected,
    /// Something came that is no message.
    BadMessage,
    /// A message from the live socket.
    Live {
        /// Its number.
        seq: u64,
        /// Its payload.
        payload: &'a [u8],
        /// A replay can be asked for, and was not just now.
        replayable: bool,
    },
    /// A replay was asked for.
    ReplayBegins,
    /// A message of it.
    Replayed {
        /// Its number.
        seq: u64,
        /// Its payload.
        payload: &'a [u8],
    },
    /// It is over.
    ReplayEnds {
        /// Its end mark came.
        complete: bool,
    },
    /// A reading of the engine's metrics.
    Reading(&'a Reading),
    /// A router VM tells of a request that it sent there.
    Heard(Word<'a>),
}

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Messages applied.
    pub messages: u64,
    /// Events in them.
    pub events: u64,
    /// Of those: blocks stored, blocks removed, everything cleared.
    pub kinds: [u64; 3],
    /// Gaps noticed.
    pub gaps: u64,
    /// Of them, not repaired.
    pub gaps_lost: u64,
    /// Restarts of the engine.
    pub restarts: u64,
    /// Messages seen before.
    pub duplicates: u64,
    /// Replays asked for.
    pub replays: u64,
}

/// Changes to tell the feed.
#[derive(Debug, Default)]
pub struct Changes {
    /// In order.
    pub records: Vec<Record>,
    /// See [`super::hub::Hub::publish`].
    pub wiped: Vec<BlockHash>,
}

/// See the module.
#[derive(Debug)]
pub struct Stream {
    id: FeedReplicaId,
    cursor: Cursor,
    cache: Cache,
    /// Trust; the source tells it of connections and metrics.
    pub trust: TrustMachine,
    /// Counts.
    pub counts: StreamCounts,
    /// The engine's time in the last message, seconds since 1970.
    pub last_ts: f64,
    /// Number of the message that a replay must begin with to prove that the engine is the same process.
    proof: Option<u64>,
    /// The engine's time in the first message since it began anew, as far as it was seen.
    first_ts: f64,
    /// Blocks that the engine's cache can hold, if known.
    pub capacity: u64,
    /// Start of the engine's process, as its metrics told it last, seconds since 1970.
    pub start_time: Option<f64>,
}

impl Stream {
    /// A stream of nothing yet.
    pub fn new(id: FeedReplicaId, config: CacheConfig, trust: TrustMachine) -> Stream {
        Stream {
            id,
            cursor: Cursor::default(),
            cache: Cache::new(config),
            trust,
            counts: StreamCounts::default(),
            last_ts: 0.0,
            proof: None,
            first_ts: 0.0,
            capacity: 0,
            start_time: None,
        }
    }

    /// Takes an input. `now`: milliseconds of any clock.
    pub fn take(&mut self, input: Input<'_>, now: u64, changes: &mut Changes) -> Step {
        match input {
            Input::Announced => self.trust.announced(now),
            Input::Connected => self.trust.connected(),
            Input::Disconnected => self.trust.disconnected(now),
            Input::BadMessage => self.bad_message(),
            Input::Live { seq, payload, replayable } => return self.live(seq, payload, replayable, changes),
            Input::ReplayBegins => self.replay_begins(),
            Input::Replayed { seq, payload } => return self.replayed(seq, payload, changes),
            Input::ReplayEnds { complete } => return self.replay_ends(complete, changes),
            Input::Reading(reading) => self.reading(reading, now, changes),
            Input::Heard(word) => {
                let partial = self.trust.partial();
                self.cache.heard(self.id, word, partial, self.capacity, &mut changes.records);
            }
        }
        Step::Done
    }

    fn reading(&mut self, reading: &Reading, now: u64, changes: &mut Changes) {
        if let Some(start) = reading.start_time
            && self.start_time.replace(start).is_some_and(|before| (before - start).abs() > 1.0)
        {
            self.process_restarted(start, changes);
        }
        if let Some(capacity) = reading.capacity_blocks {
            self.capacity = capacity;
        }
        let block_size = self.cache.block_size().or(reading.block_size).unwrap_or(16);
        self.trust.traffic(reading.traffic(), block_size, now);
    }

    /// Goes on from a checkpoint.
    pub fn restore(&mut self, cursor: Cursor, cache: Cache, missing: u8) {
        (self.cursor, self.cache) = (cursor, cache);
        self.trust.restore(missing);
    }

    /// The place in the stream.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// What the engine holds.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Counts what is wrong with a message that is not even one.
    pub fn bad_message(&mut self) {
        self.cache.count_skips(&[Skip::NotABatch]);
    }

    /// The state of trust, and why.
    pub fn state(&self, now: u64) -> (Trust, &'static str) {
        let facts = CacheFacts {
            not_exact: self.cache.not_exact(),
            refused: self.cache.refused().is_some(),
            unconfirmed: self.cache.unconfirmed() > 0,
            block_size: self.cache.block_size().unwrap_or(0),
        };
        self.trust.trust(facts, now)
    }

    /// A message from the live socket. `replayable`: a replay can be asked for, and was not just now.
    pub fn live(&mut self, seq: u64, payload: &[u8], replayable: bool, changes: &mut Changes) -> Step {
        let digest = Cursor::digest_of(payload);
        let mut seen = self.cursor.look(seq, digest);
        if seen == Seen::Restarted {
            self.restarted(changes);
            seen = Seen::Initial;
        }
        match seen {
            Seen::Duplicate => {
                self.counts.duplicates += 1;
                return Step::Done;
            }
            Seen::Initial if seq == 0 => self.trust.complete(),
            Seen::Initial if replayable => return Step::Replay(0),
            Seen::Initial => self.trust.joined_late(),
            Seen::Gap { from } if replayable => {
                self.counts.gaps += 1;
                return Step::Replay(from.saturating_sub(1));
            }
            Seen::Gap { .. } => self.lost(changes),
            Seen::Contiguous | Seen::Restarted => {}
        }
        self.apply(seq, digest, payload, changes);
        Step::Done
    }

    /// The number from which to ask for a replay when a connection came up.
    pub fn replay_from(&self) -> u64 {
        self.cursor.last().map_or(0, |(seq, _)| seq)
    }

    /// A replay was asked for.
    pub fn replay_begins(&mut self) {
        self.counts.replays += 1;
        self.proof = self.cursor.last().map(|(seq, _)| seq);
        self.trust.replay_begins();
    }

    /// A message of the replay. [`Step::Replay`]: the engine began anew, ask again from there.
    pub fn replayed(&mut self, seq: u64, payload: &[u8], changes: &mut Changes) -> Step {
        let digest = Cursor::digest_of(payload);
        match self.cursor.look(seq, digest) {
            Seen::Duplicate => {
                self.proof = None;
                return Step::Done;
            }
            Seen::Restarted => {
                self.restarted(changes);
                self.proof = None;
                if seq > 0 {
                    return Step::Replay(0);
                }
                self.trust.complete();
            }
            Seen::Initial if seq == 0 => self.trust.complete(),
            Seen::Initial => self.trust.joined_late(),
            // The buffer no longer reaches back to where the gap began.
            Seen::Gap { .. } => self.lost(changes),
            Seen::Contiguous => {}
        }
        self.proof = None;
        self.apply(seq, digest, payload, changes);
        Step::Done
    }

    /// The replay is over. `complete`: its end mark came. [`Step::Replay`]: it proved a restart, ask again.
    pub fn replay_ends(&mut self, complete: bool, changes: &mut Changes) -> Step {
        self.trust.replay_ends();
        let unproven = self.proof.take().is_some();
        if !complete {
            return Step::Done;
        }
        if unproven {
            // It would have had at least the message that was asked for.
            self.restarted(changes);
            return Step::Replay(0);
        }
        if self.cursor.next().is_none() {
            // Nothing was published yet, so nothing was missed.
            self.trust.complete();
        }
        Step::Done
    }

    fn restarted(&mut self, changes: &mut Changes) {
        self.first_ts = 0.0;
        self.counts.restarts += 1;
        self.cursor.reset();
        self.trust.restarted();
        self.cache.restart(self.id, &mut changes.records);
        changes.wiped.append(&mut self.cache.take_wiped());
    }

    /// The engine's metrics tell of a new process, which began at `start` (seconds since 1970). Its messages may
    /// have told so before.
    pub fn process_restarted(&mut self, start: f64, changes: &mut Changes) {
        let of_new_process = self.first_ts > 0.0 && self.first_ts >= start - 1.0;
        if self.cursor.next().is_some() && !of_new_process {
            self.restarted(changes);
        }
    }

    /// The replica leaves: its blocks.
    pub fn leave(&mut self) -> Vec<BlockHash> {
        self.cache.clear(self.id, &mut Vec::new());
        self.cache.take_wiped()
    }

    fn lost(&mut self, changes: &mut Changes) {
        self.counts.gaps_lost += 1;
        self.trust.gap();
        self.cache.gap(self.id, &mut changes.records);
    }

    fn apply(&mut self, seq: u64, digest: u64, payload: &[u8], changes: &mut Changes) {
        let batch = wire::decode(payload);
        self.cursor.take(seq, digest);
        self.counts.messages += 1;
        self.counts.events += batch.read;
        self.last_ts = batch.ts;
        if self.first_ts == 0.0 {
            self.first_ts = batch.ts;
        }
        self.cache.count_skips(&batch.skipped);
        if !batch.events.is_empty() || batch.skipped.is_empty() {
            self.trust.message();
        }
        for event in &batch.events {
            self.counts.kinds[match event {
                Event::Stored(_) => 0,
                Event::Removed(_) => 1,
                Event::Cleared => 2,
            }] += 1;
        }
        let cleared = batch.events.contains(&Event::Cleared);
        self.cache.apply(self.id, batch.events, &mut changes.records);
        self.cache.trim(self.id, self.capacity, &mut changes.records);
        changes.wiped.append(&mut self.cache.take_wiped());
        if batch.skipped.iter().any(|s| matches!(s, Skip::NotMsgpack | Skip::NotABatch)) {
            // What the rest of the message said is lost for good.
            self.lost(changes);
        } else if cleared {
            self.trust.complete();
        }
    }
}

#[cfg(test)]
mod tests;
