//! How fast choosing is: `cargo test --profile native --lib bench -- --ignored --nocapture`. Prints, asserts nothing
//! of time. What the feed and matching cost, `scripts/bench index` says.

use std::time::Instant;

use super::*;
use crate::blocks::BlockHash;
use crate::clock::{SECOND, Time};
use crate::feed::batch::{Batch, BatchHeader};
use crate::feed::record::{Record, ReplicaInfo, Tier, Trust};
use crate::feed::{Epoch, FeedReplicaId};

fn random(n: u64) -> BlockHash {
    BlockHash(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
}

fn fleet(replicas: u32) -> Fleet {
    let settings = FleetSettings { max_index_bytes: 900 << 20, ..FleetSettings::default() };
    let mut fleet = Fleet::new(settings, 0x1234_5678_9abc_def1);
    let infos = (0..replicas).map(|n| {
        Record::Replica(ReplicaInfo {
            id: FeedReplicaId(n),
            address: format!("10.0.{}.{}:8000", n / 256, n % 256),
            model: "m".into(),
            block_size: 16,
            rank: 0,
            capacity_blocks: 0,
            trust: Trust::Exact,
            ..ReplicaInfo::default()
        })
    });
    send(&mut fleet, 1, infos.collect());
    fleet
}

fn send(fleet: &mut Fleet, seq: u64, records: Vec<Record>) -> f64 {
    let header = BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq };
    let frame = Batch { header, records }.encode();
    let started = Instant::now();
    fleet.on_frame(&frame, Time(seq));
    fleet.work(Time(seq), &mut || true);
    started.elapsed().as_secs_f64() * 1e9
}

fn stored(replica: u32, hashes: Vec<BlockHash>) -> Record {
    Record::Stored { replica: FeedReplicaId(replica), tier: Tier::Gpu, parent: None, ends: vec![], hashes }
}

#[test]
#[ignore = "a measurement"]
fn bench_choose() {
    for replicas in [8, 64, 1024] {
        let mut fleet = fleet(replicas);
        let chain: Vec<_> = (0..250).map(random).collect();
        for replica in 0..replicas {
            let held = chain[..(replica as usize * 37) % 250].to_vec();
            send(&mut fleet, u64::from(replica) + 2, vec![stored(replica, held)]);
        }
        let mut matching = fleet.begin("m", 16).unwrap();
        chain.iter().for_each(|hash| {
            _ = fleet.push(&mut matching, *hash);
        });
        let rounds = 2000u64;
        let started = Instant::now();
        for n in 0..rounds {
            let ask = Ask { tokens: 4100, now: Time(n * SECOND), ..Ask::default() };
            assert!(fleet.score_only(&matching, &ask) > 0);
        }
        let score = started.elapsed().as_secs_f64() * 1e6 / rounds as f64;
        let started = Instant::now();
        for n in 0..rounds {
            let ask = Ask { tokens: 4100, now: Time(n * SECOND), ..Ask::default() };
            let pick = fleet.choose(&matching, &ask).unwrap();
            fleet.first_data(pick.booking, Time(n * SECOND));
            fleet.finish(pick.booking, true, Time(n * SECOND));
            fleet.tick(Time(n * SECOND));
            fleet.take_message(0, 1, Time(n * SECOND));
        }
        let whole = started.elapsed().as_secs_f64() * 1e6 / rounds as f64;
        println!(
            "choose among {replicas}: {score:.2} us; a whole request with booking, prediction and messages {whole:.2} us"
        );
    }
}
