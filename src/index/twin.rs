//! The slow obvious index: what the fast one is compared with.

use std::collections::{BTreeMap, BTreeSet};

use super::{Column, Held};
use crate::blocks::BlockHash;
use crate::feed::record::Tier;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Twin {
    /// (column, tier, hash) to "a hit may end here".
    held: BTreeMap<(Column, Tier, BlockHash), bool>,
}

impl Twin {
    pub fn store(&mut self, column: Column, tier: Tier, hashes: &[BlockHash], ends: &[bool]) {
        for (hash, end) in hashes.iter().zip(ends) {
            self.held.insert((column, tier, *hash), *end);
        }
    }

    pub fn remove(&mut self, column: Column, tier: Tier, hash: BlockHash) {
        self.held.remove(&(column, tier, hash));
    }

    pub fn close(&mut self, column: Column) {
        self.held.retain(|(c, _, _), _| *c != column);
    }

    pub fn replace(
        &mut self,
        from: u64,
        through: u64,
        cover: &BTreeSet<Column>,
        new: &[(Column, Tier, BlockHash, bool)],
    ) {
        self.held.retain(|(c, _, h), _| h.0 < from || h.0 > through || !cover.contains(c));
        for (column, tier, hash, end) in new {
            if (from..=through).contains(&hash.0) && cover.contains(column) {
                self.held.insert((*column, *tier, *hash), *end);
            }
        }
    }

    pub fn dump(&self) -> Vec<(Column, Tier, BlockHash, bool)> {
        self.held.iter().map(|((c, t, h), end)| (*c, *t, *h, *end)).collect()
    }

    pub fn walk(
        &self,
        column: Column,
        chain: &[BlockHash],
        predicted: &BTreeSet<(Column, BlockHash)>,
        most: usize,
    ) -> Held {
        let tier = |tier, hash: BlockHash| self.held.get(&(column, tier, hash)).copied();
        let mut blocks: Vec<(bool, u8)> = Vec::new();
        for hash in chain {
            let [gpu, cpu, disk, perhaps] = Tier::ALL.map(|t| tier(t, *hash));
            let guess = predicted.contains(&(column, *hash));
            let end = [gpu, cpu, disk, perhaps].contains(&Some(true)) || guess;
            let place = match (gpu, cpu, disk, guess, perhaps) {
                (Some(_), ..) => 0,
                (_, Some(_), ..) => 1,
                (_, _, Some(_), ..) => 2,
                (.., true, _) => 3,
                (.., Some(_)) => 4,
                _ => break,
            };
            blocks.push((end, place));
        }
        let end = blocks.iter().take(most).rposition(|(end, _)| *end).map_or(0, |at| at + 1);
        let behind = blocks.len() - end;
        let count = |place| (blocks.iter().filter(|b| b.1 == place).count()).saturating_sub(behind) as u32;
        Held {
            blocks: blocks.len() as u32,
            end: end as u32,
            cpu: count(1),
            disk: count(2),
            predicted: count(3),
            unconfirmed: count(4),
        }
    }
}
