//! A bounded cache of words and their ids: short words in entries of 32 bytes, those that are longer or have more
//! ids in fewer entries of 72.

use crate::blocks::TokenId;

use super::merge::NONE;

/// Short words have up to this many bytes,
const WORD: usize = 15;
/// and up to this many ids.
const IDS: usize = 4;
/// Entries for short words: 1 MiB.
const ENTRIES: usize = 1 << 15;
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

    /// The first of its two places.
    #[inline(always)]
    fn slot(self) -> usize {
        let mixed = (self.0 ^ self.1.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The last bytes of a word are the highest ones, which only a shift brings down.
        let mixed = (mixed ^ mixed >> 32 ^ self.1).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> (64 - ENTRIES.ilog2())) as usize & (ENTRIES - 2)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    ids: [TokenId; IDS],
}

#[derive(Clone, Copy)]
struct LongEntry {
    word: [u8; LONG],
    ids: [TokenId; LONG_IDS],
    len: u32,
    count: u32,
}

/// Short words have two places: a new one takes the first, the older one moves to the second.
pub struct Words {
    entries: Vec<Entry>,
    long: Vec<LongEntry>,
}

impl Default for Words {
    fn default() -> Self {
        let long = LongEntry { word: [0; LONG], ids: [NONE; LONG_IDS], len: 0, count: 0 };
        Words { entries: vec![Entry { key: Key(0, 0), ids: [NONE; IDS] }; ENTRIES], long: vec![long; LONG_ENTRIES] }
    }
}

impl Words {
    /// Appends the ids of a word that is known.
    #[inline(always)]
    pub fn get(&mut self, key: Key, out: &mut Vec<TokenId>) -> bool {
        let slot = key.slot();
        for at in [slot, slot | 1] {
            if let Some(entry) = self.entries.get(at)
                && entry.key == key
            {
                for id in entry.ids {
                    if id == NONE {
                        break;
                    }
                    out.push(id);
                }
                return true;
            }
        }
        false
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
            Some(key) if ids.len() <= IDS => self.put_short(key, ids),
            _ if word.len() <= LONG && ids.len() <= LONG_IDS => {
                let Some(entry) = self.long.get_mut(long_slot(word)) else { return };
                entry.word.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
                entry.ids.iter_mut().zip(ids).for_each(|(to, from)| *to = *from);
                (entry.len, entry.count) = (word.len() as u32, ids.len() as u32);
            }
            _ => {}
        }
    }

    fn put_short(&mut self, key: Key, ids: &[TokenId]) {
        let mut entry = Entry { key, ids: [NONE; IDS] };
        for (to, from) in entry.ids.iter_mut().zip(ids) {
            *to = *from;
        }
        let slot = key.slot();
        let older = self.entries.get(slot).copied();
        if let (Some(older), Some(second)) = (older, self.entries.get_mut(slot | 1)) {
            *second = older;
        }
        if let Some(first) = self.entries.get_mut(slot) {
            *first = entry;
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
    fn two_words_of_one_place_stay_both() {
        let key = |i: u32| Key::of(u64::from(i), 0, 4);
        let first = key(1);
        let others: Vec<Key> = (2..).map(key).filter(|other| other.slot() == first.slot()).take(2).collect();
        let mut words = Words::default();
        let known = |words: &mut Words, key| words.get(key, &mut Vec::new());
        words.put_short(first, &[1]);
        words.put_short(others[0], &[2]);
        assert!(known(&mut words, first) && known(&mut words, others[0]));
        words.put_short(others[1], &[3]);
        assert!(!known(&mut words, first) && known(&mut words, others[0]) && known(&mut words, others[1]));
    }

    #[test]
    fn words_that_differ_in_one_byte_lie_apart() {
        // Of words alike but for one byte, as many share a place as chance would have it.
        for at in 0..15 {
            let slots: std::collections::HashSet<usize> = (b'a'..=b'z')
                .map(|letter| {
                    let mut word = *b" abcdefghijklmno";
                    word[at] = letter;
                    Key::new(&word, 0, 15).unwrap().slot()
                })
                .collect();
            assert!(slots.len() >= 24, "byte {at}: {} places", slots.len());
        }
    }
}
