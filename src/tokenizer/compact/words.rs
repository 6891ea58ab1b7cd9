//! A bounded cache of words and their ids: short words in entries of 32 bytes, those that are longer or have more
//! ids in fewer entries of 72.

use crate::blocks::TokenId;

use super::merge::NONE;

/// Short words have up to this many bytes,
pub const WORD: usize = 15;
/// and up to this many ids.
pub const IDS: usize = 4;
/// Buckets of two entries for short words: 1 MiB.
const BUCKETS: usize = 1 << 14;
/// Longer words have up to this many bytes,
const LONG: usize = 32;
/// and up to this many ids.
const LONG_IDS: usize = 8;
/// Entries for longer words: 288 KiB.
const LONG_ENTRIES: usize = 1 << 12;

/// A word of up to `WORD` bytes, zero-padded, its length in the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64, u64);

/// The lowest n bytes.
#[allow(clippy::indexing_slicing)] // while compiling
const LOWEST: [u64; 16] = {
    let mut table = [u64::MAX; 16];
    let mut n = 0;
    while n < 8 {
        table[n] = (1 << (n * 8)) - 1;
        n += 1;
    }
    table
};

impl Key {
    /// The key of the first `len` bytes of sixteen; at most 15.
    #[inline(always)]
    pub fn of(low: u64, high: u64, len: usize) -> Key {
        let lowest = |n: usize| LOWEST.get(n & 15).copied().unwrap_or(0);
        let low = low & lowest(len);
        let high = if len > 8 { high & lowest(len - 8) } else { 0 };
        Key(low, high | (len as u64) << 56)
    }

    /// The key of `text[at..end]`, if it is short enough.
    #[inline(always)]
    pub fn new(text: &[u8], at: usize, end: usize) -> Option<Key> {
        let len = end.wrapping_sub(at);
        if len > WORD {
            return None;
        }
        let rest = text.get(at..)?;
        let raw = match rest.first_chunk::<16>() {
            Some(raw) => *raw,
            None => {
                let mut raw = [0; 16];
                for (to, from) in raw.iter_mut().zip(rest.iter().take(len)) {
                    *to = *from;
                }
                raw
            }
        };
        let raw = u128::from_le_bytes(raw);
        Some(Key::of(raw as u64, (raw >> 64) as u64, len))
    }

    /// The word, and how long it is.
    fn bytes(self) -> ([u8; 16], usize) {
        let bytes = u128::from(self.1) << 64 | u128::from(self.0);
        (bytes.to_le_bytes(), (self.1 >> 56) as usize)
    }

    /// Whether both are the same, with one branch for all of it.
    #[inline(always)]
    fn is(self, other: Key) -> bool {
        (self.0 ^ other.0) | (self.1 ^ other.1) == 0
    }

    #[inline(always)]
    fn bucket(self) -> usize {
        let mixed = (self.0 ^ self.1.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The last bytes of a word are the highest ones, which only a shift brings down.
        let mixed = (mixed ^ mixed >> 32 ^ self.1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> (u64::BITS - BUCKETS.ilog2())) as usize
    }
}

/// Above the first id of an entry: how many it has.
const COUNT: u32 = 28;

/// Nothing has the key of zeroes.
#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    /// Their number in the highest bits of the first.
    ids: [TokenId; IDS],
}

#[derive(Clone, Copy)]
struct LongEntry {
    word: [u8; LONG],
    ids: [TokenId; LONG_IDS],
    len: u32,
    count: u32,
}

impl Entry {
    #[inline(always)]
    fn ids(&self) -> ([TokenId; IDS], usize) {
        let [first, a, b, c] = self.ids;
        ([first & ((1 << COUNT) - 1), a, b, c], (first >> COUNT) as usize)
    }
}

/// A line of the cache: a new word takes the first place, the older one moves to the second.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket([Entry; 2]);

/// See the module.
pub struct Words {
    buckets: Box<[Bucket; BUCKETS]>,
    long: Vec<LongEntry>,
}

/// Never called. On its own, so that its frame is not part of another one's.
#[cold]
#[inline(never)]
fn on_the_stack(empty: Bucket) -> Box<[Bucket; BUCKETS]> {
    Box::new([empty; BUCKETS])
}

impl Default for Words {
    fn default() -> Self {
        let long = LongEntry { word: [0; LONG], ids: [NONE; LONG_IDS], len: 0, count: 0 };
        let empty = Bucket([Entry { key: Key(0, 0), ids: [0; IDS] }; 2]);
        // By way of the heap: a megabyte does not fit the stack.
        let buckets: Box<[Bucket]> = vec![empty; BUCKETS].into();
        let buckets = buckets.try_into().unwrap_or_else(|_| on_the_stack(empty));
        Words { buckets, long: vec![long; LONG_ENTRIES] }
    }
}

