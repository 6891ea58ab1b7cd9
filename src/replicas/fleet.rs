//! One door to everything that a router VM believes and decides.
//!
//! ```
//! use kvroute::blocks::{Chain, namespace};
//! use kvroute::clock::Time;
//! use kvroute::replicas::{Ask, Fleet, FleetSettings, StaticReplica};
//!
//! let mut fleet = Fleet::new(FleetSettings::default(), 1);
//! let replica = |port| StaticReplica {
//!     address: format!("10.0.0.1:{port}"), model: "m".into(), block_size: 16, rank: 0, capacity_blocks: 0, role: Default::default(),
//! };
//! fleet.set_static(&[replica(8001), replica(8002)]);
//!
//! // A request: hashes as they become known, the choice, then what becomes of it.
//! let mut hashes = Vec::new();
//! Chain::new(namespace("", "m", None, None), 16).extend(&[7; 64], &mut hashes);
//! let mut first = |now| {
//!     let mut matching = fleet.begin("m", 16).unwrap();
//!     for hash in &hashes {
//!         fleet.push(&mut matching, *hash); // false: nobody holds more, no need to hash further before the pick
//!     }
//!     let pick = fleet.choose(&matching, &Ask { tokens: 64, now, ..Ask::default() }).unwrap();
//!     fleet.first_data(pick.booking, now); // the first SSE `data:` line
//!     fleet.grown(pick.booking, 20); // tokens of the answer
//!     fleet.finish(pick.booking, true, now); // when its stream ends
//!     pick
//! };
//! let (one, two) = (first(Time(1)), first(Time(2)));
//! assert_eq!(one.best.address, two.best.address);
//! assert_eq!(two.matched, 48); // never the whole prompt: the engine computes the last token
//! ```
//!
//! The feed: [`Fleet::on_frame`], [`Fleet::on_snapshot`] and [`Fleet::work`] under a budget; [`Fleet::next_pull`]
//! says when to ask the bridge for which range. The other VMs: [`Fleet::on_peer`] and [`Fleet::take_message`].
//! Call [`Fleet::tick`] every 10 to 100 ms.

use std::rc::Rc;

use hashbrown::HashMap;

use super::book::BookingId;
use super::choice::{Shown, flight_tail, reason, to_ms};
use super::members::{ReplicaIdx, ReplicaKey, StaticReplica};
use super::peers::{Message, Tell, foreign_booking};
use super::pools::{Part, Prefill, Stage};
use super::stats::{FleetStats, ReplicaStats};
use super::words::Words;
use super::world::World;
use crate::blocks::BlockHash;
use crate::clock::{Budget, MS, SECOND, Time};
use crate::feed::record::{ReplicaInfo, Trust};
use crate::feed::sync::{Pull, Sync, SyncSettings, Verdict};
use crate::feed::{Epoch, FeedReplicaId, FrameError};
use crate::index::Walk;
use crate::nokey::NoKey;
use crate::routing::{Policy, Reason, Receipt, last_token_cap, rank};

/// How long predictions outlive the first data, if no event comes.
pub(super) const AFTER_FIRST_DATA: u64 = 2 * SECOND;
/// How often a VM tells the others everything that it has booked.
const FULL_TELL: u64 = SECOND;
/// Without a word from the bridge for this long, what is believed counts as being caught up with.
pub(super) const QUIET: u64 = 3 * SECOND;
/// And for this long, as stale.
pub(super) const SILENT: u64 = 30 * SECOND;
/// Blocks of one prompt that are remembered and predicted at most.
const MAX_CHAIN: usize = 1 << 16;

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// The weights of the choice.
    pub policy: Policy,
    /// Bytes that the index of this VM may take.
    pub max_index_bytes: usize,
    /// Times and sizes of the feed.
    pub sync: SyncSettings,
}

impl Default for FleetSettings {
    fn default() -> Self {
        FleetSettings { policy: Policy::default(), max_index_bytes: 384 << 20, sync: SyncSettings::default() }
    }
}

/// Where a request may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `ip:port`.
    pub address: Rc<str>,
    /// Data-parallel rank.
    pub rank: u32,
}

/// A request on its way through the index.
#[derive(Debug)]
pub struct Matching {
    pub(super) model: Rc<str>,
    pub(super) block_size: u32,
    pub(super) candidates: Rc<[ReplicaIdx]>,
    /// Of the membership that `candidates` is from.
    pub(super) version: u64,
    pub(super) walk: Walk,
    pub(super) hashes: Vec<BlockHash>,
    pub(super) open: bool,
}

