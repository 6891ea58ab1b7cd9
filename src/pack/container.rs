//! The bytes of a pack file, little-endian:
//!
//! ```text
//! "KVROUTE\x01"  8   magic
//! version        4   FORMAT; a reader refuses any other
//! packs          4   how many packs
//! length         8   of the whole file
//! checksum       8   XXH3-64 of everything after this field
//! table              per section: pack u32, kind u32, offset u64, length u64
//! sections           each begins at a multiple of 64
//! ```

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::PackError;

/// The format that this build writes and reads.
pub const FORMAT: u32 = 2;
/// What a pack file begins with.
pub const MAGIC: [u8; 8] = *b"KVROUTE\x01";

const HEADER: usize = 36;
const ENTRY: usize = 24;
const ALIGN: usize = 64;
/// More packs in one file than this are taken for damage.
const MAX_SECTIONS: usize = 4096;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SectionKind {
    /// [`super::Meta`] as JSON.
    Meta = 1,
    /// `tokenizer.json`, for the `tokenizers` crate.
    TokenizerJson = 2,
    /// Header of the compact tokenizer, as JSON; its tables follow, see [`crate::tokenizer::compact`].
    Compact = 16,
    /// (left, right) → rank.
    MergeSlots = 17,
    /// Rank → id.
    MergeIds = 18,
    /// Ids of bytes or ASCII characters, ids of bytes to fall back to.
    Symbols = 19,
    /// Unicode classes, first stage.
    Classes1 = 20,
    /// Unicode classes, second stage.
    Classes2 = 21,
    /// Added tokens of the first pass: nodes.
    FirstNodes = 22,
    /// Added tokens of the first pass: edges.
    FirstEdges = 23,
    /// Added tokens of the second pass: nodes.
    SecondNodes = 24,
    /// Added tokens of the second pass: edges.
    SecondEdges = 25,
    /// Words that merging would get wrong.
    Exceptions = 26,
    /// Ids of characters.
    Characters = 27,
    /// Pairs of characters that may be cut apart.
    CutPairs = 28,
}

impl SectionKind {
    /// The name of a kind for people.
    pub fn label(kind: u32) -> &'static str {
        match kind {
            1 => "meta",
            2 => "tokenizer.json",
            16 => "compact",
            17 => "merges",
            18 => "merge ids",
            19 => "symbols",
            20 | 21 => "classes",
            22 | 23 => "added tokens",
            24 | 25 => "normalised added tokens",
            26 => "exceptions",
            27 => "characters",
            28 => "cuts",
            _ => "unknown",
        }
    }
}

/// Where a section lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// See [`SectionKind`]; unknown ones are kept by tools and ignored by readers.
    pub kind: u32,
    /// From the start of the file.
    pub offset: usize,
    /// In bytes.
    pub len: usize,
}

/// The bytes of a pack file, wherever they live.
#[derive(Clone)]
pub enum PackBytes {
    /// In the program itself: the wasm's data segment.
    Static(&'static [u8]),
    /// On the heap.
    Shared(Arc<[u8]>),
}

impl PackBytes {
    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            PackBytes::Static(bytes) => bytes,
            PackBytes::Shared(bytes) => bytes,
        }
    }

    /// The bytes of one section.
    pub fn section(&self, section: &Section) -> Result<&[u8], PackError> {
        let end = section.offset.checked_add(section.len);
        end.and_then(|end| self.as_slice().get(section.offset..end)).ok_or_else(|| {
            PackError::new(format!("the {} section lies outside the file", SectionKind::label(section.kind)))
        })
    }
}

impl std::fmt::Debug for PackBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.as_slice().len())
    }
}

impl From<&'static [u8]> for PackBytes {
    fn from(bytes: &'static [u8]) -> Self {
        PackBytes::Static(bytes)
    }
}

impl From<Vec<u8>> for PackBytes {
    fn from(bytes: Vec<u8>) -> Self {
        PackBytes::Shared(bytes.into())
    }
}

/// The sections of each pack, checked to lie inside the file.
pub fn read(bytes: &[u8]) -> Result<Vec<Vec<Section>>, PackError> {
    if bytes.first_chunk::<8>() != Some(&MAGIC) {
        return Err(PackError::new("not a pack file: it does not begin with the magic; make one with `kvroute pack`"));
    }
    let version = u32_at(bytes, 8)?;
    if version > FORMAT {
        return Err(PackError::new(format!(
            "format {version} is newer than this kvroute reads ({FORMAT}); update kvroute, or pack the model with this one"
        )));
    }
    if version < FORMAT {
        return Err(PackError::new(format!(
            "format {version} is too old (this kvroute reads {FORMAT}); pack the model again"
        )));
    }
    let length = u64_at(bytes, 16)?;
    if length != bytes.len() as u64 {
        return Err(PackError::new(format!(
            "cut or padded: the header says {length} bytes, there are {}; copy or pack it again",
            bytes.len()
        )));
    }
    let body = bytes.get(32..).unwrap_or_default();
    if xxh3_64(body) != u64_at(bytes, 24)? {
        return Err(PackError::new("damaged: the checksum does not fit; copy or pack it again"));
    }
    let (packs, sections) = (u32_at(bytes, 12)? as usize, u32_at(bytes, 32)? as usize);
    if packs > MAX_SECTIONS || sections > MAX_SECTIONS {
        return Err(PackError::new("damaged: the section table is too long; pack the model again"));
    }
    let mut out = vec![Vec::new(); packs];
    for index in 0..sections {
        let at = HEADER + index * ENTRY;
        let (pack, kind) = (u32_at(bytes, at)? as usize, u32_at(bytes, at + 4)?);
        let (offset, len) = (u64_at(bytes, at + 8)?, u64_at(bytes, at + 16)?);
        let inside = offset.checked_add(len).is_some_and(|end| end <= length);
        match out.get_mut(pack) {
            Some(list) if inside => list.push(Section { kind, offset: offset as usize, len: len as usize }),
            _ => {
                return Err(PackError::new(format!(
                    "damaged: section {index} lies outside the file; pack the model again"
                )));
            }
        }
    }
    Ok(out)
}

/// Makes a file of packs, each a list of (kind, bytes).
pub fn write(packs: &[Vec<(u32, &[u8])>]) -> Vec<u8> {
    let sections: usize = packs.iter().map(Vec::len).sum();
    let mut out = Vec::new();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&(packs.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 16]);
    out.extend_from_slice(&(sections as u32).to_le_bytes());
    let mut offset = (HEADER + sections * ENTRY).next_multiple_of(ALIGN);
    for (pack, list) in packs.iter().enumerate() {
        for (kind, bytes) in list {
            out.extend_from_slice(&(pack as u32).to_le_bytes());
            out.extend_from_slice(&kind.to_le_bytes());
            out.extend_from_slice(&(offset as u64).to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            offset = (offset + bytes.len()).next_multiple_of(ALIGN);
        }
    }
    for (_, bytes) in packs.iter().flatten() {
        out.resize(out.len().next_multiple_of(ALIGN), 0);
        out.extend_from_slice(bytes);
    }
    let length = (out.len() as u64).to_le_bytes();
    let checksum = xxh3_64(out.get(32..).unwrap_or_default()).to_le_bytes();
    for (to, from) in out.iter_mut().skip(16).zip(length.iter().chain(&checksum)) {
        *to = *from;
    }
    out
}

fn short() -> PackError {
    PackError::new("cut: the file ends within its header; copy or pack it again")
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, PackError> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u32::from_le_bytes(*b)).ok_or_else(short)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, PackError> {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map(|b| u64::from_le_bytes(*b)).ok_or_else(short)
}
