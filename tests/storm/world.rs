//! Everything between the engines and the picks, and what befalls it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use kvroute::blocks::BlockHash;
use kvroute::bridge::cache::{Cache, CacheConfig, Word};
use kvroute::bridge::cursor::Cursor;
use kvroute::bridge::hub::{Hub, Next, Place};
use kvroute::bridge::stream::{Changes, Input, Step, Stream};
use kvroute::bridge::trust::TrustMachine;
use kvroute::clock::{MS, Time};
use kvroute::feed::FeedReplicaId;
use kvroute::feed::record::{ReplicaInfo, Tier, Trust};
use kvroute::feed::sync::Pull;
use kvroute::feed::wire::{Reader, Writer};
use kvroute::feed::word;
use kvroute::replicas::{Ask, Fleet, FleetSettings};
use kvroute::routing::Policy;

use crate::engine::{BLOCK, Engine, Message, chain};

/// Blocks that an engine has room for.
const ROOM: usize = 1500;
const SYSTEMS: u64 = 40;

pub struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Picks, and of them those where another replica held more.
#[derive(Default)]
pub struct Tally {
    pub picks: u64,
    pub wrong_on: u64,
    pub wrong_off: u64,
}

/// One bridge process.
struct Bridge {
    hub: Arc<Hub>,
    streams: Vec<Stream>,
    term: u64,
}

struct Worker {
    fleet: Fleet,
    place: Place,
    /// Answers on their way: (when, bytes; none: it failed).
    answers: VecDeque<(u64, Option<Vec<u8>>)>,
}

/// A stream in a checkpoint.
struct Saved {
    last: Option<(u64, u64)>,
    missing: u8,
    cache: Vec<u8>,
}

/// What befell.
#[derive(Default)]
struct Faults {
    lost: u64,
    lost_for_good: u64,
    twice: u64,
    restarts: u64,
    clears: u64,
    bridges: u64,
    vms: u64,
    checks: u64,
    exact: u64,
    partial: u64,
}

pub struct World {
    dice: Dice,
    now: u64,
    engines: Vec<Engine>,
    bridge: Bridge,
    workers: Vec<Worker>,
    /// Contents of the conversations so far.
    talks: Vec<Vec<u32>>,
    fresh: u32,
    on: Policy,
    off: Policy,
    saved: Option<Vec<Saved>>,
    faults: Faults,
}

fn address(n: usize) -> String {
    format!("10.0.0.{n}:8000")
}

fn config() -> CacheConfig {
    CacheConfig { model: "m".into(), block_size: Some(BLOCK as u32), ..CacheConfig::default() }
}

impl Bridge {
    fn new(replicas: usize, term: u64) -> Bridge {
        let hub = Hub::new(4 << 20);
        hub.raise_term(term);
        let stream = |_| Stream::new(hub.reserve(), config(), TrustMachine::new(true, 0));
        Bridge { streams: (0..replicas).map(stream).collect(), hub, term: term + 1 }
    }

    fn take(&mut self, at: usize, input: Input<'_>, now: u64) -> Step {
        let mut changes = Changes::default();
        let step = self.streams[at].take(input, now / MS, &mut changes);
        self.tell(at, changes, now);
        step
    }

    fn tell(&mut self, at: usize, changes: Changes, now: u64) {
        self.hub.publish(changes.records, &changes.wiped);
        let stream = &self.streams[at];
        let (trust, reason) = stream.state(now / MS);
        self.hub.replica(ReplicaInfo {
            id: FeedReplicaId(at as u32),
            address: address(at),
            model: "m".into(),
            block_size: BLOCK as u32,
            capacity_blocks: ROOM as u64,
            trust,
            reason: reason.into(),
            dense: stream.cache().dense(),
            ..ReplicaInfo::default()
        });
    }

    /// Asks for a replay, as a source does, as far as the engine's buffer reaches.
    fn replay(&mut self, at: usize, log: &[Message], mut from: u64, now: u64) {
        for _ in 0..3 {
            self.take(at, Input::ReplayBegins, now);
            let mut again = None;
            for message in log.iter().filter(|m| m.seq >= from) {
                let input = Input::Replayed { seq: message.seq, payload: &message.payload };
                if let Step::Replay(start) = self.take(at, input, now) {
                    again = Some(start);
                    break;
                }
            }
            if again.is_none() {
                again = match self.take(at, Input::ReplayEnds { complete: true }, now) {
                    Step::Replay(start) => Some(start),
                    Step::Done => None,
                };
            }
            let Some(start) = again else { return };
            from = start;
        }
    }

