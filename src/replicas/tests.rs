use super::peers::Message;
use super::pools::Stage;
use super::*;
use crate::blocks::{BlockHash, Chain, TokenId, namespace};
use crate::clock::{MS, SECOND, Time};
use crate::feed::batch::{Batch, BatchHeader};
use crate::feed::digest::{DRAWERS, Digests};
use crate::feed::record::{LoadReport, Record, ReplicaInfo, Tier, Trust};
use crate::feed::sync::Pull;
use crate::feed::{Epoch, FeedReplicaId};
use crate::simulate::{Scenario, burst::break_even};

mod adapters;
mod apart;

const BLOCK: u32 = 16;

fn chain(tokens: &[TokenId]) -> Vec<BlockHash> {
    let mut hashes = Vec::new();
    Chain::new(namespace("", "m", None, None), BLOCK).extend(tokens, &mut hashes);
    hashes
}

/// A worker with exact replicas 10.0.0.0:80 and so on, in step with a bridge.
struct Worker {
    fleet: Fleet,
    seq: u64,
    now: u64,
}

/// A replica that is exact.
fn info() -> ReplicaInfo {
    ReplicaInfo { block_size: BLOCK, capacity_blocks: 1000, trust: Trust::Exact, ..ReplicaInfo::default() }
}

impl Worker {
    fn new(replicas: u32, trust: Trust, seed: u64) -> Worker {
        let mut worker = Worker { fleet: Fleet::new(FleetSettings::default(), seed), seq: 0, now: 1000 * SECOND };
        let info = |n| ReplicaInfo {
            id: FeedReplicaId(n),
            address: format!("10.0.0.{n}:80"),
            model: "m".into(),
            block_size: BLOCK,
            rank: 0,
            capacity_blocks: 1000,
            trust,
            ..ReplicaInfo::default()
        };
        let records: Vec<_> = (0..replicas).map(|n| Record::Replica(info(n))).collect();
        worker.feed(records.clone());
        assert_eq!(worker.fleet.next_pull(Time(worker.now)), Some(Pull::Digests { from: 0 }));
        let (epoch, replicas) = (Epoch { term: 1, id: 1 }, records);
        let answer = Digests { epoch, seq: 1, from: 0, drawers: vec![0; DRAWERS], replicas };
        worker.fleet.on_snapshot(&answer.encode(), Time(worker.now));
        assert!(worker.fleet.work(Time(worker.now), &mut || true));
        assert!(worker.fleet.synced());
        worker
    }

    fn feed(&mut self, records: Vec<Record>) {
        self.seq += 1;
        let header = BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq: self.seq };
        self.fleet.on_frame(&Batch { header, records }.encode(), Time(self.now));
        assert!(self.fleet.work(Time(self.now), &mut || true));
    }

    fn stored(&mut self, address: &str, hashes: &[BlockHash]) {
        let id = FeedReplicaId(address[7..].split(':').next().unwrap().parse().unwrap());
        let hashes = hashes.to_vec();
        self.feed(vec![Record::Stored { replica: id, tier: Tier::Gpu, parent: None, ends: vec![], hashes }]);
    }

    fn pick(&mut self, tokens: &[TokenId]) -> Pick {
        let mut matching = self.fleet.begin("m", BLOCK).unwrap();
        chain(tokens).into_iter().for_each(|hash| {
            _ = self.fleet.push(&mut matching, hash);
        });
        let ask = Ask { tokens: tokens.len() as u64, explain: true, now: Time(self.now), ..Ask::default() };
        self.fleet.choose(&matching, &ask).unwrap()
    }

    /// A whole request: pick, prefill, answer, events.
    fn serve(&mut self, tokens: &mut Vec<TokenId>, answer: u32) -> Pick {
        let pick = self.pick(tokens);
        self.fleet.first_data(pick.booking, Time(self.now));
        self.fleet.grown(pick.booking, u64::from(answer));
        let salt = tokens.len() as u32;
        tokens.extend((0..answer).map(|n| n * 31 + salt));
        self.stored(&pick.best.address, &chain(&tokens[..tokens.len() - 1]));
        self.fleet.finish(pick.booking, true, Time(self.now));
        self.now += 20 * MS;
        self.fleet.tick(Time(self.now));
        pick
    }
}

fn conversation(n: u32) -> Vec<TokenId> {
    let mut tokens: Vec<TokenId> = (0..2000).collect();
    tokens.extend((0..120).map(|i| 10_000 + n * 500 + i));
    tokens
}

