//! Gaps, restarts and replays of one stream, against an engine that is a list of messages.

use proptest::prelude::*;
use rmpv::Value;

use super::*;
use crate::blocks::{Chain, namespace};
use std::collections::BTreeSet;

const ID: FeedReplicaId = FeedReplicaId(1);

/// A payload of one stored block each, whose tokens are `n` and whose engine hash is `n` plus one.
fn payload(events: Vec<Value>) -> Vec<u8> {
    let mut out = Vec::new();
    let batch = Value::Array(vec![1.0.into(), Value::Array(events), 0.into()]);
    rmpv::encode::write_value(&mut out, &batch).unwrap();
    out
}

fn block(n: u32) -> Value {
    let hash = Value::Array(vec![(u64::from(n) + 1).into()]);
    Value::Array(vec!["BlockStored".into(), hash, Value::Nil, Value::Array(vec![n.into(), n.into()]), 2.into()])
}

fn gone(n: u32) -> Value {
    Value::Array(vec!["BlockRemoved".into(), Value::Array(vec![(u64::from(n) + 1).into()])])
}

fn hash(n: u32) -> BlockHash {
    let mut out = Vec::new();
    Chain::new(namespace("", "m", None, None), 2).extend(&[n, n], &mut out);
    out[0]
}

/// One process of an engine.
#[derive(Default)]
struct Engine {
    log: Vec<Vec<u8>>,
    held: BTreeSet<u32>,
}

impl Engine {
    fn say(&mut self, stored: &[u32], removed: &[u32]) {
        let mut events: Vec<Value> = Vec::new();
        for n in removed {
            if self.held.remove(n) {
                events.push(gone(*n));
            }
        }
        for n in stored {
            if self.held.insert(*n) {
                events.push(block(*n));
            }
        }
        self.log.push(payload(events));
    }
}

/// A stream with what a worker was told of it; `buffer`: messages that the engine can replay.
struct Follower {
    stream: Stream,
    told: BTreeSet<BlockHash>,
    buffer: Option<usize>,
}

impl Follower {
    fn new(buffer: Option<usize>) -> Follower {
        let config = CacheConfig { model: "m".into(), ..CacheConfig::default() };
        let mut trust = TrustMachine::new(true, 0);
        trust.connected();
        Follower { stream: Stream::new(ID, config, trust), told: BTreeSet::new(), buffer }
    }

