use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::segment::{Seed, Segment};
use super::twin::Twin;
use super::{Column, Index, RangeJob, Walk};
use crate::blocks::BlockHash;
use crate::feed::record::Tier;

const TIERS: [Tier; 4] = Tier::ALL;

/// A small world of hashes, spread over the whole range, some of them neighbours in one segment.
fn hash(n: u16) -> BlockHash {
    let n = u64::from(n);
    BlockHash(if n < 40 { n } else { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) })
}

#[derive(Clone, Debug)]
enum Step {
    Store { column: usize, tier: usize, from: u16, ends: Vec<bool> },
    Remove { column: usize, tier: usize, hash: u16 },
    Renew { column: usize },
    Sweep { steps: usize },
    Replace { from: u64, through: u64, cover: usize, new: Vec<(usize, usize, u16, bool)>, steps: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let (column, tier, at) = (0..70usize, 0..4usize, 0..300u16);
    prop_oneof![
        6 => (column.clone(), tier.clone(), at.clone(), prop::collection::vec(any::<bool>(), 1..20))
            .prop_map(|(column, tier, from, ends)| Step::Store { column, tier, from, ends }),
        4 => (column.clone(), tier.clone(), at.clone()).prop_map(|(column, tier, hash)| Step::Remove { column, tier, hash }),
        1 => column.clone().prop_map(|column| Step::Renew { column }),
        1 => (0..9000usize).prop_map(|steps| Step::Sweep { steps }),
        1 => (any::<u64>(), any::<u64>(), 0..70usize, prop::collection::vec((column, tier, at, any::<bool>()), 0..40), 1..50usize)
            .prop_map(|(a, b, cover, new, steps)| Step::Replace { from: a.min(b), through: a.max(b), cover, new, steps }),
    ]
}

fn pack(ends: &[bool]) -> Vec<u8> {
    let mut bytes = vec![0; ends.len().div_ceil(8)];
    ends.iter().enumerate().filter(|(_, end)| **end).for_each(|(i, _)| bytes[i / 8] |= 1 << (i % 8));
    bytes
}

/// A budget of so many pieces at a time.
fn slices(steps: usize) -> impl FnMut() -> bool {
    let mut left = steps;
    move || {
        left = left.wrapping_sub(1);
        left != usize::MAX
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_twin(steps in prop::collection::vec(step(), 1..80), predicted in prop::collection::btree_set((0..70usize, 0..300u16), 0..20)) {
        let mut index = Index::new(64 << 20, 7);
        let mut twin = Twin::default();
        let mut columns: Vec<Column> = (0..70).map(|_| index.open().unwrap()).collect();
        for step in steps {
            match step {
                Step::Store { column, tier, from, ends } => {
                    let hashes: Vec<_> = (0..ends.len() as u16).map(|i| hash(from + i)).collect();
                    let parent = from.checked_sub(1).map(hash);
                    index.store(columns[column], TIERS[tier], parent, &hashes, &pack(&ends));
                    twin.store(columns[column], TIERS[tier], &hashes, &ends);
                }
                Step::Remove { column, tier, hash: at } => {
                    index.remove(columns[column], TIERS[tier], hash(at));
                    twin.remove(columns[column], TIERS[tier], hash(at));
                }
                Step::Renew { column } => {
                    let fresh = index.open().unwrap();
                    let old = std::mem::replace(&mut columns[column], fresh);
                    index.close(old);
                    twin.close(old);
                }
                Step::Sweep { steps } => {
                    index.sweep(&mut slices(steps));
                }
                Step::Replace { from, through, cover, new, steps } => {
                    let cover: BTreeSet<Column> = columns[..cover].iter().copied().collect();
                    let new: Vec<_> = new.into_iter().map(|(c, t, h, end)| (columns[c], TIERS[t], hash(h), end)).collect();
                    // The last word about a block counts, as in the twin.
                    let mut seen = BTreeSet::new();
                    let new: Vec<_> = new.into_iter().rev().filter(|(c, t, h, _)| seen.insert((*c, *t, *h))).collect();
                    let mut job = RangeJob::new(from, through, cover.iter().copied());
                    new.iter().filter(|n| cover.contains(&n.0)).for_each(|(c, t, h, end)| job.hold(*c, *t, *h, *end));
                    while !job.apply(&mut index, &mut slices(steps * 500)) {}
                    twin.replace(from, through, &cover, &new);
                }
            }
            prop_assert_eq!(index.dump(), twin.dump());
        }
        for column in &columns {
            let counts = TIERS.map(|tier| twin.dump().iter().filter(|d| d.0 == *column && d.1 == tier).count() as u32);
            prop_assert_eq!(index.blocks(*column), counts);
        }
        let predicted: BTreeSet<(Column, BlockHash)> = predicted.into_iter().map(|(c, h)| (columns[c], hash(h))).collect();
        for start in (0..300).step_by(23) {
            let chain: Vec<_> = (start..start + 25).map(hash).collect();
            let mut walk = Walk::new(columns.iter().copied());
            for hash in &chain {
                let more = walk.push(&index, *hash, |plane, hash| {
                    predicted.iter().filter(|p| p.0.plane() == plane && p.1 == hash).fold(0, |mask, p| mask | p.0.bit())
                });
                if !more { break; }
            }
            let mut at_once = Walk::new(columns.iter().copied());
            at_once.push_all(&index, &chain, |plane, hash| {
                predicted.iter().filter(|p| p.0.plane() == plane && p.1 == hash).fold(0, |mask, p| mask | p.0.bit())
            });
            for column in &columns {
                // The whole chain may count, or all but its last block.
                for most in [chain.len(), chain.len() - 1] {
                    let held = walk.held(*column, most as u32);
                    prop_assert_eq!(at_once.held(*column, most as u32), held);
                    prop_assert_eq!(held, twin.walk(*column, &chain, &predicted, most), "{:?} from {}", column, start);
                }
            }
        }
        // Swept to the end, nothing is left of columns that were closed.
        while !index.sweep(&mut slices(1000)) {}
        prop_assert_eq!(index.stats().dead_columns, 0);
        columns.iter().for_each(|c| index.close(*c));
        while !index.sweep(&mut slices(1000)) {}
        prop_assert_eq!((index.stats().entries, index.stats().bytes), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Every column holds of every chain a beginning, and a few blocks are predicted or in lower tiers.
    #[test]
    fn a_jump_comes_to_the_same_as_a_walk(
        depths in prop::collection::vec(0..200usize, 1..70),
        lower in prop::collection::vec((0..70usize, 0..200usize, 1..4usize), 0..12),
        predicted in prop::collection::btree_set((0..70usize, 0..200usize), 0..12),
        holes in prop::collection::vec(0..70usize, 0..2),
        cut in 1..200usize,
    ) {
        let mut index = Index::new(64 << 20, 7);
        let chain: Vec<BlockHash> = (0..200).map(|n| random(900_000 + n)).collect();
        let columns: Vec<Column> = depths.iter().map(|_| index.open().unwrap()).collect();
        for (column, depth) in columns.iter().zip(&depths) {
            index.store(*column, Tier::Gpu, None, &chain[..*depth], &[]);
        }
        for (column, at, tier) in lower.iter().filter(|l| l.0 < columns.len()) {
            index.store(columns[*column], TIERS[*tier], None, &chain[*at..*at + 1], &[]);
        }
        // Some have a hole, and are not called dense.
        let holes: BTreeSet<usize> = holes.into_iter().filter(|at| *at < columns.len()).collect();
        for at in &holes {
            index.remove(columns[*at], Tier::Gpu, chain[depths[*at] / 2]);
        }
        let predicts = |plane: usize, hash: BlockHash| {
            let at = predicted.iter().filter(|(c, n)| *c < columns.len() && chain[*n] == hash);
            at.map(|(c, _)| columns[*c]).filter(|c| c.plane() == plane).fold(0, |mask, c| mask | c.bit())
        };
        let mut slow = Walk::new(columns.iter().copied());
        _ = chain.iter().all(|hash| slow.push(&index, *hash, predicts));
        let dense = columns.iter().enumerate().filter(|(at, _)| !holes.contains(at)).map(|(_, c)| *c);
        let mut fast = Walk::new(columns.iter().copied()).dense(dense);
        // In two pieces, as the hashes become known.
        let (first, second) = chain.split_at(cut);
        _ = fast.push_all(&index, first, predicts) && fast.push_all(&index, second, predicts);
        for column in &columns {
            for most in [chain.len(), chain.len() - 1] {
                prop_assert_eq!(fast.held(*column, most as u32), slow.held(*column, most as u32));
            }
        }
    }
}

fn random(n: u64) -> BlockHash {
    BlockHash(xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()))
}

#[test]
fn takes_at_most_40_bytes_a_block() {
    let mut index = Index::new(1 << 30, 3);
    let column = index.open().unwrap();
    let mut worst: f64 = 0.0;
    for n in 0..600_000u64 {
        index.store(column, Tier::Gpu, None, &[random(n)], &[]);
        if n > 100_000 && n % 1000 == 0 {
            worst = worst.max(index.stats().bytes as f64 / n as f64);
        }
    }
    assert_eq!(index.stats().entries, 600_000);
    assert!(worst <= 40.0, "{worst} bytes a block");
}

#[test]
fn stays_within_its_bytes_and_gives_up_the_tails_of_unused_chains() {
    let max = 4 << 20;
    let mut index = Index::new(max, 5);
    let (old, new) = (index.open().unwrap(), index.open().unwrap());
    let chain: Vec<_> = (0..40_000).map(random).collect();
    index.store(old, Tier::Gpu, None, &chain, &[]);
    assert!(!index.truncated(old));
    // The first blocks go on being of use while another replica fills the index many times over.
    for n in 0..600_000u64 {
        index.store(new, Tier::Gpu, None, &[random(1 << 40 | n)], &[]);
        if n % 2000 == 0 {
            index.touch(old, &chain[..1000]);
        }
        assert!(index.stats().bytes <= max);
    }
    assert!(index.truncated(old) && index.truncated(new));
    assert!(index.stats().evicted > 400_000);
    let kept = |part: &[BlockHash]| part.iter().filter(|h| index.holds(old, Tier::Gpu, **h)).count();
    assert_eq!(kept(&chain[..1000]), 1000, "what is used stays");
    assert_eq!(kept(&chain[30_000..]), 0, "what is not goes");
    let stats = index.stats();
    let held = index.blocks(old)[0] + index.blocks(new)[0];
    assert_eq!(held as usize, stats.entries, "the counts follow what is given up");
}

#[test]
fn of_what_is_equally_useful_the_deepest_goes_first() {
    let mut index = Index::new(3 << 20, 5);
    let column = index.open().unwrap();
    let chains: Vec<Vec<_>> = (0..400u64).map(|c| (0..512).map(|n| random(c << 20 | n)).collect()).collect();
    for chain in &chains {
        index.store(column, Tier::Gpu, None, chain, &[]);
    }
    let kept = |from: usize| {
        chains.iter().flat_map(|c| &c[from..from + 64]).filter(|h| index.holds(column, Tier::Gpu, **h)).count()
    };
    assert!(index.stats().evicted > 0);
    assert!(kept(0) > 2 * kept(448), "{} at the start, {} at the end", kept(0), kept(448));
}

#[test]
fn a_second_tier_gets_its_share_of_a_full_index() {
    let mut index = Index::new(4 << 20, 5);
    let column = index.open().unwrap();
    (0..300_000).for_each(|n| index.store(column, Tier::Gpu, None, &[random(n)], &[]));
    (0..300_000).for_each(|n| index.store(column, Tier::Cpu, None, &[random(n)], &[]));
    let [gpu, cpu, ..] = index.blocks(column);
    assert!(cpu > 40_000 && gpu > 40_000, "{gpu} and {cpu}");
    assert!(index.stats().bytes <= 4 << 20);
}

#[test]
fn hashes_aimed_at_one_segment_do_not_grow_it_without_bound() {
    let mut index = Index::new(1 << 30, 11);
    let column = index.open().unwrap();
    (0..200_000u64).for_each(|n| index.store(column, Tier::Gpu, None, &[BlockHash(random(n).0 >> 12)], &[]));
    assert!(index.stats().bytes < 4 << 20);
    assert!(index.truncated(column));
}

#[test]
fn a_segment_keeps_what_it_has_while_others_come_and_go() {
    let seed = Seed::new(3);
    for keys in [5, 40, 300] {
        let mut segment = Segment::default();
        let mut twin: BTreeMap<u64, u64> = BTreeMap::new();
        for n in 0..30_000u64 {
            let random = random(n).0;
            // Now more come than go, now more go than come.
            let (key, come) = ((random >> 8) % keys, random % 8 < if (n >> 12) & 1 == 0 { 6 } else { 3 });
            let holders = 1 << (random >> 60);
            if come {
                while segment.set(key, (holders, holders), 0, seed).is_none() {
                    segment.grow(seed);
                }
                *twin.entry(key).or_default() |= holders;
            } else {
                let gone = segment.remove(key, holders, seed);
                assert_eq!(gone, twin.get(&key).map_or(0, |held| held & holders));
                twin.entry(key).and_modify(|held| *held &= !holders);
                twin.retain(|_, held| *held != 0);
            }
            assert_eq!(segment.used(), twin.len());
            if n % 64 == 0 {
                (0..keys)
                    .for_each(|key| assert_eq!(segment.get(key, seed).map(|s| s.holders), twin.get(&key).copied()));
                _ = n % 512 == 0 && segment.shrink(seed);
            }
        }
    }
}

#[test]
fn columns_run_out_and_come_back() {
    let mut index = Index::new(16 << 20, 1);
    let columns: Vec<_> = std::iter::from_fn(|| index.open()).collect();
    assert!(columns.len() >= 2048);
    index.store(columns[5], Tier::Gpu, None, &[random(1)], &[]);
    index.close(columns[5]);
    assert_eq!(index.open(), None, "it waits for the sweep");
    assert!(!index.holds(columns[5], Tier::Gpu, random(1)));
    assert!(index.sweep(&mut || true));
    assert_eq!(index.open(), Some(columns[5]));
    assert!(!index.holds(columns[5], Tier::Gpu, random(1)));
}
