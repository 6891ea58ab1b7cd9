//! What requests teach about replicas whose events do not tell all: gathered here, and taken along by the next pull.

use std::collections::VecDeque;

use super::book::BookingId;
use super::fleet::Fleet;
use super::pools::Part;
use crate::feed::record::Trust;
use crate::feed::word::{self, MAX_BLOCKS, MAX_BYTES, Told};
use crate::routing::last_token_cap;

/// What waits for the next pull, bounded; the oldest goes first.
#[derive(Debug, Default)]
pub(super) struct Words {
    waiting: VecDeque<Told>,
    bytes: usize,
}

impl Words {
    fn push(&mut self, told: Told) {
        self.bytes = self.bytes.saturating_add(told.bytes());
        self.waiting.push_back(told);
        while self.bytes > MAX_BYTES >> 1 {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(oldest.bytes());
        }
    }

    fn take(&mut self) -> Vec<Told> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting).into()
    }
}

impl Fleet {
    /// Whether the bridge could learn from what becomes of this request.
    pub fn learns(&self, id: BookingId) -> bool {
        let replica = self.world.book.replica(id).and_then(|idx| self.world.members.get(idx));
        replica.is_some_and(|r| r.feed.is_some() && matches!(r.trust, Trust::CatchingUp | Trust::Stale))
    }

    /// The engine says that of the `prompt` tokens `cached` were in its cache. Gives how many were believed to be, if
    /// the two can be compared.
    pub fn found(&mut self, id: BookingId, prompt: u64, cached: u64) -> Option<u64> {
        let flight = self.flights.get(&id)?;
        // What was brought from where it was prefilled counts as cached, too.
        if flight.part == Part::Decode {
            return None;
        }
        // Several prompts, or a template that this build does not know in full.
        if flight.tokens != prompt || cached > prompt {
            return None;
        }
        let size = u64::from(flight.block_size);
        let claimed = (flight.claimed as u64).saturating_mul(size).min(last_token_cap(prompt, flight.block_size));
        self.tell(id, u32::try_from(cached.checked_div(size)?).ok());
        Some(claimed)
    }

    /// Notes what is known of a request for the bridge, once.
    pub(super) fn tell(&mut self, id: BookingId, cached: Option<u32>) {
        if !self.learns(id) {
            return;
        }
        let replica = self.world.book.replica(id).and_then(|idx| self.world.members.get(idx)?.feed);
        let (Some(replica), Some(flight)) = (replica, self.flights.get_mut(&id)) else { return };
        if !std::mem::replace(&mut flight.told, true) && !flight.hashes.is_empty() {
            let chain = flight.hashes.get(..MAX_BLOCKS).unwrap_or(&flight.hashes).to_vec();
            self.words.push(Told { replica, claimed: flight.claimed as u32, cached, chain });
        }
    }

    /// The body of the next pull; empty when there is nothing to tell.
    pub fn take_words(&mut self) -> Vec<u8> {
        match self.words.take() {
            told if told.is_empty() => Vec::new(),
            told => word::encode(&told),
        }
    }
}
