//! Blocks whose parent was never announced: they wait, bounded, for the parent.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::blocks::TokenId;
use crate::bridge::wire::EngineHash;

/// A run of blocks without a beginning.
#[derive(Clone, Debug)]
pub struct Orphan {
    /// What it waits for.
    pub parent: EngineHash,
    /// Its blocks.
    pub hashes: Vec<EngineHash>,
    /// Their tokens.
    pub tokens: Vec<TokenId>,
    /// See [`crate::bridge::wire::Stored::unkeyed_from`].
    pub unkeyed_from: Option<usize>,
}

/// Those that wait.
#[derive(Clone, Debug, Default)]
pub struct Orphans {
    by_parent: HashMap<EngineHash, Vec<u64>>,
    by_age: BTreeMap<u64, Orphan>,
    next: u64,
    tokens: usize,
}

impl Orphans {
    /// Adds one; returns how many blocks had to be given up so that at most `max_tokens` wait.
    pub fn add(&mut self, orphan: Orphan, max_tokens: usize) -> usize {
        self.tokens += orphan.tokens.len();
        self.by_parent.entry(orphan.parent).or_default().push(self.next);
        self.by_age.insert(self.next, orphan);
        self.next += 1;
        let mut dropped = 0;
        while self.tokens > max_tokens {
            let Some((id, old)) = self.by_age.pop_first() else { break };
            self.tokens -= old.tokens.len();
            dropped += old.hashes.len();
            if let Some(ids) = self.by_parent.get_mut(&old.parent) {
                ids.retain(|i| *i != id);
                if ids.is_empty() {
                    self.by_parent.remove(&old.parent);
                }
            }
        }
        dropped
    }

    /// Takes those that wait for `parent`.
    pub fn take(&mut self, parent: EngineHash) -> Vec<Orphan> {
        if self.by_parent.is_empty() {
            return Vec::new();
        }
        let ids = self.by_parent.remove(&parent).unwrap_or_default();
        let taken: Vec<_> = ids.iter().filter_map(|id| self.by_age.remove(id)).collect();
        self.tokens -= taken.iter().map(|o| o.tokens.len()).sum::<usize>();
        taken
    }

    /// The `most` that came last.
    pub fn latest(&self, most: usize) -> impl Iterator<Item = &Orphan> {
        self.by_age.values().rev().take(most)
    }

    /// Runs that wait.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }
}
