//! The parts of a choice and of what follows it: candidates, booking, predictions, receipt.

use hashbrown::HashMap;

use super::book::{BookingId, Load};
use super::fleet::{AFTER_FIRST_DATA, Ask, Fleet, Flight, Matching, QUIET, SILENT, Target};
use super::members::{Replica, ReplicaIdx, ReplicaKey, rendezvous};
use super::peers::Tell;
use super::pools::{Part, Stage};
use crate::blocks::BlockHash;
use crate::clock::{MS, Time};
use crate::feed::record::{Standing, Trust};
use crate::index::Held;
use crate::routing::{
    Candidate, CandidateReceipt, PrefillReceipt, Reason, Receipt, Request, Scored, last_token_cap, rank, taught,
};

/// A replica that is compared, and what it holds of the prompt.
pub(super) type Seen = (ReplicaIdx, Held);

impl Matching {
    /// The first block of the prompt that is not held.
    fn lacks(&self, held: Held) -> Option<BlockHash> {
        self.hashes.get(held.blocks as usize).copied()
    }
}

/// Candidates that were compared, and their ranking.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) seen: &'a [Seen],
    pub(super) plain: &'a [Candidate],
    pub(super) scored: &'a [Scored],
}

impl Fleet {
    /// The comparison of [`Fleet::choose`] alone: how many replicas are named, the best included. Nothing is booked. For
    /// measurements.
    pub fn compare(&self, matching: &Matching, ask: &Ask<'_>) -> usize {
        let (_, plain, request) = self.candidates(matching, ask, Stage::Decode);
        let policy = ask.policy.unwrap_or(&self.policy);
        rank(policy, &request, &plain, policy.candidates.max(1)).len()
    }

    pub(super) fn candidates(
        &self,
        matching: &Matching,
        ask: &Ask<'_>,
        stage: Stage,
    ) -> (Vec<Seen>, Vec<Candidate>, Request) {
        let (world, policy) = (&self.world, ask.policy.unwrap_or(&self.policy));
        let cap = last_token_cap(ask.tokens, matching.block_size);
        let size = u64::from(matching.block_size);
        let most = u32::try_from(cap.checked_div(size).unwrap_or(0)).unwrap_or(u32::MAX);
        let (size_tokens, cap_tokens) = (size as f64, cap as f64);
        // Older reports are not used. Worked out once: a division of 64 bits is slow.
        let too_old = policy.load_max_age_ms.saturating_add(1).saturating_mul(MS);
        let mut seen = Vec::with_capacity(matching.candidates.len());
        let mut plain = Vec::with_capacity(matching.candidates.len());
        let current = matching.version == world.members.version();
        let mut homes = 0.0;
        let among = |idx: &ReplicaIdx| {
            let replica = world.members.get(*idx).filter(|r| current || *r.model == *matching.model)?;
            let allowed = ask.only.is_none_or(|only| only.binary_search(&replica.key).is_ok());
            (allowed && stage.takes(replica)).then_some((*idx, replica))
        };
        let session = ask.session.filter(|_| policy.session > 0.0);
        let all = matching.candidates.iter().filter_map(among).map(|(idx, _)| idx);
        let session = session.and_then(|s| rendezvous(s, all, &world.members));
        let lora = Lora::new(ask, matching.candidates.iter().filter_map(among).map(|(_, replica)| replica));
        for (idx, replica) in matching.candidates.iter().filter_map(among) {
            if lora.excludes(replica) {
                continue;
            }
            let held = match replica.column.filter(|_| replica.block_size == matching.block_size) {
                Some(column) => matching.walk.held(column, most),
                None => Held::default(),
            };
            let tokens = |blocks: u32| (f64::from(blocks) * size_tokens).min(cap_tokens);
            let load = world.book.own(idx).plus(self.foreign(idx));
            let reported = replica.reported.filter(|(_, at)| ask.now.since(*at) < too_old);
            let (others, waiting, in_use) = reported.map_or((0, 0, 0.0), |(report, _)| {
                let share = f64::from(report.kv_usage_ppm) / 1e6;
                let blocks = replica.capacity_blocks.saturating_mul(u64::from(replica.block_size)) as f64;
                (replica.others, replica.others.min(report.waiting), share * blocks)
            });
            let candidate = Candidate {
                matched: tokens(held.end),
                cpu: tokens(held.cpu),
                disk: tokens(held.disk),
                predicted: tokens(held.predicted),
                unconfirmed: tokens(held.unconfirmed),
                prefill: load.prefill,
                // What others sent there is only seen in the cache that it takes.
                context: load.context.max(in_use),
                requests: f64::from(load.requests) + f64::from(others - waiting),
                waiting: f64::from(waiting),
                homes: f64::from(world.homes.at(idx)),
                wanted: matching.lacks(held).map_or(0.0, |from| replica.wants.tokens(from, ask.now)),
                rested: ask.now.since(replica.picked) as f64 / 1e9,
                trust: self.trust(replica, ask.now).0,
                session: session == Some(idx),
                loading: lora.loads(replica),
            };
            homes += candidate.homes;
            seen.push((idx, held));
            plain.push(candidate);
        }
        let mean_homes = homes / seen.len().max(1) as f64;
        let seed = self.random ^ matching.hashes.last().map_or(0, |h| h.0) ^ ask.now.0.rotate_left(17);
        (seen, plain, Request { tokens: ask.tokens as f64, mean_homes, seed })
    }