impl Matching {
    /// The hashes pushed so far.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Whether further hashes could still change the match.
    pub fn open(&self) -> bool {
        self.open
    }
}

/// What is known of a request at the choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// Tokens of the prompt.
    pub tokens: u64,
    /// They are an estimate.
    pub estimated: bool,
    /// The value of the session header, where the policy looks at one.
    pub session: Option<&'a str>,
    /// The LoRA adapter that the request names.
    pub adapter: Option<&'a str>,
    /// Whether to write a receipt.
    pub explain: bool,
    /// The weights of the listener that it came by; `None`: those of the settings.
    pub policy: Option<&'a Policy>,
    /// The only replicas that it may go to, in order; `None`: to all that serve the model.
    pub only: Option<&'a [ReplicaKey]>,
    /// Now.
    pub now: Time,
}

/// A choice, booked.
#[derive(Clone, Debug)]
pub struct Pick {
    /// Where to send it.
    pub best: Target,
    /// The rank to name to the engine, where that address has several.
    pub rank: Option<u32>,
    /// Where to send it next if that fails; other addresses than the best one's.
    pub next: Vec<Target>,
    /// By this name the rest is told of it.
    pub booking: BookingId,
    /// The replica that prefills for it, where that is another one.
    pub prefill: Option<Prefill>,
    /// Prompt tokens that the engine is expected to find in its cache.
    pub matched: u64,
    /// Of them, tokens that are only predicted: requests under way will have put them there.
    pub predicted: u64,
    /// The cost of it.
    pub cost: f64,
    /// What decided.
    pub reason: Reason,
    /// If asked for.
    pub receipt: Option<Box<Receipt>>,
}

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) block_size: u32,
    /// Tokens of the match, whatever the length of the prompt.
    pub(super) matched: u64,
    /// Blocks that the pick held already.
    pub(super) held: usize,
    /// Of the match, blocks that were more than predicted.
    pub(super) claimed: usize,
    pub(super) hashes: Vec<BlockHash>,
    /// Tokens of the prompt, as far as known.
    pub(super) tokens: u64,
    pub(super) settled: bool,
    pub(super) part: Part,
    /// What the engine said of it is in [`Fleet::words`].
    pub(super) told: bool,
}

/// Everything that a router VM believes and decides. See the [module](self).
#[derive(Debug)]
pub struct Fleet {
    pub(super) world: World,
    pub(super) sync: Sync,
    pub(super) policy: Policy,
    pub(super) flights: HashMap<BookingId, Flight>,
    pub(super) tells: Vec<Tell>,
    pub(super) last_full: Time,
    pub(super) random: u64,
    pub(super) blocks_missed: bool,
    /// What the bridge should hear of requests.
    pub(super) words: Words,
}

impl Fleet {
    /// Knows nothing. `random` must differ from VM to VM, and be secret.
    pub fn new(settings: FleetSettings, random: u64) -> Self {
        Fleet {
            world: World::new(settings.max_index_bytes, random),
            sync: Sync::new(settings.sync),
            policy: settings.policy,
            flights: HashMap::new(),
            tells: Vec::new(),
            last_full: Time(0),
            random,
            blocks_missed: false,
            words: Words::default(),
        }
    }

    /// The configuration was loaded again; what is believed stays.
    pub fn configure(&mut self, settings: FleetSettings) {
        self.world.index.set_max_bytes(settings.max_index_bytes);
        self.sync.configure(settings.sync);
        self.policy = settings.policy;
    }

    /// The replicas that the configuration names, all of them. The feed may know more of them, and others.
    pub fn set_static(&mut self, replicas: &[StaticReplica]) {
        let mut named = Vec::new();
        for replica in replicas {
            let info = ReplicaInfo {
                id: FeedReplicaId(u32::MAX),
                address: replica.address.clone(),
                model: replica.model.clone(),
                block_size: replica.block_size,
                rank: replica.rank,
                capacity_blocks: replica.capacity_blocks,
                trust: Trust::NoEvents,
                role: replica.role,
                ..ReplicaInfo::default()
            };
            let key = ReplicaKey::new(&info.address, info.rank);
            let by_feed = self
                .world
                .members
                .of_key(key)
                .and_then(|i| self.world.members.get(i))
                .is_some_and(|r| r.feed.is_some());
            if !by_feed {
                self.world.upsert(&info, false);
            }
            if let Some(idx) = self.world.members.of_key(key) {
                named.push(idx);
            }
        }
        let all: Vec<_> = self.world.members.iter().map(|(idx, r)| (idx, r.fixed, r.feed.is_some())).collect();
        for (idx, was, by_feed) in all {
            let is = named.contains(&idx);
            if let Some(replica) = self.world.members.get_mut(idx) {
                replica.fixed = is;
            }
            if was && !is && !by_feed {
                self.world.leave(idx);
            }
        }
    }

