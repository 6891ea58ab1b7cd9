use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::clock::{MS, SECOND};
use crate::feed::batch::{Batch, BatchHeader};
use crate::feed::digest::{self, drawer};
use crate::feed::record::{LoadReport, ReplicaInfo, Tier, Trust};

/// First hash, blocks, last hash.
type Ranging = (u64, Vec<(FeedReplicaId, u64, bool)>, u64);

/// What a worker should believe, in the plainest form.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    replicas: BTreeSet<FeedReplicaId>,
    held: BTreeMap<(FeedReplicaId, u64), bool>,
    ranging: Option<Ranging>,
    /// Of each replica, what was said last; only where a test looks at it.
    reasons: Option<BTreeMap<u32, String>>,
}

impl Target for Plain {
    fn new_epoch(&mut self) {}
    fn replica(&mut self, info: &ReplicaInfo, _: Time) -> bool {
        if let Some(reasons) = &mut self.reasons {
            reasons.insert(info.id.0, info.reason.clone());
        }
        self.replicas.insert(info.id)
    }
    fn gone(&mut self, id: FeedReplicaId, now: Time) {
        self.cleared(id, now);
        self.replicas.remove(&id);
    }
    fn cleared(&mut self, id: FeedReplicaId, _: Time) {
        self.held.retain(|(r, _), _| *r != id);
    }
    fn load(&mut self, _: FeedReplicaId, _: &LoadReport, _: Time) {}
    fn stored(&mut self, id: FeedReplicaId, _: Tier, _: Option<BlockHash>, hashes: &[BlockHash], ends: &[u8]) -> bool {
        let end = |i: usize| ends.is_empty() || ends[i / 8] >> (i % 8) & 1 != 0;
        hashes.iter().enumerate().for_each(|(i, h)| {
            _ = self.held.insert((id, h.0), end(i));
        });
        self.replicas.contains(&id)
    }
    fn removed(&mut self, id: FeedReplicaId, _: Tier, hashes: &[BlockHash]) {
        hashes.iter().for_each(|h| {
            _ = self.held.remove(&(id, h.0));
        });
    }
    fn only(&mut self, ids: &[FeedReplicaId], now: Time) {
        let gone: Vec<_> = self.replicas.iter().filter(|id| !ids.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| self.gone(id, now));
    }
    fn range_begin(&mut self, snapshot: Snapshot) {
        let mut held = Vec::new();
        for record in snapshot.records {
            if let Record::Held { replicas, blocks, .. } = record {
                for (hash, holders, ends) in blocks {
                    let on = replicas.iter().enumerate().filter(|(bit, _)| holders >> bit & 1 != 0);
                    held.extend(on.map(|(bit, id)| (*id, hash.0, ends >> bit & 1 != 0)));
                }
            }
        }
        self.ranging = Some((snapshot.from, held, snapshot.through));
    }
    fn range_apply(&mut self, budget: Budget<'_>) -> Option<u64> {
        if !budget() {
            return None;
        }
        let (from, held, through) = self.ranging.take().unwrap();
        self.held.retain(|(_, h), _| *h < from || *h > through);
        held.into_iter().for_each(|(id, h, end)| {
            _ = self.held.insert((id, h), end);
        });
        Some(0)
    }
    fn digest_begin(&mut self) -> usize {
        // As if there were so many that each drawer is an answer of its own.
        1 << 40
    }
    fn digest(&mut self, at: usize) -> u64 {
        let here = self.held.iter().filter(|((_, hash), _)| digest::drawer(*hash) == at);
        let one = |((id, hash), end): (&(FeedReplicaId, u64), &bool)| {
            let (holds, ends) = digest::holder(*id);
            let of = if *end { holds.wrapping_add(ends) } else { holds };
            digest::block(BlockHash(*hash), Tier::Gpu).wrapping_mul(of)
        };
        here.map(one).fold(0, u64::wrapping_add)
    }
}

/// A bridge that remembers everything it said.
struct Bridge {
    epoch: Epoch,
    seq: u64,
    state: Plain,
}