    fn live(&mut self, at: usize, message: &Message, replayable: Option<&[Message]>, now: u64) {
        let live = |replayable| Input::Live { seq: message.seq, payload: &message.payload, replayable };
        if let Step::Replay(from) = self.take(at, live(replayable.is_some()), now) {
            self.replay(at, replayable.unwrap_or_default(), from, now);
            self.take(at, live(false), now);
        }
    }

    fn connect(&mut self, at: usize, log: &[Message], now: u64) {
        self.take(at, Input::Connected, now);
        let from = self.streams[at].replay_from();
        self.replay(at, log, from, now);
    }

    fn reply(&self, pull: Pull) -> Vec<u8> {
        match pull {
            Pull::Digests { from } => self.hub.digests(from).encode(),
            Pull::Range { from, through } => self.hub.snapshot(from, through).encode(),
        }
    }
}

impl World {
    pub fn new(replicas: usize, workers: usize, seed: u64) -> World {
        let mut dice = Dice(seed);
        let worker = |dice: &mut Dice| Worker {
            fleet: Fleet::new(FleetSettings::default(), dice.next()),
            place: Place::default(),
            answers: VecDeque::new(),
        };
        // By cache alone, so that the best pick is known.
        let on = Policy { queue: 0.0, context: 0.0, request: 0.0, waiting: 0.0, crowding: 0.0, ..Policy::default() };
        let off = Policy { unconfirmed: 1.0, catching_up: 1.0, stale: 1.0, no_events: 1.0, ..on.clone() };
        let mut world = World {
            engines: (0..replicas).map(|_| Engine::new(ROOM, dice.next())).collect(),
            bridge: Bridge::new(replicas, 1),
            workers: (0..workers).map(|_| worker(&mut dice)).collect(),
            dice,
            now: 1 << 40,
            talks: Vec::new(),
            fresh: 1 << 20,
            on,
            off,
            saved: None,
            faults: Faults::default(),
        };
        (0..replicas).for_each(|at| world.bridge.connect(at, &[], world.now));
        world
    }

    /// Events that the engines have published.
    pub fn events(&self) -> u64 {
        self.engines.iter().map(|e| e.published).sum()
    }

    /// One request, and what else happens meanwhile.
    pub fn turn(&mut self, faults: bool, tally: &mut Tally) {
        self.now += self.dice.below(3) * MS;
        self.request(tally);
        if faults {
            self.befall();
        }
        for at in 0..self.workers.len() {
            if !(faults && self.dice.one_in(3)) {
                self.work(at, faults);
            }
        }
    }

    /// Another turn of a conversation, or a new one.
    fn request(&mut self, tally: &mut Tally) {
        let most = 12 * self.engines.len() as u64;
        let at = self.dice.below(most) as usize;
        let new = at >= self.talks.len() || self.talks[at].len() > 120;
        if new {
            let system = self.dice.below(SYSTEMS) as u32;
            let words: Vec<u32> = (0..8 + system % 13).map(|n| (system << 8 | n) + 7).collect();
            match self.talks.get_mut(at) {
                Some(talk) => *talk = words,
                None => self.talks.push(words),
            }
        }
        let at = at.min(self.talks.len() - 1);
        for _ in 0..1 + self.dice.below(6) {
            self.fresh += 1;
            self.talks[at].push(self.fresh);
        }
        let contents = &self.talks[at];
        let hashes = chain(contents);
        let cap = hashes.len() - 1;
        let worker = self.dice.below(self.workers.len() as u64) as usize;
        let fleet = &mut self.workers[worker].fleet;
        let tokens = (contents.len() * BLOCK) as u64;
        let (on, off) = (self.on.clone(), self.off.clone());
        let picked = fleet.begin("m", BLOCK as u32).ok().and_then(|mut matching| {
            fleet.push_all(&mut matching, &hashes);
            let ask = |policy| Ask { tokens, policy: Some(policy), now: Time(self.now), ..Ask::default() };
            let without = fleet.preview(&matching, &ask(&off)).ok()?.pick;
            Some((without, fleet.choose(&matching, &ask(&on)).ok()?))
        });
        // A worker that knows nobody leaves it to chance.
        let place = |name: &str| (0..self.engines.len()).find(|n| address(*n) == name);
        let to = picked.as_ref().and_then(|(_, pick)| place(&pick.best.address));
        if let Some((without, pick)) = &picked {
            let held: Vec<usize> = self.engines.iter().map(|e| e.matched(&hashes).min(cap)).collect();
            let best = held.iter().copied().max().unwrap_or(0);
            tally.picks += 1;
            tally.wrong_on += u64::from(place(&pick.best.address).is_none_or(|n| held[n] < best));
            tally.wrong_off += u64::from(place(without).is_none_or(|n| held[n] < best));
        }
        let to = to.unwrap_or_else(|| self.dice.below(self.engines.len() as u64) as usize);
        let cached = self.engines[to].compute(contents, &hashes);
        if let Some((_, pick)) = picked {
            let fleet = &mut self.workers[worker].fleet;
            fleet.first_data(pick.booking, Time(self.now));
            fleet.found(pick.booking, tokens, (cached * BLOCK) as u64);
            fleet.finish(pick.booking, true, Time(self.now));
        }
        self.publish(to, false);
    }

