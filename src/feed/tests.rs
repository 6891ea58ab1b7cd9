use super::batch::{Batch, BatchHeader};
use super::record::{Adapter, Adapters, LoadReport, Record, ReplicaInfo, Tier, Trust};
use super::role::Role;
use super::snapshot::Snapshot;
use super::{Epoch, FeedReplicaId, FrameError};
use crate::blocks::BlockHash;

fn records() -> Vec<Record> {
    let id = FeedReplicaId(7);
    vec![
        Record::Replica(ReplicaInfo {
            id,
            address: "10.0.0.1:8000".into(),
            model: "m".into(),
            block_size: 16,
            rank: 1,
            capacity_blocks: 9,
            trust: Trust::Exact,
            adapters: Adapters {
                complete: true,
                list: vec![
                    Adapter { name: "a".into(), loaded: true },
                    Adapter { name: "\u{e9}".into(), loaded: false },
                ],
            },
            role: Role::Decode,
            ..ReplicaInfo::default()
        }),
        Record::Stored {
            replica: id,
            tier: Tier::Gpu,
            parent: Some(BlockHash(1)),
            ends: vec![0b101],
            hashes: vec![BlockHash(2), BlockHash(u64::MAX), BlockHash(4)],
        },
        Record::Stored { replica: id, tier: Tier::Cpu, parent: None, ends: vec![], hashes: vec![] },
        Record::Removed { replica: id, tier: Tier::Disk, hashes: vec![BlockHash(3)] },
        Record::Load(id, LoadReport { running: 1, waiting: 2, kv_usage_ppm: 3, age_ms: 4 }),
        Record::Held { tier: Tier::Gpu, replicas: vec![id], blocks: vec![(BlockHash(5), 1, 0)] },
        Record::Cleared(id),
        Record::Gone(id),
    ]
}

#[test]
fn frames_survive_the_wire() {
    let epoch = Epoch { term: 3, id: 4 };
    let batch = Batch { header: BatchHeader { epoch, seq: 5 }, records: records() };
    assert_eq!(Batch::decode(&batch.encode()), Ok(batch));
    let snapshot = Snapshot { epoch, seq: 5, from: 0, through: u64::MAX, records: records() };
    assert_eq!(Snapshot::decode(&snapshot.encode()), Ok(snapshot));
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let epoch = Epoch { term: 3, id: 4 };
    let batch = Batch { header: BatchHeader { epoch, seq: 5 }, records: records() }.encode();
    let snapshot = Snapshot { epoch, seq: 5, from: 0, through: 9, records: records() }.encode();
    for cut in 0..batch.len() {
        assert!(Batch::decode(&batch[..cut]).is_err());
    }
    for cut in 0..snapshot.len() {
        assert!(Snapshot::decode(&snapshot[..cut]).is_err());
    }
    for at in 0..batch.len() * 8 {
        let mut bad = batch.clone();
        bad[at / 8] ^= 1 << (at % 8);
        assert!(Batch::decode(&bad).is_err());
    }
    assert_eq!(Batch::decode(&snapshot), Err(FrameError::Magic));
}