impl Bridge {
    fn new(term: u64) -> Bridge {
        Bridge { epoch: Epoch { term, id: term + 100 }, seq: 0, state: Plain::default() }
    }

    fn batch(&mut self, records: Vec<Record>) -> Vec<u8> {
        self.seq += 1;
        let bytes = Batch { header: BatchHeader { epoch: self.epoch, seq: self.seq }, records }.encode();
        let mut sync = Sync::new(SyncSettings::default());
        sync.on_frame(&bytes, Time(0));
        sync.work(&mut self.state, Time(0), &mut || true);
        bytes
    }

    fn reply(&self, pull: Pull, most: usize) -> Vec<u8> {
        match pull {
            Pull::Range { from, through } => self.answer(from, through, most),
            Pull::Digests { from } => {
                let mut state = self.state.clone();
                let drawers = (drawer(from)..DRAWERS).map(|at| state.digest(at)).collect();
                let replicas = self.state.replicas.iter().map(|id| Record::Replica(info(id.0))).collect();
                Digests { epoch: self.epoch, seq: self.seq, from, drawers, replicas }.encode()
            }
        }
    }

    /// The range that begins at `from` and holds about `most` blocks.
    fn answer(&self, from: u64, to: u64, most: usize) -> Vec<u8> {
        let hashes: BTreeSet<u64> = self.state.held.keys().map(|k| k.1).filter(|h| (from..=to).contains(h)).collect();
        let through = hashes.iter().nth(most).map_or(to, |h| h - 1);
        let ids: Vec<_> = self.state.replicas.iter().copied().collect();
        let mut records: Vec<_> = ids.iter().map(|id| Record::Replica(info(id.0))).collect();
        let mut blocks = Vec::new();
        for hash in hashes.range(..=through) {
            let (mut holders, mut ends) = (0, 0);
            for (bit, id) in ids.iter().enumerate() {
                if let Some(end) = self.state.held.get(&(*id, *hash)) {
                    holders |= 1 << bit;
                    ends |= u64::from(*end) << bit;
                }
            }
            blocks.push((BlockHash(*hash), holders, ends));
        }
        records.push(Record::Held { tier: Tier::Gpu, replicas: ids, blocks });
        Snapshot { epoch: self.epoch, seq: self.seq, from, through, records }.encode()
    }
}

fn info(id: u32) -> ReplicaInfo {
    ReplicaInfo {
        id: FeedReplicaId(id),
        address: format!("r{id}"),
        model: "m".into(),
        block_size: 16,
        rank: 0,
        capacity_blocks: 0,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    }
}

fn stored(id: u32, hashes: &[u64]) -> Record {
    let hashes: Vec<_> = hashes.iter().copied().map(BlockHash).collect();
    Record::Stored { replica: FeedReplicaId(id), tier: Tier::Gpu, parent: None, ends: vec![], hashes }
}

fn removed(id: u32, hashes: &[u64]) -> Record {
    let hashes = hashes.iter().copied().map(BlockHash).collect();
    Record::Removed { replica: FeedReplicaId(id), tier: Tier::Gpu, hashes }
}

fn work(sync: &mut Sync, plain: &mut Plain, now: u64) {
    assert!(sync.work(plain, Time(now), &mut || true));
}

/// Pulls until everything is confirmed.
fn pull_all(sync: &mut Sync, plain: &mut Plain, bridge: &Bridge, now: u64) -> usize {
    let mut pulls = 0;
    while !sync.synced() {
        let pull = sync.next_pull(Time(now)).expect("nothing is under way");
        assert_eq!(sync.on_snapshot(&bridge.reply(pull, 3), Time(now)), Verdict::Next);
        work(sync, plain, now);
        pulls += 1;
        assert!(pulls < 1000);
    }
    pulls
}

const FIRST: Pull = Pull::Digests { from: 0 };

