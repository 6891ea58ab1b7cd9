//! What the bridge tells the router VMs, and its bytes.
//!
//! * [`batch`]: a delta batch, `POST /kvroute/v1/feed` of the ingest listener, copied as it is into the queue of
//!   every live slot. One batch is one frame; an empty one is the heartbeat.
//! * [`snapshot`]: the answer to `GET /kvroute/v1/snapshot` of the bridge, one range of hashes at a time.
//! * [`digest`]: digests of ranges of hashes, by which a worker finds out what it has to pull.
//! * [`word`]: what a worker tells the bridge of requests.
//! * [`record`]: the records that batches and snapshots are made of; [`role`] what a replica is for.
//! * [`slots`]: how batches get from the ingest VM to every router VM, and who may send them.
//! * [`sync`]: how a router VM stays in step.
//!
//! Identity: a bridge process is an [`Epoch`] (random), its turn at leading is a term (counted up); `seq` counts
//! the batches of one (term, epoch) from 1 without holes. Replicas are numbered by the bridge; a number means
//! nothing outside its (term, epoch).
//!
//! All records are *set* operations on (replica, tier, hash): the bridge counts references, so that applying a
//! record twice, or a suffix of the batches again, changes nothing.
//!
//! All integers are little-endian. A frame that does not decode in full is refused whole.

/// Where the ingest listener takes batches.
pub const FEED_PATH: &str = "/kvroute/v1/feed";
/// Where the bridge gives snapshots.
pub const SNAPSHOT_PATH: &str = "/kvroute/v1/snapshot";

pub mod batch;
pub mod digest;
pub mod record;
pub mod role;
pub mod slots;
pub mod snapshot;
pub mod sync;
pub mod wire;
pub mod word;

/// One turn of one bridge at leading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Counted up each time a bridge takes the lead of an Envoy.
    pub term: u64,
    /// Random per bridge process, never 0.
    pub id: u64,
}

/// The number that the bridge gave a replica (one data-parallel rank of one engine).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FeedReplicaId(pub u32);

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Not a frame of this kind at all.
    Magic,
    /// Written by a newer version.
    Version(u8),
    /// Ends before its records do, or goes on after them.
    Length,
    /// The checksum over the frame does not hold.
    Checksum,
    /// A record of known kind with a value that cannot be.
    Record(&'static str),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameError::Magic => f.write_str("not a kvroute frame of this kind"),
            FrameError::Version(v) => write!(f, "frame version {v} is newer than this build: update it"),
            FrameError::Length => f.write_str("frame is cut off or has bytes left over"),
            FrameError::Checksum => f.write_str("frame checksum does not hold"),
            FrameError::Record(field) => write!(f, "bad record: {field}"),
        }
    }
}

impl std::error::Error for FrameError {}

#[cfg(test)]
mod tests;
