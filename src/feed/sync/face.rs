//! What goes in and out of the state machine: what it changes, what it asks for, what it counts.

use crate::blocks::BlockHash;
use crate::clock::{Budget, MS, SECOND, Time};
use crate::feed::record::{LoadReport, ReplicaInfo, Tier};
use crate::feed::snapshot::Snapshot;
use crate::feed::{FeedReplicaId, FrameError};

/// What the feed changes. All of it can be asked for again with the same result.
pub trait Target {
    /// Replica numbers mean something new from here on.
    fn new_epoch(&mut self);
    /// A replica is there, or something about it changed. True: answers from before cannot be mended.
    fn replica(&mut self, info: &ReplicaInfo, now: Time) -> bool;
    /// A replica is gone.
    fn gone(&mut self, id: FeedReplicaId, now: Time);
    /// A replica holds nothing any more.
    fn cleared(&mut self, id: FeedReplicaId, now: Time);
    /// The load of a replica as its engine has it.
    fn load(&mut self, id: FeedReplicaId, load: &LoadReport, now: Time);
    /// Blocks are held. False: nobody with this number was announced.
    fn stored(
        &mut self,
        id: FeedReplicaId,
        tier: Tier,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        ends: &[u8],
    ) -> bool;
    /// Blocks are not held any more.
    fn removed(&mut self, id: FeedReplicaId, tier: Tier, hashes: &[BlockHash]);
    /// The replicas of an answer are all there are.
    fn only(&mut self, ids: &[FeedReplicaId], now: Time);
    /// Begins to replace a range by what an answer says of it: [`Target::range_apply`] comes next.
    fn range_begin(&mut self, snapshot: Snapshot);
    /// Goes on replacing. `Some(bits repaired)`: done.
    fn range_apply(&mut self, budget: Budget<'_>) -> Option<u64>;
    /// Digests will be asked for; who is there, and under which number, stays the same meanwhile. Gives how many blocks
    /// are held, about.
    fn digest_begin(&mut self) -> usize;
    /// The digest of a drawer.
    fn digest(&mut self, drawer: usize) -> u64;
}

/// What to ask the bridge for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// The digests from this hash on.
    Digests {
        /// The first hash of a drawer.
        from: u64,
    },
    /// What is held of a range.
    Range {
        /// The first hash.
        from: u64,
        /// The last hash.
        through: u64,
    },
}

impl Pull {
    /// The query of the request.
    pub fn query(&self) -> String {
        match self {
            Pull::Digests { from } => format!("digests&from={from:016x}"),
            Pull::Range { from, through } => format!("from={from:016x}&through={through:016x}"),
        }
    }
}

/// Times and sizes.
#[derive(Clone, Debug)]
pub struct SyncSettings {
    /// Until an unanswered pull counts as failed, in nanoseconds.
    pub pull_deadline: u64,
    /// Until a failed pull is repeated; doubled up to 16 times.
    pub retry: u64,
    /// Between two answers of the scrub.
    pub scrub_pause: u64,
    /// Bytes of batches kept for answers under way.
    pub log_bytes: usize,
    /// Bytes of batches and answers that wait for work; past it they are dropped and pulled again.
    pub backlog_bytes: usize,
}

impl Default for SyncSettings {
    fn default() -> Self {
        SyncSettings {
            pull_deadline: 5 * SECOND,
            retry: 100 * MS,
            scrub_pause: SECOND,
            log_bytes: 8 << 20,
            backlog_bytes: 32 << 20,
        }
    }
}

/// What became of a frame or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next one: it will be applied.
    Next,
    /// It will be applied, but something before it is lost.
    Gap,
    /// The first of a new leader: it will be applied.
    NewEpoch,
    /// Already known.
    Duplicate,
    /// From a former leader, or a bridge that does not lead.
    Foreign,
    /// Not one that was asked for, or no longer of use.
    Unasked,
    /// Not a frame.
    Bad(FrameError),
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SyncCounts {
    /// Batches applied.
    pub batches: u64,
    /// Blocks in the stored and removed records of them.
    pub blocks: u64,
    /// Gaps in the seq.
    pub gaps: u64,
    /// Changes of the leader.
    pub epochs: u64,
    /// Batches or answers of somebody who does not lead.
    pub foreign: u64,
    /// Batches known already.
    pub duplicates: u64,
    /// Frames that were none.
    pub bad: u64,
    /// Answers applied.
    pub answers: u64,
    /// Pulls without a usable answer.
    pub failed_pulls: u64,
    /// Times that all drawers had been compared, and what differed had come.
    pub cycles: u64,
    /// Drawers that differed.
    pub differed: u64,
    /// Bits that an answer corrected, while everything was believed to be in step: 0 unless something is wrong.
    pub repaired: u64,
}

/// Where it stands, for people and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SyncState {
    /// The leader's term.
    pub term: u64,
    /// The leader's process.
    pub epoch: u64,
    /// The last batch taken in.
    pub received: u64,
    /// The last batch applied.
    pub applied: u64,
    /// Whether everything believed is confirmed.
    pub synced: bool,
    /// How much of all hashes has been confirmed in this turn of pulls; all ones would be everything.
    pub cursor: u64,
    /// Bytes that wait to be applied.
    pub backlog_bytes: usize,
    /// What was counted.
    pub counts: SyncCounts,
}
