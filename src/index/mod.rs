//! Block hash to the replicas that hold it: what a prompt's chain is matched against.
//!
//! *In*: set operations on (column, tier, hash), as the feed brings them. *Out*: a [`Walk`] along the hashes of
//! a prompt, which says for each replica how many blocks from the start it holds and where a hit may end.
//!
//! * A replica owns one [`Column`]: one bit of one plane of 64. Clearing a replica gives it a fresh column and
//!   leaves the old one to a sweep in bounded slices; nobody matches against it from that moment.
//! * Each (tier, plane) with anything in it is a `table` of 4,096 `segment`s, chosen by the first 12 bits of
//!   the hash, so that a range of hashes is a range of segments. A segment is a small open-addressing table
//!   of 16-byte slots (hash, holders) that grows by five eighths on its own: no rehash of everything, no
//!   doubled array. At load 0.43 to 0.7 that is 23 to 37 bytes a block. Blocks where a hit may not end, which only
//!   models with several kinds of attention have, are in a second table of the same kind.
//! * A place within a segment depends on a random of this VM, so nobody can aim at long probes; a
//!   segment that somebody aims at stops growing and evicts its own.
//! * The bytes are counted exactly and bounded. Over the bound, the segment that would have grown gives up an
//!   eighth of its entries, least recently useful first, of those the deepest in their chains; the holders are
//!   marked truncated. An entry that is lost makes a match shorter, never wrong.
//!
//! Cost: one random access a block and table, whether matched or changed.

mod segment;
mod store;
mod table;
mod walk;

pub use store::{Column, Index, IndexStats, RangeJob};
pub use walk::{Held, Walk};

/// Replicas in one plane.
pub const PLANE: usize = 64;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod twin;
