//! The ingest VM's side: it keeps nothing, so it may trap and start again at any time.

use super::values::{LEAD_KEY, Lead, Sent, Slot};
use super::{LEAD_STALE, MAX_SLOTS, QueueId, Set, Shared, is_batch};
use crate::clock::{MS, Time};
use crate::feed::batch::BatchReader;
use crate::feed::{Epoch, FrameError};

/// How much may wait in the queue of one slot.
#[derive(Clone, Copy, Debug)]
pub struct IngestLimits {
    /// Batches.
    pub batches: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Default for IngestLimits {
    fn default() -> Self {
        IngestLimits { batches: 2000, bytes: 64 << 20 }
    }
}

/// A live slot, for the answer to the bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct SlotReport {
    /// Its number.
    pub slot: u32,
    /// Which lease of it.
    pub generation: u64,
    /// The last batch of this sender that its VM applied.
    pub applied: u64,
    /// Batches that wait in its queue.
    pub backlog: u64,
}

/// What to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200: every live slot has it.
    Taken(Vec<SlotReport>),
    /// 400: not a batch.
    Bad(FrameError),
    /// 409: this bridge does not lead.
    Held {
        /// The one that does.
        holder: Epoch,
        /// Milliseconds since it was last heard of. Past two seconds, a higher term takes over.
        age_ms: u64,
    },
    /// 503: the host refused.
    Failed,
}

/// Checks a batch in full, decides whether its sender leads, and copies it to every live slot.
pub fn take_batch(shared: &(impl Shared + ?Sized), frame: &[u8], limits: IngestLimits, now: Time) -> Answer {
    let epoch = match check(frame) {
        Ok(epoch) => epoch,
        Err(error) => return Answer::Bad(error),
    };
    if let Err(refused) = lead(shared, epoch, now) {
        return refused;
    }
    let mut reports = Vec::new();
    for number in 0..MAX_SLOTS {
        let Some((slot, _)) = Slot::read(shared, number) else { break };
        let Some(queue) = slot.queue else { continue };
        if !slot.live(now) {
            drain(shared, queue, STALE_DRAIN);
            continue;
        }
        let (sent, _) = Sent::read(shared, number, slot.generation);
        let waits = sent.batches.saturating_sub(slot.taken);
        let wait_bytes = sent.bytes.saturating_sub(slot.taken_bytes);
        if waits >= limits.batches || wait_bytes.saturating_add(frame.len() as u64) > limits.bytes {
            // Its VM will see the gap and pull.
            let (batches, bytes) = drain(shared, queue, usize::MAX);
            Sent::update(shared, number, slot.generation, |sent| {
                sent.batches = sent.batches.saturating_sub(batches);
                sent.bytes = sent.bytes.saturating_sub(bytes);
            });
        }
        if shared.enqueue(queue, frame) {
            Sent::update(shared, number, slot.generation, |sent| {
                sent.batches = sent.batches.saturating_add(1);
                sent.bytes = sent.bytes.saturating_add(frame.len() as u64);
            });
        }
        let applied = if slot.epoch == epoch { slot.applied } else { 0 };
        reports.push(SlotReport { slot: number, generation: slot.generation, applied, backlog: waits });
    }
    Answer::Taken(reports)
}

/// Messages taken out of a stale slot's queue at each look.
const STALE_DRAIN: usize = 256;

/// Empties the queues of dead slots, a bounded number of messages at a time. For a tick; a batch does it as well.
pub fn janitor(shared: &(impl Shared + ?Sized), now: Time) {
    for number in 0..MAX_SLOTS {
        let Some((slot, _)) = Slot::read(shared, number) else { break };
        if let Some(queue) = slot.queue.filter(|_| !slot.live(now)) {
            drain(shared, queue, STALE_DRAIN);
        }
    }
}

fn check(frame: &[u8]) -> Result<Epoch, FrameError> {
    let mut reader = BatchReader::new(frame)?;
    while reader.next()?.is_some() {}
    match reader.header.epoch.id {
        0 => Err(FrameError::Record("epoch 0")),
        _ => Ok(reader.header.epoch),
    }
}

/// Whether `epoch` leads, or does from now on.
fn lead(shared: &(impl Shared + ?Sized), epoch: Epoch, now: Time) -> Result<(), Answer> {
    for _ in 0..8 {
        let (cas, holder) = match Lead::read(shared) {
            None => (0, None),
            Some((lead, cas)) => (cas, Some(lead).filter(|lead| lead.epoch.id != 0)),
        };
        if let Some(holder) = holder {
            let age = now.since(holder.heard);
            let own = holder.epoch.id == epoch.id && epoch.term >= holder.epoch.term;
            let follows = age >= LEAD_STALE && epoch.term > holder.epoch.term;
            if !own && !follows {
                return Err(Answer::Held { holder: holder.epoch, age_ms: to_ms(age) });
            }
            // Not one write a batch: the age is looked at in seconds.
            if holder.epoch == epoch && age < LEAD_STALE >> 4 {
                return Ok(());
            }
        }
        match shared.shared_set(LEAD_KEY, &Lead { epoch, heard: now }.encode(), cas) {
            Set::Done if cas != 0 => return Ok(()),
            // A first write compares with nothing: look who it is.
            Set::Done | Set::Changed => {}
            Set::Failed => return Err(Answer::Failed),
        }
    }
    Err(Answer::Failed)
}

fn drain(shared: &(impl Shared + ?Sized), queue: QueueId, most: usize) -> (u64, u64) {
    let (mut batches, mut bytes) = (0, 0);
    for _ in 0..most {
        let Some(message) = shared.dequeue(queue) else { break };
        if is_batch(&message) {
            batches += 1;
            bytes += message.len() as u64;
        }
    }
    (batches, bytes)
}

#[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
fn to_ms(nanoseconds: u64) -> u64 {
    nanoseconds / MS
}
