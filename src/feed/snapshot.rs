//! A snapshot answer: everything that the bridge knew of one range of hashes when it had sent batch `seq`.
//!
//! `GET /kvroute/v1/snapshot?from=<hash, 16 hex digits>[&through=<hash>]` answers with the range that begins at `from`
//! and ends at `through`, or before it where the answer reaches 1 MiB; the next one is asked for at `through + 1`,
//! until `through` is what was asked for (all ones when nothing was).
//! Every answer carries all replicas, so it stands on its own.
//!
//! `"KVS" ‖ version u8 ‖ term u64 ‖ epoch u64 ‖ seq u64 ‖ from u64 ‖ through u64 ‖ records ‖ XXH3_64 of all before it`
//!
//! How a reader keeps it exact: hold the answer until it has applied batch `seq` of the same epoch; then replace
//! what it believes of the range; then apply again, for that range, the batches it has applied after `seq`.

use super::record::Record;
use super::wire;
use super::{Epoch, FrameError};

const MAGIC: &[u8] = b"KVS";
const VERSION: u8 = 1;
/// Bytes of the largest answer, give or take one record.
pub const MAX_ANSWER_BYTES: usize = 1 << 20;

/// One answer in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Who wrote it.
    pub epoch: Epoch,
    /// The last batch whose changes it contains.
    pub seq: u64,
    /// The first hash of the range.
    pub from: u64,
    /// The last hash of the range, itself within it.
    pub through: u64,
    /// All replicas, then what they hold of the range ([`Record::Held`]).
    pub records: Vec<Record>,
}

impl Snapshot {
    /// The frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire::begin(MAGIC, VERSION);
        for field in [self.epoch.term, self.epoch.id, self.seq, self.from, self.through] {
            out.u64(field);
        }
        self.records.iter().for_each(|r| r.write(&mut out));
        wire::seal(out)
    }

    /// The whole frame checked and read.
    pub fn decode(frame: &[u8]) -> Result<Snapshot, FrameError> {
        let mut r = wire::open(frame, MAGIC, VERSION)?;
        let mut snapshot = Snapshot {
            epoch: Epoch { term: r.u64()?, id: r.u64()? },
            seq: r.u64()?,
            from: r.u64()?,
            through: r.u64()?,
            records: Vec::new(),
        };
        if snapshot.from > snapshot.through {
            return Err(FrameError::Record("range ends before it begins"));
        }
        while !r.0.is_empty() {
            snapshot.records.extend(Record::read(&mut r)?);
        }
        Ok(snapshot)
    }
}
