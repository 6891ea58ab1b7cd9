//! Counts, chains, groups and bounds, one at a time.

use super::*;
use crate::feed::wire::{Reader, Writer};

const ID: FeedReplicaId = FeedReplicaId(0);
const BS: usize = 4;

fn config() -> CacheConfig {
    CacheConfig { model: "m".into(), ..CacheConfig::default() }
}

fn h(n: u64) -> EngineHash {
    EngineHash(n)
}

fn tokens(from: u32, blocks: usize) -> Vec<u32> {
    (from..).take(blocks * BS).collect()
}

fn store(hashes: &[u64], parent: Option<u64>, first_token: u32) -> Stored {
    Stored {
        hashes: hashes.iter().map(|n| h(*n)).collect(),
        parent: parent.map(h),
        tokens: tokens(first_token, hashes.len()),
        block_size: BS as u32,
        ..Stored::default()
    }
}

fn remove(hashes: &[u64]) -> Event {
    Event::Removed(Removed { hashes: hashes.iter().map(|n| h(*n)).collect(), tier: Tier::Gpu, group: 0 })
}

/// The hashes of a prompt of `tokens`.
fn chain(tokens: &[u32], lora: Option<&str>, salt: Option<&str>) -> Vec<BlockHash> {
    let mut out = Vec::new();
    crate::blocks::Chain::new(namespace("", "m", lora, salt), BS as u32).extend(tokens, &mut out);
    out
}

/// A cache and what its records tell.
struct Told {
    cache: Cache,
    held: std::collections::BTreeMap<(Tier, BlockHash), bool>,
    records: Vec<Record>,
}

impl Told {
    fn new(config: CacheConfig) -> Told {
        Told { cache: Cache::new(config), held: Default::default(), records: Vec::new() }
    }

    fn apply(&mut self, events: Vec<Event>) {
        let mut out = Vec::new();
        self.cache.apply(ID, events, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Record>) {
        for record in &out {
            match record {
                Record::Stored { tier, ends, hashes, .. } => {
                    for (i, hash) in hashes.iter().enumerate() {
                        let end = ends.is_empty() || ends[i / 8] >> (i % 8) & 1 == 1;
                        self.held.insert((*tier, *hash), end);
                    }
                }
                Record::Removed { tier, hashes, .. } => {
                    hashes.iter().for_each(|hash| assert!(self.held.remove(&(*tier, *hash)).is_some()));
                }
                Record::Cleared(_) => self.held.clear(),
                other => panic!("{other:?}"),
            }
        }
        self.records = out;
        let held = Tier::ALL.map(|t| self.held.keys().filter(|(tier, _)| *tier == t).count() as u64);
        assert_eq!(self.cache.held(), held);
    }

    fn gap(&mut self) {
        let mut out = Vec::new();
        self.cache.gap(ID, &mut out);
        self.take(out);
    }

    fn heard(&mut self, chain: &[BlockHash], claimed: usize, cached: Option<usize>, partial: bool) {
        let mut out = Vec::new();
        self.cache.heard(ID, Word { chain, claimed, cached }, partial, 0, &mut out);
        self.take(out);
    }

    fn of(&self, tier: Tier) -> Vec<BlockHash> {
        self.held.keys().filter(|(t, _)| *t == tier).map(|(_, h)| *h).collect()
    }

    fn gpu(&self) -> Vec<BlockHash> {
        self.of(Tier::Gpu)
    }

    fn unconfirmed(&self) -> Vec<BlockHash> {
        self.of(Tier::Unconfirmed)
    }

    fn ends(&self, chain: &[BlockHash]) -> Vec<bool> {
        chain.iter().map(|hash| self.held.get(&(Tier::Gpu, *hash)).copied().unwrap_or(false)).collect()
    }
}

fn sorted(mut hashes: Vec<BlockHash>) -> Vec<BlockHash> {
    hashes.sort();
    hashes
}

#[test]
fn a_chain_in_pieces_is_one_run_each() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1, 2], None, 0))]);
    told.apply(vec![Event::Stored(store(&[3], Some(2), 8))]);
    let all = chain(&tokens(0, 3), None, None);
    assert_eq!(told.gpu(), sorted(all.clone()));
    let (replica, tier, ends) = (ID, Tier::Gpu, vec![]);
    assert_eq!(told.records, [Record::Stored { replica, tier, parent: Some(all[1]), ends, hashes: all[2..].to_vec() }]);
}

