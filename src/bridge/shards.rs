//! Block hash to holders, over all replicas: what snapshots are cut from.
//!
//! 4,096 hash tables by the top bits of the hash. Hashes are spread evenly, so a range of hashes is a few whole
//! tables, and none ever grows by much at once. An entry holds the bits of 64 replicas in one tier.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::blocks::BlockHash;
use crate::feed::FeedReplicaId;
use crate::feed::record::{Record, Tier};

const SHARD_BITS: u32 = 12;
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

/// The map.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<HashMap<(u64, Lane), Masks>>,
    entries: usize,
}

impl Default for Shards {
    fn default() -> Self {
        Shards { shards: vec![HashMap::new(); 1 << SHARD_BITS], entries: 0 }
    }
}

fn place(replica: FeedReplicaId, tier: Tier) -> (Lane, u64) {
    (Lane(tier, replica.0 / 64), 1 << (replica.0 % 64))
}

impl Shards {
    /// Entries: blocks times tiers times groups of 64 replicas.
    pub fn entries(&self) -> usize {
        self.entries
    }

    fn shard(&mut self, hash: BlockHash) -> &mut HashMap<(u64, Lane), Masks> {
        &mut self.shards[(hash.0 >> (64 - SHARD_BITS)) as usize]
    }

    /// `replica` holds the block.
    pub fn store(&mut self, replica: FeedReplicaId, tier: Tier, hash: BlockHash, end: bool) {
        let (lane, bit) = place(replica, tier);
        let shard = self.shard(hash);
        let before = shard.len();
        let masks = shard.entry((hash.0, lane)).or_default();
        masks.holders |= bit;
        masks.ends = if end { masks.ends | bit } else { masks.ends & !bit };
        let new = shard.len() - before;
        self.entries += new;
    }

    /// `replica` does not hold the block.
    pub fn remove(&mut self, replica: FeedReplicaId, tier: Tier, hash: BlockHash) {
        let (lane, bit) = place(replica, tier);
        let shard = self.shard(hash);
        let Entry::Occupied(mut entry) = shard.entry((hash.0, lane)) else { return };
        let masks = entry.get_mut();
        masks.holders &= !bit;
        masks.ends &= !bit;
        if masks.holders == 0 {
            entry.remove();
            if shard.capacity() > 64 && shard.len() < shard.capacity() / 4 {
                shard.shrink_to_fit();
            }
            self.entries -= 1;
        }
    }

    /// The blocks from `from` on, as many as fit into `max_bytes`, and the last hash of the range that they cover.
    pub fn range(&self, from: u64, max_bytes: usize) -> (Vec<Record>, u64) {
        let mut lanes: BTreeMap<Lane, Vec<(BlockHash, u64, u64)>> = BTreeMap::new();
        let mut room = max_bytes / BLOCK_BYTES;
        let mut through = u64::MAX;
        for at in (from >> (64 - SHARD_BITS)) as usize..self.shards.len() {
            let first = (at as u64) << (64 - SHARD_BITS);
            let shard = &self.shards[at];
            let mut found: Vec<_> = shard.iter().filter(|((hash, _), _)| *hash >= from).collect();
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
                lanes.entry(*lane).or_default().push((BlockHash(*hash), masks.holders, masks.ends));
            }
            if through != u64::MAX {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(shards: &Shards, max_bytes: usize) -> (Vec<(Tier, u64, u32, bool)>, usize) {
        let (mut out, mut from, mut answers) = (Vec::new(), 0, 0);
        loop {
            let (records, through) = shards.range(from, max_bytes);
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
            shards.store(FeedReplicaId(id), tier, BlockHash(hash), end);
            expected.push((tier, hash, id, end));
        }
        for edge in [0, u64::MAX] {
            shards.store(FeedReplicaId(0), Tier::Gpu, BlockHash(edge), true);
            expected.push((Tier::Gpu, edge, 0, true));
        }
        expected.sort();
        for max in [24, 100, 10_000, 1 << 20] {
            assert_eq!(walk(&shards, max).0, expected, "{max}");
        }
        assert!(walk(&shards, 10_000).1 > 6);
        for (tier, hash, id, _) in &expected {
            shards.remove(FeedReplicaId(*id), *tier, BlockHash(*hash));
        }
        assert_eq!(shards.entries(), 0);
        assert_eq!(walk(&shards, 1 << 20), (vec![], 1));
    }

    #[test]
    fn storing_again_replaces_the_end_bit() {
        let mut shards = Shards::default();
        let hash = BlockHash(5);
        shards.store(FeedReplicaId(3), Tier::Gpu, hash, true);
        shards.store(FeedReplicaId(3), Tier::Gpu, hash, false);
        assert_eq!(walk(&shards, 1 << 20).0, [(Tier::Gpu, 5, 3, false)]);
        assert_eq!(shards.entries(), 1);
    }
}
