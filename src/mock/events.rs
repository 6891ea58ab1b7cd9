//! KV events and the bytes that vLLM makes of them.

use xxhash_rust::xxh3::Xxh3;

use super::msgpack as mp;
use crate::blocks::TokenId;

/// The engine's own name of a block. Made on purpose in another way than [`crate::blocks::BlockHash`]: nobody
/// may count on the two being equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHash(pub u64);

/// What makes blocks of equal tokens different.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraKeys {
    /// LoRA adapter: its number and name; in the key of every block.
    pub lora: Option<(u64, String)>,
    /// In the key of the first block.
    pub cache_salt: Option<String>,
}

impl ExtraKeys {
    /// The keys of the block at `index`, in the engine's order.
    pub fn of_block(&self, index: usize) -> Vec<&str> {
        let lora = self.lora.as_ref().map(|(_, name)| name.as_str());
        let salt = self.cache_salt.as_deref().filter(|_| index == 0);
        lora.into_iter().chain(salt).collect()
    }

    /// The hash of the block at `index`.
    pub fn block_hash(&self, index: usize, parent: Option<EventHash>, tokens: &[TokenId]) -> EventHash {
        let mut hasher = Xxh3::with_seed(0x6d6f_636b);
        hasher.update(&parent.map_or(u64::MAX, |p| p.0).to_be_bytes());
        let mut bytes = Vec::with_capacity(tokens.len() * 4);
        tokens.iter().for_each(|token| bytes.extend_from_slice(&token.to_be_bytes()));
        hasher.update(&bytes);
        for key in self.of_block(index) {
            hasher.update(key.as_bytes());
            hasher.update(&[0xff]);
        }
        EventHash(hasher.digest())
    }
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A run of blocks is in the cache now.
    Stored {
        /// Of the blocks, in order.
        hashes: Vec<EventHash>,
        /// The block before the first one.
        parent: Option<EventHash>,
        /// Index of the first block in its prompt.
        first_block: usize,
        /// Of all the blocks.
        tokens: Vec<TokenId>,
        /// See [`ExtraKeys`].
        extra: ExtraKeys,
        /// Given by the client.
        session_id: Option<String>,
    },
    /// A block left the cache.
    Removed {
        /// Its hash.
        hash: EventHash,
    },
    /// The cache is empty.
    Cleared,
}

/// How events are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Wire {
    /// Maps with a "type" (vLLM 0.24 and newer).
    #[default]
    Map,
    /// Arrays with all fields (vLLM 0.22 and 0.23).
    Array,
}

/// How hashes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum HashForm {
    /// Unsigned integers of 64 bits.
    #[default]
    Int,
    /// 32 bytes.
    Bytes,
}

/// Writes batches.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// See [`Wire`].
    pub wire: Wire,
    /// See [`HashForm`].
    pub hashes: HashForm,
    /// Tokens per block.
    pub block_size: u32,
    /// Data-parallel rank.
    pub rank: u32,
}

impl Encoder {
    /// The payload of one batch: `[time, events, data-parallel rank]`.
    pub fn batch(&self, unix_seconds: f64, events: &[Event]) -> Vec<u8> {
        let tokens: usize =
            events.iter().map(|e| if let Event::Stored { tokens, .. } = e { tokens.len() } else { 0 }).sum();
        let mut out = Vec::with_capacity(64 + events.len() * 80 + tokens * 4);
        mp::array(&mut out, 3);
        mp::float(&mut out, unix_seconds);
        mp::array(&mut out, events.len());
        for event in events {
            match self.wire {
                Wire::Map => self.map(&mut out, event),
                Wire::Array => self.array(&mut out, event),
            }
        }
        mp::uint(&mut out, u64::from(self.rank));
        out
    }