#[test]
fn stored_three_times_needs_three_removals() {
    let mut told = Told::new(config());
    for _ in 0..3 {
        told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    }
    told.apply(vec![remove(&[1]), remove(&[1])]);
    assert_eq!(told.gpu().len(), 1);
    assert_eq!(told.records, []);
    told.apply(vec![remove(&[1])]);
    assert_eq!(told.gpu(), []);
    told.apply(vec![remove(&[1])]);
    assert_eq!(told.cache.skips().get(Skip::UnknownRemoved), 1);
    assert_eq!(told.cache.nodes.len(), 0);
}

#[test]
fn what_is_told_again_is_held_once() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1, 2, 3], None, 0))]);
    // A request found two of them and reports in full; then it fills one more block.
    told.apply(vec![Event::Stored(store(&[1, 2], None, 0)), Event::Stored(store(&[4], Some(2), 40))]);
    assert_eq!(told.gpu().len(), 4);
    told.apply(vec![remove(&[4]), remove(&[3]), remove(&[2]), remove(&[1])]);
    assert_eq!(told.gpu(), []);
    assert_eq!(told.cache.nodes.len(), 0);
}

#[test]
fn what_comes_and_goes_within_a_batch_is_not_told() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1, 2], None, 0)), remove(&[2]), remove(&[1])]);
    assert_eq!(told.records, []);
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    told.apply(vec![remove(&[1]), Event::Stored(store(&[1], None, 0))]);
    assert_eq!(told.records, []);
    told.apply(vec![Event::Cleared, Event::Stored(store(&[5], None, 40))]);
    assert_eq!(told.gpu(), chain(&tokens(40, 1), None, None));
    assert_eq!(told.cache.take_wiped(), chain(&tokens(0, 1), None, None));
}

#[test]
fn a_removed_parent_still_names_the_chain() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1, 2], None, 0)), remove(&[1])]);
    told.apply(vec![Event::Stored(store(&[3], Some(1), 100))]);
    let other = chain(&[tokens(0, 1), tokens(100, 1)].concat(), None, None);
    assert!(told.gpu().contains(&other[1]));
    told.apply(vec![remove(&[2]), remove(&[3])]);
    assert_eq!((told.cache.nodes.len(), told.gpu().len()), (0, 0));
}

#[test]
fn orphans_are_linked_when_the_parent_comes() {
    let mut told = Told::new(config());
    let all = chain(&tokens(0, 4), None, None);
    told.apply(vec![Event::Stored(store(&[4], Some(3), 12)), Event::Stored(store(&[2, 3], Some(1), 4))]);
    assert_eq!((told.gpu().len(), told.cache.orphans()), (0, 2));
    told.apply(vec![remove(&[3])]);
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    assert_eq!(told.gpu(), sorted(vec![all[0], all[1], all[3]]));
    assert_eq!(told.cache.orphans(), 0);
}

#[test]
fn orphans_are_bounded_and_the_oldest_go() {
    let mut told = Told::new(CacheConfig { max_orphan_tokens: 10 * BS, ..config() });
    for n in 0..100 {
        told.apply(vec![Event::Stored(store(&[1000 + n], Some(n), 4))]);
    }
    assert_eq!(told.cache.orphans(), 10);
    assert_eq!(told.cache.skips().get(Skip::OrphanDropped), 90);
    told.apply(vec![Event::Stored(store(&[5], None, 0)), Event::Stored(store(&[99], None, 0))]);
    assert_eq!(told.gpu(), sorted(chain(&tokens(0, 2), None, None)));
}

#[test]
fn parents_that_name_each_other_do_no_harm() {
    let mut told = Told::new(config());
    told.apply(vec![
        Event::Stored(store(&[1], Some(2), 0)),
        Event::Stored(store(&[2], Some(1), 0)),
        Event::Stored(store(&[3], Some(3), 0)),
        Event::Stored(store(&[4, 4, 4], None, 0)),
        Event::Stored(store(&[4], Some(4), 0)),
    ]);
    assert_eq!(told.gpu(), chain(&tokens(0, 1), None, None));
    told.apply(vec![remove(&[1, 2, 3]), remove(&[4; 4])]);
    assert_eq!(told.gpu(), []);
}

