//! The records of batches and snapshots.
//!
//! A record is `kind u8 ‖ length u32 ‖ payload`; a reader skips kinds that it does not know, so an older filter
//! understands what it can of a newer bridge.

use super::role::Role;
use super::wire::{Reader, Writer};
use super::{FeedReplicaId, FrameError};
use crate::blocks::BlockHash;

/// Where a replica holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// In the memory of the accelerator.
    Gpu = 0,
    /// Offloaded to host memory.
    Cpu = 1,
    /// Offloaded to disk or remote storage.
    Disk = 2,
    /// Known only from before a gap that was not filled, or by hearsay: perhaps it is still in one of the others.
    Unconfirmed = 3,
}

impl Tier {
    /// All of them, in the order of their numbers.
    pub const ALL: [Tier; 4] = [Tier::Gpu, Tier::Cpu, Tier::Disk, Tier::Unconfirmed];

    /// The tier of a number on the wire.
    pub fn from_u8(v: u8) -> Option<Tier> {
        Tier::ALL.into_iter().find(|t| *t as u8 == v)
    }
}

/// How far what is believed of a replica's cache can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Trust {
    /// Every event since the engine's start, or since its cache was cleared, was seen.
    Exact = 0,
    /// Events are being replayed, or a snapshot is being pulled.
    CatchingUp = 1,
    /// A gap could not be filled, or the source has gone silent.
    Stale = 2,
    /// The engine publishes no events.
    #[default]
    NoEvents = 3,
}

impl Trust {
    /// The trust of a number on the wire.
    pub fn from_u8(v: u8) -> Option<Trust> {
        [Trust::Exact, Trust::CatchingUp, Trust::Stale, Trust::NoEvents].into_iter().find(|t| *t as u8 == v)
    }
    /// The name in metrics and in what people read.
    pub fn label(self) -> &'static str {
        match self {
            Trust::Exact => "exact",
            Trust::CatchingUp => "catching_up",
            Trust::Stale => "stale",
            Trust::NoEvents => "no_events",
        }
    }
}

/// A LoRA adapter of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    /// Its name, by which requests ask for it.
    pub name: String,
    /// It is among those that the engine used last, as many as it keeps ready; the others it has to load first.
    pub loaded: bool,
}

/// The LoRA adapters of a replica, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adapters {
    /// These are all that it serves.
    pub complete: bool,
    /// Each with a name of its own; loaded ones first.
    pub list: Vec<Adapter>,
}

/// What a request for an adapter finds at a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready.
    Loaded,
    /// It has to be loaded first.
    Served,
    /// The engine has no adapter of that name.
    Absent,
    /// Nobody said.
    Unknown,
}

impl Standing {
    /// The name in receipts and in what people read.
    pub fn label(self) -> &'static str {
        match self {
            Standing::Loaded => "loaded",
            Standing::Served => "served",
            Standing::Absent => "absent",
            Standing::Unknown => "unknown",
        }
    }
}

impl Adapters {
    /// The most that are told of one replica.
    pub const MOST: usize = 64;
    /// The most bytes that their names take together: every answer to a worker names every replica.
    pub const MOST_BYTES: usize = 1024;

    /// What a request for the adapter of this name finds.
    pub fn standing(&self, name: &str) -> Standing {
        match self.list.iter().find(|adapter| adapter.name == name) {
            Some(Adapter { loaded: true, .. }) => Standing::Loaded,
            Some(_) => Standing::Served,
            None if self.complete => Standing::Absent,
            None => Standing::Unknown,
        }
    }

    fn write(&self, out: &mut Writer) {
        out.u8(u8::from(self.complete));
        out.u32(self.list.len().min(Adapters::MOST) as u32);
        for adapter in self.list.iter().take(Adapters::MOST) {
            out.str(&adapter.name);
            out.u8(u8::from(adapter.loaded));
        }
    }

    /// Of a bridge that does not tell it: unknown.
    fn read(r: &mut Reader<'_>) -> Result<Adapters, FrameError> {
        if r.0.is_empty() {
            return Ok(Adapters::default());
        }
        let (complete, count) = (r.u8()? != 0, r.u32()? as usize);
        if count > Adapters::MOST {
            return Err(FrameError::Record("too many adapters"));
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            list.push(Adapter { name: r.str()?, loaded: r.u8()? != 0 });
        }
        Ok(Adapters { complete, list })
    }
}