/// The largest number of conversations at one replica.
fn most(homes: &[Target]) -> usize {
    homes.iter().map(|home| homes.iter().filter(|other| *other == home).count()).max().unwrap()
}

/// One after the other, so that no load ever helps to spread them.
#[test]
fn second_turns_go_home_and_a_shared_system_prompt_does_not_draw_everybody() {
    let mut worker = Worker::new(3, Trust::Exact, 7);
    let mut talks: Vec<_> = (0..30).map(conversation).collect();
    let first: Vec<_> = talks.iter_mut().map(|t| worker.serve(t, 60).best).collect();
    assert!(most(&first) <= 20);
    for turn in 2..5 {
        for (n, talk) in talks.iter_mut().enumerate() {
            talk.extend((0..80).map(|i| 90_000 + turn * 1000 + i));
            assert_eq!(worker.serve(talk, 60).best, first[n], "conversation {n}, turn {turn}");
        }
    }
}

#[test]
fn all_at_once_second_turns_go_home_too() {
    let mut worker = Worker::new(3, Trust::Exact, 3);
    let mut talks: Vec<_> = (0..30).map(conversation).collect();
    let mut homes = Vec::new();
    for turn in 0..3 {
        // Ten at a time: all are picked before any is served.
        for group in 0..3 {
            let mut picks = Vec::new();
            for n in group * 10..group * 10 + 10 {
                let pick = worker.pick(&talks[n]);
                match turn {
                    0 => homes.push(pick.best.clone()),
                    _ => assert_eq!(pick.best, homes[n], "conversation {n}, turn {turn}: {:?}", pick.receipt),
                }
                picks.push((n, pick));
            }
            for (n, pick) in picks {
                worker.now += 5 * MS;
                worker.fleet.first_data(pick.booking, Time(worker.now));
                talks[n].extend((0..200).map(|i| 40_000 + i * 7 + n as u32));
                let known = chain(&talks[n]);
                worker.stored(&pick.best.address, &known);
                worker.fleet.finish(pick.booking, true, Time(worker.now));
            }
        }
    }
    assert!(most(&homes) <= 20);
}

#[test]
fn a_lone_conversation_stays_where_it_is() {
    let mut worker = Worker::new(8, Trust::Exact, 3);
    let mut talk: Vec<TokenId> = (0..64).collect();
    let home = worker.serve(&mut talk, 60).best;
    for turn in 0..50 {
        talk.extend((0..40).map(|i| turn * 100 + i));
        assert_eq!(worker.serve(&mut talk, 60).best, home);
    }
}

#[test]
fn a_cold_burst_of_one_prompt_goes_together_until_spreading_is_cheaper() {
    let mut worker = Worker::new(8, Trust::Exact, 5);
    let prompt: Vec<TokenId> = (0..8192).collect();
    let picks: Vec<_> = (0..64).map(|_| worker.pick(&prompt)).collect();
    let mut used: Vec<_> = picks.iter().map(|p| p.best.address.clone()).collect();
    used.sort();
    used.dedup();
    // Where waiting costs more than computing it once more; it goes together up to there.
    let pays = break_even(&Scenario::default(), 64, 8192);
    assert_eq!(used.len(), pays, "replicas compute it");
    assert!((2..8).contains(&pays), "{pays}");
    let computed = picks.iter().filter(|p| p.matched == 0).count();
    assert_eq!(computed, used.len(), "nobody computes it twice");
    // All of it is given back.
    for pick in picks {
        worker.fleet.finish(pick.booking, true, Time(worker.now));
        worker.fleet.finish(pick.booking, true, Time(worker.now));
    }
    let stats = worker.fleet.stats(Time(worker.now));
    assert_eq!(stats.bookings, 0);
    assert!(stats.replicas.iter().all(|r| r.own == Default::default()));
    assert!(stats.predicted_blocks > 0);
    worker.fleet.tick(Time(worker.now + 3 * SECOND));
    assert_eq!(
        worker.fleet.stats(Time(worker.now)).predicted_blocks,
        0,
        "no event came: nothing is predicted any more"
    );
}

#[test]
fn prompts_without_anything_in_common_go_round() {
    let mut worker = Worker::new(4, Trust::Exact, 5);
    let mut per = [0; 4];
    for n in 0..80u32 {
        let prompt: Vec<TokenId> = (0..500).map(|i| n * 1000 + i).collect();
        let pick = worker.pick(&prompt);
        per[pick.best.address[7..8].parse::<usize>().unwrap()] += 1;
    }
    assert_eq!(per, [20; 4]);
}

