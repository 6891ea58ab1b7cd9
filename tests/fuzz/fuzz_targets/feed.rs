//! Delta batches, snapshot answers and the ingest body: bytes of any kind, as they come and with a sound header and
//! checksum put around them.
//!
//! Nothing panics; what decodes prints the same bytes again; a worker that takes them in ends its work, and takes in
//! the next sound batch as if nothing had been.

#![no_main]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};

use kvroute::blocks::BlockHash;
use kvroute::clock::Time;
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::digest::{self, DRAWERS, Digests};
use kvroute::feed::record::{LoadReport, Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::slots::ingest::{IngestLimits, take_batch};
use kvroute::feed::slots::{Answer, QueueId, Set, Shared, SlotLease};
use kvroute::feed::snapshot::Snapshot;
use kvroute::feed::sync::{Pull, Sync, SyncSettings, Target, Verdict};
use kvroute::feed::{Epoch, FeedReplicaId, wire, word};
use libfuzzer_sys::fuzz_target;

/// What a worker believes, in the plainest form.
#[derive(Default)]
struct Plain {
    replicas: BTreeMap<FeedReplicaId, ReplicaInfo>,
    held: BTreeMap<(FeedReplicaId, u8, u64), bool>,
    range: Option<Snapshot>,
}

impl Target for Plain {
    fn new_epoch(&mut self) {
        self.replicas.clear();
    }
    fn replica(&mut self, info: &ReplicaInfo, _: Time) -> bool {
        self.replicas.insert(info.id, info.clone()).as_ref() != Some(info)
    }
    fn gone(&mut self, id: FeedReplicaId, now: Time) {
        self.cleared(id, now);
        self.replicas.remove(&id);
    }
    fn cleared(&mut self, id: FeedReplicaId, _: Time) {
        self.held.retain(|(holder, ..), _| *holder != id);
    }
    fn load(&mut self, _: FeedReplicaId, _: &LoadReport, _: Time) {}
    fn stored(&mut self, id: FeedReplicaId, tier: Tier, _: Option<BlockHash>, hashes: &[BlockHash], _: &[u8]) -> bool {
        hashes.iter().for_each(|hash| _ = self.held.insert((id, tier as u8, hash.0), true));
        self.replicas.contains_key(&id)
    }
    fn removed(&mut self, id: FeedReplicaId, tier: Tier, hashes: &[BlockHash]) {
        hashes.iter().for_each(|hash| _ = self.held.remove(&(id, tier as u8, hash.0)));
    }
    fn only(&mut self, ids: &[FeedReplicaId], _: Time) {
        self.replicas.retain(|id, _| ids.contains(id));
    }
    fn range_begin(&mut self, snapshot: Snapshot) {
        self.range = Some(snapshot);
    }
    fn digest_begin(&mut self) -> usize {
        self.held.len()
    }
    fn digest(&mut self, drawer: usize) -> u64 {
        let (first, last) = digest::bounds(drawer);
        self.held.keys().filter(|(.., hash)| (first..=last).contains(hash)).count() as u64
    }
    fn range_apply(&mut self, _: &mut dyn FnMut() -> bool) -> Option<u64> {
        let snapshot = self.range.take()?;
        self.held.retain(|(.., hash), _| *hash < snapshot.from || *hash > snapshot.through);
        Some(0)
    }
}

/// Keys and queues of one Envoy.
#[derive(Default)]
struct Host {
    keys: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    queues: RefCell<Vec<(String, VecDeque<Vec<u8>>)>>,
}

impl Shared for Host {
    fn shared_get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.keys.borrow().get(key).cloned()
    }
    fn shared_set(&self, key: &str, value: &[u8], cas: u32) -> Set {
        let mut keys = self.keys.borrow_mut();
        let entry = keys.entry(key.to_owned()).or_default();
        if cas != 0 && entry.1 != cas {
            return Set::Changed;
        }
        *entry = (value.to_vec(), entry.1 + 1);
        Set::Done
    }
    fn register_queue(&self, name: &str) -> Option<QueueId> {
        let mut queues = self.queues.borrow_mut();
        let at = queues.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            queues.push((name.to_owned(), VecDeque::new()));
            queues.len() - 1
        });
        Some(QueueId(at as u32))
    }
    fn enqueue(&self, queue: QueueId, message: &[u8]) -> bool {
        let mut queues = self.queues.borrow_mut();
        queues.get_mut(queue.0 as usize).map(|(_, list)| list.push_back(message.to_vec())).is_some()
    }
    fn dequeue(&self, queue: QueueId) -> Option<Vec<u8>> {
        self.queues.borrow_mut().get_mut(queue.0 as usize)?.1.pop_front()
    }
}