    /// A request goes to `best`: what others lack for it, and that it will lack nothing.
    pub(super) fn want(&mut self, matching: &Matching, ask: &Ask<'_>, seen: &[Seen], plain: &[Candidate], best: usize) {
        let policy = ask.policy.unwrap_or(&self.policy);
        let lacks = |at: usize| seen.get(at).and_then(|(_, held)| matching.lacks(*held));
        for (at, from, lesson) in taught(policy, plain, best, lacks) {
            if let Some(replica) = seen.get(at).and_then(|(idx, _)| self.world.members.get_mut(*idx)) {
                replica.wants.learn(from, lesson, ask.now);
            }
        }
    }

    /// The rank of a target, where its address has several.
    pub(super) fn rank_to_name(&self, target: &Target, seen: &[Seen]) -> Option<u32> {
        let others = seen.iter().filter_map(|(idx, _)| self.world.members.get(*idx));
        let several = target.rank > 0 || others.into_iter().any(|r| r.rank > 0 && r.address == target.address);
        several.then_some(target.rank)
    }

    /// Whether somebody is known there: a retry takes the headers of the first choice along.
    pub(super) fn has_rank(&self, address: &str, rank: u32) -> bool {
        self.world.members.of_key(ReplicaKey::new(address, rank)).is_some()
    }

    pub(super) fn book(
        &mut self,
        idx: ReplicaIdx,
        matching: &Matching,
        ask: &Ask<'_>,
        matched: u64,
        held: Held,
        part: Part,
    ) -> BookingId {
        let uncached = if part == Part::Decode { 0.0 } else { ask.tokens.saturating_sub(matched) as f64 };
        let id = self.world.book.book(idx, uncached, ask.tokens as f64, ask.now);
        let flight = Flight {
            block_size: matching.block_size,
            matched: u64::from(held.end) * u64::from(matching.block_size),
            held: held.blocks as usize,
            claimed: held.end.saturating_sub(held.predicted) as usize,
            tokens: ask.tokens,
            // How much an engine found cached of what another one prefilled teaches nobody.
            told: part == Part::Decode,
            hashes: matching.hashes.clone(),
            settled: false,
            part,
        };
        if let Some(column) = self.world.members.get(idx).and_then(|r| r.column) {
            self.world.index.touch(column, flight.hashes.get(..flight.held).unwrap_or_default());
        }
        if let Some(replica) = self.world.members.get_mut(idx) {
            replica.picked = ask.now;
        }
        if part != Part::Prefill {
            self.world.homes.settle(&flight.hashes, flight.held, idx, ask.now);
        }
        self.flights.insert(id, flight);
        self.predict(id, flight_tail(&self.flights, id, usize::MAX));
        id
    }

    /// The replica of the booking will hold these blocks.
    pub(super) fn predict(&mut self, id: BookingId, hashes: Vec<BlockHash>) {
        let replica = self.world.book.replica(id).and_then(|idx| self.world.members.get(idx));
        let Some((column, key)) = replica.and_then(|r| Some((r.column?, r.key))) else { return };
        if !hashes.is_empty() {
            self.world.predictions.add(id, column, hashes.clone());
            self.tells.push(Tell::Predict(id.0, key, hashes));
        }
    }

    /// Whether the predictions came true is known, or will be soon.
    pub(super) fn settle(&mut self, id: BookingId, served: bool, now: Time) {
        let Some(flight) = self.flights.get_mut(&id).filter(|f| !f.settled) else { return };
        flight.settled = true;
        let Some(idx) = self.world.book.replica(id) else { return };
        if !served {
            self.world.predictions.drop(id);
            self.tells.push(Tell::Settle(id.0, 0));
            return;
        }
        if self.world.members.get(idx).is_some_and(|r| r.trust == Trust::NoEvents) {
            // Nobody will tell: take it for held.
            self.world.used(idx, &flight.hashes);
        }
        self.world.predictions.expire(id, now.after(AFTER_FIRST_DATA));
        self.tells.push(Tell::Settle(id.0, to_ms(AFTER_FIRST_DATA) as u32));
    }

    pub(super) fn foreign(&self, idx: ReplicaIdx) -> Load {
        self.world.foreign.get(usize::from(idx.0)).copied().unwrap_or_default()
    }

