//! Several workers, replicas and two bridges under faults: after every quiet period each worker believes exactly
//! what the replicas hold.
//!
//! `KVROUTE_SIM_EVENTS` (default 60,000), `KVROUTE_SIM_REPLICAS` (6), `KVROUTE_SIM_WORKERS` (3) and
//! `KVROUTE_SIM_SEED` scale it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use kvroute::blocks::BlockHash;
use kvroute::clock::{MS, Time};
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::digest::{self, DRAWERS, Digests, drawer};
use kvroute::feed::record::{Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::snapshot::Snapshot;
use kvroute::feed::sync::Pull;
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::replicas::{Fleet, FleetSettings};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The truth: which replica (by name) holds which block in which tier.
#[derive(Clone, Default)]
struct Truth {
    held: BTreeMap<u64, BTreeMap<(Tier, u64), bool>>,
}

impl Truth {
    fn dump(&self) -> Vec<(String, u32, Tier, BlockHash, bool)> {
        let mut all: Vec<_> = self
            .held
            .iter()
            .flat_map(|(name, blocks)| {
                blocks.iter().map(|((tier, hash), end)| (address(*name), 0, *tier, BlockHash(*hash), *end))
            })
            .collect();
        all.sort_unstable();
        all
    }
}

fn address(name: u64) -> String {
    format!("10.0.0.{name}:8000")
}

/// A bridge as its workers see it. It numbers the replicas in its own way.
struct Bridge {
    epoch: Epoch,
    seq: u64,
    offset: u32,
}

impl Bridge {
    fn id(&self, name: u64) -> FeedReplicaId {
        FeedReplicaId(name as u32 * 3 + self.offset)
    }

    fn info(&self, name: u64) -> Record {
        Record::Replica(ReplicaInfo {
            id: self.id(name),
            address: address(name),
            model: "m".into(),
            block_size: 16,
            rank: 0,
            capacity_blocks: 0,
            trust: Trust::Exact,
            ..ReplicaInfo::default()
        })
    }

    fn batch(&mut self, records: Vec<Record>) -> Vec<u8> {
        self.seq += 1;
        Batch { header: BatchHeader { epoch: self.epoch, seq: self.seq }, records }.encode()
    }

    fn reply(&self, truth: &Truth, pull: Pull, most: usize) -> Vec<u8> {
        match pull {
            Pull::Range { from, through } => self.answer(truth, from, through, most),
            Pull::Digests { from } => self.digests(truth, from),
        }
    }

    /// Digests from the drawer of `from` on, summand by summand.
    fn digests(&self, truth: &Truth, from: u64) -> Vec<u8> {
        let mut drawers = vec![0u64; DRAWERS];
        for (name, blocks) in &truth.held {
            let (holds, ends) = digest::holder(self.id(*name));
            for ((tier, hash), end) in blocks {
                let of = if *end { holds.wrapping_add(ends) } else { holds };
                let summand = digest::block(BlockHash(*hash), *tier).wrapping_mul(of);
                drawers[drawer(*hash)] = drawers[drawer(*hash)].wrapping_add(summand);
            }
        }
        drawers.drain(..drawer(from));
        let replicas = truth.held.keys().map(|name| self.info(*name)).collect();
        Digests { epoch: self.epoch, seq: self.seq, from, drawers, replicas }.encode()
    }

    /// The range that begins at `from`, of about `most` blocks.
    fn answer(&self, truth: &Truth, from: u64, to: u64, most: usize) -> Vec<u8> {
        let mut records: Vec<_> = truth.held.keys().map(|name| self.info(*name)).collect();
        let hashes: BTreeSet<u64> =
            truth.held.values().flat_map(|b| b.keys().map(|k| k.1)).filter(|h| (from..=to).contains(h)).collect();
        let through = hashes.iter().nth(most).map_or(to, |h| h - 1);
        let names: Vec<u64> = truth.held.keys().copied().collect();
        for group in names.chunks(64) {
            for tier in Tier::ALL {
                let mut blocks = Vec::new();
                for hash in hashes.range(..=through) {
                    let (mut holders, mut ends) = (0, 0);
                    for (bit, name) in group.iter().enumerate() {
                        if let Some(end) = truth.held[name].get(&(tier, *hash)) {
                            holders |= 1 << bit;
                            ends |= u64::from(*end) << bit;
                        }
                    }
                    if holders != 0 {
                        blocks.push((BlockHash(*hash), holders, ends));
                    }
                }
                records.push(Record::Held { tier, replicas: group.iter().map(|n| self.id(*n)).collect(), blocks });
            }
        }
        Snapshot { epoch: self.epoch, seq: self.seq, from, through, records }.encode()
    }
}

struct Worker {
    fleet: Fleet,
    queue: VecDeque<Vec<u8>>,
    /// Answers on their way: (when, bytes; none: it failed).
    answers: VecDeque<(u64, Option<Vec<u8>>)>,
}

impl Worker {
    fn new(dice: &mut Dice) -> Worker {
        let fleet = Fleet::new(FleetSettings::default(), dice.next());
        Worker { fleet, queue: VecDeque::new(), answers: VecDeque::new() }
    }

    /// One turn of its loop, with `steps` pieces of work at most.
    fn turn(&mut self, now: u64, steps: usize, ask: &mut dyn FnMut(Pull) -> (u64, Option<Vec<u8>>)) {
        while self.answers.front().is_some_and(|(at, _)| *at <= now) {
            match self.answers.pop_front().unwrap().1 {
                Some(bytes) => {
                    _ = self.fleet.on_snapshot(&bytes, Time(now));
                }
                None => self.fleet.on_pull_failed(Time(now)),
            }
        }
        let mut left = steps;
        let mut budget = || {
            left = left.saturating_sub(1);
            left > 0
        };
        while self.fleet.work(Time(now), &mut budget) {
            let Some(frame) = self.queue.pop_front() else { break };
            self.fleet.on_frame(&frame, Time(now));
        }
        if let Some(pull) = self.fleet.next_pull(Time(now)) {
            self.answers.push_back(ask(pull));
        }
        self.fleet.tick(Time(now));
    }
}

struct Sim {
    dice: Dice,
    truth: Truth,
    bridge: Bridge,
    workers: Vec<Worker>,
    now: u64,
    names: u64,
    checks: u64,
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let mut dice = Dice(seed);
        let workers = (0..env("KVROUTE_SIM_WORKERS", 3)).map(|_| Worker::new(&mut dice)).collect();
        let bridge = Bridge { epoch: Epoch { term: 1, id: 1 }, seq: 0, offset: 1 };
        let names = env("KVROUTE_SIM_REPLICAS", 6);
        Sim { dice, truth: Truth::default(), bridge, workers, now: 1 << 40, names, checks: 0 }
    }

    /// Something happens to the caches; how the bridge tells of it.
    fn event(&mut self) -> Vec<Record> {
        let name = self.dice.below(self.names);
        let mut records = Vec::new();
        let id = self.bridge.id(name);
        let held = self.truth.held.entry(name).or_insert_with(|| {
            records.push(self.bridge.info(name));
            BTreeMap::new()
        });
        let tier =
            [Tier::Gpu, Tier::Gpu, Tier::Gpu, Tier::Cpu, Tier::Disk, Tier::Unconfirmed][self.dice.below(6) as usize];
        let block = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        match self.dice.below(200) {
            0 => {
                self.truth.held.remove(&name);
                records.push(Record::Gone(id));
            }
            1 => {
                held.clear();
                records.push(Record::Cleared(id));
            }
            2..130 => {
                let first = self.dice.below(5000);
                let run = 1 + self.dice.below(40);
                let mut ends = vec![0u8; run.div_ceil(8) as usize];
                let hashes: Vec<_> = (first..first + run).map(|n| BlockHash(block(n))).collect();
                for (i, hash) in hashes.iter().enumerate() {
                    let end = !self.dice.one_in(4);
                    ends[i / 8] |= u8::from(end) << (i % 8);
                    held.insert((tier, hash.0), end);
                }
                records.push(Record::Stored { replica: id, tier, parent: None, ends, hashes });
            }
            _ => {
                let first = self.dice.below(5000);
                let hashes: Vec<_> = (0..8).map(|n| BlockHash(block(first + n * 3))).collect();
                for hash in &hashes {
                    held.remove(&(tier, hash.0));
                }
                records.push(Record::Removed { replica: id, tier, hashes });
            }
        }
        records
    }

    /// Another bridge takes over and begins anew.
    fn take_over(&mut self) -> Vec<Record> {
        let term = self.bridge.epoch.term + 1;
        let offset = self.dice.below(3) as u32;
        self.bridge = Bridge { epoch: Epoch { term, id: self.dice.next() | 1 }, seq: 0, offset };
        self.truth.held.keys().map(|name| self.bridge.info(*name)).collect()
    }

    fn deliver(&mut self, records: Vec<Record>, faults: bool) {
        let frame = self.bridge.batch(records);
        for worker in &mut self.workers {
            if faults && self.dice.one_in(40) {
                continue; // lost
            }
            worker.queue.push_back(frame.clone());
            if faults && self.dice.one_in(20) {
                worker.queue.push_back(frame.clone()); // twice
            }
            if faults && self.dice.one_in(60) {
                // From a bridge that does not lead any more.
                let old = Epoch { term: self.bridge.epoch.term - 1, id: 77 };
                let records = vec![Record::Cleared(FeedReplicaId(1)), Record::Cleared(FeedReplicaId(2))];
                let header = BatchHeader { epoch: old, seq: self.bridge.seq };
                worker.queue.push_back(Batch { header, records }.encode());
            }
        }
    }

    fn turn(&mut self, faults: bool) {
        self.now += MS;
        for at in 0..self.workers.len() {
            if faults && self.dice.one_in(3) {
                continue; // busy elsewhere
            }
            let steps = 1 + self.dice.below(60) as usize;
            let (bridge, truth, dice, now) = (&self.bridge, &self.truth, &mut self.dice, self.now);
            let mut ask = |pull| {
                let lost = faults && dice.one_in(10);
                let delay = 1 + dice.below(8);
                let most = 100 + dice.below(2000) as usize;
                (now + delay * MS, (!lost).then(|| bridge.reply(truth, pull, most)))
            };
            self.workers[at].turn(now, steps, &mut ask);
        }
    }

    /// Without faults until everybody is in step; then all must be right.
    fn quiet(&mut self) {
        let mut turns = 0;
        let settled =
            |w: &Worker| w.queue.is_empty() && w.fleet.synced() && !w.fleet.has_work() && w.answers.is_empty();
        self.deliver(vec![], false);
        while !self.workers.iter().all(settled) {
            self.turn(false);
            turns += 1;
            if turns % 50 == 0 {
                self.deliver(vec![], false);
            }
            assert!(turns < 50_000, "not in step after {turns} turns");
        }
        let truth = self.truth.dump();
        for worker in &self.workers {
            let believed = worker.fleet.dump();
            let wrong = believed.iter().filter(|b| truth.binary_search(b).is_err()).count();
            assert_eq!((believed.len(), wrong), (truth.len(), 0), "seed and turn decide it");
            self.checks += 1;
        }
    }
}

#[test]
fn every_worker_believes_the_truth_after_every_quiet_period() {
    let events = env("KVROUTE_SIM_EVENTS", 60_000);
    let mut sim = Sim::new(env("KVROUTE_SIM_SEED", 1));
    let (mut batch, mut wait) = (Vec::new(), 0);
    for n in 0..events {
        batch.extend(sim.event());
        if sim.dice.one_in(8) {
            sim.deliver(std::mem::take(&mut batch), true);
            for _ in 0..sim.dice.below(4) {
                sim.turn(true);
            }
        }
        if sim.dice.one_in(3000) {
            batch = sim.take_over();
            sim.deliver(std::mem::take(&mut batch), true);
        }
        if sim.dice.one_in(2500) {
            let at = sim.dice.below(sim.workers.len() as u64) as usize;
            sim.workers[at] = Worker::new(&mut sim.dice); // it trapped
        }
        wait += 1;
        if wait > events / 12 || n + 1 == events {
            wait = 0;
            sim.deliver(std::mem::take(&mut batch), true);
            sim.quiet();
        }
    }
    println!("{events} events, {} checks of a worker, {} blocks at the end", sim.checks, sim.truth.dump().len());
}