/// A replica as the bridge knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// The number by which the other records name it.
    pub id: FeedReplicaId,
    /// `ip:port` as Envoy's cluster resolves it: what the selection headers name.
    pub address: String,
    /// Served model id; goes into the [namespace](crate::blocks::namespace).
    pub model: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Data-parallel rank; 0 without data parallelism.
    pub rank: u32,
    /// Blocks that its cache can hold; 0 when unknown.
    pub capacity_blocks: u64,
    /// Trust in what is known of its cache.
    pub trust: Trust,
    /// Why, in a word (the bridge's module `trust` lists them); empty when nobody said.
    pub reason: String,
    /// Of each chain it holds on the accelerator a beginning without a hole, and a hit may end at every block.
    pub dense: bool,
    /// Its LoRA adapters.
    pub adapters: Adapters,
    /// What it is for.
    pub role: Role,
}

/// Load as the engine itself reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// Requests in the running batch.
    pub running: u32,
    /// Requests that wait for a place in it.
    pub waiting: u32,
    /// Share of the KV cache in use by running requests, in parts per million.
    pub kv_usage_ppm: u32,
    /// Age of the reading when it was sent, in milliseconds.
    pub age_ms: u32,
}

/// One change, or one piece of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A replica is new, or something about it changed.
    Replica(ReplicaInfo),
    /// A replica is gone, with its blocks.
    Gone(FeedReplicaId),
    /// A run of blocks of one chain is now held: `hashes[0]` follows `parent`, each other one its predecessor.
    Stored {
        /// The holder.
        replica: FeedReplicaId,
        /// Where.
        tier: Tier,
        /// What `hashes[0]` follows; the namespace for the first block of a prompt, `None` when unknown.
        parent: Option<BlockHash>,
        /// A prefix hit may end at these blocks (bit i of byte i/8); empty: at every one. A block that is stored
        /// again takes the new bit.
        ends: Vec<u8>,
        /// The blocks.
        hashes: Vec<BlockHash>,
    },
    /// Blocks are no longer held in this tier.
    Removed {
        /// The former holder.
        replica: FeedReplicaId,
        /// Where they were.
        tier: Tier,
        /// The blocks, in no order.
        hashes: Vec<BlockHash>,
    },
    /// A replica holds nothing any more.
    Cleared(FeedReplicaId),
    /// A replica's load.
    Load(FeedReplicaId, LoadReport),
    /// Blocks that several replicas may hold, each with the set of holders; snapshots only. Bit r of a mask is
    /// the r-th replica of `replicas`.
    Held {
        /// Where.
        tier: Tier,
        /// At most 64 replicas that the masks speak of.
        replicas: Vec<FeedReplicaId>,
        /// (block, holders, of them those where a hit may end).
        blocks: Vec<(BlockHash, u64, u64)>,
    },
}

/// Whether a hit may end at block `i` of a run with these `ends` ([`Record::Stored`]).
pub fn hit_ends_at(ends: &[u8], i: usize) -> bool {
    ends.is_empty() || ends.get(i >> 3).is_some_and(|byte| byte >> (i & 7) & 1 != 0)
}

const REPLICA: u8 = 1;
const GONE: u8 = 2;
const STORED: u8 = 3;
const REMOVED: u8 = 4;
const CLEARED: u8 = 5;
const LOAD: u8 = 6;
const HELD: u8 = 7;

