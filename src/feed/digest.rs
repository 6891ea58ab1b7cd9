//! Digests of ranges of hashes: how a worker and the bridge find out where they differ without sending it all.
//!
//! Hashes that begin with the same 12 bits are one *drawer*. The digest of a drawer is a sum over what is held in
//! it, one summand for each (block, tier, holder, "a hit may end here"), so it does not depend on any order.
//! Replicas without events are left out: what is believed of them is not the bridge's to say.
//!
//! `GET /kvroute/v1/snapshot?digests&from=<hash, 16 hex digits>` is answered by
//!
//! `"KVD" ‖ version u8 ‖ term u64 ‖ epoch u64 ‖ seq u64 ‖ from u64 ‖ count u32 ‖ digests u64… ‖ replicas ‖ XXH3_64`
//!
//! for the drawers from that of `from` on, with all replicas as in a snapshot. A reader compares when it has applied
//! batch `seq`, leaves out drawers that later batches touched, and pulls those that differ.

use super::record::{Record, Tier};
use super::wire;
use super::{Epoch, FeedReplicaId, FrameError};
use crate::blocks::BlockHash;

const MAGIC: &[u8] = b"KVD";
const VERSION: u8 = 1;
/// Bits of a hash that name its drawer.
pub const DRAWER_BITS: u32 = 12;
/// Number of drawers.
pub const DRAWERS: usize = 1 << DRAWER_BITS;
const REST_BITS: u32 = 64 - DRAWER_BITS;

/// The drawer of a hash.
pub fn drawer(hash: u64) -> usize {
    (hash >> REST_BITS) as usize
}

/// The first and the last hash of a drawer.
pub fn bounds(drawer: usize) -> (u64, u64) {
    let first = (drawer.min(DRAWERS - 1) as u64) << REST_BITS;
    (first, first | ((1 << REST_BITS) - 1))
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 32)
}

/// The summand of a holder, before the block comes in: one for holding it, one more where a hit may end.
pub fn holder(id: FeedReplicaId) -> (u64, u64) {
    let n = u64::from(id.0) << 1;
    (mix(n.wrapping_add(0x9E37_79B9_7F4A_7C15)), mix(n.wrapping_add(0x9E37_79B9_7F4A_7C16)))
}

/// The part of a block in all summands of its holders.
pub fn block(hash: BlockHash, tier: Tier) -> u64 {
    mix(hash.0 ^ ((tier as u64 + 1) << 56)) | 1
}

/// Holders of up to 64 columns, and their summands.
#[derive(Clone, Debug)]
pub struct Holders([(u64, u64); 64]);

impl Default for Holders {
    fn default() -> Self {
        Holders([(0, 0); 64])
    }
}

impl Holders {
    /// Bit `bit` of the masks stands for this replica.
    pub fn set(&mut self, bit: u32, id: FeedReplicaId) {
        if let Some(place) = self.0.get_mut(bit as usize) {
            *place = holder(id);
        }
    }

    /// The sum for the holders of one block; bits that stand for nobody add nothing.
    pub fn sum(&self, holders: u64, ends: u64) -> u64 {
        let (mut rest, mut sum) = (holders, 0u64);
        while rest != 0 {
            let bit = rest.trailing_zeros();
            rest &= rest - 1;
            if let Some((held, end)) = self.0.get(bit as usize) {
                sum = sum.wrapping_add(*held).wrapping_add(if ends >> bit & 1 != 0 { *end } else { 0 });
            }
        }
        sum
    }
}

/// An answer in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Digests {
    /// Who wrote it.
    pub epoch: Epoch,
    /// The last batch whose changes it contains.
    pub seq: u64,
    /// The first hash of the first drawer.
    pub from: u64,
    /// One digest a drawer.
    pub drawers: Vec<u64>,
    /// All replicas.
    pub replicas: Vec<Record>,
}

impl Digests {
    /// The last hash that it speaks of.
    pub fn through(&self) -> u64 {
        bounds(drawer(self.from).saturating_add(self.drawers.len()).saturating_sub(1)).1
    }

    /// The frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire::begin(MAGIC, VERSION);
        for field in [self.epoch.term, self.epoch.id, self.seq, self.from] {
            out.u64(field);
        }
        out.u32(self.drawers.len() as u32);
        self.drawers.iter().for_each(|digest| out.u64(*digest));
        self.replicas.iter().for_each(|r| r.write(&mut out));
        wire::seal(out)
    }

    /// Whether the bytes are such an answer and not a snapshot.
    pub fn is(frame: &[u8]) -> bool {
        frame.starts_with(MAGIC)
    }

    /// The whole frame checked and read.
    pub fn decode(frame: &[u8]) -> Result<Digests, FrameError> {
        let mut r = wire::open(frame, MAGIC, VERSION)?;
        let (epoch, seq, from) = (Epoch { term: r.u64()?, id: r.u64()? }, r.u64()?, r.u64()?);
        let count = r.u32()? as usize;
        let whole = bounds(drawer(from)).0 == from && (1..=DRAWERS - drawer(from)).contains(&count);
        if !whole {
            return Err(FrameError::Record("drawers of digests"));
        }
        let raw = r.bytes(count.checked_mul(8).ok_or(FrameError::Length)?)?;
        let drawers = raw.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect();
        let mut replicas = Vec::new();
        while !r.0.is_empty() {
            replicas.extend(Record::read(&mut r)?);
        }
        Ok(Digests { epoch, seq, from, drawers, replicas })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survive_the_wire_and_nothing_else_does() {
        let digests =
            Digests { epoch: Epoch { term: 1, id: 2 }, seq: 3, from: 4 << 52, drawers: vec![5, 6], replicas: vec![] };
        let frame = digests.encode();
        assert_eq!(Digests::decode(&frame), Ok(digests.clone()));
        assert_eq!(digests.through(), (6 << 52) - 1);
        assert!((0..frame.len()).all(|cut| Digests::decode(&frame[..cut]).is_err()));
        let beyond = Digests { from: bounds(DRAWERS - 1).0, ..digests.clone() };
        assert!(Digests::decode(&beyond.encode()).is_err(), "more drawers than there are");
        let within = Digests { from: (4 << 52) + 1, ..digests };
        assert!(Digests::decode(&within.encode()).is_err(), "from the middle of a drawer");
    }

    #[test]
    fn a_sum_does_not_depend_on_who_is_which_bit() {
        let (mut one, mut other) = (Holders::default(), Holders::default());
        one.set(3, FeedReplicaId(7));
        one.set(5, FeedReplicaId(8));
        other.set(63, FeedReplicaId(7));
        other.set(0, FeedReplicaId(8));
        assert_eq!(one.sum(0b101000, 0b001000), other.sum(1 << 63 | 1, 1 << 63));
        assert_ne!(one.sum(0b101000, 0b001000), one.sum(0b101000, 0b100000));
        assert_ne!(one.sum(0b101000, 0), one.sum(0b001000, 0));
        assert_eq!(one.sum(1 << 9, 1 << 9), 0);
    }
}