    fn take(&mut self, changes: Changes) {
        for record in changes.records {
            match record {
                Record::Stored { hashes, .. } => self.told.extend(hashes),
                Record::Removed { hashes, .. } => hashes.iter().for_each(|h| assert!(self.told.remove(h))),
                Record::Cleared(_) => {
                    let wiped: BTreeSet<_> = changes.wiped.iter().copied().collect();
                    assert!(self.told.is_subset(&wiped));
                    self.told.clear();
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn replay(&mut self, engine: &Engine, from: u64) {
        let Some(buffer) = self.buffer else { return };
        let mut from = Some(from);
        for _ in 0..3 {
            let Some(start) = from.take() else { return };
            self.stream.replay_begins();
            let first = engine.log.len().saturating_sub(buffer).max(start as usize);
            for (seq, message) in engine.log.iter().enumerate().skip(first) {
                let mut changes = Changes::default();
                let step = self.stream.replayed(seq as u64, message, &mut changes);
                self.take(changes);
                if let Step::Replay(start) = step {
                    from = Some(start);
                    break;
                }
            }
            if from.is_none() {
                let mut changes = Changes::default();
                if let Step::Replay(start) = self.stream.replay_ends(true, &mut changes) {
                    from = Some(start);
                }
                self.take(changes);
            }
        }
    }

    fn live(&mut self, engine: &Engine, seq: usize) {
        let mut changes = Changes::default();
        let step = self.stream.live(seq as u64, &engine.log[seq], self.buffer.is_some(), &mut changes);
        self.take(changes);
        if let Step::Replay(from) = step {
            self.replay(engine, from);
            let mut changes = Changes::default();
            self.stream.live(seq as u64, &engine.log[seq], false, &mut changes);
            self.take(changes);
        }
    }

    fn connect(&mut self, engine: &Engine) {
        self.stream.trust.connected();
        let from = self.stream.replay_from();
        self.replay(engine, from);
    }

    fn agrees(&self, engine: &Engine) -> bool {
        self.told == engine.held.iter().map(|n| hash(*n)).collect()
    }

    fn state(&self) -> (Trust, &'static str) {
        self.stream.state(0)
    }
}

fn engine(messages: u32) -> Engine {
    let mut engine = Engine::default();
    (0..messages).for_each(|n| engine.say(&[n], &[]));
    engine
}

#[test]
fn a_late_joiner_with_replay_is_exact_even_while_the_engine_is_idle() {
    let mut follower = Follower::new(Some(100));
    let engine = engine(10);
    follower.connect(&engine);
    assert!(follower.agrees(&engine));
    assert_eq!(follower.state(), (Trust::Exact, "complete"));
    let mut fresh = Follower::new(Some(100));
    fresh.connect(&Engine::default());
    assert_eq!(fresh.state(), (Trust::Exact, "complete"));
}

#[test]
fn a_late_joiner_without_replay_says_so() {
    for buffer in [None, Some(3)] {
        let mut follower = Follower::new(buffer);
        let mut engine = engine(10);
        follower.connect(&engine);
        follower.live(&engine, 9);
        assert_eq!(follower.state(), (Trust::CatchingUp, "joined_late"));
        assert!(!follower.agrees(&engine));
        engine.log.push(payload(vec![Value::Array(vec!["AllBlocksCleared".into()])]));
        engine.held.clear();
        follower.live(&engine, 10);
        assert_eq!(follower.state(), (Trust::Exact, "complete"));
        assert!(follower.agrees(&engine));
    }
}

#[test]
fn a_restart_is_noticed_in_every_way() {
    for buffer in [None, Some(100)] {
        let mut follower = Follower::new(buffer);
        let first = engine(10);
        (0..10).for_each(|seq| follower.live(&first, seq));
        // By a number that goes back.
        let mut second = Engine::default();
        (100..105).for_each(|n| second.say(&[n], &[]));
        follower.live(&second, 0);
        assert_eq!(follower.told, [hash(100)].into());
        assert_eq!((follower.stream.counts.restarts, follower.state().0), (1, Trust::Exact));
        (1..5).for_each(|seq| follower.live(&second, seq));
        assert!(follower.agrees(&second));
        // The metrics tell of it later: nothing is thrown away again (its messages have the time 1).
        let mut changes = Changes::default();
        follower.stream.process_restarted(0.5, &mut changes);
        assert!(changes.records.is_empty() && follower.agrees(&second));
    }
    // By a replay that lacks the last message that was seen.
    let mut follower = Follower::new(Some(100));
    let first = engine(10);
    (0..10).for_each(|seq| follower.live(&first, seq));
    follower.connect(&Engine::default());
    assert!(follower.told.is_empty());
    assert_eq!(follower.state().0, Trust::Exact);
    // By a replay whose message of that number is another; its newest number lies beyond what was seen.
    let mut follower = Follower::new(Some(100));
    (0..10).for_each(|seq| follower.live(&first, seq));
    let mut second = Engine::default();
    (200..230).for_each(|n| second.say(&[n], &[]));
    follower.connect(&second);
    assert!(follower.agrees(&second));
    assert_eq!(follower.state().0, Trust::Exact);
    // By the metrics alone.
    let mut changes = Changes::default();
    follower.stream.process_restarted(100.0, &mut changes);
    follower.take(changes);
    assert!(follower.told.is_empty());
    assert_eq!(follower.state(), (Trust::CatchingUp, "starting"));
}

#[test]
fn blocks_from_before_a_gap_are_unconfirmed_until_they_are_gone() {
    let mut follower = Follower::new(None);
    let mut engine = engine(3);
    (0..3).for_each(|seq| follower.live(&engine, seq));
    engine.say(&[7], &[0]);
    engine.say(&[8], &[]);
    follower.live(&engine, 4);
    assert_eq!(follower.state(), (Trust::CatchingUp, "gap"));
    assert_eq!(follower.stream.cache().held(), [1, 0, 0, 3]);
    engine.say(&[], &[1, 2]);
    follower.live(&engine, 5);
    assert_eq!(follower.state(), (Trust::CatchingUp, "gap"));
    assert_eq!(follower.stream.cache().held(), [1, 0, 0, 1]);
    // Block 0 went unseen; a cache that cannot hold that much proves it.
    follower.stream.capacity = 1;
    engine.say(&[], &[]);
    follower.live(&engine, 6);
    assert_eq!(follower.state(), (Trust::CatchingUp, "gap_outlived"));
    assert_eq!(follower.told, [hash(8)].into());
}

#[test]
fn a_message_that_ends_early_counts_as_a_gap() {
    let mut follower = Follower::new(None);
    let mut engine = engine(3);
    (0..2).for_each(|seq| follower.live(&engine, seq));
    engine.log[2].truncate(14);
    follower.live(&engine, 2);
    assert_eq!(follower.state(), (Trust::CatchingUp, "gap"));
    assert_eq!(follower.stream.cache().skips().get(Skip::NotMsgpack), 1);
}

#[derive(Clone, Debug)]
enum Act {
    Say(Vec<u32>, Vec<u32>),
    /// The next messages are not delivered.
    Lose(usize),
    /// An old message arrives again.
    Again(usize),
    Restart,
    Reconnect,
}

fn act() -> impl Strategy<Value = Act> {
    let blocks = || proptest::collection::vec(0u32..12, 0..4);
    prop_oneof![
        8 => (blocks(), blocks()).prop_map(|(stored, removed)| Act::Say(stored, removed)),
        2 => (1usize..4).prop_map(Act::Lose),
        2 => any::<usize>().prop_map(Act::Again),
        1 => Just(Act::Restart),
        1 => Just(Act::Reconnect),
    ]
}

proptest! {
    /// With a replay buffer that holds all, the follower agrees with the engine after every message that arrives.
    #[test]
    fn whatever_happens_it_agrees_in_the_end(acts in proptest::collection::vec(act(), 1..60)) {
        let mut engine = Engine::default();
        let mut follower = Follower::new(Some(1000));
        follower.connect(&engine);
        let mut lose = 0;
        for act in acts {
            match act {
                Act::Say(stored, removed) => {
                    // No two messages are alike, as they carry their time.
                    engine.say(&stored, &removed);
                    let n = engine.log.len() as u64 + 1_000_000 * u64::from(follower.stream.counts.restarts as u32);
                    rmpv::encode::write_value(engine.log.last_mut().unwrap(), &n.into()).unwrap();
                    if lose > 0 {
                        lose -= 1;
                    } else {
                        follower.live(&engine, engine.log.len() - 1);
                        prop_assert!(follower.agrees(&engine));
                        prop_assert_eq!(follower.state().0, Trust::Exact);
                    }
                }
                Act::Lose(n) => lose = n,
                Act::Again(n) if !engine.log.is_empty() && lose == 0 => {
                    let seq = n % engine.log.len();
                    if (seq as u64) < follower.stream.cursor().next().unwrap_or(0) {
                        follower.live(&engine, seq);
                        prop_assert!(follower.agrees(&engine) || follower.stream.cursor().next() != Some(engine.log.len() as u64));
                    }
                }
                Act::Restart => {
                    engine = Engine::default();
                    // A dead process ends the connection.
                    follower.connect(&engine);
                    prop_assert!(follower.told.is_empty());
                }
                Act::Reconnect => {
                    follower.connect(&engine);
                    prop_assert!(follower.agrees(&engine));
                }
                Act::Again(_) => {}
            }
        }
    }
}