    // The feed.

    /// A batch from the queue. It is applied by [`Fleet::work`].
    pub fn on_frame(&mut self, frame: &[u8], now: Time) -> Verdict {
        self.sync.on_frame(frame, now)
    }

    /// The body of the bridge's answer to a pull.
    pub fn on_snapshot(&mut self, body: &[u8], now: Time) -> Verdict {
        self.sync.on_snapshot(body, now)
    }

    /// The pull was not answered, or with an error.
    pub fn on_pull_failed(&mut self, now: Time) {
        self.sync.on_pull_failed(now);
    }

    /// What to ask the bridge for now, if anything. One at a time: the next one comes after [`Fleet::on_snapshot`] or
    /// [`Fleet::on_pull_failed`], or when the own deadline has passed.
    pub fn next_pull(&mut self, now: Time) -> Option<Pull> {
        self.sync.next_pull(now)
    }

    /// The bridge lease names this leader.
    pub fn adopt(&mut self, epoch: Epoch, now: Time) {
        self.sync.adopt(epoch, now);
    }

    /// The slot was lost, and perhaps batches with it: what is believed must be confirmed again.
    pub fn distrust(&mut self, now: Time) {
        self.sync.distrust(now);
    }

    /// Whether [`Fleet::work`] has something to do.
    pub fn has_work(&self) -> bool {
        self.sync.has_work() || self.world.index.needs_sweep()
    }

    /// Applies what waits, as long as `budget` allows. True: nothing waits any more.
    pub fn work(&mut self, now: Time, budget: Budget<'_>) -> bool {
        let done = self.sync.work(&mut self.world, now, budget) && self.world.index.sweep(budget);
        self.blocks_missed |= std::mem::take(&mut self.world.missed);
        if done && self.blocks_missed {
            self.blocks_missed = false;
            self.world.reopen();
            self.sync.distrust(now);
        }
        done
    }

    /// Whether everything that is believed is confirmed.
    pub fn synced(&self) -> bool {
        self.sync.synced()
    }

    /// Nanoseconds since the bridge was last heard of.
    pub fn feed_age(&self, now: Time) -> Option<u64> {
        self.sync.feed_age(now)
    }

    /// For the slot's heartbeat: the leader followed, and its last batch applied.
    pub fn applied(&self) -> (Epoch, u64) {
        self.sync.applied()
    }

    // The other VMs.

    /// A message of another VM ([`Message::is`] tells it from a batch).
    pub fn on_peer(&mut self, bytes: &[u8], now: Time) -> Result<(), FrameError> {
        let message = Message::decode(bytes)?;
        let (changed, replaced) = self.world.peers.hear(&message, now);
        for key in changed {
            if let Some(idx) = self.world.members.of_key(key) {
                self.world.refresh_foreign(idx);
            }
        }
        if replaced {
            self.world.predictions.drop_slot(message.slot);
        }
        for tell in message.tells {
            match tell {
                Tell::Load(..) => {}
                Tell::Predict(booking, key, hashes) => {
                    let column = self.world.members.of_key(key).and_then(|i| self.world.members.get(i)?.column);
                    if let Some(column) = column {
                        let by = foreign_booking(message.slot, booking);
                        self.world.predictions.add(by, column, hashes);
                        // Should its end never be told.
                        self.world.predictions.expire(by, now.after(60 * SECOND));
                    }
                }
                Tell::Settle(booking, 0) => {
                    self.world.predictions.drop(foreign_booking(message.slot, booking));
                }
                Tell::Settle(booking, ms) => {
                    let by = foreign_booking(message.slot, booking);
                    self.world.predictions.expire(by, now.after(u64::from(ms) * MS));
                }
            }
        }
        Ok(())
    }

