//! What the feed brings into a worker's index, and matching against it.

use kvroute::blocks::BlockHash;
use kvroute::clock::Time;
use kvroute::feed::batch::{Batch, BatchHeader};
use kvroute::feed::record::{Record, ReplicaInfo, Tier, Trust};
use kvroute::feed::{Epoch, FeedReplicaId};
use kvroute::replicas::{Fleet, FleetSettings};

use super::clock::{Clock, Rows, best, timed};
use super::spec::Spec;

/// Blocks of a chain.
const CHAIN: u64 = 250;
const REPLICAS: u32 = 8;
/// Chains that one batch of the feed brings.
const AT_ONCE: u64 = 4;
/// How long the filter works on the feed before other callbacks get their turn, in nanoseconds.
const SLICE: u64 = 1_000_000;
/// Chains that every replica holds, which is what lookups look for.
const WANTED: u64 = 200;
/// Chains looked up between two rounds, so that none of the wanted ones is in the processor's nearer caches.
const OTHERS: u64 = 1_000;
/// Chains that go and come back in one round.
const CHANGED: u64 = 200;

/// Chain number `n`. Its hashes are as good as random.
fn chain(n: u64) -> Vec<BlockHash> {
    let hash = |block: u64| {
        let mut x = (n << 10 | block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        BlockHash(x ^ (x >> 31))
    };
    (0..CHAIN).map(hash).collect()
}

/// A worker, and the batches that it was sent.
struct Worker<'a> {
    fleet: Fleet,
    seq: u64,
    clock: Clock<'a>,
    /// The longest turn of the event loop so far, in microseconds.
    longest: f64,
}

impl Worker<'_> {
    /// Applies a batch, turn by turn. Gives the microseconds.
    fn apply(&mut self, records: Vec<Record>) -> f64 {
        self.seq += 1;
        let frame = Batch { header: BatchHeader { epoch: Epoch { term: 1, id: 1 }, seq: self.seq }, records }.encode();
        let now = Time(self.seq);
        let (fleet, clock) = (&mut self.fleet, self.clock);
        let (mut whole, mut done) = (timed(clock, || _ = fleet.on_frame(&frame, now)), false);
        while !done {
            let until = clock() + SLICE;
            let turn = timed(clock, || done = fleet.work(now, &mut || clock() < until));
            self.longest = self.longest.max(turn);
            whole += turn;
        }
        whole
    }

    /// The replicas, of which events say that they hold beginnings without holes, or do not.
    fn replicas(&mut self, dense: bool) {
        let info = |n: u32| {
            Record::Replica(ReplicaInfo {
                id: FeedReplicaId(n),
                address: format!("10.0.0.{n}:8000"),
                model: "m".into(),
                block_size: 16,
                trust: Trust::Exact,
                dense,
                ..ReplicaInfo::default()
            })
        };
        self.apply((0..REPLICAS).map(info).collect());
    }

    fn look_up(&self, chain: &[BlockHash]) {
        if let Ok(mut matching) = self.fleet.begin("m", 16) {
            std::hint::black_box(self.fleet.push_all(&mut matching, chain));
        }
    }

    /// A lookup of one of `wanted`, in microseconds: the quickest round.
    fn lookup(&self, wanted: &[Vec<BlockHash>], others: &[Vec<BlockHash>]) -> f64 {
        let round = || {
            others.iter().for_each(|chain| self.look_up(chain));
            best(self.clock, 1, || wanted.iter().for_each(|chain| self.look_up(chain)))
        };
        (0..10).map(|_| round()).fold(f64::INFINITY, f64::min) / wanted.len() as f64
    }
}

fn stored(replica: u64, hashes: Vec<BlockHash>) -> Record {
    Record::Stored { replica: replica_id(replica), tier: Tier::Gpu, parent: None, ends: vec![], hashes }
}

fn replica_id(n: u64) -> FeedReplicaId {
    FeedReplicaId((n % u64::from(REPLICAS)) as u32)
}

/// Measures with as many blocks as the spec says, one size after the other.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    let sizes = spec.text("sizes")?.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>();
    let settings = FleetSettings { max_index_bytes: 900 << 20, ..FleetSettings::default() };
    let mut worker = Worker { fleet: Fleet::new(settings, 0x1234_5678_9abc_def1), seq: 0, clock, longest: 0.0 };
    worker.replicas(false);
    let mut rows = Rows::new();
    let mut chains = 0;
    for size in sizes.map_err(|error| format!("sizes: {error}"))? {
        let (mut time, begun) = (0.0, chains);
        worker.longest = 0.0;
        while chains * CHAIN < size {
            time += worker.apply((chains..chains + AT_ONCE).map(|n| stored(n, chain(n))).collect());
            chains += AT_ONCE;
        }
        rows.insert(format!("{size} fill, ns"), time * 1e3 / ((chains - begun) * CHAIN) as f64);
        rows.insert(format!("{size} longest turn, ms"), worker.longest / 1e3);
        let stats = worker.fleet.stats(Time(worker.seq)).index;
        rows.insert(format!("{size} bytes"), stats.bytes as f64 / stats.entries.max(1) as f64);

        let mut quickest = f64::INFINITY;
        for round in 0..5 {
            let mut time = 0.0;
            for n in (0..CHANGED).map(|n| (round * CHANGED + n) * 7919 % chains) {
                let hashes = chain(n);
                let (replica, tier) = (replica_id(n), Tier::Gpu);
                time += worker.apply(vec![Record::Removed { replica, tier, hashes: hashes.clone() }]);
                time += worker.apply(vec![stored(n, hashes)]);
            }
            quickest = time.min(quickest);
        }
        rows.insert(format!("{size} in place, ns"), quickest * 1e3 / (2 * CHANGED * CHAIN) as f64);

        let wanted: Vec<Vec<BlockHash>> = (0..WANTED).map(|n| chain(size << 20 | n)).collect();
        for chain in &wanted {
            worker.apply((0..u64::from(REPLICAS)).map(|replica| stored(replica, chain.clone())).collect());
        }
        let others: Vec<Vec<BlockHash>> = (0..OTHERS).map(|n| chain(n * 7919 % chains)).collect();
        rows.insert(format!("{size} walk"), worker.lookup(&wanted, &others));
        worker.replicas(true);
        rows.insert(format!("{size} jump"), worker.lookup(&wanted, &others));
        worker.replicas(false);
    }
    Ok(rows)
}