#[test]
fn adapter_and_salt_are_part_of_the_whole_chain() {
    let mut told = Told::new(config());
    let (lora, salt) = (Some("a".to_owned()), Some("s".to_owned()));
    let first = Stored { lora: lora.clone(), salt, ..store(&[1], None, 0) };
    told.apply(vec![Event::Stored(first), Event::Stored(Stored { lora, ..store(&[2], Some(1), 4) })]);
    told.apply(vec![Event::Stored(store(&[11, 12], None, 0))]);
    let expected = [chain(&tokens(0, 2), Some("a"), Some("s")), chain(&tokens(0, 2), None, None)].concat();
    assert_eq!(told.gpu(), sorted(expected));
}

#[test]
fn removals_without_salt_reach_salted_blocks() {
    let mut told = Told::new(config());
    let salted = |mask: u64| Stored { salt: Some(mask.to_string()), salt_mask: mask, ..store(&[1 ^ mask], None, 0) };
    told.apply(vec![Event::Stored(salted(1 << 40)), Event::Stored(salted(1 << 50))]);
    assert_eq!(told.gpu().len(), 2);
    told.apply(vec![remove(&[1])]);
    assert_eq!(told.gpu(), []);
}

#[test]
fn content_without_a_key_hides_itself_and_what_follows() {
    let mut told = Told::new(config());
    let image = Stored { unkeyed_from: Some(1), ..store(&[1, 2, 3], None, 0) };
    told.apply(vec![Event::Stored(image), Event::Stored(store(&[4], Some(3), 50))]);
    assert_eq!(told.gpu(), chain(&tokens(0, 1), None, None));
    assert_eq!(told.cache.skips().get(Skip::Unkeyed), 3);
    told.apply(vec![remove(&[1, 2, 3, 4])]);
    assert_eq!(told.cache.nodes.len(), 0);
}

#[test]
fn two_names_for_one_block_are_one_block() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    told.apply(vec![Event::Stored(store(&[9], None, 0))]);
    assert_eq!(told.records, []);
    told.apply(vec![remove(&[1])]);
    assert_eq!(told.gpu().len(), 1);
    told.apply(vec![remove(&[9])]);
    assert_eq!(told.gpu(), []);
}

#[test]
fn tiers_are_held_apart_and_place_alone_is_enough_for_a_known_block() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    let offloaded = Stored { tier: Some(Tier::Cpu), tokens: vec![], ..store(&[1], None, 0) };
    told.apply(vec![Event::Stored(offloaded.clone()), remove(&[1])]);
    let block = chain(&tokens(0, 1), None, None)[0];
    assert_eq!(told.held.keys().copied().collect::<Vec<_>>(), [(Tier::Cpu, block)]);
    let unknown = Stored { hashes: vec![h(7)], ..offloaded };
    told.apply(vec![Event::Stored(unknown)]);
    assert_eq!(told.cache.skips().get(Skip::NoTokens), 1);
    // Its tokens come with a later event.
    told.apply(vec![Event::Stored(store(&[7], Some(1), 4))]);
    assert_eq!(told.cache.held(), [1, 2, 0, 0]);
}

#[test]
fn another_block_size_is_refused_with_a_state() {
    let mut told = Told::new(CacheConfig { block_size: Some(16), ..config() });
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    assert_eq!((told.gpu().len(), told.cache.refused()), (0, Some(4)));
    assert_eq!(told.cache.skips().get(Skip::BlockSize), 1);
    // Once it fits, single others do not refuse it.
    let fits = Stored { tokens: (0..16).collect(), block_size: 16, ..store(&[2], None, 0) };
    told.apply(vec![Event::Stored(fits), Event::Stored(store(&[1], None, 0))]);
    assert_eq!((told.gpu().len(), told.cache.refused()), (1, None));
}