impl Words {
    /// The ids of a word that is known, and how many they are.
    #[inline(always)]
    pub fn get(&self, key: Key) -> Option<([TokenId; IDS], usize)> {
        let Bucket(entries) = self.buckets.get(key.bucket())?;
        let [newer, _] = entries;
        // Without a branch: which of the two it is cannot be foreseen.
        let entry = entries.get(usize::from(!newer.key.is(key)))?;
        entry.key.is(key).then(|| entry.ids())
    }

    /// Appends the ids of a word that is too long for a [`Key`] or has too many of them, if it is known.
    pub fn get_long(&self, word: &[u8], out: &mut Vec<TokenId>) -> bool {
        match self.long.get(long_slot(word)) {
            Some(entry) if entry.len as usize == word.len() && entry.word.get(..word.len()) == Some(word) => {
                out.extend(entry.ids.iter().take(entry.count as usize));
                entry.count > 0
            }
            _ => false,
        }
    }

    /// Remembers a word, if it is short enough and has few enough ids.
    pub fn put(&mut self, key: Option<Key>, word: &[u8], ids: &[TokenId]) {
        match key {
            Some(key) if (1..=IDS).contains(&ids.len()) => self.put_short(key, ids),
            _ => self.put_long(word, ids),
        }
    }

    fn put_long(&mut self, word: &[u8], ids: &[TokenId]) {
        if word.len() > LONG || ids.len() > LONG_IDS {
            return;
        }
        let Some(entry) = self.long.get_mut(long_slot(word)) else { return };
        entry.word.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
        entry.ids.iter_mut().zip(ids).for_each(|(to, from)| *to = *from);
        (entry.len, entry.count) = (word.len() as u32, ids.len() as u32);
    }

    fn put_short(&mut self, key: Key, ids: &[TokenId]) {
        let mut entry = Entry { key, ids: [0; IDS] };
        entry.ids.iter_mut().zip(ids).for_each(|(to, from)| *to = *from);
        let [first, ..] = &mut entry.ids;
        if *first >> COUNT != 0 {
            return;
        }
        *first |= (ids.len() as u32) << COUNT;
        let Some(Bucket([newer, older])) = self.buckets.get_mut(key.bucket()) else { return };
        let gone = std::mem::replace(older, std::mem::replace(newer, entry));
        // The one that has to go finds a place among the longer ones.
        let ([first, a, b, c], count) = gone.ids();
        let (bytes, len) = gone.key.bytes();
        if count > 0 {
            let ids = [first, a, b, c];
            self.put_long(bytes.get(..len).unwrap_or_default(), ids.get(..count).unwrap_or_default());
        }
    }
}

fn long_slot(word: &[u8]) -> usize {
    let part = |at: usize| word.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |part| u64::from_le_bytes(*part));
    let last = part(word.len().saturating_sub(8));
    let mixed =
        (part(0) ^ last.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part(8) ^ part(16).rotate_left(41);
    ((mixed ^ word.len() as u64).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40) as usize & (LONG_ENTRIES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_of_one_place_stay_both_and_the_third_finds_another() {
        let key = |i: u32| Key::of(u64::from(i), 0, 4);
        let first = key(1);
        let others: Vec<Key> = (2..).map(key).filter(|other| other.bucket() == first.bucket()).take(2).collect();
        let mut words = Words::default();
        let known = |words: &Words, key| words.get(key).map(|(ids, count)| ids[..count].to_vec());
        words.put_short(first, &[1, 7]);
        words.put_short(others[0], &[2]);
        assert_eq!(known(&words, first), Some(vec![1, 7]));
        assert_eq!(known(&words, others[0]), Some(vec![2]));
        words.put_short(others[1], &[3]);
        assert_eq!(known(&words, first), None);
        assert_eq!(known(&words, others[0]), Some(vec![2]));
        assert_eq!(known(&words, others[1]), Some(vec![3]));
        let mut ids = Vec::new();
        assert!(words.get_long(&[1, 0, 0, 0], &mut ids));
        assert_eq!(ids, [1, 7]);
    }

    #[test]
    fn words_that_differ_in_one_byte_lie_apart() {
        // Of words alike but for one byte, as many share a place as chance would have it.
        for at in 0..15 {
            let places: std::collections::HashSet<usize> = (b'a'..=b'z')
                .map(|letter| {
                    let mut word = *b" abcdefghijklmno";
                    word[at] = letter;
                    Key::new(&word, 0, 15).unwrap().bucket()
                })
                .collect();
            assert!(places.len() >= 24, "byte {at}: {} places", places.len());
        }
    }
}