    /// A step of an engine: what it says goes to the bridge, or is lost.
    fn publish(&mut self, at: usize, lose: bool) {
        let Some(message) = self.engines[at].step() else { return };
        if lose {
            self.faults.lost += 1;
            return;
        }
        let replayable = !self.dice.one_in(30);
        let before = self.bridge.streams[at].counts.gaps_lost;
        let log = self.engines[at].log.clone();
        self.bridge.live(at, &message, replayable.then_some(log.as_slice()), self.now);
        self.faults.lost_for_good += self.bridge.streams[at].counts.gaps_lost - before;
    }

    fn befall(&mut self) {
        let at = self.dice.below(self.engines.len() as u64) as usize;
        match self.dice.below(2000) {
            0..40 => {
                // A message is lost.
                let system = self.dice.below(SYSTEMS) as u32;
                let contents: Vec<u32> = (0..20).map(|n| (system << 8 | n) + 7).collect();
                self.fresh += 1;
                let contents = [contents, vec![self.fresh]].concat();
                self.engines[at].compute(&contents, &chain(&contents));
                self.publish(at, true);
            }
            40..60 => {
                if let Some(message) = self.engines[at].log.last().cloned() {
                    self.faults.twice += 1;
                    self.bridge.live(at, &message, None, self.now);
                }
            }
            60..63 => {
                self.faults.restarts += 1;
                let process = self.dice.next();
                self.engines[at].restart(process);
                self.bridge.take(at, Input::Disconnected, self.now);
                self.bridge.connect(at, &[], self.now);
            }
            63..67 => {
                self.faults.clears += 1;
                self.engines[at].clear();
            }
            67 => self.another_bridge(),
            68..70 => {
                let save = |s: &Stream| {
                    let mut out = Writer::default();
                    s.cache().save(&mut out);
                    Saved { last: s.cursor().last(), missing: s.trust.save(), cache: out.0 }
                };
                self.saved = Some(self.bridge.streams.iter().map(save).collect());
            }
            70..73 => {
                self.faults.vms += 1;
                let worker = self.dice.below(self.workers.len() as u64) as usize;
                let fleet = Fleet::new(FleetSettings::default(), self.dice.next());
                self.workers[worker] = Worker { fleet, place: Place::default(), answers: VecDeque::new() };
            }
            _ => {}
        }
    }

    /// The bridge dies, and another one takes over, with what the checkpoint of the last one says, or without.
    fn another_bridge(&mut self) {
        self.faults.bridges += 1;
        let mut next = Bridge::new(self.engines.len(), self.bridge.term + self.dice.below(3));
        if let Some(saved) = self.saved.take().filter(|_| !self.dice.one_in(3)) {
            for (at, Saved { last, missing, cache }) in saved.into_iter().enumerate() {
                let mut changes = Changes::default();
                let id = FeedReplicaId(at as u32);
                let cache = Cache::load(config(), id, &mut Reader(&cache), &mut changes.records).unwrap();
                if let Some((last, digest)) = last {
                    next.streams[at].restore(Cursor::restored(last, digest), cache, missing);
                    next.tell(at, changes, self.now);
                }
            }
        }
        self.bridge = next;
        for at in 0..self.engines.len() {
            self.bridge.connect(at, &self.engines[at].log, self.now);
        }
    }