fn sliding(hashes: &[u64], parent: Option<u64>, range: usize) -> Event {
    let tokens = tokens(0, range);
    Event::Stored(Stored { group: 1, kind: GroupKind::Sliding(9), tokens, ..store(hashes, parent, 0) })
}

fn full(hashes: &[u64], parent: Option<u64>, first_token: u32) -> Event {
    Event::Stored(Stored { kind: GroupKind::Full, ..store(hashes, parent, first_token) })
}

#[test]
fn a_hit_ends_only_where_the_window_is_held() {
    let mut told = Told::new(config());
    let all = chain(&tokens(0, 6), None, None);
    // A window of 9 tokens looks back two blocks; kept are blocks 3 and 4 (a junction) and the last.
    told.apply(vec![sliding(&[3, 4, 6], None, 6), full(&[1, 2, 3, 4, 5, 6], None, 0)]);
    assert_eq!(told.ends(&all), [false, false, false, true, false, false]);
    let gone = |n| Event::Removed(Removed { hashes: vec![h(n)], tier: Tier::Gpu, group: 1 });
    told.apply(vec![sliding(&[5], Some(4), 1)]);
    assert_eq!(told.ends(&all), [false, false, false, true, true, true]);
    told.apply(vec![sliding(&[1], None, 1)]);
    assert_eq!(told.ends(&all), [true, false, false, true, true, true]);
    told.apply(vec![gone(4)]);
    assert_eq!(told.ends(&all), [true, false, false, false, false, true]);
    // Without its full-attention part nothing is held at all.
    told.apply(vec![remove(&[6])]);
    assert_eq!(told.gpu().len(), 5);
    assert_eq!(told.cache.not_exact(), None);
}

#[test]
fn groups_without_a_rule_are_not_exact() {
    let mut told = Told::new(config());
    let mamba =
        |hashes: &[u64]| Event::Stored(Stored { group: 1, kind: GroupKind::Unproven, ..store(hashes, None, 0) });
    told.apply(vec![full(&[1, 2], None, 0), mamba(&[1, 2])]);
    assert_eq!(told.cache.not_exact(), Some("attention_group_without_rule"));
    let mut nameless = Told::new(config());
    let short = Stored { tokens: tokens(0, 5), ..store(&[4, 5], None, 0) };
    nameless.apply(vec![Event::Stored(short)]);
    assert_eq!(nameless.cache.not_exact(), Some("attention_groups_without_kind"));
    assert_eq!(nameless.cache.skips().get(Skip::Length), 1);
}

#[test]
fn after_a_gap_one_removal_is_enough_and_the_bound_holds() {
    let mut told = Told::new(config());
    for _ in 0..3 {
        told.apply(vec![Event::Stored(store(&[1, 2, 3], None, 0))]);
    }
    told.gap();
    assert_eq!((told.gpu(), told.unconfirmed().len(), told.cache.unconfirmed()), (vec![], 3, 3));
    told.apply(vec![remove(&[3])]);
    assert_eq!((told.gpu(), told.unconfirmed().len(), told.cache.unconfirmed()), (vec![], 2, 2));
    told.apply(vec![Event::Stored(store(&[11, 12, 13], None, 500))]);
    let mut out = Vec::new();
    told.cache.trim(ID, 4, &mut out);
    told.take(out);
    // The end of the old chain went, not its beginning, nor what is new.
    let old = chain(&tokens(0, 3), None, None);
    assert_eq!((told.gpu().len(), told.unconfirmed()), (3, vec![old[0]]));
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    assert_eq!((told.gpu().len(), told.unconfirmed()), (4, vec![]), "stored again, it is confirmed");
    told.apply(vec![remove(&[1])]);
    assert!(!told.gpu().contains(&old[0]));
    assert_eq!(told.cache.unconfirmed(), 0);
}

#[test]
fn a_block_stored_after_a_gap_speaks_for_all_before_it() {
    let mut told = Told::new(config());
    told.apply(vec![Event::Stored(store(&[1, 2, 3], None, 0)), Event::Stored(store(&[9], Some(1), 90))]);
    told.gap();
    told.apply(vec![Event::Stored(store(&[4], Some(2), 200))]);
    let old = chain(&tokens(0, 3), None, None);
    assert_eq!(told.gpu().len(), 3, "two of them old");
    assert!(told.gpu().contains(&old[0]) && told.gpu().contains(&old[1]));
    assert_eq!(told.unconfirmed().len(), 2, "the end of the old chain and the other branch");
}

