//! What the router VMs of one Envoy tell each other: their load on each replica, and their predictions.
//!
//! Loads are absolute sums by replica, so a lost message is mended by the next one about that replica, and at the
//! latest by the full list that each VM sends every second. They belong to a slot and its owner's nonce: when the
//! VM dies, what it had booked goes.
//!
//! `"KVP" ‖ version u8 ‖ slot u32 ‖ nonce u64 ‖ full u8 ‖ entries`, an entry being `kind u8 ‖ fields`.

use hashbrown::HashMap;

use super::book::{BookingId, Load};
use super::members::ReplicaKey;
use crate::blocks::BlockHash;
use crate::clock::{SECOND, Time};
use crate::feed::FrameError;
use crate::feed::wire::{Reader, Writer};

const MAGIC: &[u8] = b"KVP";
const VERSION: u8 = 1;
/// A VM that was not heard of for this long has nothing booked any more.
pub const SILENCE: u64 = 5 * SECOND;
/// Predicted blocks told of one request at most.
pub const MAX_TOLD: usize = 2048;

/// Something that one VM tells the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Tell {
    /// Everything that the sender has booked on a replica.
    Load(ReplicaKey, Load),
    /// A request (by its number there) will make a replica hold these blocks.
    Predict(u64, ReplicaKey, Vec<BlockHash>),
    /// The predictions of a request end after so many milliseconds; 0: at once, nothing came of them.
    Settle(u64, u32),
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The sender's slot.
    pub slot: u32,
    /// The nonce of the sender's lease.
    pub nonce: u64,
    /// Its loads are all that the sender has.
    pub full: bool,
    /// What it says.
    pub tells: Vec<Tell>,
}

impl Message {
    /// Whether the bytes are a message of this kind and not a feed batch.
    pub fn is(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.0.extend_from_slice(MAGIC);
        out.u8(VERSION);
        out.u32(self.slot);
        out.u64(self.nonce);
        out.u8(u8::from(self.full));
        for tell in &self.tells {
            match tell {
                Tell::Load(key, load) => {
                    out.u8(1);
                    out.u64(key.0);
                    out.u32(load.requests);
                    out.u64(load.prefill.max(0.0) as u64);
                    out.u64(load.context.max(0.0) as u64);
                }
                Tell::Predict(booking, key, hashes) => {
                    out.u8(2);
                    out.u64(*booking);
                    out.u64(key.0);
                    out.hashes(hashes.get(..MAX_TOLD).unwrap_or(hashes));
                }
                Tell::Settle(booking, after) => {
                    out.u8(3);
                    out.u64(*booking);
                    out.u32(*after);
                }
            }
        }
        out.0
    }

    /// The message; an entry of unknown kind is an error, since all VMs run the same build.
    pub fn decode(bytes: &[u8]) -> Result<Message, FrameError> {
        let mut r = Reader(bytes);
        if r.bytes(3).map_err(|_| FrameError::Magic)? != MAGIC {
            return Err(FrameError::Magic);
        }
        match r.u8()? {
            VERSION => {}
            other => return Err(FrameError::Version(other)),
        }
        let mut message = Message { slot: r.u32()?, nonce: r.u64()?, full: r.u8()? != 0, tells: Vec::new() };
        while !r.0.is_empty() {
            message.tells.push(match r.u8()? {
                1 => {
                    let key = ReplicaKey(r.u64()?);
                    let load = Load { requests: r.u32()?, prefill: r.u64()? as f64, context: r.u64()? as f64 };
                    Tell::Load(key, load)
                }
                2 => Tell::Predict(r.u64()?, ReplicaKey(r.u64()?), r.hashes()?),
                3 => Tell::Settle(r.u64()?, r.u32()?),
                _ => return Err(FrameError::Record("kind of a message between VMs")),
            });
        }
        Ok(message)
    }
}

#[derive(Debug)]
struct Peer {
    nonce: u64,
    heard: Time,
    loads: HashMap<ReplicaKey, Load>,
}

/// What the other VMs said.
#[derive(Debug, Default)]
pub struct Peers {
    by_slot: HashMap<u32, Peer>,
}

/// More slots than this are not listened to.
const MAX_PEERS: usize = 256;

/// The number under which a peer's request is known here.
pub fn foreign_booking(slot: u32, booking: u64) -> BookingId {
    BookingId((u64::from(slot.saturating_add(1)) << 40) | (booking & ((1 << 40) - 1)) | 1 << 63)
}

impl Peers {
    /// Takes in the loads of a message. Gives the replicas whose sum changed, and whether the sender's slot had
    /// another owner before, whose predictions must go.
    pub fn hear(&mut self, message: &Message, now: Time) -> (Vec<ReplicaKey>, bool) {
        if self.by_slot.len() >= MAX_PEERS && !self.by_slot.contains_key(&message.slot) {
            return (Vec::new(), false);
        }
        let fresh = || Peer { nonce: message.nonce, heard: now, loads: HashMap::new() };
        let peer = self.by_slot.entry(message.slot).or_insert_with(fresh);
        let replaced = peer.nonce != message.nonce;
        let mut changed: Vec<ReplicaKey> = Vec::new();
        if message.full || replaced {
            changed.extend(peer.loads.keys());
            peer.loads.clear();
        }
        (peer.nonce, peer.heard) = (message.nonce, now);
        for tell in &message.tells {
            let Tell::Load(key, load) = tell else { continue };
            match load.requests {
                0 => drop(peer.loads.remove(key)),
                _ => drop(peer.loads.insert(*key, *load)),
            }
            changed.push(*key);
        }
        (changed, replaced)
    }

    /// VMs that have gone silent.
    pub fn silent(&self, now: Time) -> Vec<u32> {
        self.by_slot.iter().filter(|(_, p)| now.since(p.heard) > SILENCE).map(|(slot, _)| *slot).collect()
    }

    /// Forgets a VM that is known to be dead. Gives the replicas whose sum changed.
    pub fn forget(&mut self, slot: u32) -> Vec<ReplicaKey> {
        self.by_slot.remove(&slot).map(|p| p.loads.into_keys().collect()).unwrap_or_default()
    }

    /// What all of them have on a replica.
    pub fn load(&self, key: ReplicaKey) -> Load {
        self.by_slot.values().filter_map(|p| p.loads.get(&key)).fold(Load::default(), |sum, load| sum.plus(*load))
    }
}
