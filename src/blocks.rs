//! Token ids to block hashes.
//!
//! A block is `block_size` consecutive tokens of a prompt; only full blocks have a hash. The hash of a block
//! stands for the whole prefix that ends with it:
//!
//! ```text
//! root = XXH3_64(hash_seed, model, lora, cache_salt)         (each length-prefixed)
//! h[i] = XXH3_64(h[i-1] as u64 LE ‖ tokens of block i as u32 LE)
//! ```
//!
//! Bridge and filter compute it from token ids alone, so the engine's own hash algorithm, seed and version do
//! not matter. The seed of a deployment keeps outsiders from computing collisions.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// A token id as the engine numbers it.
pub type TokenId = u32;

/// Identifies a prefix: a block and everything before it, within one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockHash(pub u64);

/// The root of every chain of one (deployment, model, LoRA adapter, cache salt).
///
/// `lora` and `cache_salt` of `None` differ from empty ones.
pub fn namespace(hash_seed: &str, model: &str, lora: Option<&str>, cache_salt: Option<&str>) -> BlockHash {
    let mut hasher = Xxh3::new();
    for part in [Some(hash_seed), Some(model), lora, cache_salt] {
        match part {
            Some(text) => {
                hasher.update(&(text.len() as u64).to_le_bytes());
                hasher.update(text.as_bytes());
            }
            None => hasher.update(&u64::MAX.to_le_bytes()),
        }
    }
    BlockHash(hasher.digest())
}

/// The hash of one full block of `tokens` that follows `parent`.
pub fn block_hash(parent: BlockHash, tokens: &[TokenId], scratch: &mut Vec<u8>) -> BlockHash {
    // Sized once and then overwritten: token by token it would cost more than the hash itself.
    scratch.resize(8 + 4 * tokens.len(), 0);
    if let Some((head, rest)) = scratch.split_first_chunk_mut::<8>() {
        *head = parent.0.to_le_bytes();
        for (place, token) in rest.as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
            *place = token.to_le_bytes();
        }
    }
    BlockHash(xxh3_64(scratch))
}

/// A chain under construction: takes tokens as they come and gives a hash for each block that fills.
#[derive(Clone, Debug)]
pub struct Chain {
    tip: BlockHash,
    block_size: usize,
    pending: Vec<TokenId>,
    scratch: Vec<u8>,
}

impl Chain {
    /// A chain from `root` (see [`namespace`]). A `block_size` of 0 counts as 1.
    pub fn new(root: BlockHash, block_size: u32) -> Self {
        Chain { tip: root, block_size: block_size.max(1) as usize, pending: Vec::new(), scratch: Vec::new() }
    }

    /// A chain that goes on after the block `tip`, with the tokens of the block that is not full yet.
    pub fn resume(tip: BlockHash, block_size: u32, pending: &[TokenId]) -> Self {
        let mut chain = Chain::new(tip, block_size);
        chain.pending.extend_from_slice(pending);
        chain
    }

    /// Appends `tokens`; hashes of the blocks that became full go to `out`.
    pub fn extend(&mut self, tokens: &[TokenId], out: &mut Vec<BlockHash>) {
        for token in tokens {
            self.pending.push(*token);
            if self.pending.len() >= self.block_size {
                self.tip = block_hash(self.tip, &self.pending, &mut self.scratch);
                out.push(self.tip);
                self.pending.clear();
            }
        }
    }

    /// The hash of the last full block, or the root.
    pub fn tip(&self) -> BlockHash {
        self.tip
    }

    /// Tokens of the block that is not full yet.
    pub fn pending(&self) -> &[TokenId] {
        &self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_separates_every_part() {
        let plain = namespace("", "m", None, None);
        assert_ne!(plain, namespace("s", "m", None, None));
        assert_ne!(plain, namespace("", "m", Some(""), None));
        assert_ne!(plain, namespace("", "m", None, Some("")));
        assert_ne!(namespace("", "m", Some("a"), None), namespace("", "m", None, Some("a")));
        assert_ne!(namespace("ab", "c", None, None), namespace("a", "bc", None, None));
    }

    #[test]
    fn chain_equals_block_by_block_in_any_cut() {
        let tokens: Vec<TokenId> = (0..100).map(|i| i * 7 + 1).collect();
        let root = namespace("", "m", None, None);
        let (mut whole, mut scratch, mut tip) = (Vec::new(), Vec::new(), root);
        for block in tokens.chunks_exact(16) {
            tip = block_hash(tip, block, &mut scratch);
            whole.push(tip);
        }
        for cut in [1, 5, 16, 17, 99] {
            let mut chain = Chain::new(root, 16);
            let mut hashes = Vec::new();
            tokens.chunks(cut).for_each(|part| chain.extend(part, &mut hashes));
            assert_eq!(hashes, whole);
            assert_eq!(chain.tip(), tip);
            assert_eq!(chain.pending(), &tokens[96..]);
        }
    }
}
