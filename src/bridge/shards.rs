//! Block hash to holders, over all replicas: what snapshots are cut from.
//!
//! For each lane (64 replicas in one tier) 4,096 hash tables by the top bits of the hash. Hashes are spread evenly, so
//! a range of hashes is a few whole tables, and none ever grows by much at once.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::blocks::BlockHash;
use crate::feed::FeedReplicaId;
use crate::feed::digest::{self, DRAWERS, Holders, bounds, drawer};
use crate::feed::record::{Record, Tier};

/// Bytes of one block in a snapshot.
const BLOCK_BYTES: usize = 24;

/// Tier and group of 64 replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lane(Tier, u32);

/// The holders of one block in one lane, and those of them where a hit may end.
#[derive(Clone, Copy, Debug, Default)]
struct Masks {
    holders: u64,
    ends: u64,
}

type Table = HashMap<u64, Masks>;

/// The map.
#[derive(Debug, Default)]
pub struct Shards {
    lanes: Vec<(Lane, Vec<Table>)>,
    entries: usize,
}

fn place(replica: FeedReplicaId, tier: Tier) -> (Lane, u64) {
    (Lane(tier, replica.0 / 64), 1 << (replica.0 % 64))
}

impl Shards {
    /// Entries: blocks times tiers times groups of 64 replicas.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn tables(&mut self, lane: Lane) -> &mut [Table] {
        let at = match self.lanes.iter().position(|(l, _)| *l == lane) {
            Some(at) => at,
            None => {
                let at = self.lanes.partition_point(|(l, _)| *l < lane);
                self.lanes.insert(at, (lane, vec![Table::new(); DRAWERS]));
                at
            }
        };
        &mut self.lanes[at].1
    }

    /// `replica` holds the blocks; whether a hit may end at number `i` says `end(i)`.
    pub fn store(&mut self, replica: FeedReplicaId, tier: Tier, hashes: &[BlockHash], end: impl Fn(usize) -> bool) {
        let (lane, bit) = place(replica, tier);
        let mut new = 0;
        let tables = self.tables(lane);
        for (part, some) in hashes.chunks(WARM).enumerate() {
            warm(tables, some);
            for (i, hash) in some.iter().enumerate() {
                let masks = tables[drawer(hash.0)].entry(hash.0).or_default();
                new += usize::from(masks.holders == 0);
                masks.holders |= bit;
                masks.ends = if end(part * WARM + i) { masks.ends | bit } else { masks.ends & !bit };
            }
        }
        self.entries += new;
    }

    /// `replica` does not hold the blocks.
    pub fn remove(&mut self, replica: FeedReplicaId, tier: Tier, hashes: &[BlockHash]) {
        let (lane, bit) = place(replica, tier);
        let Some((_, tables)) = self.lanes.iter_mut().find(|(l, _)| *l == lane) else { return };
        for some in hashes.chunks(WARM) {
            warm(tables, some);
            for hash in some {
                let table = &mut tables[drawer(hash.0)];
                let Entry::Occupied(mut entry) = table.entry(hash.0) else { continue };
                let masks = entry.get_mut();
                masks.holders &= !bit;
                masks.ends &= !bit;
                if masks.holders == 0 {
                    entry.remove();
                    if table.capacity() > 64 && table.len() < table.capacity() / 4 {
                        table.shrink_to_fit();
                    }
                    self.entries -= 1;
                }
            }
        }
    }

    /// The digests of the drawers from number `first` on, until some `most` entries were looked at. Only what
    /// `replicas` hold counts.
    pub fn digests(&self, first: usize, replicas: &[FeedReplicaId], most: usize) -> Vec<u64> {
        let mut of: Vec<Holders> = Vec::new();
        for id in replicas {
            let group = (id.0 / 64) as usize;
            if of.len() <= group {
                of.resize(group + 1, Holders::default());
            }
            of[group].set(id.0 % 64, *id);
        }
        let (mut looked, mut digests) = (0, Vec::new());
        for at in first.min(DRAWERS)..DRAWERS {
            if looked >= most {
                break;
            }
            let mut digest = 0u64;
            looked += 1;
            for (Lane(tier, group), tables) in &self.lanes {
                let Some(of) = of.get(*group as usize) else { continue };
                looked += tables[at].len();
                for (hash, masks) in &tables[at] {
                    let sum = of.sum(masks.holders, masks.ends);
                    digest = digest.wrapping_add(digest::block(BlockHash(*hash), *tier).wrapping_mul(sum));
                }
            }
            digests.push(digest);
        }
        digests
    }

    /// The blocks from `from` on, up to `to` or as many as fit into `max_bytes`, and the last hash of the range that
    /// they cover.
    pub fn range(&self, from: u64, to: u64, max_bytes: usize) -> (Vec<Record>, u64) {
        let mut lanes: BTreeMap<Lane, Vec<(BlockHash, u64, u64)>> = BTreeMap::new();
        let mut room = max_bytes / BLOCK_BYTES;
        let mut through = to;
        for at in drawer(from)..=drawer(to) {
            let first = bounds(at).0;
            let here =
                self.lanes.iter().flat_map(|(lane, tables)| tables[at].iter().map(move |(h, m)| ((*h, *lane), *m)));
            let mut found: Vec<((u64, Lane), Masks)> = here.filter(|((h, _), _)| (from..=to).contains(h)).collect();
            if found.len() > room {
                if first > from {
                    through = first - 1;
                    break;
                }
                // The first table alone is too much: cut between two hashes.
                found.sort_unstable_by_key(|((hash, lane), _)| (*hash, *lane));
                let next = found[room].0.0;
                let keep = found.partition_point(|((hash, _), _)| *hash < next);
                // One block in more lanes than fit cannot be cut: it goes whole.
                let next = if keep > 0 { next } else { next.saturating_add(1) };
                found.retain(|((hash, _), _)| *hash < next);
                through = next - 1;
            }
            room = room.saturating_sub(found.len());
            for ((hash, lane), masks) in found {
                lanes.entry(lane).or_default().push((BlockHash(hash), masks.holders, masks.ends));
            }
            if through != to {
                break;
            }
        }
        let records = lanes.into_iter().map(|(Lane(tier, group), mut blocks)| {
            blocks.sort_unstable();
            let used = blocks.iter().fold(0, |all, (_, holders, _)| all | holders);
            let replicas = (0..64 - used.leading_zeros()).map(|bit| FeedReplicaId(group * 64 + bit)).collect();
            Record::Held { tier, replicas, blocks }
        });
        (records.collect(), through)
    }
}