#[test]
fn the_prefill_shrinks_with_the_own_blocks_and_ends_at_the_first_data() {
    let mut worker = Worker::new(1, Trust::Exact, 5);
    let prompt: Vec<TokenId> = (0..1600).collect();
    let pick = worker.pick(&prompt);
    let booked = |w: &Worker| w.fleet.stats(Time(w.now)).replicas[0].own;
    assert_eq!((booked(&worker).prefill, booked(&worker).context), (1600.0, 1600.0));
    worker.stored("10.0.0.0:80", &chain(&prompt)[..40]);
    assert_eq!(booked(&worker).prefill, 1600.0 - 640.0);
    worker.fleet.first_data(pick.booking, Time(worker.now + 100 * MS));
    worker.fleet.grown(pick.booking, 50);
    assert_eq!((booked(&worker).prefill, booked(&worker).context), (0.0, 1650.0));
    worker.fleet.finish(pick.booking, true, Time(worker.now));
    assert_eq!(booked(&worker).requests, 0);
}

#[test]
fn without_events_the_prefills_of_a_replica_shrink_one_after_the_other() {
    let booked = |w: &Worker| w.fleet.stats(Time(w.now)).replicas[0].own.prefill;
    let prompt = |n: u32| (0..1600).map(|i| n * 5000 + i).collect::<Vec<TokenId>>();
    for (trust, left) in [(Trust::NoEvents, 3 * 1600 - 1600), (Trust::Exact, 3 * 1600)] {
        let mut worker = Worker::new(1, trust, 5);
        // 1,600 tokens in 100 ms.
        let pick = worker.pick(&prompt(0));
        worker.now += 100 * MS;
        worker.fleet.first_data(pick.booking, Time(worker.now));
        worker.fleet.finish(pick.booking, true, Time(worker.now));
        worker.fleet.tick(Time(worker.now));
        (1..4).for_each(|n| drop(worker.pick(&prompt(n))));
        assert_eq!(booked(&worker), 3.0 * 1600.0);
        worker.now += 100 * MS;
        worker.fleet.tick(Time(worker.now));
        assert!((booked(&worker) - f64::from(left)).abs() < 1.0, "{trust:?}: {}", booked(&worker));
    }
}

#[test]
fn a_retry_moves_booking_and_prediction() {
    let mut worker = Worker::new(2, Trust::Exact, 5);
    let prompt: Vec<TokenId> = (0..800).collect();
    let pick = worker.pick(&prompt);
    let other = pick.next[0].clone();
    assert_ne!(pick.best.address, other.address);
    assert!(worker.fleet.moved(pick.booking, &other.address));
    assert!(!worker.fleet.moved(pick.booking, &other.address));
    let next = worker.pick(&prompt);
    assert_eq!(next.best, other, "it will be cached there");
    assert!(worker.fleet.moved(next.booking, &pick.best.address));
    assert!(!worker.fleet.moved(next.booking, "1.2.3.4:5"), "a stranger: nothing is booked any more");
    assert_eq!(worker.fleet.stats(Time(worker.now)).bookings, 1);
}

#[test]
fn a_failed_request_leaves_no_prediction() {
    let mut worker = Worker::new(2, Trust::Exact, 5);
    let prompt: Vec<TokenId> = (0..800).collect();
    let pick = worker.pick(&prompt);
    assert!(worker.fleet.stats(Time(worker.now)).predicted_blocks > 0);
    worker.fleet.finish(pick.booking, false, Time(worker.now));
    assert_eq!(worker.fleet.stats(Time(worker.now)).predicted_blocks, 0);
}

#[test]
fn the_rest_of_a_prompt_corrects_booking_and_prediction() {
    let mut worker = Worker::new(2, Trust::Exact, 5);
    let prompt: Vec<TokenId> = (0..1000).collect();
    let hashes = chain(&prompt);
    let mut matching = worker.fleet.begin("m", BLOCK).unwrap();
    worker.fleet.push(&mut matching, hashes[0]);
    let ask = Ask { tokens: 700, estimated: true, now: Time(worker.now), ..Ask::default() };
    let pick = worker.fleet.choose(&matching, &ask).unwrap();
    worker.fleet.complete(pick.booking, &hashes[1..], 1000);
    let stats = worker.fleet.stats(Time(worker.now));
    assert_eq!(stats.predicted_blocks, hashes.len());
    assert_eq!(stats.replicas.iter().map(|r| r.own.prefill).sum::<f64>(), 1000.0);
    let again = worker.pick(&prompt);
    assert_eq!((again.best.address, again.matched), (pick.best.address, 992));
}

