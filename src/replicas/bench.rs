//! How fast it is: `cargo test --profile native --lib bench -- --ignored --nocapture`. Prints, asserts nothing
//! of time.

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
fn bench_apply_and_lookup() {
    let mut fleet = fleet(8);
    let (mut seq, mut blocks, mut window, mut slowest): (u64, u64, f64, f64) = (1, 0, 0.0, 0.0);
    for target in [500_000u64, 10_000_000] {
        let (mut time, mut count) = (0.0, 0u64);
        while blocks < target {
            seq += 1;
            let hashes: Vec<_> = (blocks..blocks + 256).map(random).collect();
            let took = send(&mut fleet, seq, vec![stored((seq % 8) as u32, hashes)]);
            slowest = f64::max(slowest, took);
            blocks += 256;
            (time, count, window) = (time + took, count + 256, took / 256.0);
        }
        let stats = fleet.stats(Time(seq)).index;
        println!(
            "apply up to {target}: {:.1} ns a block, last batch {window:.1} ns, slowest batch of 256 {:.0} us, {:.1} bytes a block",
            time / count as f64,
            slowest / 1e3,
            stats.bytes as f64 / stats.entries as f64
        );
        // Chains of 250 blocks that all 8 replicas hold.
        let chains: Vec<Vec<BlockHash>> =
            (0..200).map(|c| (0..250).map(|n| random(target << 20 | c << 10 | n)).collect()).collect();
        for chain in &chains {
            seq += 1;
            let all = (0..8).map(|replica| stored(replica, chain.clone())).collect();
            send(&mut fleet, seq, all);
        }
        let (mut best, mut total) = (f64::MAX, 0);
        for _ in 0..20 {
            // Push the chains out of the processor's caches.
            (0..300_000u64).for_each(|n| total += usize::from(fleet.knows(random(n.wrapping_mul(7919) % target))));
            let started = Instant::now();
            for chain in &chains {
                let mut matching = fleet.begin("m", 16).unwrap();
                total += usize::from(fleet.push_all(&mut matching, chain));
            }
            best = f64::min(best, started.elapsed().as_secs_f64() * 1e6 / chains.len() as f64);
        }
        println!("lookup of 250 blocks over 8 replicas at {target}: {best:.2} us ({total})");
    }
    let mut time = 0.0;
    for n in 0..2000u64 {
        seq += 1;
        let hashes: Vec<_> = (0..256).map(|i| random((n * 256 + i) * 19)).collect();
        let removed = Record::Removed { replica: FeedReplicaId(0), tier: Tier::Gpu, hashes: hashes.clone() };
        time += send(&mut fleet, seq, vec![removed, stored(0, hashes)]);
    }
    println!("remove and store again at 10 million: {:.1} ns a block", time / (2000.0 * 512.0));
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
