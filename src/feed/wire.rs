//! Reading and writing little-endian fields, bounds checked.

use xxhash_rust::xxh3::xxh3_64;

use super::FrameError;
use crate::blocks::BlockHash;

/// Begins a frame: its kind and version.
pub fn begin(magic: &[u8], version: u8) -> Writer {
    let mut out = Writer(magic.to_vec());
    out.u8(version);
    out
}

/// Ends a frame with XXH3_64 of all before it.
pub fn seal(mut out: Writer) -> Vec<u8> {
    let sum = xxh3_64(&out.0);
    out.u64(sum);
    out.0
}

/// Checks kind, version and checksum of a frame, and gives what stands between.
pub fn open<'a>(frame: &'a [u8], magic: &[u8], version: u8) -> Result<Reader<'a>, FrameError> {
    let (body, sum) = frame.split_last_chunk::<8>().ok_or(FrameError::Length)?;
    let mut r = Reader(body);
    if r.bytes(magic.len()).map_err(|_| FrameError::Magic)? != magic {
        return Err(FrameError::Magic);
    }
    match r.u8()? {
        known if known == version => {}
        newer => return Err(FrameError::Version(newer)),
    }
    if xxh3_64(body) != u64::from_le_bytes(*sum) {
        return Err(FrameError::Checksum);
    }
    Ok(r)
}

/// Appends fields to a frame.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    /// Two bytes.
    pub fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// Four bytes.
    pub fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// Eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// A string of at most 65,535 bytes, length first; a longer one is cut at a character boundary.
    pub fn str(&mut self, v: &str) {
        let mut end = v.len().min(u16::MAX as usize);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        let part = v.get(..end).unwrap_or("");
        self.u16(part.len() as u16);
        self.0.extend_from_slice(part.as_bytes());
    }
    /// A count and that many hashes.
    pub fn hashes(&mut self, v: &[BlockHash]) {
        self.u32(v.len() as u32);
        let start = self.0.len();
        self.0.resize(start + v.len() * 8, 0);
        if let Some(room) = self.0.get_mut(start..) {
            for (place, hash) in room.as_chunks_mut::<8>().0.iter_mut().zip(v) {
                *place = hash.0.to_le_bytes();
            }
        }
    }
}

/// Takes fields off the front of a frame.
#[derive(Clone, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// `n` raw bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], FrameError> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(FrameError::Length)?;
        self.0 = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(FrameError::Length)?;
        self.0 = tail;
        Ok(*head)
    }
    /// One byte.
    pub fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[b]| b)
    }
    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }
    /// A string written by [`Writer::str`].
    pub fn str(&mut self) -> Result<String, FrameError> {
        let n = self.u16()? as usize;
        let raw = self.bytes(n)?;
        String::from_utf8(raw.to_vec()).map_err(|_| FrameError::Record("text is not UTF-8"))
    }
    /// Hashes written by [`Writer::hashes`].
    pub fn hashes(&mut self) -> Result<Vec<BlockHash>, FrameError> {
        let n = self.u32()? as usize;
        let raw = self.bytes(n.checked_mul(8).ok_or(FrameError::Length)?)?;
        let (chunks, _) = raw.as_chunks::<8>();
        Ok(chunks.iter().map(|c| BlockHash(u64::from_le_bytes(*c))).collect())
    }
}
