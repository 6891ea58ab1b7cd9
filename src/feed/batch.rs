//! A delta batch: `"KVB" ‖ version u8 ‖ term u64 ‖ epoch u64 ‖ seq u64 ‖ records ‖ XXH3_64 of all before it`.

use super::record::Record;
use super::wire::{self, Reader};
use super::{Epoch, FrameError};

const MAGIC: &[u8] = b"KVB";
const VERSION: u8 = 1;
/// Bytes before the first record.
pub const HEADER_BYTES: usize = 28;

/// What stands before the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Who wrote it.
    pub epoch: Epoch,
    /// Counts the batches of this epoch from 1.
    pub seq: u64,
}

/// One batch in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Who wrote it, and its place.
    pub header: BatchHeader,
    /// The changes, in order. Empty: a heartbeat.
    pub records: Vec<Record>,
}

impl Batch {
    /// The frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire::begin(MAGIC, VERSION);
        out.u64(self.header.epoch.term);
        out.u64(self.header.epoch.id);
        out.u64(self.header.seq);
        self.records.iter().for_each(|r| r.write(&mut out));
        wire::seal(out)
    }

    /// The whole frame checked and read.
    pub fn decode(frame: &[u8]) -> Result<Batch, FrameError> {
        let mut reader = BatchReader::new(frame)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next()? {
            records.push(record);
        }
        Ok(Batch { header: reader.header, records })
    }
}

/// Reads a batch record by record, so that applying it can stop and go on.
#[derive(Clone, Debug)]
pub struct BatchReader<'a> {
    /// Who wrote it, and its place.
    pub header: BatchHeader,
    rest: Reader<'a>,
}

impl<'a> BatchReader<'a> {
    /// Checks magic, version and checksum, and reads the header.
    pub fn new(frame: &'a [u8]) -> Result<Self, FrameError> {
        let mut r = wire::open(frame, MAGIC, VERSION)?;
        let header = Self::header(&mut r)?;
        Ok(BatchReader { header, rest: r })
    }

    /// The header of a frame that was checked before.
    pub fn header_of(frame: &[u8]) -> Option<BatchHeader> {
        Self::header(&mut Reader(frame.get(4..HEADER_BYTES)?)).ok()
    }

    fn header(r: &mut Reader<'_>) -> Result<BatchHeader, FrameError> {
        Ok(BatchHeader { epoch: Epoch { term: r.u64()?, id: r.u64()? }, seq: r.u64()? })
    }

    /// The next record of a known kind, or `None` at the end.
    #[allow(clippy::should_implement_trait)] // an error ends it, which Iterator cannot say as plainly
    pub fn next(&mut self) -> Result<Option<Record>, FrameError> {
        while !self.rest.0.is_empty() {
            if let Some(record) = Record::read(&mut self.rest)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Bytes of records not read yet.
    pub fn remaining(&self) -> usize {
        self.rest.0.len()
    }
}