#[test]
fn without_events_what_was_sent_is_remembered_as_far_as_the_cache_reaches() {
    let mut worker = Worker::new(2, Trust::NoEvents, 5);
    let prompt = |n: u32| (0..1600).map(|i| n * 5000 + i).collect::<Vec<TokenId>>();
    for n in 0..40 {
        let pick = worker.pick(&prompt(n));
        worker.fleet.finish(pick.booking, true, Time(worker.now));
        worker.now += 3 * SECOND;
        worker.fleet.tick(Time(worker.now));
    }
    let stats = worker.fleet.stats(Time(worker.now));
    assert!(stats.replicas.iter().all(|r| r.blocks[0] == 1000), "both are as full as they can be");
    assert_eq!(worker.pick(&prompt(39)).matched, 1584);
    assert_eq!(worker.pick(&prompt(0)).matched, 0);
}

#[test]
fn workers_hear_of_each_others_load_and_forget_the_dead() {
    let (mut a, mut b) = (Worker::new(2, Trust::Exact, 1), Worker::new(2, Trust::Exact, 2));
    let prompt: Vec<TokenId> = (0..4000).collect();
    let pick = a.pick(&prompt);
    let message = a.fleet.take_message(0, 11, Time(a.now)).unwrap();
    assert!(Message::is(&message));
    b.fleet.on_peer(&message, Time(b.now)).unwrap();
    let peers = |w: &Worker| w.fleet.stats(Time(w.now)).replicas.iter().map(|r| r.peers.requests).sum::<u32>();
    assert_eq!(peers(&b), 1);
    let follower = b.pick(&prompt);
    assert_eq!(
        (follower.best.clone(), follower.matched),
        (pick.best.clone(), 3984),
        "the same prefix is on its way there"
    );
    b.fleet.finish(follower.booking, false, Time(b.now));
    let other: Vec<TokenId> = (0..4000).map(|i| i + 1_000_000).collect();
    let elsewhere = b.pick(&other);
    assert_ne!(elsewhere.best, pick.best, "another prompt avoids its load");
    // The first worker ends its request, then dies without a word.
    a.fleet.finish(pick.booking, true, Time(a.now));
    b.fleet.on_peer(&a.fleet.take_message(0, 11, Time(a.now)).unwrap(), Time(b.now)).unwrap();
    assert_eq!(peers(&b), 0);
    a.pick(&prompt);
    b.fleet.on_peer(&a.fleet.take_message(0, 11, Time(a.now)).unwrap(), Time(b.now)).unwrap();
    assert_eq!(peers(&b), 1);
    b.now += 6 * SECOND;
    b.fleet.tick(Time(b.now));
    assert_eq!(peers(&b), 0);
    // Cut off or foreign messages change nothing.
    let message = a.fleet.take_message(0, 11, Time(a.now + 2 * SECOND)).unwrap();
    (0..message.len()).for_each(|cut| {
        _ = b.fleet.on_peer(&message[..cut], Time(b.now));
    });
    assert!(peers(&b) <= 1);
}

#[test]
fn reported_load_counts_for_what_nobody_booked() {
    let mut worker = Worker::new(2, Trust::Exact, 1);
    let load = LoadReport { running: 30, waiting: 10, kv_usage_ppm: 900_000, age_ms: 100 };
    worker.feed(vec![Record::Load(FeedReplicaId(0), load)]);
    for n in 0..10u32 {
        let prompt: Vec<TokenId> = (0..100).map(|i| n * 1000 + i).collect();
        assert_eq!(&*worker.pick(&prompt).best.address, "10.0.0.1:80");
    }
    // An old reading says nothing.
    worker.now += 10 * SECOND;
    let prompt: Vec<TokenId> = (0..100).map(|i| 70_000 + i).collect();
    assert_eq!(&*worker.pick(&prompt).best.address, "10.0.0.0:80");
}

