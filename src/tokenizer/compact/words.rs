//! A bounded cache of short words and their ids, with an entry of 32 bytes a word.

use crate::blocks::TokenId;

use super::merge::NONE;

/// Words of up to this many bytes are remembered.
pub const WORD: usize = 15;
/// With up to this many ids.
pub const IDS: usize = 4;
/// Entries: 1 MiB.
const ENTRIES: usize = 1 << 15;

/// A word of up to [`WORD`] bytes, zero-padded, its length in the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64, u64);

impl Key {
    /// The key of `text[at..end]`, if it is short enough.
    #[inline(always)]
    pub fn new(text: &[u8], at: usize, end: usize) -> Option<Key> {
        let len = end.wrapping_sub(at);
        if len > WORD {
            return None;
        }
        let rest = text.get(at..)?;
        let raw = match rest.first_chunk::<16>() {
            Some(raw) => u128::from_le_bytes(*raw) & ((1u128 << (len * 8)) - 1),
            None => {
                let mut raw = [0; 16];
                for (to, from) in raw.iter_mut().zip(rest.iter().take(len)) {
                    *to = *from;
                }
                u128::from_le_bytes(raw)
            }
        };
        Some(Key(raw as u64, (raw >> 64) as u64 | (len as u64) << 56))
    }

    #[inline(always)]
    fn slot(self) -> usize {
        let mixed = (self.0 ^ self.1.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.1;
        (mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40) as usize & (ENTRIES - 1)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    ids: [TokenId; IDS],
}

/// Two places a word: a hit in the second moves to the first.
pub struct Words {
    entries: Vec<Entry>,
}

impl Default for Words {
    fn default() -> Self {
        Words { entries: vec![Entry { key: Key(0, 0), ids: [NONE; IDS] }; ENTRIES] }
    }
}

impl Words {
    /// Appends the ids of a word that is known.
    #[inline(always)]
    pub fn get(&mut self, key: Key, out: &mut Vec<TokenId>) -> bool {
        let slot = key.slot();
        for at in [slot, slot ^ 1] {
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

    /// Remembers a word, if it has few enough ids.
    pub fn put(&mut self, key: Key, ids: &[TokenId]) {
        if ids.len() > IDS {
            return;
        }
        let mut entry = Entry { key, ids: [NONE; IDS] };
        for (to, from) in entry.ids.iter_mut().zip(ids) {
            *to = *from;
        }
        let slot = key.slot();
        let older = self.entries.get(slot).copied();
        if let (Some(older), Some(second)) = (older, self.entries.get_mut(slot ^ 1)) {
            *second = older;
        }
        if let Some(first) = self.entries.get_mut(slot) {
            *first = entry;
        }
    }
}