    /// One turn of a worker's loop.
    fn work(&mut self, at: usize, faults: bool) {
        let World { workers, dice, bridge, now, .. } = self;
        let Worker { fleet, place, answers } = &mut workers[at];
        let now = *now;
        while answers.front().is_some_and(|(at, _)| *at <= now) {
            match answers.pop_front().and_then(|(_, bytes)| bytes) {
                Some(bytes) => _ = fleet.on_snapshot(&bytes, Time(now)),
                None => fleet.on_pull_failed(Time(now)),
            }
        }
        // What waits is sealed, as if a millisecond had passed.
        bridge.hub.digests(u64::MAX);
        while let Next::Send(frame) = bridge.hub.next(place) {
            place.advance();
            if faults && dice.one_in(300) {
                continue; // the post failed for good
            }
            fleet.on_frame(&frame.bytes, Time(now));
            if faults && dice.one_in(100) {
                fleet.on_frame(&frame.bytes, Time(now));
            }
        }
        let mut left = if faults { 1 + dice.below(400) } else { u64::MAX };
        fleet.work(Time(now), &mut || {
            left = left.saturating_sub(1);
            left > 0
        });
        if let Some(pull) = fleet.next_pull(Time(now)) {
            if let Ok(told) = word::decode(&fleet.take_words()) {
                for one in told {
                    let cached = one.cached.map(|cached| cached as usize);
                    let word = Word { chain: &one.chain, claimed: one.claimed as usize, cached };
                    bridge.take(one.replica.0 as usize, Input::Heard(word), now);
                }
            }
            let lost = faults && dice.one_in(10);
            answers.push_back((now + (1 + dice.below(8)) * MS, (!lost).then(|| bridge.reply(pull))));
        }
        fleet.tick(Time(now));
    }

    /// Engines say what they have left to say, and everybody gets into step.
    pub fn quiet(&mut self) {
        for at in 0..self.engines.len() {
            self.fresh += 1;
            let contents = [self.fresh; 2];
            self.engines[at].compute(&contents, &chain(&contents));
            let Some(message) = self.engines[at].step() else { continue };
            let log = self.engines[at].log.clone();
            self.bridge.live(at, &message, Some(&log), self.now);
        }
        let mut turns = 0;
        // A whole scrub beyond being in step, and no prediction left.
        let enough = self.now + 3_000 * MS;
        while self.now < enough || self.workers.iter().any(|w| !w.fleet.synced() || w.fleet.has_work()) {
            self.now += 5 * MS;
            (0..self.workers.len()).for_each(|at| self.work(at, false));
            turns += 1;
            assert!(turns < 20_000, "not in step");
        }
    }

    /// Compares what every worker believes with what there is.
    pub fn check(&mut self) {
        let truth: BTreeMap<String, HashSet<BlockHash>> =
            self.engines.iter().enumerate().map(|(at, e)| (address(at), e.held().collect())).collect();
        let trust: BTreeMap<String, Trust> =
            (0..self.engines.len()).map(|at| (address(at), self.bridge.streams[at].state(self.now / MS).0)).collect();
        for worker in &self.workers {
            let mut confirmed: BTreeMap<String, HashSet<BlockHash>> = BTreeMap::new();
            for (name, _, tier, block, end) in worker.fleet.dump() {
                assert!(end && matches!(tier, Tier::Gpu | Tier::Unconfirmed));
                if tier == Tier::Gpu {
                    confirmed.entry(name).or_default().insert(block);
                }
            }
            for (name, held) in &truth {
                let believed = confirmed.remove(name).unwrap_or_default();
                let wrong = believed.difference(held).count();
                assert_eq!(wrong, 0, "{name} is believed to hold {wrong} blocks that it does not");
                if trust[name] == Trust::Exact {
                    assert_eq!(believed.len(), held.len(), "{name} holds more");
                    self.faults.exact += 1;
                } else {
                    self.faults.partial += 1;
                }
                self.faults.checks += 1;
            }
            assert!(confirmed.is_empty());
        }
    }

    pub fn summary(&self) -> String {
        let f = &self.faults;
        format!(
            "{} events of {} replicas, {} workers; {} messages lost, {} gaps never filled, {} messages twice, \
             {} restarts, {} clears, {} bridges and {} VMs died; {} checks of a replica in a worker: \
             {} equal, {} of partial knowledge without a wrong block",
            self.events(),
            self.engines.len(),
            self.workers.len(),
            f.lost,
            f.lost_for_good,
            f.twice,
            f.restarts,
            f.clears,
            f.bridges,
            f.vms,
            f.checks,
            f.exact,
            f.partial
        )
    }
}