#[test]
fn requests_of_others_stay_what_they_were_at_the_report() {
    let mut worker = Worker::new(1, Trust::Exact, 1);
    let requests = |w: &Worker| {
        let matching = w.fleet.begin("m", BLOCK).unwrap();
        let (_, plain, _) =
            w.fleet.candidates(&matching, &Ask { tokens: 10, now: Time(w.now), ..Ask::default() }, Stage::Decode);
        (plain[0].requests, plain[0].waiting)
    };
    let prompt = |n: u32| (0..100).map(|i| n * 1000 + i).collect::<Vec<TokenId>>();
    let first = worker.pick(&prompt(0));
    let load = LoadReport { running: 7, waiting: 4, kv_usage_ppm: 0, age_ms: 0 };
    worker.feed(vec![Record::Load(FeedReplicaId(0), load)]);
    // One of the eleven is known.
    assert_eq!(requests(&worker), (1.0 + 6.0, 4.0));
    let more: Vec<_> = (1..4).map(|n| worker.pick(&prompt(n))).collect();
    assert_eq!(requests(&worker), (4.0 + 6.0, 4.0));
    for pick in more.iter().chain([&first]) {
        worker.fleet.finish(pick.booking, true, Time(worker.now));
    }
    assert_eq!(requests(&worker), (6.0, 4.0));
}

#[test]
fn a_rank_is_named_where_there_are_several() {
    let mut worker = Worker::new(3, Trust::Exact, 1);
    let prompt: Vec<TokenId> = (0..320).collect();
    let first = worker.pick(&prompt);
    assert_eq!(first.rank, None);
    worker.fleet.finish(first.booking, false, Time(worker.now));
    // 10.0.0.0 and 10.0.0.1 have a second rank.
    let rank = |id, address: &str| {
        let info = ReplicaInfo { id: FeedReplicaId(id), address: address.into(), model: "m".into(), rank: 1, ..info() };
        Record::Replica(info)
    };
    worker.feed(vec![rank(3, "10.0.0.0:80"), rank(4, "10.0.0.1:80")]);
    let talk = chain(&prompt);
    worker.feed(vec![Record::Stored {
        replica: FeedReplicaId(4),
        tier: Tier::Gpu,
        parent: None,
        ends: vec![],
        hashes: talk.clone(),
    }]);
    let pick = worker.pick(&prompt);
    assert_eq!((&*pick.best.address, pick.best.rank, pick.rank), ("10.0.0.1:80", 1, Some(1)));
    // A retry has the same header: it goes where there is such a rank.
    let next: Vec<_> = pick.next.iter().map(|t| &*t.address).collect();
    assert_eq!(next, ["10.0.0.0:80"]);
    // The first of several is named, too; one alone is not.
    for (other, name) in [(0, Some(0)), (2, None)] {
        let prompt: Vec<TokenId> = (0..320).map(|n| n + 1000 * (other + 1)).collect();
        worker.stored(&format!("10.0.0.{other}:80"), &chain(&prompt));
        let pick = worker.pick(&prompt);
        assert_eq!((&*pick.best.address, pick.rank), (&*format!("10.0.0.{other}:80"), name));
    }
}

#[test]
fn a_reset_cache_and_a_replica_that_left_attract_nobody() {
    let mut worker = Worker::new(2, Trust::Exact, 1);
    let mut talk: Vec<TokenId> = (0..3200).collect();
    let pick = worker.serve(&mut talk, 10);
    assert!(worker.pick(&talk).matched > 3000);
    let id = FeedReplicaId(pick.best.address[7..8].parse().unwrap());
    worker.feed(vec![Record::Cleared(id)]);
    worker.now += 3 * SECOND;
    worker.fleet.tick(Time(worker.now));
    let fresh: Vec<TokenId> = talk[..3200].to_vec();
    assert_eq!(worker.pick(&fresh).matched, 0);
    worker.feed(vec![Record::Gone(id)]);
    let again = worker.pick(&fresh);
    assert_ne!(again.best.address, pick.best.address);
    assert!(again.next.is_empty());
    assert!(matches!(worker.fleet.begin("other", BLOCK), Err(crate::nokey::NoKey::NoReplica)));
}

#[test]
fn a_receipt_is_stable_json() {
    let mut worker = Worker::new(2, Trust::Exact, 1);
    let prompt: Vec<TokenId> = (0..100).collect();
    let receipt = worker.pick(&prompt).receipt.unwrap();
    let json: serde_json::Value = serde_json::to_value(&receipt).unwrap();
    assert_eq!(json["pick"], receipt.candidates[0].address);
    assert_eq!(json["candidates"].as_array().unwrap().len(), 2);
    assert_eq!(json["reason"], "tie");
    assert_eq!(json["prompt_tokens"], 100);
}