/// Blocks looked up ahead at a time.
const WARM: usize = 32;

/// Looks the blocks up, so that the next look at each does not wait for memory: these reads do not depend on one
/// another, and the processor does them at once.
fn warm(tables: &[Table], hashes: &[BlockHash]) {
    let known = |hash: &&BlockHash| tables[drawer(hash.0)].contains_key(&hash.0);
    std::hint::black_box(hashes.iter().filter(known).count());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(shards: &Shards, max_bytes: usize) -> (Vec<(Tier, u64, u32, bool)>, usize) {
        let (mut out, mut from, mut answers) = (Vec::new(), 0, 0);
        loop {
            let (records, through) = shards.range(from, u64::MAX, max_bytes);
            answers += 1;
            for record in records {
                let Record::Held { tier, replicas, blocks } = record else { panic!() };
                for (hash, holders, ends) in blocks {
                    assert!((from..=through).contains(&hash.0));
                    for (bit, id) in replicas.iter().enumerate().filter(|(bit, _)| holders >> bit & 1 == 1) {
                        out.push((tier, hash.0, id.0, ends >> bit & 1 == 1));
                    }
                }
            }
            if through == u64::MAX {
                out.sort();
                return (out, answers);
            }
            from = through + 1;
        }
    }

    #[test]
    fn ranges_cover_everything_once_in_any_cut() {
        let mut shards = Shards::default();
        let mut expected = Vec::new();
        let mut x = 1u64;
        for i in 0..3000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Some in one table, some in many replicas.
            let hash = if i % 3 == 0 { x >> 16 } else { x };
            let (tier, id, end) = ([Tier::Gpu, Tier::Cpu][i as usize % 2], i * 7 % 200, i % 5 == 0);
            shards.store(FeedReplicaId(id), tier, &[BlockHash(hash)], |_| end);
            expected.push((tier, hash, id, end));
        }
        for edge in [0, u64::MAX] {
            shards.store(FeedReplicaId(0), Tier::Gpu, &[BlockHash(edge)], |_| true);
            expected.push((Tier::Gpu, edge, 0, true));
        }
        expected.sort();
        for max in [24, 100, 10_000, 1 << 20] {
            assert_eq!(walk(&shards, max).0, expected, "{max}");
        }
        assert!(walk(&shards, 10_000).1 > 6);
        for (tier, hash, id, _) in &expected {
            shards.remove(FeedReplicaId(*id), *tier, &[BlockHash(*hash)]);
        }
        assert_eq!(shards.entries(), 0);
        assert_eq!(walk(&shards, 1 << 20), (vec![], 1));
    }

    #[test]
    fn storing_again_replaces_the_end_bit() {
        let mut shards = Shards::default();
        let hash = BlockHash(5);
        shards.store(FeedReplicaId(3), Tier::Gpu, &[hash], |_| true);
        shards.store(FeedReplicaId(3), Tier::Gpu, &[hash], |_| false);
        assert_eq!(walk(&shards, 1 << 20).0, [(Tier::Gpu, 5, 3, false)]);
        assert_eq!(shards.entries(), 1);
    }
}
