//! Merging of up to [`MOST`] symbols, without a heap.
//!
//! Each symbol that can be merged with the one after it has a number: the rank of the pair above its own place, so
//! that the lowest number is the next merge, of equal ranks the leftmost. The lowest number of each sixteen is kept;
//! a merge changes at most three of those. Everything has a fixed place, so nothing is moved and nothing allocated.

use super::merge::{Merges, NONE};
use crate::blocks::TokenId;

/// Symbols at most: the last place stands for the end.
pub const MOST: usize = 255;
const END: u8 = 255;
const PLACES: usize = 256;
const GROUP_BITS: u32 = 4;
const GROUP: usize = 1 << GROUP_BITS;
const GROUPS: usize = PLACES >> GROUP_BITS;

/// Ranks of pairs of two bytes, since most words begin with those: 256 KiB, filled row by row as they are used.
pub struct Pairs {
    ranks: Vec<u32>,
    filled: [bool; 256],
}

impl Default for Pairs {
    fn default() -> Self {
        Pairs { ranks: vec![NONE; 1 << 16], filled: [false; 256] }
    }
}

impl Pairs {
    /// The rank of two bytes, of which byte `b` is `symbols[b]`.
    #[inline(always)]
    fn rank(&mut self, merges: Merges<'_>, symbols: &[TokenId; 256], left: u8, right: u8) -> u32 {
        if !get(&self.filled, left) {
            self.fill(merges, symbols, left);
        }
        self.ranks.get(usize::from(left) << 8 | usize::from(right)).copied().unwrap_or(NONE)
    }

    #[inline(never)]
    fn fill(&mut self, merges: Merges<'_>, symbols: &[TokenId; 256], left: u8) {
        let row = self.ranks.as_chunks_mut::<256>().0.get_mut(usize::from(left));
        let first = get(symbols, left);
        for (rank, right) in row.into_iter().flatten().zip(symbols) {
            if first != NONE && *right != NONE {
                *rank = merges.rank(first, *right);
            }
        }
        set(&mut self.filled, left, true);
    }
}

/// A word under way; its memory is used again for the next one.
pub struct Few {
    ids: [TokenId; PLACES],
    numbers: [u32; PLACES],
    lowest: [u32; GROUPS],
    after: [u8; PLACES],
    before: [u8; PLACES],
    len: usize,
}

impl Default for Few {
    fn default() -> Self {
        Few {
            ids: [NONE; PLACES],
            numbers: [NONE; PLACES],
            lowest: [NONE; GROUPS],
            after: [END; PLACES],
            before: [END; PLACES],
            len: 0,
        }
    }
}

#[inline(always)]
fn number(rank: u32, at: u8) -> u32 {
    if rank == NONE { NONE } else { rank << 8 | u32::from(at) }
}

impl Few {
    /// Merges the bytes of a word.
    #[inline]
    pub fn bytes(&mut self, merges: Merges<'_>, pairs: &mut Pairs, symbols: &[TokenId; 256], word: &[u8]) {
        self.len = word.len().min(MOST);
        for ((at, byte), id) in word.iter().enumerate().zip(&mut self.ids) {
            *id = symbols.get(usize::from(*byte)).copied().unwrap_or(NONE);
            debug_assert!(at < MOST);
        }
        for ((at, pair), to) in word.windows(2).enumerate().zip(&mut self.numbers) {
            if let [left, right] = pair {
                *to = number(pairs.rank(merges, symbols, *left, *right), at as u8);
            }
        }
        self.merge(merges);
    }

    /// Merges the first `len` symbols that `ids` gives; `false` if there are more of them than [`MOST`].
    #[inline]
    pub fn symbols(&mut self, merges: Merges<'_>, ids: impl Iterator<Item = TokenId>) -> bool {
        let mut len = 0;
        for id in ids {
            if len == MOST {
                return false;
            }
            if let Some(place) = self.ids.get_mut(len) {
                *place = id;
            }
            len += 1;
        }
        self.len = len;
        for ((at, pair), to) in
            self.ids.iter().zip(self.ids.iter().skip(1)).enumerate().zip(&mut self.numbers).take(len.saturating_sub(1))
        {
            *to = number(merges.rank(*pair.0, *pair.1), at as u8);
        }
        self.merge(merges);
        true
    }