    /// Another VM is known to be dead: its slot went to somebody else, or stale.
    pub fn peer_gone(&mut self, slot: u32) {
        let changed = self.world.peers.forget(slot);
        self.world.predictions.drop_slot(slot);
        for key in changed {
            if let Some(idx) = self.world.members.of_key(key) {
                self.world.refresh_foreign(idx);
            }
        }
    }

    /// What the other VMs should hear now, if anything. For every other live slot's queue.
    pub fn take_message(&mut self, slot: u32, nonce: u64, now: Time) -> Option<Vec<u8>> {
        let full = now.since(self.last_full) >= FULL_TELL && !self.world.book.is_empty();
        let changed = self.world.book.take_changed();
        let mut tells = std::mem::take(&mut self.tells);
        let world = &self.world;
        let load = |idx: ReplicaIdx| Some(Tell::Load(world.members.get(idx)?.key, world.book.own(idx)));
        if full {
            self.last_full = now;
            tells.extend(
                world.members.iter().filter(|(i, _)| world.book.own(*i).requests > 0).filter_map(|(i, _)| load(i)),
            );
        } else {
            tells.extend(changed.into_iter().filter_map(load));
        }
        (!tells.is_empty()).then(|| Message { slot, nonce, full, tells }.encode())
    }

    // Requests.

    /// Begins to match a prompt for `model`, whose blocks have `block_size` tokens here.
    pub fn begin(&self, model: &str, block_size: u32) -> Result<Matching, NoKey> {
        let Some(candidates) = self.world.members.serving(model) else {
            let fed = self.sync.feed_age(Time(0)).is_some();
            return Err(if fed { NoKey::NoReplica } else { NoKey::NoFeed });
        };
        let members = &self.world.members;
        let comparable =
            || candidates.iter().filter_map(|idx| members.get(*idx)).filter(|r| r.block_size == block_size);
        let dense = comparable().filter(|r| r.dense && r.feed.is_some() && r.trust != Trust::NoEvents);
        let walk = Walk::new(comparable().filter_map(|r| r.column)).dense(dense.filter_map(|r| r.column));
        let open = walk.alive();
        let version = members.version();
        Ok(Matching { model: model.into(), block_size, candidates, version, walk, hashes: Vec::new(), open })
    }

    /// The next block of the prompt. False: no further one changes the match. More may be pushed all the same;
    /// they make the prediction complete.
    pub fn push(&self, matching: &mut Matching, hash: BlockHash) -> bool {
        if matching.hashes.len() < MAX_CHAIN {
            matching.hashes.push(hash);
        }
        if matching.open {
            let predictions = &self.world.predictions;
            matching.open = matching.walk.push(&self.world.index, hash, |plane, hash| predictions.holders(plane, hash));
        }
        matching.open
    }

    /// The next blocks of the prompt: several at once are matched faster than one by one.
    pub fn push_all(&self, matching: &mut Matching, hashes: &[BlockHash]) -> bool {
        let room = MAX_CHAIN.saturating_sub(matching.hashes.len());
        matching.hashes.extend_from_slice(hashes.get(..room).unwrap_or(hashes));
        if matching.open {
            let predictions = &self.world.predictions;
            let predicted = |plane, hash| predictions.holders(plane, hash);
            matching.open = matching.walk.push_all(&self.world.index, hashes, predicted);
        }
        matching.open
    }

