//! What a worker tells the bridge of requests that it sent to replicas whose events do not tell all. It goes with the
//! next pull, as the body of a `POST` to the path of snapshots, and may be lost: the next request tells the same.
//!
//! `"KVW" ‖ version u8 ‖ (replica u32 ‖ claimed u32 ‖ cached u32 ‖ hashes)… ‖ XXH3_64 of all before it`; a `cached` of
//! all ones: the engine did not say.

use super::wire;
use super::{FeedReplicaId, FrameError};
use crate::blocks::BlockHash;

const MAGIC: &[u8] = b"KVW";
const VERSION: u8 = 1;
/// Bytes of a body at most.
pub const MAX_BYTES: usize = 256 << 10;
/// Blocks of one request at most: the first ones.
pub const MAX_BLOCKS: usize = 4096;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Where it went.
    pub replica: FeedReplicaId,
    /// Of its blocks, how many the worker thought cached.
    pub claimed: u32,
    /// And how many the engine found cached.
    pub cached: Option<u32>,
    /// The blocks of its prompt.
    pub chain: Vec<BlockHash>,
}

impl Told {
    /// Bytes of it on the wire.
    pub fn bytes(&self) -> usize {
        self.chain.len().saturating_mul(8).saturating_add(16)
    }
}

/// The body.
pub fn encode(told: &[Told]) -> Vec<u8> {
    let mut out = wire::begin(MAGIC, VERSION);
    for one in told {
        out.u32(one.replica.0);
        out.u32(one.claimed);
        out.u32(one.cached.unwrap_or(u32::MAX));
        out.hashes(one.chain.get(..MAX_BLOCKS).unwrap_or(&one.chain));
    }
    wire::seal(out)
}

/// The body read, whole or not at all.
pub fn decode(body: &[u8]) -> Result<Vec<Told>, FrameError> {
    if body.len() > MAX_BYTES {
        return Err(FrameError::Length);
    }
    let mut r = wire::open(body, MAGIC, VERSION)?;
    let mut told = Vec::new();
    while !r.0.is_empty() {
        let (replica, claimed, cached) = (FeedReplicaId(r.u32()?), r.u32()?, r.u32()?);
        let chain = r.hashes()?;
        if chain.len() > MAX_BLOCKS {
            return Err(FrameError::Record("more blocks than a request may tell of"));
        }
        told.push(Told { replica, claimed, cached: (cached != u32::MAX).then_some(cached), chain });
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_wire() {
        let told =
            |cached| Told { replica: FeedReplicaId(3), claimed: 2, cached, chain: vec![BlockHash(1), BlockHash(2)] };
        let all = vec![told(None), told(Some(0)), told(Some(7))];
        let body = encode(&all);
        assert_eq!(decode(&body), Ok(all));
        assert!((0..body.len()).all(|cut| decode(&body[..cut]).is_err()));
    }
}
