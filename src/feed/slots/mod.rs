//! How batches get from the ingest VM to every router VM, and who may send them.
//!
//! All VMs of one Envoy share a few keys and one queue per slot, through [`Shared`]:
//!
//! | key | one writer | says |
//! |---|---|---|
//! | `kvroute-slot-<n>` | the router VM that leases slot n | nonce, generation, heartbeat, last batch applied, its queue |
//! | `kvroute-sent-<n>` | ingest | batches and bytes put into the queue of slot n |
//! | `kvroute-lead` | ingest | which bridge leads, and when it was last heard of |
//! | `kvroute-boot` | whoever comes first | a random of this Envoy process |
//!
//! * [`SlotLease`] is a router VM's side: it leases a slot, keeps it, notices that somebody else has it, and lists
//!   the other live ones.
//! * [`ingest`] is the other side: it checks a batch, decides whether its sender leads, and copies it to every
//!   live slot. It keeps nothing in its own memory.
//!
//! Slots are leased from the lowest number on, so whoever looks at them stops at the first key that never was.
//! A key cannot be deleted, so their number is bounded and none is named by content. The first write of a key has
//! nothing to compare with and can race; so it is read again, and a heartbeat by compare-and-swap finds out the
//! rest.

pub mod ingest;
mod lease;
mod values;

pub use ingest::{Answer, IngestLimits, SlotReport};
pub use lease::{SlotLease, Ticked};
pub use values::{Lead, Slot};

use crate::clock::SECOND;

#[cfg(test)]
pub mod fake;
#[cfg(test)]
mod tests;

/// Slots at most: router VMs of one Envoy.
pub const MAX_SLOTS: u32 = 256;
/// A slot without a heartbeat for this long is anybody's.
pub const SLOT_STALE: u64 = 3 * SECOND;
/// A bridge that was silent for this long may be followed by another.
pub const LEAD_STALE: u64 = 2 * SECOND;

/// What became of [`Shared::shared_set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The key has the new value.
    Done,
    /// Somebody else wrote it since it was read: nothing happened.
    Changed,
    /// The host refused.
    Failed,
}

/// A queue by the host's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(pub u32);

/// Keys and queues that all VMs of one Envoy share.
pub trait Shared {
    /// The value of a key and its number for the next [`Shared::shared_set`]; `None` when it never was.
    fn shared_get(&self, key: &str) -> Option<(Vec<u8>, u32)>;
    /// Sets a key. With a `cas` other than 0, only if nobody wrote it since it was read with that number.
    fn shared_set(&self, key: &str, value: &[u8], cas: u32) -> Set;
    /// The queue of this name, made when there is none; its messages are announced to the caller from now on.
    fn register_queue(&self, name: &str) -> Option<QueueId>;
    /// Appends a message. False: there is no such queue.
    fn enqueue(&self, queue: QueueId, message: &[u8]) -> bool;
    /// Takes the oldest message.
    fn dequeue(&self, queue: QueueId) -> Option<Vec<u8>>;
}

fn slot_key(number: u32) -> String {
    format!("kvroute-slot-{number}")
}

fn queue_name(number: u32) -> String {
    format!("kvroute-feed-{number}")
}

/// Whether a message is a batch, the only kind whose backlog is counted.
fn is_batch(message: &[u8]) -> bool {
    message.starts_with(b"KVB")
}

/// A random of this Envoy process, the same in all its VMs: `random` if nobody gave one yet.
pub fn boot_id(shared: &(impl Shared + ?Sized), random: u64) -> Option<u64> {
    const KEY: &str = "kvroute-boot";
    if shared.shared_get(KEY).is_none() {
        shared.shared_set(KEY, &random.to_le_bytes(), 0);
    }
    let (value, _) = shared.shared_get(KEY)?;
    value.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}