/// The worker believes something wrong of the first drawer, finds that out, and asks for it.
fn asks_for_the_first_drawer(sync: &mut Sync, plain: &mut Plain, bridge: &Bridge, now: u64) -> Pull {
    plain.held.insert((FeedReplicaId(1), 999), true);
    assert_eq!(sync.next_pull(Time(now)), Some(FIRST));
    assert_eq!(sync.on_snapshot(&bridge.reply(FIRST, 3), Time(now)), Verdict::Next);
    work(sync, plain, now);
    let (from, through) = digest::bounds(0);
    assert_eq!(sync.next_pull(Time(now)), Some(Pull::Range { from, through }));
    Pull::Range { from, through }
}

#[test]
fn from_nothing_to_synced_and_on() {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    assert_eq!(sync.next_pull(Time(1)), None, "nobody leads yet");
    bridge.batch(vec![Record::Replica(info(1)), stored(1, &[1, 2, 3, 4, 5, 6, 7, 8, 9])]);
    let second = bridge.batch(vec![stored(1, &[u64::MAX])]);
    assert_eq!(sync.on_frame(&second, Time(1)), Verdict::NewEpoch);
    work(&mut sync, &mut plain, 1);
    assert!(!sync.synced());
    assert!(pull_all(&mut sync, &mut plain, &bridge, 2) > 2);
    assert_eq!(plain, bridge.state);

    // Once in step, batches alone keep it so, and each is applied once.
    let third = bridge.batch(vec![removed(1, &[4, 5]), stored(1, &[77])]);
    assert_eq!(sync.on_frame(&third, Time(3)), Verdict::Next);
    assert_eq!(sync.on_frame(&third, Time(3)), Verdict::Duplicate);
    work(&mut sync, &mut plain, 3);
    assert_eq!(plain, bridge.state);
    assert!(sync.synced());
    assert_eq!(sync.applied(), (bridge.epoch, 3));

    // The scrub comes later, one range after another.
    assert_eq!(sync.next_pull(Time(3)), None);
    assert_eq!(sync.next_pull(Time(3 + SECOND)), Some(FIRST));
    let before = sync.state().counts;
    assert_eq!(sync.on_snapshot(&bridge.reply(FIRST, 3), Time(4 + SECOND)), Verdict::Next);
    work(&mut sync, &mut plain, 4 + SECOND);
    let after = sync.state().counts;
    assert_eq!((after.cycles, after.differed), (before.cycles + 1, before.differed), "all drawers agree");
}

#[test]
fn only_what_differs_is_pulled() {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    let hashes: Vec<u64> = (0..1000u64).map(|n| n << 54).collect();
    let first = bridge.batch(vec![Record::Replica(info(1)), stored(1, &hashes)]);
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    assert_eq!(pull_all(&mut sync, &mut plain, &bridge, 1), 1, "the digests alone");
    // One block too few, one too many, one whose hits end elsewhere; the scrub finds all of them.
    plain.held.remove(&(FeedReplicaId(1), hashes[5]));
    plain.held.insert((FeedReplicaId(1), hashes[700] + 1), true);
    plain.held.insert((FeedReplicaId(1), hashes[900]), false);
    let mut now = 1;
    let mut pulls = Vec::new();
    while pulls.len() < 5 {
        now += SECOND;
        let pull = sync.next_pull(Time(now)).unwrap();
        pulls.push(pull);
        sync.on_snapshot(&bridge.reply(pull, 100), Time(now));
        work(&mut sync, &mut plain, now);
    }
    let range = |hash: u64| {
        let (from, through) = digest::bounds(digest::drawer(hash));
        Pull::Range { from, through }
    };
    assert_eq!(pulls, [FIRST, range(hashes[5]), range(hashes[700]), range(hashes[900]), FIRST]);
    assert_eq!(plain, bridge.state);
    assert_eq!((sync.state().counts.differed, sync.synced()), (3, true));
}

