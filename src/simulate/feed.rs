//! The bridge, without sockets: what the engines say becomes numbered batches, one stream for all gateways.

use std::rc::Rc;

use hashbrown::HashSet;

use crate::blocks::BlockHash;
use crate::feed::batch::{Batch, BatchHeader};
use crate::feed::digest::{self, Digests};
use crate::feed::record::{Record, ReplicaInfo, Tier, Trust};
use crate::feed::snapshot::Snapshot;
use crate::feed::sync::Pull;
use crate::feed::{Epoch, FeedReplicaId};

/// The model that all replicas serve.
pub const MODEL: &str = "simulated";
const EPOCH: Epoch = Epoch { term: 1, id: 1 };

/// The address of a replica.
pub fn address(replica: usize) -> String {
    format!("10.{}.{}.{}:8000", replica >> 16 & 255, replica >> 8 & 255, replica & 255)
}

/// The replica at an address.
pub fn replica_of(address: &str) -> usize {
    let host = address.split(':').next().unwrap_or_default();
    host.split('.').skip(1).filter_map(|part| part.parse::<usize>().ok()).fold(0, |at, part| at << 8 | part)
}

/// A batch on its way to the gateways.
#[derive(Debug)]
pub struct Delivery {
    /// As the filter gets it.
    pub frame: Vec<u8>,
    /// As it was before it became bytes.
    pub records: Vec<Record>,
}

/// See the module.
#[derive(Debug)]
pub struct Feed {
    seq: u64,
    pending: Vec<Record>,
    replicas: Vec<ReplicaInfo>,
    block_size: u32,
    blocks: u32,
    /// What each replica holds, by the batches sent; kept only where somebody may ask for it.
    held: Option<Vec<HashSet<BlockHash>>>,
}

impl Feed {
    /// A bridge that follows nobody yet. `lossy`: snapshots will be asked for.
    pub fn new(block_size: u32, blocks: u32, lossy: bool) -> Feed {
        let held = lossy.then(Vec::new);
        Feed { seq: 0, pending: Vec::new(), replicas: Vec::new(), block_size, blocks, held }
    }

    /// One more replica.
    pub fn join(&mut self) {
        let replica = self.replicas.len();
        let info = ReplicaInfo {
            id: FeedReplicaId(replica as u32),
            address: address(replica),
            model: MODEL.into(),
            block_size: self.block_size,
            rank: 0,
            capacity_blocks: u64::from(self.blocks),
            trust: Trust::Exact,
            ..ReplicaInfo::default()
        };
        self.pending.push(Record::Replica(info.clone()));
        self.replicas.push(info);
        if let Some(held) = &mut self.held {
            held.push(HashSet::new());
        }
    }

    /// Something to say.
    pub fn say(&mut self, records: impl IntoIterator<Item = Record>) {
        self.pending.extend(records);
    }

    /// The next batch: what waits, or a heartbeat.
    pub fn batch(&mut self) -> Rc<Delivery> {
        self.seq += 1;
        let records = std::mem::take(&mut self.pending);
        if let Some(held) = &mut self.held {
            for record in &records {
                match record {
                    Record::Stored { replica, hashes, .. } => held[replica.0 as usize].extend(hashes),
                    Record::Removed { replica, hashes, .. } => hashes.iter().for_each(|hash| {
                        held[replica.0 as usize].remove(hash);
                    }),
                    _ => {}
                }
            }
        }
        let batch = Batch { header: BatchHeader { epoch: EPOCH, seq: self.seq }, records };
        Rc::new(Delivery { frame: batch.encode(), records: batch.records })
    }

    /// The answer to a pull, as of the last batch.
    pub fn reply(&self, pull: Pull) -> Vec<u8> {
        match pull {
            Pull::Digests { from } => self.digests(from),
            Pull::Range { from, through } => self.range(from, through),
        }
    }

    fn digests(&self, from: u64) -> Vec<u8> {
        let mut drawers = vec![0u64; digest::DRAWERS];
        for (replica, held) in self.held.iter().flatten().enumerate() {
            let (holds, ends) = digest::holder(FeedReplicaId(replica as u32));
            for hash in held {
                let summand = digest::block(*hash, Tier::Gpu).wrapping_mul(holds.wrapping_add(ends));
                let drawer = &mut drawers[digest::drawer(hash.0)];
                *drawer = drawer.wrapping_add(summand);
            }
        }
        drawers.drain(..digest::drawer(from));
        let replicas = self.replicas.iter().cloned().map(Record::Replica).collect();
        Digests { epoch: EPOCH, seq: self.seq, from, drawers, replicas }.encode()
    }

    fn range(&self, from: u64, through: u64) -> Vec<u8> {
        let mut records: Vec<Record> = self.replicas.iter().cloned().map(Record::Replica).collect();
        for (at, some) in self.held.iter().flat_map(|held| held.chunks(64).enumerate()) {
            let mut blocks: Vec<BlockHash> = some.iter().flatten().copied().collect();
            blocks.retain(|hash| (from..=through).contains(&hash.0));
            blocks.sort_unstable();
            blocks.dedup();
            let holders = |hash: &BlockHash| {
                let bits = some.iter().enumerate().filter(|(_, held)| held.contains(hash));
                bits.fold(0u64, |mask, (bit, _)| mask | 1 << bit)
            };
            let blocks = blocks.iter().map(|hash| (*hash, holders(hash), holders(hash))).collect();
            let replicas = (0..some.len()).map(|bit| FeedReplicaId((at * 64 + bit) as u32)).collect();
            records.push(Record::Held { tier: Tier::Gpu, replicas, blocks });
        }
        Snapshot { epoch: EPOCH, seq: self.seq, from, through, records }.encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_replicas() {
        for replica in [0, 1, 255, 256, 70_000] {
            assert_eq!(replica_of(&address(replica)), replica);
        }
    }
}
