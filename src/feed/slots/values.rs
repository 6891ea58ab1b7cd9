//! The values of the shared keys: fixed size, a version in front.

use super::{QueueId, Shared, slot_key};
use crate::clock::Time;
use crate::feed::wire::{Reader, Writer};
use crate::feed::{Epoch, FrameError};

const VERSION: u8 = 1;

/// `kvroute-slot-<n>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Random of the VM that leases it.
    pub nonce: u64,
    /// Counts the leases of this slot.
    pub generation: u64,
    /// When the VM was last alive.
    pub heartbeat: Time,
    /// The leader that the VM follows.
    pub epoch: Epoch,
    /// The last batch of it that was applied.
    pub applied: u64,
    /// Its queue, once registered.
    pub queue: Option<QueueId>,
    /// Batches taken out of the queue since the lease.
    pub taken: u64,
    /// Bytes of them.
    pub taken_bytes: u64,
}

/// `kvroute-sent-<n>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    /// The lease that it counts for.
    pub generation: u64,
    /// Batches put in, without those that were thrown away again.
    pub batches: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// `kvroute-lead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The bridge that leads.
    pub epoch: Epoch,
    /// When it was last heard of.
    pub heard: Time,
}

/// The key of [`Lead`].
pub(super) const LEAD_KEY: &str = "kvroute-lead";

impl Slot {
    pub(super) fn encode(&self) -> Vec<u8> {
        let queue = self.queue.map_or(u64::MAX, |q| u64::from(q.0));
        encode(&[
            self.nonce,
            self.generation,
            self.heartbeat.0,
            self.epoch.term,
            self.epoch.id,
            self.applied,
            queue,
            self.taken,
            self.taken_bytes,
        ])
    }

    fn decode(value: &[u8]) -> Option<Slot> {
        let mut r = versioned(value)?;
        let mut next = || r.u64().ok();
        Some(Slot {
            nonce: next()?,
            generation: next()?,
            heartbeat: Time(next()?),
            epoch: Epoch { term: next()?, id: next()? },
            applied: next()?,
            queue: u32::try_from(next()?).ok().map(QueueId),
            taken: next()?,
            taken_bytes: next()?,
        })
    }

    /// Slot number `number` and its cas; `None` when nobody ever leased it. A value that cannot be read is one
    /// that is stale.
    pub(super) fn read(shared: &(impl Shared + ?Sized), number: u32) -> Option<(Slot, u32)> {
        let (value, cas) = shared.shared_get(&slot_key(number))?;
        let nobody = Slot {
            nonce: 0,
            generation: 0,
            heartbeat: Time(0),
            epoch: Epoch::default(),
            applied: 0,
            queue: None,
            taken: 0,
            taken_bytes: 0,
        };
        Some((Slot::decode(&value).unwrap_or(nobody), cas))
    }

    /// Whether its VM was alive a short while ago.
    pub fn live(&self, now: Time) -> bool {
        self.nonce != 0 && now.since(self.heartbeat) <= super::SLOT_STALE
    }
}

impl Sent {
    fn key(number: u32) -> String {
        format!("kvroute-sent-{number}")
    }

    /// What was sent for this lease of the slot.
    pub fn read(shared: &(impl Shared + ?Sized), number: u32, generation: u64) -> (Sent, u32) {
        let none = Sent { generation, ..Sent::default() };
        let Some((value, cas)) = shared.shared_get(&Sent::key(number)) else { return (none, 0) };
        let read = || {
            let mut r = versioned(&value)?;
            Some(Sent { generation: r.u64().ok()?, batches: r.u64().ok()?, bytes: r.u64().ok()? })
        };
        (read().filter(|sent| sent.generation == generation).unwrap_or(none), cas)
    }

    /// Changes it; a few tries, since two VMs may take batches at once when the bridge changes.
    pub fn update(shared: &(impl Shared + ?Sized), number: u32, generation: u64, change: impl Fn(&mut Sent)) {
        for _ in 0..4 {
            let (mut sent, cas) = Sent::read(shared, number, generation);
            change(&mut sent);
            let value = encode(&[sent.generation, sent.batches, sent.bytes]);
            if shared.shared_set(&Sent::key(number), &value, cas) != super::Set::Changed {
                return;
            }
        }
    }
}

impl Lead {
    /// The bridge that leads, if any ever did, and the cas.
    pub fn read(shared: &(impl Shared + ?Sized)) -> Option<(Lead, u32)> {
        let (value, cas) = shared.shared_get(LEAD_KEY)?;
        let read = || {
            let mut r = versioned(&value)?;
            let epoch = Epoch { term: r.u64().ok()?, id: r.u64().ok()? };
            Some(Lead { epoch, heard: Time(r.u64().ok()?) })
        };
        Some((read().unwrap_or(Lead { epoch: Epoch::default(), heard: Time(0) }), cas))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(&[self.epoch.term, self.epoch.id, self.heard.0])
    }
}

fn encode(fields: &[u64]) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(VERSION);
    fields.iter().for_each(|field| out.u64(*field));
    out.0
}

fn versioned(value: &[u8]) -> Option<Reader<'_>> {
    let mut r = Reader(value);
    let version: Result<u8, FrameError> = r.u8();
    (version == Ok(VERSION)).then_some(r)
}