    fn map(&self, out: &mut Vec<u8>, event: &Event) {
        match event {
            Event::Cleared => {
                mp::map(out, 1);
                mp::entry(out, "type", |out| mp::str(out, "AllBlocksCleared"));
            }
            Event::Removed { hash } => {
                mp::map(out, 4);
                mp::entry(out, "type", |out| mp::str(out, "BlockRemoved"));
                mp::entry(out, "block_hashes", |out| self.hash_list(out, &[*hash]));
                mp::entry(out, "medium", |out| mp::str(out, "GPU"));
                mp::entry(out, "group_idx", |out| mp::uint(out, 0));
            }
            Event::Stored { hashes, parent, first_block, tokens, extra, session_id } => {
                mp::map(out, 11 + usize::from(session_id.is_some()));
                mp::entry(out, "type", |out| mp::str(out, "BlockStored"));
                mp::entry(out, "block_hashes", |out| self.hash_list(out, hashes));
                mp::entry(out, "parent_block_hash", |out| self.parent(out, *parent));
                mp::entry(out, "token_ids", |out| token_list(out, tokens));
                mp::entry(out, "block_size", |out| mp::uint(out, self.block_size.into()));
                mp::entry(out, "lora_id", |out| lora_id(out, extra));
                mp::entry(out, "medium", |out| mp::str(out, "GPU"));
                mp::entry(out, "lora_name", |out| lora_name(out, extra));
                mp::entry(out, "extra_keys", |out| extra_keys(out, extra, *first_block, hashes.len()));
                mp::entry(out, "group_idx", |out| mp::uint(out, 0));
                mp::entry(out, "kv_cache_spec_kind", |out| mp::str(out, "full_attention"));
                if let Some(id) = session_id {
                    mp::entry(out, "session_id", |out| mp::str(out, id));
                }
            }
        }
    }

    fn array(&self, out: &mut Vec<u8>, event: &Event) {
        match event {
            Event::Cleared => {
                mp::array(out, 1);
                mp::str(out, "AllBlocksCleared");
            }
            Event::Removed { hash } => {
                mp::array(out, 4);
                mp::str(out, "BlockRemoved");
                self.hash_list(out, &[*hash]);
                mp::str(out, "GPU");
                mp::uint(out, 0);
            }
            Event::Stored { hashes, parent, first_block, tokens, extra, .. } => {
                mp::array(out, 12);
                mp::str(out, "BlockStored");
                self.hash_list(out, hashes);
                self.parent(out, *parent);
                token_list(out, tokens);
                mp::uint(out, self.block_size.into());
                lora_id(out, extra);
                mp::str(out, "GPU");
                lora_name(out, extra);
                extra_keys(out, extra, *first_block, hashes.len());
                mp::uint(out, 0);
                mp::str(out, "full_attention");
                mp::nil(out);
            }
        }
    }

    fn hash_list(&self, out: &mut Vec<u8>, hashes: &[EventHash]) {
        mp::array(out, hashes.len());
        hashes.iter().for_each(|hash| self.hash(out, *hash));
    }

    fn parent(&self, out: &mut Vec<u8>, parent: Option<EventHash>) {
        match parent {
            Some(hash) => self.hash(out, hash),
            None => mp::nil(out),
        }
    }

    fn hash(&self, out: &mut Vec<u8>, hash: EventHash) {
        match self.hashes {
            HashForm::Int => mp::uint(out, hash.0),
            HashForm::Bytes => {
                // The integer form of an engine is the last 8 bytes of the long one.
                let mut long = [0u8; 32];
                for (i, part) in long.chunks_exact_mut(8).enumerate() {
                    part.copy_from_slice(&hash.0.wrapping_mul((2 * (3 - i as u64)) | 1).to_be_bytes());
                }
                mp::bin(out, &long);
            }
        }
    }
}

fn token_list(out: &mut Vec<u8>, tokens: &[TokenId]) {
    mp::array(out, tokens.len());
    tokens.iter().for_each(|token| mp::uint(out, (*token).into()));
}

fn lora_id(out: &mut Vec<u8>, extra: &ExtraKeys) {
    match &extra.lora {
        Some((id, _)) => mp::uint(out, *id),
        None => mp::nil(out),
    }
}