    /// Chooses, and books the request there.
    pub fn choose(&mut self, matching: &Matching, ask: &Ask<'_>) -> Result<Pick, NoKey> {
        let (seen, plain, request) = self.candidates(matching, ask, Stage::Decode);
        let shown = if ask.explain { 15 } else { 0 };
        let policy = ask.policy.unwrap_or(&self.policy);
        let scored = rank(policy, &request, &plain, policy.candidates.max(shown).max(1));
        let best = scored.first().ok_or(NoKey::NoReplica)?;
        let (idx, held) = seen.get(best.candidate).copied().ok_or(NoKey::NoReplica)?;
        let candidate = plain.get(best.candidate).ok_or(NoKey::NoReplica)?;
        let reason = reason(&scored, &plain);
        let target = |at: usize| {
            let (idx, _) = seen.get(at)?;
            let replica = self.world.members.get(*idx)?;
            Some(Target { address: replica.address.clone(), rank: replica.rank })
        };
        let first = target(best.candidate).ok_or(NoKey::NoReplica)?;
        let rank = self.rank_to_name(&first, &seen);
        let mut next: Vec<Target> = Vec::new();
        for other in scored.iter().skip(1).filter_map(|s| target(s.candidate)) {
            if next.len() < policy.candidates
                && other.address != first.address
                && rank.is_none_or(|rank| rank == 0 || self.has_rank(&other.address, rank))
                && next.iter().all(|t| t.address != other.address)
            {
                next.push(other);
            }
        }
        let (matched, predicted) = (candidate.matched as u64, candidate.predicted as u64);
        let prefill = self.compare_prefill(matching, ask, matched);
        let shown = Shown { seen: &seen, plain: &plain, scored: &scored };
        let receipt = ask.explain.then(|| {
            let of_prefill = self.prefill_receipt(ask, matched, &prefill);
            Box::new(self.receipt(matching, ask, shown, &first, reason, of_prefill))
        });
        if let (Some(adapter), Some(replica)) = (ask.adapter, self.world.members.get_mut(idx)) {
            replica.warm(adapter, ask.now);
        }
        // Before the decode, so that its booking knows that another one prefills.
        let prefill = self.book_prefill(matching, ask, &prefill);
        let part = if prefill.is_some() { Part::Decode } else { Part::Whole };
        self.want(matching, ask, &seen, &plain, best.candidate);
        let booking = self.book(idx, matching, ask, matched, held, part);
        Ok(Pick { best: first, rank, next, booking, prefill, matched, predicted, cost: best.cost, reason, receipt })
    }

    /// What [`Fleet::choose`] would say, with the receipt; nothing is booked.
    pub fn preview(&self, matching: &Matching, ask: &Ask<'_>) -> Result<Receipt, NoKey> {
        let (seen, plain, request) = self.candidates(matching, ask, Stage::Decode);
        let scored = rank(ask.policy.unwrap_or(&self.policy), &request, &plain, 16);
        let best = scored.first().ok_or(NoKey::NoReplica)?;
        let (idx, _) = seen.get(best.candidate).ok_or(NoKey::NoReplica)?;
        let matched = plain.get(best.candidate).map_or(0, |c| c.matched as u64);
        let prefill = self.prefill_receipt(ask, matched, &self.compare_prefill(matching, ask, matched));
        let replica = self.world.members.get(*idx).ok_or(NoKey::NoReplica)?;
        let pick = Target { address: replica.address.clone(), rank: replica.rank };
        let shown = Shown { seen: &seen, plain: &plain, scored: &scored };
        Ok(self.receipt(matching, ask, shown, &pick, reason(&scored, &plain), prefill))
    }

    /// The rest of the prompt is known now: the hashes after those that were pushed, and the number of tokens.
    pub fn complete(&mut self, id: BookingId, hashes: &[BlockHash], tokens: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let room = MAX_CHAIN.saturating_sub(flight.hashes.len());
        flight.hashes.extend_from_slice(hashes.get(..room).unwrap_or(hashes));
        flight.tokens = tokens;
        let matched = flight.matched.min(last_token_cap(tokens, flight.block_size));
        let uncached = if flight.part == Part::Decode { 0.0 } else { tokens.saturating_sub(matched) as f64 };
        self.world.book.correct(id, uncached, tokens as f64);
        if !flight.settled {
            self.predict(id, flight_tail(&self.flights, id, hashes.len()));
        }
    }

    /// The first SSE `data:` line of the answer.
    pub fn first_data(&mut self, id: BookingId, now: Time) {
        if let Some(seen) = self.world.book.first_data(id, now)
            && seen.uncached >= 256.0
            && let Some(replica) = self.world.members.get_mut(seen.replica)
        {
            let rate = seen.uncached * 1e9 / seen.after.max(MS) as f64;
            replica.prefill_rate = match replica.prefill_rate > 0.0 {
                true => replica.prefill_rate * 0.8 + rate * 0.2,
                false => rate,
            };
        }
        self.settle(id, true, now);
    }

    /// The answer grew by `tokens`.
    pub fn grown(&mut self, id: BookingId, tokens: u64) {
        self.world.book.grown(id, tokens as f64);
    }

    /// It ended; `served`: with an answer of the engine. Only the first call counts.
    pub fn finish(&mut self, id: BookingId, served: bool, now: Time) {
        self.settle(id, served, now);
        if served {
            self.tell(id, None);
        }
        self.world.book.release(id);
        self.flights.remove(&id);
    }