#[test]
fn drawers_that_later_batches_touched_are_not_compared() {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    let first = bridge.batch(vec![Record::Replica(info(1)), stored(1, &[1, 2 << 52])]);
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    pull_all(&mut sync, &mut plain, &bridge, 1);
    assert_eq!(sync.next_pull(Time(1 + SECOND)), Some(FIRST));
    let digests = bridge.reply(FIRST, 9);
    sync.on_frame(&bridge.batch(vec![stored(1, &[3]), removed(1, &[2 << 52])]), Time(2));
    work(&mut sync, &mut plain, 2);
    sync.on_snapshot(&digests, Time(3));
    work(&mut sync, &mut plain, 3);
    assert_eq!((sync.state().counts.differed, sync.synced()), (0, true));
    // Not in step yet, they are pulled rather than left for the next turn.
    sync.distrust(Time(4));
    assert_eq!(sync.next_pull(Time(4)), Some(FIRST));
    let digests = bridge.reply(FIRST, 9);
    sync.on_frame(&bridge.batch(vec![stored(1, &[4])]), Time(4));
    work(&mut sync, &mut plain, 4);
    sync.on_snapshot(&digests, Time(5));
    work(&mut sync, &mut plain, 5);
    assert_eq!((sync.state().counts.differed, sync.synced()), (1, false));
    pull_all(&mut sync, &mut plain, &bridge, 6);
    assert_eq!(plain, bridge.state);
}

#[test]
fn what_an_older_answer_says_of_a_replica_is_not_believed() {
    let told = |id: u32, reason: &str| Record::Replica(ReplicaInfo { reason: reason.into(), ..info(id) });
    let mut sync = Sync::new(SyncSettings::default());
    let frame = |seq, records| Batch { header: BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq }, records }.encode();
    let mut plain = Plain { reasons: Some(Default::default()), ..Plain::default() };
    sync.on_frame(&frame(1, vec![told(1, "a"), told(2, "a")]), Time(1));
    work(&mut sync, &mut plain, 1);
    assert_eq!(sync.next_pull(Time(1)), Some(FIRST));
    sync.on_frame(&frame(2, vec![told(1, "b")]), Time(2));
    work(&mut sync, &mut plain, 2);
    let (epoch, replicas) = (Epoch { term: 1, id: 1 }, vec![told(1, "a"), told(2, "c")]);
    let answer = Digests { epoch, seq: 1, from: 0, drawers: vec![0; DRAWERS], replicas };
    sync.on_snapshot(&answer.encode(), Time(2));
    work(&mut sync, &mut plain, 2);
    assert!(sync.synced());
    let reasons = plain.reasons.unwrap();
    assert_eq!((reasons[&1].as_str(), reasons[&2].as_str()), ("b", "c"));
}

/// A worker that has applied the bridge's first batch, a replica with three blocks, and is not synced.
fn begun() -> (Bridge, Sync, Plain) {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    let first = bridge.batch(vec![Record::Replica(info(1)), stored(1, &[1, 2, 3])]);
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    (bridge, sync, plain)
}

#[test]
fn after_a_gap_nothing_is_thrown_away_and_everything_is_pulled() {
    let (mut bridge, mut sync, mut plain) = begun();
    pull_all(&mut sync, &mut plain, &bridge, 1);
    bridge.batch(vec![removed(1, &[2])]);
    let third = bridge.batch(vec![stored(1, &[9])]);
    assert_eq!(sync.on_frame(&third, Time(2)), Verdict::Gap);
    work(&mut sync, &mut plain, 2);
    assert!(!sync.synced());
    let held: Vec<_> = plain.held.keys().map(|k| k.1).collect();
    assert_eq!(held, [1, 2, 3, 9]);
    pull_all(&mut sync, &mut plain, &bridge, 3);
    assert_eq!(plain, bridge.state);
}

