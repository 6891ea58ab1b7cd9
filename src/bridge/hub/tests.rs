use super::*;
use crate::feed::record::Trust;

fn drain(hub: &Hub, place: &mut Place) -> Vec<Batch> {
    let mut out = Vec::new();
    loop {
        match hub.next(place) {
            Next::Send(frame) => {
                out.push(Batch::decode(&frame.bytes).unwrap());
                place.advance();
            }
            Next::Wait(_) if hub.lock().pending.is_empty() => return out,
            Next::Wait(_) => std::thread::yield_now(),
        }
    }
}

fn info(id: FeedReplicaId) -> ReplicaInfo {
    ReplicaInfo {
        id,
        address: "127.0.0.1:1".into(),
        model: "m".into(),
        block_size: 16,
        rank: 0,
        capacity_blocks: 0,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    }
}

fn stored(replica: FeedReplicaId, hashes: std::ops::Range<u64>) -> Record {
    let hashes = hashes.map(|h| BlockHash(h << 40)).collect();
    Record::Stored { replica, tier: Tier::Gpu, parent: None, ends: vec![], hashes }
}

#[test]
fn every_sender_gets_the_same_frames_without_holes() {
    let hub = Hub::new(1 << 20);
    let id = hub.reserve();
    hub.replica(info(id));
    let (mut a, mut b) = (Place::default(), Place::default());
    let mut from_a = drain(&hub, &mut a);
    for n in 0..10 {
        hub.publish(vec![stored(id, n..n + 1)], &[]);
        if n % 3 == 0 {
            from_a.extend(drain(&hub, &mut a));
        }
    }
    from_a.extend(drain(&hub, &mut a));
    let from_b = drain(&hub, &mut b);
    assert_eq!(from_a, from_b);
    let seqs: Vec<_> = from_a.iter().map(|b| b.header.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert_eq!(from_a.iter().map(|b| b.records.len()).sum::<usize>(), 11);
}

#[test]
fn a_place_that_fell_off_the_ring_skips_ahead() {
    let hub = Hub::new(10_000);
    let id = hub.reserve();
    let mut place = Place::default();
    for n in 0..200 {
        hub.publish(vec![stored(id, n * 4096..(n + 1) * 4096)], &[]);
    }
    let batches = drain(&hub, &mut place);
    assert!(batches[0].header.seq > 1);
    assert_eq!(place.skipped, batches[0].header.seq - 1);
    assert!(hub.stats().ring_bytes <= 10_000 || batches.len() <= 2);
}

#[test]
fn a_higher_term_begins_anew_with_all_replicas() {
    let hub = Hub::new(1 << 20);
    let id = hub.reserve();
    hub.replica(info(id));
    let mut place = Place::default();
    drain(&hub, &mut place);
    hub.raise_term(7);
    hub.raise_term(3);
    let batches = drain(&hub, &mut place);
    assert_eq!(batches[0].header.epoch.term, 8);
    assert_eq!(batches[0].header.seq, 1);
    assert_eq!(batches[0].records, [Record::Replica(info(id))]);
}

/// What a worker knows that pulled a snapshot and applied the batches after it, as (hash, replica).
fn known(snapshots: &[Snapshot], batches: &[Batch]) -> std::collections::BTreeSet<(u64, u32)> {
    let mut known = std::collections::BTreeSet::new();
    for snapshot in snapshots {
        let apply = |record: &Record, known: &mut std::collections::BTreeSet<(u64, u32)>| match record {
            Record::Stored { replica, hashes, .. } => known.extend(hashes.iter().map(|h| (h.0, replica.0))),
            Record::Removed { replica, hashes, .. } => {
                known.retain(|(h, r)| *r != replica.0 || !hashes.contains(&BlockHash(*h)));
            }
            Record::Cleared(id) | Record::Gone(id) => known.retain(|(_, r)| *r != id.0),
            Record::Held { replicas, blocks, .. } => {
                for (hash, holders, _) in blocks {
                    let held = replicas.iter().enumerate().filter(|(bit, _)| holders >> bit & 1 == 1);
                    known.extend(held.map(|(_, id)| (hash.0, id.0)));
                }
            }
            _ => {}
        };
        let mut range = std::collections::BTreeSet::new();
        snapshot.records.iter().for_each(|r| apply(r, &mut range));
        for batch in batches.iter().filter(|b| b.header.seq > snapshot.seq) {
            batch.records.iter().for_each(|r| apply(r, &mut range));
        }
        known.extend(range.into_iter().filter(|(h, _)| (snapshot.from..=snapshot.through).contains(h)));
    }
    known
}

#[test]
fn snapshot_and_later_batches_give_the_state() {
    let hub = Hub::new(64 << 20);
    let ids = [hub.reserve(), hub.reserve()];
    ids.iter().for_each(|id| hub.replica(info(*id)));
    hub.publish(vec![stored(ids[0], 0..50_000), stored(ids[1], 40_000..60_000)], &[]);
    let (mut snapshots, mut from) = (Vec::new(), 0);
    loop {
        let snapshot = hub.snapshot(from, u64::MAX);
        assert!(snapshot.encode().len() <= MAX_ANSWER_BYTES);
        assert_eq!(Snapshot::decode(&snapshot.encode()).unwrap(), snapshot);
        let through = snapshot.through;
        snapshots.push(snapshot);
        // Changes between two answers.
        let n = snapshots.len() as u64;
        hub.publish(vec![stored(ids[1], n..n + 5)], &[]);
        let hashes = vec![BlockHash((n * 20_000) << 40)];
        hub.publish(vec![Record::Removed { replica: ids[0], tier: Tier::Gpu, hashes }], &[]);
        if through == u64::MAX {
            break;
        }
        from = through + 1;
    }
    assert!(snapshots.len() > 1);
    let wiped: Vec<_> = (40_000..60_000).map(|h: u64| BlockHash(h << 40)).collect();
    hub.publish(vec![Record::Cleared(ids[1]), stored(ids[1], 7..9)], &wiped);
    let batches = drain(&hub, &mut Place::default());
    let mut expected: std::collections::BTreeSet<_> = (0..50_000u64).map(|h| (h << 40, ids[0].0)).collect();
    expected.retain(|(h, _)| *h == 0 || (h >> 40) % 20_000 != 0);
    expected.extend((7..9u64).map(|h| (h << 40, ids[1].0)));
    assert_eq!(known(&snapshots, &batches), expected);
}

#[test]
fn a_replica_is_not_shown_before_it_is_described() {
    let hub = Hub::new(1 << 20);
    let id = hub.reserve();
    assert_eq!(hub.snapshot(0, u64::MAX).records, []);
    hub.raise_term(5);
    assert!(drain(&hub, &mut Place::default()).iter().all(|b| b.records.is_empty()));
    hub.replica(info(id));
    assert_eq!(hub.snapshot(0, u64::MAX).records, [Record::Replica(info(id))]);
}
