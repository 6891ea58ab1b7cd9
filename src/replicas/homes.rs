//! Where conversations live: the replica that each was sent to last.
//!
//! A conversation is known by the last block of its last prompt. The next turn's chain passes through that block,
//! so it takes the place over; another conversation that shares only a system prompt does not.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::members::ReplicaIdx;
use crate::blocks::BlockHash;
use crate::clock::Time;

/// Conversations remembered at most.
const MAX_HOMES: usize = 1 << 14;
/// How far back from the end of a prompt the last turn's end is looked for, in blocks.
const LOOK_BACK: usize = 512;

/// Which conversations live where.
#[derive(Debug, Default)]
pub struct Homes {
    by_tip: HashMap<BlockHash, (ReplicaIdx, Time)>,
    oldest: VecDeque<(Time, BlockHash)>,
    counts: Vec<u32>,
}

impl Homes {
    /// A prompt with this chain goes to `replica`, which held the first `matched` blocks of it.
    pub fn settle(&mut self, chain: &[BlockHash], matched: usize, replica: ReplicaIdx, now: Time) {
        let Some(tip) = chain.last() else { return };
        let known = chain.get(..matched).unwrap_or(chain);
        let last = known.iter().rev().chain([tip]).take(LOOK_BACK).find(|h| self.by_tip.contains_key(*h)).copied();
        if let Some(last) = last {
            self.leave(last);
        }
        self.leave(*tip);
        self.by_tip.insert(*tip, (replica, now));
        self.oldest.push_back((now, *tip));
        self.add(replica, 1);
        while self.oldest.len() > MAX_HOMES {
            self.drop_oldest();
        }
    }

    /// Forgets conversations that have been silent since before `since`.
    pub fn tick(&mut self, since: Time) {
        while self.oldest.front().is_some_and(|(at, _)| *at < since) {
            self.drop_oldest();
        }
    }

    /// The conversations of a replica.
    pub fn at(&self, replica: ReplicaIdx) -> u32 {
        self.counts.get(usize::from(replica.0)).copied().unwrap_or(0)
    }

    /// A replica is gone.
    pub fn forget(&mut self, replica: ReplicaIdx) {
        self.by_tip.retain(|_, (at, _)| *at != replica);
        if let Some(count) = self.counts.get_mut(usize::from(replica.0)) {
            *count = 0;
        }
    }

    fn drop_oldest(&mut self) {
        let Some((at, tip)) = self.oldest.pop_front() else { return };
        // Seen again since: a younger entry of the queue speaks for it.
        if self.by_tip.get(&tip).is_some_and(|(_, seen)| *seen == at) {
            self.leave(tip);
        }
    }

    fn leave(&mut self, tip: BlockHash) {
        if let Some((replica, _)) = self.by_tip.remove(&tip) {
            self.add(replica, -1);
        }
    }

    fn add(&mut self, replica: ReplicaIdx, by: i32) {
        let at = usize::from(replica.0);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(at) {
            *count = count.saturating_add_signed(by);
        }
    }
}