#[test]
fn an_answer_waits_for_its_batch_and_later_batches_are_applied_on_top() {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    let first = bridge.batch(vec![Record::Replica(info(1)), stored(1, &[1, 2, 3])]);
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    let pull = asks_for_the_first_drawer(&mut sync, &mut plain, &bridge, 1);
    // The bridge answers after its second batch; the worker has not seen that one yet, and sees two more soon.
    let second = bridge.batch(vec![stored(1, &[4])]);
    let answer = bridge.reply(pull, 100);
    let third = bridge.batch(vec![removed(1, &[1]), stored(1, &[5])]);
    sync.on_snapshot(&answer, Time(2));
    work(&mut sync, &mut plain, 2);
    assert!(!sync.synced(), "the answer waits");
    sync.on_frame(&second, Time(3));
    sync.on_frame(&third, Time(3));
    work(&mut sync, &mut plain, 3);
    assert!(sync.synced());
    assert_eq!(plain, bridge.state);

    // The other order: batches first, an older answer then.
    let mut sync = Sync::new(SyncSettings::default());
    let mut plain = Plain::default();
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    let early = Bridge { seq: 1, state: plain.clone(), ..Bridge::new(1) };
    asks_for_the_first_drawer(&mut sync, &mut plain, &early, 1);
    sync.on_frame(&second, Time(2));
    sync.on_frame(&third, Time(2));
    work(&mut sync, &mut plain, 2);
    sync.on_snapshot(&answer, Time(3));
    work(&mut sync, &mut plain, 3);
    assert!(sync.synced());
    assert_eq!(plain, bridge.state);
}

#[test]
fn an_answer_older_than_a_clear_is_asked_for_again() {
    let (mut bridge, mut sync, mut plain) = begun();
    let pull = asks_for_the_first_drawer(&mut sync, &mut plain, &bridge, 1);
    let answer = bridge.reply(pull, 100);
    let second = bridge.batch(vec![Record::Cleared(FeedReplicaId(1)), stored(1, &[3])]);
    sync.on_frame(&second, Time(2));
    work(&mut sync, &mut plain, 2);
    sync.on_snapshot(&answer, Time(2));
    work(&mut sync, &mut plain, 2);
    assert!(!sync.synced());
    assert_eq!(plain, bridge.state);
    pull_all(&mut sync, &mut plain, &bridge, 3);
    assert_eq!(plain, bridge.state);
}

#[test]
fn an_answer_from_before_a_gap_is_not_used() {
    let (mut bridge, mut sync, mut plain) = begun();
    let pull = asks_for_the_first_drawer(&mut sync, &mut plain, &bridge, 1);
    let answer = bridge.reply(pull, 100);
    bridge.batch(vec![removed(1, &[1])]);
    let third = bridge.batch(vec![stored(1, &[8])]);
    assert_eq!(sync.on_frame(&third, Time(2)), Verdict::Gap);
    sync.on_snapshot(&answer, Time(2));
    work(&mut sync, &mut plain, 2);
    assert!(!sync.synced());
    pull_all(&mut sync, &mut plain, &bridge, 3);
    assert_eq!(plain, bridge.state);
}

#[test]
fn a_higher_term_leads_and_nobody_else_does() {
    let (mut old, mut new) = (Bridge::new(1), Bridge::new(2));
    let (mut sync, mut plain) = (Sync::new(SyncSettings::default()), Plain::default());
    let first = old.batch(vec![Record::Replica(info(1)), stored(1, &[1])]);
    sync.on_frame(&first, Time(1));
    work(&mut sync, &mut plain, 1);
    pull_all(&mut sync, &mut plain, &old, 1);
    let taken_over = new.batch(vec![Record::Replica(info(2)), stored(2, &[5])]);
    assert_eq!(sync.on_frame(&taken_over, Time(2)), Verdict::NewEpoch);
    let late = old.batch(vec![stored(1, &[2])]);
    assert_eq!(sync.on_frame(&late, Time(3)), Verdict::Foreign);
    let mut foreign = Bridge::new(2);
    foreign.epoch.id = 999;
    assert_eq!(sync.on_frame(&foreign.batch(vec![]), Time(3)), Verdict::Foreign);
    work(&mut sync, &mut plain, 3);
    assert_eq!(sync.next_pull(Time(3)), Some(FIRST));
    assert_eq!(sync.on_snapshot(&old.reply(FIRST, 9), Time(3)), Verdict::Foreign);
    assert_eq!(sync.next_pull(Time(3)), None, "not at once");
    assert_eq!(plain.held.len(), 2, "what the old one said stays until the new one's range arrives");
    pull_all(&mut sync, &mut plain, &new, 3 + SECOND);
    assert_eq!(plain, new.state);
}