#[test]
fn requests_confirm_and_contradict_what_is_from_before_a_gap() {
    let mut told = Told::new(config());
    let all = chain(&tokens(0, 6), None, None);
    told.apply(vec![Event::Stored(store(&[1, 2, 3, 4, 5, 6], None, 0))]);
    told.heard(&all, 5, Some(2), true);
    assert_eq!(told.gpu().len(), 6, "what events told is not for a request to deny");
    told.gap();
    told.heard(&all, 5, None, true);
    assert_eq!((told.gpu().len(), told.unconfirmed().len()), (0, 6), "the engine did not say");
    // It thought five cached, the engine found two: the two are held, the next three are not; the sixth was not asked.
    told.heard(&all, 5, Some(2), true);
    assert_eq!((told.gpu(), told.unconfirmed()), (sorted(all[..2].to_vec()), vec![all[5]]));
    told.apply(vec![remove(&[2])]);
    assert_eq!(told.gpu(), [all[0]], "a removal of what was confirmed counts");
}

#[test]
fn a_window_is_confirmed_at_its_end_only() {
    let mut told = Told::new(config());
    let all = chain(&tokens(0, 6), None, None);
    told.apply(vec![sliding(&[5, 6], None, 6), full(&[1, 2, 3, 4, 5, 6], None, 0)]);
    told.gap();
    told.heard(&all, 6, Some(6), true);
    assert_eq!((told.gpu(), told.unconfirmed().len()), (sorted(all[4..].to_vec()), 4));
}

#[test]
fn a_prompt_links_the_blocks_that_wait_in_it() {
    let mut told = Told::new(config());
    let all = chain(&tokens(0, 8), None, None);
    // Joined late: the first three blocks were stored before.
    told.apply(vec![Event::Stored(store(&[4, 5], Some(3), 12)), Event::Stored(store(&[6], Some(5), 20))]);
    assert_eq!((told.gpu().len(), told.cache.orphans()), (0, 2));
    let other = chain(&tokens(500, 8), None, None);
    told.heard(&other, 0, None, true);
    assert_eq!(told.cache.orphans(), 2, "another prompt");
    told.heard(&all[..7], 0, None, true);
    assert_eq!((told.cache.orphans(), told.gpu()), (0, sorted(all[3..6].to_vec())));
    // What is before them must have been there; no event will say when it goes.
    assert_eq!(told.unconfirmed(), sorted(all[..3].to_vec()));
    assert!(!told.cache.dense(), "they follow blocks that are not known to be on the accelerator");
    told.apply(vec![Event::Stored(store(&[7], Some(6), 24)), remove(&[4])]);
    assert_eq!(told.gpu(), sorted([&all[4..6], &all[6..7]].concat()));
    // An event names one of them: from now on events decide.
    told.apply(vec![Event::Stored(store(&[1], None, 0))]);
    assert_eq!(told.unconfirmed(), sorted(all[1..3].to_vec()));
    told.apply(vec![remove(&[1])]);
    assert!(!told.held.keys().any(|(_, block)| *block == all[0]));
}

#[test]
fn what_is_only_heard_of_goes_first() {
    let mut told = Told::new(config());
    let (one, two) = (chain(&tokens(0, 4), None, None), chain(&tokens(50, 4), None, None));
    told.heard(&one, 0, Some(3), false);
    assert!(told.held.is_empty(), "nothing is missing, so events would have told");
    told.heard(&one, 0, Some(3), true);
    told.heard(&two, 0, Some(2), true);
    assert_eq!(told.unconfirmed().len(), 5);
    told.heard(&one, 3, Some(3), true);
    told.apply(vec![Event::Stored(store(&[100, 101], None, 900))]);
    let mut out = Vec::new();
    told.cache.trim(ID, 5, &mut out);
    told.take(out);
    assert_eq!(told.unconfirmed(), sorted(one[..3].to_vec()), "the one that was not asked for again has gone");
    told.heard(&one, 3, Some(0), true);
    assert_eq!((told.unconfirmed(), told.gpu().len()), (vec![], 2));
    told.heard(&one, 0, Some(3), true);
    told.apply(vec![Event::Cleared]);
    assert_eq!((told.held.len(), told.cache.unconfirmed()), (0, 0));
}

