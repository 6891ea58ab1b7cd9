//! What a router remembers of prompts and events, for the rules of others.

use hashbrown::HashMap;

use crate::blocks::BlockHash;
use crate::clock::Time;
use crate::feed::record::{Record, Tier};
use crate::index::{Column, Index, Walk};

/// What events say the replicas hold.
pub struct ByEvents {
    index: Index,
    columns: Vec<Column>,
}

impl ByEvents {
    pub fn new() -> Self {
        ByEvents { index: Index::new(1 << 30, 1), columns: Vec::new() }
    }

    fn column(&mut self, replica: usize) -> Option<Column> {
        while self.columns.len() <= replica {
            self.columns.push(self.index.open()?);
        }
        self.columns.get(replica).copied()
    }

    pub fn apply(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Stored { replica, parent, hashes, .. } => {
                    if let Some(column) = self.column(replica.0 as usize) {
                        self.index.store(column, Tier::Gpu, *parent, hashes, &[]);
                    }
                }
                Record::Removed { replica, hashes, .. } => {
                    if let Some(column) = self.column(replica.0 as usize) {
                        self.index.remove_all(column, Tier::Gpu, hashes);
                    }
                }
                _ => {}
            }
        }
    }

    /// Blocks from the start that each of `replicas` holds.
    pub fn matched(&mut self, chain: &[BlockHash], replicas: usize) -> Vec<usize> {
        let columns: Vec<_> = (0..replicas).filter_map(|r| self.column(r)).collect();
        let mut walk = Walk::new(columns.iter().copied());
        walk.push_all(&self.index, chain, |_, _| 0);
        columns.iter().map(|column| walk.held(*column, u32::MAX).blocks as usize).collect()
    }
}

/// What was sent where, by a router without events.
#[derive(Default)]
pub struct BySending {
    replicas: Vec<HashMap<BlockHash, Time>>,
}

impl BySending {
    fn grow(&mut self, replicas: usize) {
        if self.replicas.len() < replicas {
            self.replicas.resize_with(replicas, HashMap::new);
        }
    }

    pub fn matched(&mut self, chain: &[BlockHash], replicas: usize) -> Vec<usize> {
        self.grow(replicas);
        let held = |map: &HashMap<BlockHash, Time>| chain.iter().take_while(|h| map.contains_key(*h)).count();
        self.replicas.iter().take(replicas).map(held).collect()
    }

    pub fn sent(&mut self, chain: &[BlockHash], replica: usize, now: Time) {
        self.grow(replica + 1);
        self.replicas[replica].extend(chain.iter().map(|hash| (*hash, now)));
    }

    /// Blocks remembered of each.
    pub fn sizes(&self) -> Vec<usize> {
        self.replicas.iter().map(HashMap::len).collect()
    }

    /// Forgets what was last used before `since`.
    pub fn forget(&mut self, since: Time) {
        self.replicas.iter_mut().for_each(|map| map.retain(|_, used| *used >= since));
    }

    /// Forgets the least recently used down to `most` blocks a replica.
    pub fn shrink(&mut self, most: usize) {
        for map in self.replicas.iter_mut().filter(|map| map.len() > most) {
            let mut times: Vec<Time> = map.values().copied().collect();
            let over = times.len() - most;
            let (_, cut, _) = times.select_nth_unstable(over);
            let cut = *cut;
            map.retain(|_, used| *used >= cut);
        }
    }
}