    /// `upstream.address` is another one than picked: Envoy retried. True: the booking went there; false: it
    /// was there already, or nobody known lives there, so that nothing is booked any more.
    pub fn moved(&mut self, id: BookingId, address: &str) -> bool {
        let Some(at) = self.world.book.replica(id) else { return false };
        if self.world.members.get(at).is_some_and(|r| &*r.address == address) {
            return false;
        }
        self.world.predictions.drop(id);
        self.tells.push(Tell::Settle(id.0, 0));
        let Some(to) = self.world.members.at_address(address, at) else {
            self.world.book.release(id);
            return false;
        };
        self.world.book.moved(id, to);
        let Some(flight) = self.flights.get_mut(&id) else { return true };
        // How much of the prompt is there was not asked: take it for new.
        (flight.held, flight.claimed) = (0, 0);
        if !flight.settled {
            self.predict(id, flight_tail(&self.flights, id, usize::MAX));
        }
        true
    }

    /// Lets time pass: predictions expire, prefills shrink, silent VMs are forgotten.
    pub fn tick(&mut self, now: Time) {
        let World { book, members, predictions, homes, peers, .. } = &mut self.world;
        predictions.tick(now);
        let silent = |trust| matches!(trust, Trust::NoEvents | Trust::Stale);
        let untold = |idx| members.get(idx).filter(|r| silent(r.trust)).map_or(0.0, |r| r.prefill_rate);
        book.tick(now, untold);
        let home = self.policy.home_seconds.saturating_mul(SECOND);
        homes.tick(Time(now.0.saturating_sub(home)));
        let silent = peers.silent(now);
        silent.into_iter().for_each(|slot| self.peer_gone(slot));
    }

    /// Everything for people and metrics.
    pub fn stats(&self, now: Time) -> FleetStats {
        let world = &self.world;
        let predicted = world.predictions.by_column();
        let replicas = world.members.iter().map(|(idx, r)| ReplicaStats {
            address: r.address.to_string(),
            rank: r.rank,
            role: r.role,
            model: r.model.to_string(),
            block_size: r.block_size,
            trust: self.trust(r, now).0.label(),
            trust_reason: self.trust(r, now).1.to_owned(),
            blocks: r.column.map(|c| world.index.blocks(c)).unwrap_or_default(),
            predicted_blocks: r.column.and_then(|c| predicted.get(c.index()).copied()).unwrap_or(0),
            capacity_blocks: r.capacity_blocks,
            truncated: r.column.is_some_and(|c| world.index.truncated(c)),
            own: world.book.own(idx),
            peers: self.foreign(idx),
            reported_running: r.reported.map(|(l, _)| l.running),
            reported_waiting: r.reported.map(|(l, _)| l.waiting),
            reported_kv_usage: r.reported.map(|(l, _)| f64::from(l.kv_usage_ppm) / 1e6),
            reported_age_ms: r.reported.map(|(_, at)| to_ms(now.since(at))),
            homes: world.homes.at(idx),
            adapters: r.adapters.list.iter().map(|adapter| (adapter.name.clone(), adapter.loaded)).collect(),
            prefill_rate: r.prefill_rate,
        });
        FleetStats {
            replicas: replicas.collect(),
            sync: self.sync.state(),
            feed_age_ms: self.feed_age(now).map(to_ms),
            feed_quiet: self.feed_age(now).is_some_and(|age| age > QUIET),
            index: world.index.stats(),
            predicted_blocks: world.predictions.blocks(),
            bookings: world.book.len(),
        }
    }

    /// All blocks believed to be held by whom, as (address, rank, tier, hash, a hit may end there), sorted. For
    /// tests and dumps.
    pub fn dump(&self) -> Vec<(String, u32, crate::feed::record::Tier, BlockHash, bool)> {
        let by_column: HashMap<_, _> = self.world.members.iter().filter_map(|(_, r)| Some((r.column?, r))).collect();
        let dump = self.world.index.dump().into_iter();
        let mut all: Vec<_> = dump
            .filter_map(|(column, tier, hash, end)| {
                let replica = by_column.get(&column)?;
                Some((replica.address.to_string(), replica.rank, tier, hash, end))
            })
            .collect();
        all.sort_unstable();
        all
    }
}