#[test]
fn pulls_time_out_back_off_and_go_on() {
    let (mut bridge, mut sync) = (Bridge::new(1), Sync::new(SyncSettings::default()));
    sync.on_frame(&bridge.batch(vec![]), Time(0));
    let mut plain = Plain::default();
    work(&mut sync, &mut plain, 0);
    let mut now = 0;
    let mut waits = Vec::new();
    for _ in 0..7 {
        let mut waited = 0;
        while sync.next_pull(Time(now)).is_none() {
            now += 10 * MS;
            waited += 10;
        }
        waits.push(waited);
        sync.on_pull_failed(Time(now));
    }
    assert_eq!(waits, [0, 100, 200, 400, 800, 1600, 1600]);
    while sync.next_pull(Time(now)).is_none() {
        now += 10 * MS;
    }
    let asked = now;
    let failed = sync.state().counts.failed_pulls;
    while sync.state().counts.failed_pulls == failed {
        now += 10 * MS;
        assert_eq!(sync.next_pull(Time(now)), None);
    }
    assert!(now - asked > 5 * SECOND);
}

#[test]
fn a_backlog_past_its_bound_is_dropped_and_pulled() {
    let settings = SyncSettings { backlog_bytes: 1000, ..SyncSettings::default() };
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(settings), Plain::default());
    for n in 0..100 {
        let records = if n == 0 { vec![Record::Replica(info(1))] } else { vec![stored(1, &[n])] };
        sync.on_frame(&bridge.batch(records), Time(1));
        assert!(sync.state().backlog_bytes <= 1000);
    }
    work(&mut sync, &mut plain, 1);
    assert_ne!(plain, bridge.state);
    pull_all(&mut sync, &mut plain, &bridge, 2);
    assert_eq!(plain, bridge.state);
}

#[test]
fn work_stops_anywhere_and_comes_to_the_same() {
    let hashes: Vec<u64> = (0..500).map(|n| n * 3).collect();
    let run = |slice: usize| {
        let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
        let frames = [
            bridge.batch(vec![Record::Replica(info(1)), stored(1, &hashes), removed(1, &hashes[..300])]),
            bridge.batch(vec![
                stored(1, &hashes[100..200]),
                Record::Cleared(FeedReplicaId(1)),
                stored(1, &hashes[7..400]),
            ]),
        ];
        frames.iter().for_each(|f| {
            _ = sync.on_frame(f, Time(1));
        });
        let pull = sync.next_pull(Time(1)).unwrap();
        sync.on_snapshot(&bridge.reply(pull, 1000), Time(1));
        let mut slices = 0;
        loop {
            let mut left = slice;
            let done = sync.work(&mut plain, Time(1), &mut || {
                left = left.wrapping_sub(1);
                left < usize::MAX / 2
            });
            slices += 1;
            if done {
                break;
            }
        }
        assert!(sync.synced());
        assert_eq!(plain, bridge.state);
        slices
    };
    assert!(run(3) > run(1000));
}

#[test]
fn damaged_frames_and_answers_change_nothing() {
    let (mut bridge, mut sync, mut plain) = (Bridge::new(1), Sync::new(SyncSettings::default()), Plain::default());
    sync.on_frame(&bridge.batch(vec![Record::Replica(info(1)), stored(1, &[1])]), Time(1));
    work(&mut sync, &mut plain, 1);
    let mut bad = bridge.batch(vec![stored(1, &[2])]);
    bad[30] ^= 1;
    assert!(matches!(sync.on_frame(&bad, Time(2)), Verdict::Bad(_)));
    assert_eq!(sync.next_pull(Time(2)), Some(FIRST));
    assert!(matches!(sync.on_snapshot(b"KVS nonsense", Time(2)), Verdict::Bad(_)));
    assert_eq!(sync.on_snapshot(&bridge.reply(FIRST, 9), Time(2)), Verdict::Unasked);
    work(&mut sync, &mut plain, 2);
    assert_eq!(plain.held.len(), 1);
    assert_eq!(sync.state().counts.bad, 2);
}
