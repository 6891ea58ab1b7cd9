//! The caches on disk, so that a bridge that starts anew still knows the oldest blocks: an engine replays only its
//! last 10,000 messages, and a hit announces nothing.
//!
//! `"KVC" ‖ version u8 ‖ count u32 ‖ replicas ‖ XXH3_64 of all before it`, where each replica is its name, address,
//! model, rank, start time, last message with its digest, what is missing, and its cache. Written to a file beside
//! and renamed. What cannot be read is left out: the bridge then begins with nothing, as without a checkpoint.

use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::cache::{Cache, CacheConfig};
use super::config::ReplicaSpec;
use super::cursor::Cursor;
use super::replica::Replica;
use crate::feed::FrameError;
use crate::feed::wire::{Reader, Writer};

const MAGIC: &[u8] = b"KVC";
const VERSION: u8 = 1;

/// One replica of a checkpoint.
#[derive(Debug)]
pub struct Saved {
    name: String,
    address: String,
    model: String,
    hash_seed: String,
    rank: u32,
    start_time: Option<f64>,
    last: u64,
    digest: u64,
    missing: u8,
    cache: Vec<u8>,
}

impl Saved {
    /// Whether it is of this replica.
    pub fn is_of(&self, spec: &ReplicaSpec, rank: u32) -> bool {
        self.name == spec.name && self.rank == rank && self.address == spec.address() && self.model == spec.model
    }

    /// Gives it to the replica, unless it does not fit any more.
    pub fn restore(self, replica: &Arc<Replica>, config: CacheConfig) {
        if self.hash_seed != config.hash_seed {
            return;
        }
        let cursor = Cursor::restored(self.last, self.digest);
        let done = replica.with(|stream, changes| {
            let mut reader = Reader(&self.cache);
            match Cache::load(config, replica.id, &mut reader, &mut changes.records) {
                Ok(cache) => {
                    stream.restore(cursor, cache, self.missing);
                    stream.start_time = self.start_time;
                    None
                }
                Err(error) => {
                    changes.records.clear();
                    Some(error)
                }
            }
        });
        match done {
            None => {
                tracing::info!("replica {}: goes on from message {}", self.name, self.last);
            }
            Some(error) => tracing::warn!("replica {}: checkpoint not used: {error}", self.name),
        }
    }
}

/// The bytes of a checkpoint of `replicas`.
pub fn encode(replicas: &[Arc<Replica>], hash_seed: &str) -> Vec<u8> {
    let mut out = Writer::default();
    out.0.extend_from_slice(MAGIC);
    out.u8(VERSION);
    let count_at = out.0.len();
    out.u32(0);
    let mut count = 0u32;
    for replica in replicas {
        let saved = replica.with(|stream, _| {
            let (last, digest) = stream.cursor().last()?;
            let mut cache = Writer::default();
            stream.cache().save(&mut cache);
            Some((last, digest, stream.trust.save(), stream.start_time, cache.0))
        });
        let Some((last, digest, missing, start_time, cache)) = saved else { continue };
        out.str(&replica.spec.name);
        out.str(&replica.spec.address());
        out.str(&replica.spec.model);
        out.str(hash_seed);
        out.u32(replica.rank);
        out.u64(start_time.map_or(0, f64::to_bits));
        out.u64(last);
        out.u64(digest);
        out.u8(missing);
        out.u64(cache.len() as u64);
        out.0.extend_from_slice(&cache);
        count += 1;
    }
    out.0[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    let sum = xxh3_64(&out.0);
    out.u64(sum);
    out.0
}

/// Reads a checkpoint whole, or not at all.
pub fn decode(bytes: &[u8]) -> Result<Vec<Saved>, FrameError> {
    let (body, sum) = bytes.split_last_chunk::<8>().ok_or(FrameError::Length)?;
    let mut r = Reader(body);
    if r.bytes(3).map_err(|_| FrameError::Magic)? != MAGIC {
        return Err(FrameError::Magic);
    }
    let version = r.u8()?;
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(FrameError::Checksum);
    }
    let mut out = Vec::new();
    for _ in 0..r.u32()? {
        let (name, address, model, hash_seed) = (r.str()?, r.str()?, r.str()?, r.str()?);
        let (rank, start, last, digest, missing) = (r.u32()?, r.u64()?, r.u64()?, r.u64()?, r.u8()?);
        let length = usize::try_from(r.u64()?).map_err(|_| FrameError::Length)?;
        let cache = r.bytes(length)?.to_vec();
        let start_time = (start != 0).then(|| f64::from_bits(start));
        out.push(Saved { name, address, model, hash_seed, rank, start_time, last, digest, missing, cache });
    }
    Ok(out)
}

/// Reads the file; a missing or damaged one is an empty one.
pub fn read(path: &Path) -> Vec<Saved> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!("checkpoint {}: {error}", path.display());
            return Vec::new();
        }
    };
    decode(&bytes).unwrap_or_else(|error| {
        tracing::warn!("checkpoint {} not used: {error}", path.display());
        Vec::new()
    })
}