impl Record {
    /// Appends the record to a frame.
    pub fn write(&self, out: &mut Writer) {
        let kind = match self {
            Record::Replica(_) => REPLICA,
            Record::Gone(_) => GONE,
            Record::Stored { .. } => STORED,
            Record::Removed { .. } => REMOVED,
            Record::Cleared(_) => CLEARED,
            Record::Load(..) => LOAD,
            Record::Held { .. } => HELD,
        };
        out.u8(kind);
        let length_at = out.0.len();
        out.u32(0);
        let start = out.0.len();
        match self {
            Record::Replica(r) => {
                out.u32(r.id.0);
                out.str(&r.address);
                out.str(&r.model);
                out.u32(r.block_size);
                out.u32(r.rank);
                out.u64(r.capacity_blocks);
                out.u8(r.trust as u8);
                out.str(&r.reason);
                out.u8(u8::from(r.dense));
                r.adapters.write(out);
                out.u8(r.role as u8);
            }
            Record::Gone(id) | Record::Cleared(id) => out.u32(id.0),
            Record::Stored { replica, tier, parent, ends, hashes } => {
                out.u32(replica.0);
                out.u8(*tier as u8);
                out.u8(u8::from(parent.is_some()));
                out.u64(parent.map_or(0, |p| p.0));
                out.u32(ends.len() as u32);
                out.0.extend_from_slice(ends);
                out.hashes(hashes);
            }
            Record::Removed { replica, tier, hashes } => {
                out.u32(replica.0);
                out.u8(*tier as u8);
                out.hashes(hashes);
            }
            Record::Load(id, load) => {
                out.u32(id.0);
                out.u32(load.running);
                out.u32(load.waiting);
                out.u32(load.kv_usage_ppm);
                out.u32(load.age_ms);
            }
            Record::Held { tier, replicas, blocks } => {
                out.u8(*tier as u8);
                out.u8(replicas.len().min(64) as u8);
                replicas.iter().take(64).for_each(|r| out.u32(r.0));
                out.u32(blocks.len() as u32);
                for (hash, holders, ends) in blocks {
                    out.u64(hash.0);
                    out.u64(*holders);
                    out.u64(*ends);
                }
            }
        }
        let length = (out.0.len() - start) as u32;
        if let Some(place) = out.0.get_mut(length_at..start) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// Takes the next record off a frame; `Ok(None)` for a kind that this build does not know.
    pub fn read(input: &mut Reader<'_>) -> Result<Option<Record>, FrameError> {
        let kind = input.u8()?;
        let length = input.u32()? as usize;
        let mut r = Reader(input.bytes(length)?);
        let tier = |v: u8| Tier::from_u8(v).ok_or(FrameError::Record("tier"));
        let record = match kind {
            REPLICA => Record::Replica(ReplicaInfo {
                id: FeedReplicaId(r.u32()?),
                address: r.str()?,
                model: r.str()?,
                block_size: r.u32()?,
                rank: r.u32()?,
                capacity_blocks: r.u64()?,
                trust: Trust::from_u8(r.u8()?).ok_or(FrameError::Record("trust"))?,
                reason: r.str()?,
                dense: r.u8()? != 0,
                adapters: Adapters::read(&mut r)?,
                // Not told by older bridges, whose replicas all do both.
                role: match r.0.is_empty() {
                    true => Role::Both,
                    false => Role::from_u8(r.u8()?).ok_or(FrameError::Record("role"))?,
                },
            }),
            GONE => Record::Gone(FeedReplicaId(r.u32()?)),
            CLEARED => Record::Cleared(FeedReplicaId(r.u32()?)),
            STORED => {
                let (replica, tier, has_parent, parent) =
                    (FeedReplicaId(r.u32()?), tier(r.u8()?)?, r.u8()? != 0, BlockHash(r.u64()?));
                let n = r.u32()? as usize;
                let ends = r.bytes(n)?.to_vec();
                let hashes = r.hashes()?;
                if !ends.is_empty() && ends.len() != hashes.len().div_ceil(8) {
                    return Err(FrameError::Record("ends does not fit hashes"));
                }
                Record::Stored { replica, tier, parent: has_parent.then_some(parent), ends, hashes }
            }
            REMOVED => Record::Removed { replica: FeedReplicaId(r.u32()?), tier: tier(r.u8()?)?, hashes: r.hashes()? },
            LOAD => Record::Load(
                FeedReplicaId(r.u32()?),
                LoadReport { running: r.u32()?, waiting: r.u32()?, kv_usage_ppm: r.u32()?, age_ms: r.u32()? },
            ),
            HELD => {
                let tier = tier(r.u8()?)?;
                let n = r.u8()?;
                if n > 64 {
                    return Err(FrameError::Record("more than 64 replicas in one mask"));
                }
                let replicas = (0..n).map(|_| r.u32().map(FeedReplicaId)).collect::<Result<_, _>>()?;
                let n = r.u32()? as usize;
                if r.0.len() != n.checked_mul(24).ok_or(FrameError::Length)? {
                    return Err(FrameError::Length);
                }
                let mut blocks = Vec::with_capacity(n);
                for _ in 0..n {
                    blocks.push((BlockHash(r.u64()?), r.u64()?, r.u64()?));
                }
                Record::Held { tier, replicas, blocks }
            }
            _ => return Ok(None),
        };
        // Fields appended by a newer version are ignored.
        Ok(Some(record))
    }
}
