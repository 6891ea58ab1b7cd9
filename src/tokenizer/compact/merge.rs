//! Byte-pair merges: the pair with the lowest rank first, of equal ones the leftmost.
//!
//! What is here merges words of any length by a heap, in O(n log n), and can be interrupted; words of up to 255
//! symbols take the quicker way of [`few`](super::few).

use std::collections::BinaryHeap;

use crate::blocks::TokenId;

/// No merge, or no symbol.
pub const NONE: u32 = u32::MAX;
/// Bits of an id within a slot.
pub const ID_BITS: u32 = 20;
/// Bits of a rank within a slot.
pub const RANK_BITS: u32 = 24;
/// A slot that holds nothing.
pub const EMPTY: u64 = u64::MAX;
/// Words of more symbols than this are refused: the memory that merging takes is bounded.
pub const LONGEST: usize = 1 << 20;

/// A view of the merges: (left, right) → rank in an open-addressed table, rank → id in an array.
#[derive(Clone, Copy)]
pub struct Merges<'a> {
    slots: &'a [[u8; 8]],
    mask: usize,
    filter: &'a [u32],
    /// Three bytes an id.
    ids: &'a [[u8; 3]],
}

#[inline(always)]
fn mixed(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where to begin to look for a key in a table of `mask` + 1 slots.
#[inline(always)]
pub fn slot_of(key: u64, mask: usize) -> usize {
    (mixed(key) >> 32) as usize & mask
}

/// Says of most pairs that are no merge that they are none, from far less memory than the table has: two bits of a
/// word for each merge. Made from the table when a VM starts.
#[derive(Default)]
pub struct Filter(Vec<u32>);

/// Words of the largest one.
const FILTER_WORDS: usize = 1 << 16;

impl Filter {
    /// For the tables of [`Merges::new`].
    pub fn new(slots: &[u8]) -> Self {
        let slots = slots.as_chunks::<8>().0;
        let mut words = vec![0; (slots.len() >> 3).next_power_of_two().min(FILTER_WORDS)];
        for slot in slots.iter().map(|slot| u64::from_le_bytes(*slot)).filter(|slot| *slot != EMPTY) {
            let (at, bits) = filter_bits(slot >> RANK_BITS, words.len());
            words.get_mut(at).into_iter().for_each(|word| *word |= bits);
        }
        Filter(words)
    }
}

#[inline(always)]
fn filter_bits(key: u64, words: usize) -> (usize, u32) {
    let mixed = mixed(key);
    ((mixed >> 46) as usize & words.wrapping_sub(1), 1 << (mixed >> 41 & 31) | 1 << (mixed >> 36 & 31))
}

impl<'a> Merges<'a> {
    /// A view of tables; `None` if their sizes are impossible. `filter` was made from the same slots.
    pub fn new(slots: &'a [u8], ids: &'a [u8], filter: &'a Filter) -> Option<Self> {
        let (slots, rest) = slots.as_chunks();
        (slots.len().is_power_of_two() && rest.is_empty()).then(|| Merges {
            slots,
            mask: slots.len() - 1,
            filter: &filter.0,
            ids: ids.as_chunks().0,
        })
    }

    /// All merges, in no order: left, right, and what they make.
    pub fn pairs(&self) -> impl Iterator<Item = (TokenId, TokenId, TokenId)> {
        let slots = self.slots.iter().map(|slot| u64::from_le_bytes(*slot)).filter(|slot| *slot != EMPTY);
        slots.map(|slot| {
            let (key, rank) = (slot >> RANK_BITS, slot & ((1 << RANK_BITS) - 1));
            ((key >> ID_BITS) as TokenId, (key & ((1 << ID_BITS) - 1)) as TokenId, self.id(rank as u32))
        })
    }

    /// The rank of a pair, or [`NONE`].
    #[inline(always)]
    pub fn rank(&self, left: TokenId, right: TokenId) -> u32 {
        let key = u64::from(left) << ID_BITS | u64::from(right);
        let (word, bits) = filter_bits(key, self.filter.len());
        if self.filter.get(word).is_some_and(|word| word & bits != bits) {
            return NONE;
        }
        let mut at = slot_of(key, self.mask);
        // A sound table has empty slots; a damaged one ends the search after a round.
        for _ in 0..=self.mask {
            let Some(slot) = self.slots.get(at) else { return NONE };
            let slot = u64::from_le_bytes(*slot);
            if slot >> RANK_BITS == key {
                return (slot & ((1 << RANK_BITS) - 1)) as u32;
            }
            if slot == EMPTY {
                return NONE;
            }
            at = (at + 1) & self.mask;
        }
        NONE
    }

    /// What a merge makes.
    #[inline(always)]
    pub fn id(&self, rank: u32) -> TokenId {
        self.ids.get(rank as usize).map_or(0, |[a, b, c]| u32::from_le_bytes([*a, *b, *c, 0]))
    }
}

#[derive(Clone, Copy)]
struct Symbol {
    /// [`NONE`] when merged into the one before.
    id: TokenId,
    before: u32,
    after: u32,
    /// Of the pair with the one after.
    rank: u32,
}

/// A long word under way.
#[derive(Default)]
pub struct LongWord {
    symbols: Vec<Symbol>,
    /// `!(rank << 32 | position)`: the largest is the one to merge next.
    heap: BinaryHeap<u64>,
    /// Pairs that are in the heap so far.
    started: usize,
    given: usize,
}

impl LongWord {
    /// A word of these symbols; `None` if there are too many.
    pub fn new(ids: impl Iterator<Item = TokenId>) -> Option<Self> {
        let mut word = LongWord::default();
        word.begin(ids.take(LONGEST + 1));
        (word.symbols() <= LONGEST).then_some(word)
    }

    /// Begins another word in the same memory.
    pub fn begin(&mut self, ids: impl Iterator<Item = TokenId>) {
        self.symbols.clear();
        self.heap.clear();
        (self.started, self.given) = (0, 0);
        self.symbols.extend(ids.enumerate().map(|(at, id)| Symbol {
            id,
            before: (at as u32).wrapping_sub(1),
            after: at as u32 + 1,
            rank: NONE,
        }));
    }

    /// Merges all there is to merge.
    pub fn finish(&mut self, merges: Merges<'_>) {
        for at in 1..self.symbols.len() {
            self.push(merges, at as u32 - 1);
        }
        while let Some(top) = self.heap.pop() {
            self.merge(merges, !top);
        }
    }

    /// The ids left, each with the number of its first symbol.
    pub fn left(&self) -> impl Iterator<Item = (u32, TokenId)> {
        self.symbols
            .iter()
            .enumerate()
            .filter(|(_, symbol)| symbol.id != NONE)
            .map(|(at, symbol)| (at as u32, symbol.id))
    }

    /// How many symbols it began with.
    pub fn symbols(&self) -> usize {
        self.symbols.len()
    }

    /// Takes up to `steps` steps. `true` once all ids are in `out`.
    pub fn advance(&mut self, merges: Merges<'_>, mut steps: usize, out: &mut Vec<TokenId>) -> bool {
        while self.started + 1 < self.symbols.len() {
            if steps == 0 {
                return false;
            }
            steps -= 1;
            self.push(merges, self.started as u32);
            self.started += 1;
        }
        while let Some(top) = self.heap.pop() {
            self.merge(merges, !top);
            steps = steps.saturating_sub(1);
            if steps == 0 && !self.heap.is_empty() {
                return false;
            }
        }
        let most = steps.max(1).saturating_mul(8);
        let part = self.symbols.iter().skip(self.given).take(most);
        out.extend(part.map(|symbol| symbol.id).filter(|id| *id != NONE));
        self.given = self.given.saturating_add(most).min(self.symbols.len());
        self.given == self.symbols.len()
    }

    fn get(&self, at: u32) -> Option<Symbol> {
        self.symbols.get(at as usize).copied().filter(|symbol| symbol.id != NONE)
    }

    /// Puts the pair that begins at `at` into the heap, if it is one.
    fn push(&mut self, merges: Merges<'_>, at: u32) {
        let Some(left) = self.get(at) else { return };
        let Some(right) = self.get(left.after) else {
            if let Some(symbol) = self.symbols.get_mut(at as usize) {
                symbol.rank = NONE;
            }
            return;
        };
        let rank = merges.rank(left.id, right.id);
        if let Some(symbol) = self.symbols.get_mut(at as usize) {
            symbol.rank = rank;
        }
        if rank != NONE {
            self.heap.push(!(u64::from(rank) << 32 | u64::from(at)));
        }
    }

    fn merge(&mut self, merges: Merges<'_>, entry: u64) {
        let (rank, at) = ((entry >> 32) as u32, entry as u32);
        // An entry from before one of the two changed is stale.
        let Some(left) = self.get(at).filter(|left| left.rank == rank) else { return };
        let Some(right) = self.get(left.after) else { return };
        if let Some(symbol) = self.symbols.get_mut(left.after as usize) {
            symbol.id = NONE;
        }
        if let Some(symbol) = self.symbols.get_mut(right.after as usize) {
            symbol.before = at;
        }
        if let Some(symbol) = self.symbols.get_mut(at as usize) {
            (symbol.id, symbol.after) = (merges.id(rank), right.after);
        }
        if left.before != NONE {
            self.push(merges, left.before);
        }
        self.push(merges, at);
    }
}

#[cfg(test)]
mod tests {
    use super::super::few::{Few, Pairs};
    use super::*;

    /// Random merges over a few symbols; the slow twin looks for the lowest rank again and again.
    #[test]
    fn few_and_many_merge_like_the_slow_twin() {
        let mut state = 7u64;
        let mut random = move |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut few = Few::default();
        for _ in 0..300 {
            let mut slots = vec![EMPTY; 256];
            let mut pairs = std::collections::HashMap::new();
            let mut ids: Vec<u32> = Vec::new();
            for rank in 0..60u32 {
                let (a, b) = (random(12) as u32, random(12) as u32);
                ids.push(random(12) as u32);
                if pairs.insert((a, b), rank).is_none() {
                    let key = u64::from(a) << ID_BITS | u64::from(b);
                    let mut at = slot_of(key, 255);
                    while slots[at] != EMPTY {
                        at = (at + 1) & 255;
                    }
                    slots[at] = key << RANK_BITS | u64::from(rank);
                } else {
                    let key = u64::from(a) << ID_BITS | u64::from(b);
                    let at = slots.iter().position(|s| s >> RANK_BITS == key).unwrap();
                    slots[at] = key << RANK_BITS | u64::from(rank);
                }
            }
            let slots: Vec<u8> = slots.iter().flat_map(|s| s.to_le_bytes()).collect();
            let table: Vec<u8> = ids.iter().flat_map(|s| s.to_le_bytes().into_iter().take(3)).collect();
            let filter = [Filter::default(), Filter::new(&slots)];
            let merges = Merges::new(&slots, &table, &filter[random(2) as usize]).unwrap();
            let longest = [3, 20, 100, 256][random(4) as usize];
            let word: Vec<u32> = (0..random(longest)).map(|_| random(12) as u32).collect();
            let mut slow = word.clone();
            while let Some((rank, at)) =
                slow.windows(2).enumerate().filter_map(|(at, w)| Some((*pairs.get(&(w[0], w[1]))?, at))).min()
            {
                slow.splice(at..at + 2, [ids[rank as usize]]);
            }
            assert!(few.symbols(merges, word.iter().copied()));
            assert_eq!(few.left().map(|(_, id)| id).collect::<Vec<u32>>(), slow);
            let mut symbols = [NONE; 256];
            symbols.iter_mut().zip(0..12).for_each(|(symbol, id)| *symbol = id);
            let bytes: Vec<u8> = word.iter().map(|id| *id as u8).collect();
            few.bytes(merges, &mut Pairs::default(), &symbols, &bytes);
            assert_eq!(few.left().map(|(_, id)| id).collect::<Vec<u32>>(), slow);
            let mut long = LongWord::new(word.iter().copied()).unwrap();
            let mut out = Vec::new();
            while !long.advance(merges, 1 + random(3) as usize, &mut out) {}
            assert_eq!(out, slow);
        }
    }
}
