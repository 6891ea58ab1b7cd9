//! Prefill and decode apart: which replica prefills for the one that decodes.
//!
//! The replica that decodes is chosen first, among those whose role is `decode` or `both`, by the whole cost. If it
//! would have to prefill `policy.remote_prefill` tokens or more, one whose role is `prefill` is chosen by a cost of
//! its own: what of the prompt it has not cached, and the prefill that is booked and queued there. The first is where
//! Envoy sends the request; the second is named in a header, and whatever stands before the engine that decodes asks
//! it first. Without a prefill replica nothing is named, and the first does both.
//!
//! The prefill is booked on the second until the first data of the answer, the context on the first until its end.

use super::book::BookingId;
use super::choice::{Seen, Shown};
use super::fleet::{Ask, Fleet, Matching, Target};
use super::members::Replica;
use crate::clock::Time;
use crate::feed::role::Role;
use crate::routing::{Candidate, Policy, PrefillReceipt, Scored, rank};

/// What a replica is compared for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// To answer.
    Decode,
    /// To prefill for another one.
    Prefill,
}

impl Stage {
    /// Whether a replica may be chosen for it.
    pub(super) fn takes(self, replica: &Replica) -> bool {
        (replica.role == Role::Prefill) == (self == Stage::Prefill)
    }
}

/// What of a request a booking stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// Its decode: another replica prefills.
    Decode,
    /// Its prefill, for another replica.
    Prefill,
}

/// The replica that prefills a request for the one that answers it. Booked.
#[derive(Clone, Debug)]
pub struct Prefill {
    /// Where.
    pub target: Target,
    /// By this name the rest is told of it; [`Fleet::prefilled`] ends it.
    pub booking: BookingId,
    /// Prompt tokens that it is expected to have cached.
    pub matched: u64,
}

/// The comparison of those that prefill.
#[derive(Debug, Default)]
pub(super) struct Compared {
    seen: Vec<Seen>,
    plain: Vec<Candidate>,
    /// Empty: none is worthwhile, or there is none.
    scored: Vec<Scored>,
}

/// The weights by which those that prefill are compared: what they decode, and for whom, says nothing of them.
fn weights(policy: &Policy) -> Policy {
    Policy { context: 0.0, request: 0.0, crowding: 0.0, session: 0.0, ..policy.clone() }
}

impl Fleet {
    /// Compares those that could prefill, for a request of which the one that answers has `matched` tokens.
    pub(super) fn compare_prefill(&self, matching: &Matching, ask: &Ask<'_>, matched: u64) -> Compared {
        let from = ask.policy.unwrap_or(&self.policy).remote_prefill;
        if !self.world.members.prefills() || from <= 0.0 || (ask.tokens.saturating_sub(matched) as f64) < from {
            return Compared::default();
        }
        let policy = weights(ask.policy.unwrap_or(&self.policy));
        let (seen, plain, request) = self.candidates(matching, ask, Stage::Prefill);
        let scored = rank(&policy, &request, &plain, 15);
        Compared { seen, plain, scored }
    }

    /// Books the best of them.
    pub(super) fn book_prefill(&mut self, matching: &Matching, ask: &Ask<'_>, compared: &Compared) -> Option<Prefill> {
        let best = compared.scored.first()?;
        let (idx, held) = compared.seen.get(best.candidate).copied()?;
        let matched = compared.plain.get(best.candidate)?.matched as u64;
        let replica = self.world.members.get_mut(idx)?;
        if let Some(adapter) = ask.adapter {
            replica.warm(adapter, ask.now);
        }
        let target = Target { address: replica.address.clone(), rank: replica.rank };
        let booking = self.book(idx, matching, ask, matched, held, Part::Prefill);
        Some(Prefill { target, booking, matched })
    }

    /// What a receipt says of it; `None` where no replica is there to prefill for others.
    pub(super) fn prefill_receipt(&self, ask: &Ask<'_>, matched: u64, compared: &Compared) -> Option<PrefillReceipt> {
        if !self.world.members.prefills() {
            return None;
        }
        let policy = ask.policy.unwrap_or(&self.policy);
        let shown = Shown { seen: &compared.seen, plain: &compared.plain, scored: &compared.scored };
        let candidates = self.shown(ask, shown);
        Some(PrefillReceipt {
            pick: candidates.first().map(|best| best.address.clone()),
            uncached: ask.tokens.saturating_sub(matched),
            from: policy.remote_prefill as u64,
            compared: compared.seen.len(),
            candidates,
        })
    }

    /// The prefill of a request has ended; `served`: with the first data of the answer.
    pub fn prefilled(&mut self, id: BookingId, served: bool, now: Time) {
        if served {
            self.first_data(id, now);
        }
        self.finish(id, served, now);
    }
}