fn lora_name(out: &mut Vec<u8>, extra: &ExtraKeys) {
    match &extra.lora {
        Some((_, name)) => mp::str(out, name),
        None => mp::nil(out),
    }
}

fn extra_keys(out: &mut Vec<u8>, extra: &ExtraKeys, first_block: usize, blocks: usize) {
    mp::array(out, blocks);
    for index in first_block..first_block + blocks {
        let keys = extra.of_block(index);
        if keys.is_empty() {
            mp::nil(out);
        } else {
            mp::array(out, keys.len());
            keys.iter().for_each(|key| mp::str(out, key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Vec<Event> {
        let extra = ExtraKeys { lora: Some((3, "tuned".into())), cache_salt: Some("tenant".into()) };
        let tokens: Vec<TokenId> = vec![1, 200, 70_000, 4_000_000_000];
        let first = extra.block_hash(0, None, &tokens[..2]);
        let second = extra.block_hash(1, Some(first), &tokens[2..]);
        vec![
            Event::Cleared,
            Event::Removed { hash: EventHash(u64::MAX) },
            Event::Stored {
                hashes: vec![first, second],
                parent: None,
                first_block: 0,
                tokens,
                extra,
                session_id: Some("s".into()),
            },
        ]
    }

    fn decode(wire: Wire, hashes: HashForm) -> Vec<rmpv::Value> {
        let bytes = Encoder { wire, hashes, block_size: 2, rank: 0 }.batch(1.5, &events());
        let mut rest = bytes.as_slice();
        let value = rmpv::decode::read_value(&mut rest).unwrap();
        assert!(rest.is_empty());
        let batch = value.as_array().unwrap();
        assert_eq!((batch[0].as_f64(), batch[2].as_u64()), (Some(1.5), Some(0)));
        batch[1].as_array().unwrap().clone()
    }

    #[test]
    fn maps_have_the_fields_of_the_engine() {
        let events = decode(Wire::Map, HashForm::Int);
        let keys: Vec<&str> = events[2].as_map().unwrap().iter().map(|(k, _)| k.as_str().unwrap()).collect();
        assert_eq!(
            keys.join(" "),
            "type block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx \
             kv_cache_spec_kind session_id"
        );
        assert_eq!(events[2]["extra_keys"].to_string(), r#"[["tuned", "tenant"], ["tuned"]]"#);
        assert_eq!(events[2]["token_ids"].to_string(), "[1, 200, 70000, 4000000000]");
        assert_eq!(events[1]["block_hashes"][0].as_u64(), Some(u64::MAX));
        assert_eq!(events[0].to_string(), r#"{"type": "AllBlocksCleared"}"#);
    }

    #[test]
    fn arrays_have_all_fields_and_long_hashes_end_with_the_short_ones() {
        let (short, long) = (decode(Wire::Array, HashForm::Int), decode(Wire::Array, HashForm::Bytes));
        assert_eq!(short[2].as_array().unwrap().len(), 12);
        assert_eq!(short[2][5].as_u64(), Some(3));
        let bytes = long[2][1][1].as_slice().unwrap();
        assert_eq!(bytes.len(), 32);
        assert_eq!(Some(u64::from_be_bytes(bytes[24..].try_into().unwrap())), short[2][1][1].as_u64());
    }

    #[test]
    fn hashes_depend_on_parent_tokens_and_keys() {
        let plain = ExtraKeys::default();
        let salted = ExtraKeys { cache_salt: Some("a".into()), ..Default::default() };
        let a = plain.block_hash(0, None, &[1, 2]);
        assert_ne!(a, plain.block_hash(0, None, &[2, 1]));
        assert_ne!(a, plain.block_hash(1, Some(a), &[1, 2]));
        assert_ne!(a, salted.block_hash(0, None, &[1, 2]));
        // Later blocks differ through their parents only.
        assert_eq!(plain.block_hash(1, Some(a), &[3]), salted.block_hash(1, Some(a), &[3]));
    }
}