    /// Trust and its reason, this VM's own state included.
    #[inline]
    pub(super) fn trust<'a>(&self, replica: &'a Replica, now: Time) -> (Trust, &'a str) {
        let age = self.sync.feed_age(now).unwrap_or(u64::MAX);
        match replica.trust {
            Trust::Exact | Trust::CatchingUp if age > SILENT => (Trust::Stale, "bridge_silent"),
            Trust::Exact if age > QUIET => (Trust::CatchingUp, "bridge_quiet"),
            Trust::Exact if !self.sync.synced() => (Trust::CatchingUp, "syncing"),
            Trust::NoEvents if replica.reason.is_empty() => (Trust::NoEvents, "not_in_the_feed"),
            other => (other, &replica.reason),
        }
    }

    pub(super) fn receipt(
        &self,
        matching: &Matching,
        ask: &Ask<'_>,
        shown: Shown<'_>,
        pick: &Target,
        reason: Reason,
        prefill: Option<PrefillReceipt>,
    ) -> Receipt {
        Receipt {
            model: matching.model.to_string(),
            lora: ask.adapter.map(str::to_owned),
            prompt_tokens: ask.tokens,
            estimated: ask.estimated,
            known_blocks: matching.hashes.len() as u32,
            compared: shown.seen.len(),
            pick: pick.address.to_string(),
            reason,
            synced: self.sync.synced(),
            feed_age_ms: self.feed_age(ask.now).map(to_ms),
            prefill,
            candidates: self.shown(ask, shown),
        }
    }

    /// The ranking, as receipts have it.
    pub(super) fn shown(&self, ask: &Ask<'_>, shown: Shown<'_>) -> Vec<CandidateReceipt> {
        let policy = ask.policy.unwrap_or(&self.policy);
        let one = |s: &Scored| {
            let ((idx, held), c) = (shown.seen.get(s.candidate)?, shown.plain.get(s.candidate)?);
            let replica = self.world.members.get(*idx)?;
            let load = self.world.book.own(*idx).plus(self.foreign(*idx));
            Some(CandidateReceipt {
                address: replica.address.to_string(),
                rank: replica.rank,
                trust: c.trust.label(),
                trust_reason: self.trust(replica, ask.now).1.to_owned(),
                matched_blocks: held.blocks,
                matched: c.matched as u64,
                predicted: c.predicted as u64,
                unconfirmed: c.unconfirmed as u64,
                credit: s.credit as u64,
                wanted: s.wanted,
                uncached: ask.tokens.saturating_sub(c.matched as u64),
                booked_requests: load.requests,
                booked_prefill: load.prefill as u64,
                booked_context: load.context as u64,
                reported_running: replica.reported.map(|(l, _)| l.running),
                reported_waiting: replica.reported.map(|(l, _)| l.waiting),
                reported_kv_usage: replica.reported.map(|(l, _)| f64::from(l.kv_usage_ppm) / 1e6),
                reported_age_ms: replica.reported.map(|(_, at)| to_ms(ask.now.since(at))),
                homes: c.homes as u32,
                crowding: s.crowding,
                adapter: ask.adapter.map(|name| replica.standing(name, ask.now).label()),
                loading: if c.loading { policy.adapter } else { 0.0 },
                cost: s.cost,
            })
        };
        shown.scored.iter().filter_map(one).collect()
    }
}

/// The LoRA adapter of a request, and what is known of it where the request may go.
struct Lora<'a> {
    name: Option<&'a str>,
    now: Time,
    /// Some replica is known to serve it.
    served: bool,
}

impl<'a> Lora<'a> {
    fn new<'r>(ask: &Ask<'a>, mut replicas: impl Iterator<Item = &'r Replica>) -> Lora<'a> {
        let serves =
            |replica: &Replica, name| matches!(replica.standing(name, ask.now), Standing::Loaded | Standing::Served);
        let served = ask.adapter.is_some_and(|name| replicas.any(|replica| serves(replica, name)));
        Lora { name: ask.adapter, now: ask.now, served }
    }

    fn finds(&self, replica: &Replica) -> Option<Standing> {
        self.name.filter(|_| self.served).map(|name| replica.standing(name, self.now))
    }

    /// The engine would answer that there is no such model, and another one would not.
    fn excludes(&self, replica: &Replica) -> bool {
        self.finds(replica) == Some(Standing::Absent)
    }

    /// It is not known to be ready.
    fn loads(&self, replica: &Replica) -> bool {
        self.finds(replica).is_some_and(|standing| standing != Standing::Loaded)
    }
}

pub(super) fn reason(scored: &[Scored], candidates: &[Candidate]) -> Reason {
    let (Some(best), Some(second)) = (scored.first(), scored.get(1)) else { return Reason::Only };
    let matched = |at: usize| candidates.get(at).map_or(0.0, |c| c.matched);
    let others = candidates.iter().enumerate().filter(|(at, _)| *at != best.candidate);
    let most = others.map(|(_, c)| c.matched).fold(0.0, f64::max);
    if matched(best.candidate) > most {
        Reason::Cache
    } else if second.cost.round() > best.cost.round() {
        Reason::Load
    } else {
        Reason::Tie
    }
}

/// The last `count` hashes of a flight, without those that were held at the pick.
pub(super) fn flight_tail(flights: &HashMap<BookingId, Flight>, id: BookingId, count: usize) -> Vec<BlockHash> {
    let Some(flight) = flights.get(&id) else { return Vec::new() };
    let from = flight.hashes.len().saturating_sub(count).max(flight.held);
    flight.hashes.get(from..).map(<[_]>::to_vec).unwrap_or_default()
}

#[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
pub(super) fn to_ms(nanoseconds: u64) -> u64 {
    nanoseconds / MS
}