    /// The ids left, each with the number of its first symbol.
    #[inline]
    pub fn left(&self) -> Left<'_> {
        Left { few: self, at: if self.len == 0 { END } else { 0 } }
    }

    fn merge(&mut self, merges: Merges<'_>) {
        let len = self.len;
        let groups = (len + GROUP - 1) >> GROUP_BITS;
        // Behind the last pair nothing is to be merged.
        self.numbers.iter_mut().take(groups * GROUP).skip(len.saturating_sub(1)).for_each(|number| *number = NONE);
        for (at, (after, before)) in self.after.iter_mut().zip(&mut self.before).enumerate().take(len) {
            (*after, *before) = (at as u8 + 1, (at as u8).wrapping_sub(1));
        }
        if let Some(last) = len.checked_sub(1).and_then(|last| self.after.get_mut(last)) {
            *last = END;
        }
        for (lowest, numbers) in self.lowest.iter_mut().zip(self.numbers.as_chunks::<GROUP>().0).take(groups) {
            *lowest = least(numbers);
        }
        loop {
            let best = self.lowest.iter().take(groups).fold(NONE, |a, b| a.min(*b));
            if best == NONE {
                return;
            }
            self.join(merges, best >> 8, best as u8);
        }
    }

    /// Merges the symbol at `at` with the one after it.
    #[inline(always)]
    fn join(&mut self, merges: Merges<'_>, rank: u32, at: u8) {
        let (right, left) = (get(&self.after, at), get(&self.before, at));
        let after = get(&self.after, right);
        let id = merges.id(rank);
        set(&mut self.ids, at, id);
        set(&mut self.after, at, after);
        // Of the end, which is a place as well, nothing is read.
        set(&mut self.before, after, at);
        set(&mut self.numbers, right, NONE);
        let with_after = if after == END { NONE } else { merges.rank(id, get(&self.ids, after)) };
        set(&mut self.numbers, at, number(with_after, at));
        if left != END {
            set(&mut self.numbers, left, number(merges.rank(get(&self.ids, left), id), left));
            if left >> GROUP_BITS != at >> GROUP_BITS {
                self.look(left);
            }
        }
        if right >> GROUP_BITS != at >> GROUP_BITS {
            self.look(right);
        }
        self.look(at);
    }

    /// Finds the lowest number of the sixteen that `at` is one of.
    #[inline(always)]
    fn look(&mut self, at: u8) {
        let group = usize::from(at >> GROUP_BITS);
        if let (Some(numbers), Some(lowest)) =
            (self.numbers.as_chunks::<GROUP>().0.get(group), self.lowest.get_mut(group))
        {
            *lowest = least(numbers);
        }
    }
}

#[inline(always)]
fn least(numbers: &[u32; GROUP]) -> u32 {
    numbers.iter().fold(NONE, |a, b| a.min(*b))
}

#[inline(always)]
fn get<T: Copy + Default>(of: &[T; PLACES], at: u8) -> T {
    of.get(usize::from(at)).copied().unwrap_or_default()
}

#[inline(always)]
fn set<T>(of: &mut [T; PLACES], at: u8, value: T) {
    if let Some(place) = of.get_mut(usize::from(at)) {
        *place = value;
    }
}

/// See [`Few::left`].
pub struct Left<'a> {
    few: &'a Few,
    at: u8,
}

impl Iterator for Left<'_> {
    type Item = (u32, TokenId);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == END {
            return None;
        }
        let at = self.at;
        self.at = get(&self.few.after, at);
        Some((u32::from(at), get(&self.few.ids, at)))
    }
}
