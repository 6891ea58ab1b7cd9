//! Choosing a replica for a request that is matched, among few and many.

use std::hint::black_box;

use kvroute::blocks::BlockHash;
use kvroute::clock::Time;
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{LoadReport, Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::replicas::{Ask, Fleet, FleetSettings, Matching};

use super::clock::{Clock, Rows, best};
use super::spec::Spec;

/// Blocks of the prompt.
const CHAIN: u64 = 250;
const TOKENS: u64 = 16 * CHAIN + 100;
/// Requests under way, for each replica.
const UNDER_WAY: u64 = 3;
/// Nanoseconds between two requests.
const APART: u64 = 10_000;
/// Choices between two readings of the clock, and rounds of them; the quickest round counts.
const CHOICES: u64 = 200;
const ROUNDS: usize = 30;

fn hash(n: u64) -> BlockHash {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    BlockHash(x ^ (x >> 31))
}

fn chain(n: u64) -> Vec<BlockHash> {
    (0..CHAIN).map(|block| hash(n << 10 | block)).collect()
}

/// So many replicas that hold more or less of chain 0, all of them at work.
fn fleet(replicas: u64) -> Result<Fleet, String> {
    let mut fleet = Fleet::new(FleetSettings::default(), 0x1234_5678_9abc_def1);
    let info = |n: u64| {
        Record::Replica(ReplicaInfo {
            id: FeedReplicaId(n as u32),
            address: format!("10.0.{}.{}:8000", n >> 8, n & 255),
            model: "m".into(),
            block_size: 16,
            trust: Trust::Exact,
            ..ReplicaInfo::default()
        })
    };
    let held = |n: u64| Record::Stored {
        replica: FeedReplicaId(n as u32),
        tier: Tier::Gpu,
        parent: None,
        ends: vec![],
        hashes: chain(0).into_iter().take((n * 37 % CHAIN) as usize).collect(),
    };
    let report = |n: u64| {
        let load = LoadReport { running: UNDER_WAY as u32, waiting: 0, kv_usage_ppm: 1000 * n as u32, age_ms: 0 };
        Record::Load(FeedReplicaId(n as u32), load)
    };
    let known: [Vec<Record>; 3] =
        [(0..replicas).map(info).collect(), (0..replicas).map(held).collect(), (0..replicas).map(report).collect()];
    for (seq, records) in (1..).zip(known) {
        let frame = Batch { header: BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq }, records }.encode();
        fleet.on_frame(&frame, Time(seq));
        while !fleet.work(Time(seq), &mut || true) {}
    }
    for n in 0..UNDER_WAY * replicas {
        let matching = matched(&fleet, n + 1)?;
        let pick = fleet.choose(&matching, &ask(n)).map_err(|no| format!("{no:?}"))?;
        fleet.first_data(pick.booking, Time(n * APART));
    }
    Ok(fleet)
}

fn ask(n: u64) -> Ask<'static> {
    Ask { tokens: TOKENS, now: Time(n * APART), ..Ask::default() }
}

fn matched(fleet: &Fleet, n: u64) -> Result<Matching, String> {
    let mut matching = fleet.begin("m", 16).map_err(|no| format!("{no:?}"))?;
    fleet.push_all(&mut matching, &chain(n));
    Ok(matching)
}

/// Measures among as many replicas as the spec says, one number after the other.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    let sizes = spec.text("sizes")?.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
    let mut rows = Rows::new();
    for size in sizes.map_err(|error| format!("sizes: {error}"))? {
        let mut fleet = fleet(size)?;
        let matching = matched(&fleet, 0)?;
        let mut now = UNDER_WAY * size;
        let compare = best(clock, ROUNDS, || {
            for n in 0..CHOICES {
                black_box(fleet.compare(&matching, &ask(now + n)));
            }
        });
        rows.insert(format!("{size} compare"), compare / CHOICES as f64);
        let whole = best(clock, ROUNDS, || {
            for _ in 0..CHOICES {
                now += 1;
                if let Ok(pick) = fleet.choose(&matching, &ask(now)) {
                    fleet.first_data(pick.booking, Time(now * APART));
                    fleet.finish(pick.booking, true, Time(now * APART));
                }
            }
            fleet.tick(Time(now * APART));
            black_box(fleet.take_message(0, 1, Time(now * APART)));
        });
        rows.insert(format!("{size} whole"), whole / CHOICES as f64);
    }
    Ok(rows)
}