/// The plain way to count holes.
fn has_holes(told: &Told) -> bool {
    told.cache.nodes.iter().any(|ix| {
        let node = &told.cache.nodes[ix];
        let parent = (node.parent != NONE).then(|| &told.cache.nodes[node.parent]);
        node.announced & GPU != 0 && !parent.is_some_and(|p| p.is(ROOT) || p.announced & GPU != 0)
    })
}

#[test]
fn holes_are_counted_as_they_come_and_go() {
    let mut told = Told::new(config());
    let mut x = 7u64;
    let mut dice = |n: u64| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (x >> 33) % n
    };
    let (mut with, mut without) = (0, 0);
    for _ in 0..4000 {
        let first = dice(20);
        let event = match dice(10) {
            0..6 => {
                Event::Stored(store(&[first * 2 + 1, first * 2 + 2], (first > 0).then_some(first), first as u32 * 8))
            }
            6..9 => remove(&[dice(42)]),
            _ if dice(20) == 0 => Event::Cleared,
            _ => remove(&[dice(42), dice(42)]),
        };
        told.apply(vec![event]);
        match dice(200) {
            0 => told.gap(),
            1 => told.heard(&chain(&tokens(0, 2), None, None), 2, Some(dice(3) as usize), true),
            _ => {}
        }
        assert_eq!(told.cache.holes > 0, has_holes(&told));
        if told.cache.dense() { without += 1 } else { with += 1 }
    }
    assert!(with > 100 && without > 100, "{with} and {without}");
}

#[test]
fn blocks_are_bounded() {
    let mut told = Told::new(CacheConfig { max_blocks: 10, ..config() });
    for n in 0..30u64 {
        let salt = Some(n.to_string());
        told.apply(vec![Event::Stored(Stored { salt, ..store(&[n * 2, n * 2 + 1], None, 0) })]);
    }
    assert_eq!(told.gpu().len(), 10);
    assert_eq!(told.cache.skips().get(Skip::OverBound), 50);
    assert_eq!(told.cache.not_exact(), Some("more_blocks_than_the_bound"));
    assert_eq!(told.cache.nodes.in_order().len(), 15, "namespaces of blocks that were not taken are gone");
}

#[test]
fn a_checkpoint_goes_on_as_if_nothing_had_been() {
    let mut told = Told::new(config());
    told.apply(vec![sliding(&[3, 4, 6], None, 6), full(&[1, 2, 3, 4, 5, 6], None, 0)]);
    told.apply(vec![full(&[7, 7, 8], Some(6), 100), remove(&[2]), full(&[21], Some(20), 9)]);
    let salted = Stored { salt: Some("s".into()), salt_mask: 77, kind: GroupKind::Full, ..store(&[31], None, 0) };
    told.apply(vec![Event::Stored(salted)]);
    let mut saved = Writer::default();
    told.cache.save(&mut saved);
    let mut out = Vec::new();
    let cache = Cache::load(config(), ID, &mut Reader(&saved.0), &mut out).unwrap();
    let mut again = Told::new(config());
    again.cache = cache;
    again.take(out);
    assert_eq!(again.held, told.held);
    let more =
        || vec![remove(&[6]), remove(&[7]), full(&[9], Some(2), 60), remove(&[31 ^ 77]), sliding(&[5], Some(4), 1)];
    told.apply(more());
    again.apply(more());
    assert_eq!(again.held, told.held);
    for cut in 0..saved.0.len() {
        assert!(Cache::load(config(), ID, &mut Reader(&saved.0[..cut]), &mut Vec::new()).is_err());
    }
    for at in 0..saved.0.len() {
        let mut bad = saved.0.clone();
        bad[at] ^= 0x55;
        let _ = Cache::load(config(), ID, &mut Reader(&bad), &mut Vec::new());
    }
}