const LEAD: Epoch = Epoch { term: 3, id: 9 };

fn framed(magic: &[u8], fields: &[u64], records: &[u8]) -> Vec<u8> {
    let mut out = wire::begin(magic, 1);
    fields.iter().for_each(|field| out.u64(*field));
    out.0.extend_from_slice(records);
    wire::seal(out)
}

fn sound(seq: u64) -> Vec<u8> {
    let info = ReplicaInfo {
        id: FeedReplicaId(1),
        address: "10.0.0.1:8000".into(),
        model: "m".into(),
        block_size: 16,
        rank: 0,
        capacity_blocks: 10,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    };
    let hashes = vec![BlockHash(5), BlockHash(1 << 63)];
    let stored = Record::Stored { replica: info.id, tier: Tier::Gpu, parent: None, ends: Vec::new(), hashes };
    Batch { header: BatchHeader { epoch: LEAD, seq }, records: vec![Record::Replica(info), stored] }.encode()
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let through = if choice & 4 == 0 { u64::MAX } else { 1 << 60 };
    let frame = match choice & 3 {
        0 => data.to_vec(),
        1 => framed(b"KVB", &[LEAD.term, LEAD.id, 2], data),
        2 => framed(b"KVS", &[LEAD.term, LEAD.id, 1, 0, through], data),
        _ => framed(b"KVD", &[LEAD.term, LEAD.id, 1, 0], data),
    };
    if let Ok(batch) = Batch::decode(&frame) {
        let again = Batch::decode(&batch.encode()).expect("a frame of our own");
        assert_eq!(again, batch);
    }
    if let Ok(snapshot) = Snapshot::decode(&frame) {
        let again = Snapshot::decode(&snapshot.encode()).expect("an answer of our own");
        assert_eq!(again, snapshot);
    }

    if let Ok(digests) = Digests::decode(&frame) {
        let again = Digests::decode(&digests.encode()).expect("digests of our own");
        assert_eq!(again, digests);
    }
    // What a worker tells the bridge, after the same sum.
    let told = framed(b"KVW", &[], data);
    if let Ok(told) = word::decode(&told) {
        assert_eq!(word::decode(&word::encode(&told)), Ok(told));
    }

    let host = Host::default();
    let mut lease = SlotLease::new(7);
    lease.lease(&host, Time(1));
    lease.tick(&host, (LEAD, 0), Time(1));
    let answer = take_batch(&host, &frame, IngestLimits::default(), Time(2));
    assert_eq!(matches!(answer, Answer::Bad(_)), Batch::decode(&frame).is_err());

    let (mut sync, mut plain) = (Sync::new(SyncSettings::default()), Plain::default());
    let mut yes = || true;
    assert_eq!(sync.on_frame(&sound(1), Time(1)), Verdict::NewEpoch);
    assert!(sync.work(&mut plain, Time(1), &mut yes));
    // Digests that differ, where an answer of blocks is to be tried, so that blocks are asked for.
    let pull = sync.next_pull(Time(2));
    if choice & 3 == 2 && pull == Some(Pull::Digests { from: 0 }) {
        let drawers = vec![u64::MAX; DRAWERS];
        let digests = Digests { epoch: LEAD, seq: 1, from: 0, drawers, replicas: Vec::new() };
        sync.on_snapshot(&digests.encode(), Time(2));
        assert!(sync.work(&mut plain, Time(2), &mut yes));
        sync.next_pull(Time(2));
    }
    sync.on_frame(&frame, Time(2));
    sync.on_snapshot(&frame, Time(2));
    assert!(sync.work(&mut plain, Time(2), &mut yes));
    assert!(!sync.has_work());
    let (epoch, applied) = sync.applied();
    if epoch == LEAD {
        sync.on_frame(&sound(applied + 1), Time(3));
        assert!(sync.work(&mut plain, Time(3), &mut yes));
        assert_eq!(sync.applied(), (LEAD, applied + 1));
        assert!(plain.held.contains_key(&(FeedReplicaId(1), Tier::Gpu as u8, 5)));
    }
});
