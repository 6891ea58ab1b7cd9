//! A router VM's slot.

use super::values::{Lead, Slot};
use super::{MAX_SLOTS, QueueId, Set, Shared, is_batch, queue_name, slot_key};
use crate::clock::{MS, Time};
use crate::feed::Epoch;

/// Between two heartbeats.
const HEARTBEAT: u64 = 50 * MS;
/// Between two looks at the other slots.
const LOOK: u64 = 250 * MS;
/// Messages that a new owner throws away of what the former one left.
const LEFT_OVER: usize = 10_000;

/// What a tick found out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ticked {
    /// The slot had been given to somebody else, and with it perhaps batches of ours: distrust what is believed.
    pub lost: bool,
    /// Slots whose VM died or changed since the last look.
    pub gone: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Mine {
    number: u32,
    slot: Slot,
    cas: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Peer {
    number: u32,
    nonce: u64,
    queue: QueueId,
}

/// The lease of a router VM. It lives in the memory of the VM, not of a root context.
#[derive(Debug)]
pub struct SlotLease {
    nonce: u64,
    mine: Option<Mine>,
    peers: Vec<Peer>,
    looked: Time,
}

impl SlotLease {
    /// Without a slot. `random` must differ from VM to VM.
    pub fn new(random: u64) -> Self {
        SlotLease { nonce: random | 1, mine: None, peers: Vec::new(), looked: Time(0) }
    }

    /// The number of the slot, once leased.
    pub fn number(&self) -> Option<u32> {
        self.mine.map(|m| m.number)
    }

    /// The nonce of the lease.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The queue of the slot: messages for others than the owner are none of ours.
    pub fn queue(&self) -> Option<QueueId> {
        self.mine.and_then(|m| m.slot.queue)
    }

    /// Leases a slot, if there is none yet: at the first request, and again when it was lost. True: there is one.
    pub fn lease(&mut self, shared: &(impl Shared + ?Sized), now: Time) -> bool {
        if self.mine.is_some() {
            return true;
        }
        for number in 0..MAX_SLOTS {
            let (former, cas) = match Slot::read(shared, number) {
                Some((slot, _)) if slot.live(now) => continue,
                Some((slot, cas)) => (slot.generation, cas),
                None => (0, 0),
            };
            let slot = Slot {
                nonce: self.nonce,
                generation: former.wrapping_add(1),
                heartbeat: now,
                epoch: Epoch::default(),
                applied: 0,
                queue: None,
                taken: 0,
                taken_bytes: 0,
            };
            match shared.shared_set(&slot_key(number), &slot.encode(), cas) {
                Set::Done => {}
                Set::Changed => continue,
                // Going on to the next one could leave a hole, at which those who look at the slots stop.
                Set::Failed => return false,
            }
            // A first write compares with nothing: look whose it is.
            let Some((seen, cas)) = Slot::read(shared, number).filter(|(seen, _)| seen.nonce == self.nonce) else {
                continue;
            };
            let mut mine = Mine { number, slot: seen, cas };
            mine.slot.queue = shared.register_queue(&queue_name(number));
            if let Some(queue) = mine.slot.queue {
                // What was meant for the former owner.
                for _ in 0..LEFT_OVER {
                    if shared.dequeue(queue).is_none() {
                        break;
                    }
                }
            }
            self.mine = Some(mine);
            if self.write(shared) {
                return true;
            }
            self.mine = None;
        }
        false
    }

    /// A root context that is new, or is left after another went, makes the queue's announcements its own.
    pub fn register(&mut self, shared: &(impl Shared + ?Sized)) {
        let Some(mine) = &mut self.mine else { return };
        mine.slot.queue = shared.register_queue(&queue_name(mine.number)).or(mine.slot.queue);
    }

    /// The next message of the queue: a batch, or one of another router VM.
    pub fn take(&mut self, shared: &(impl Shared + ?Sized)) -> Option<Vec<u8>> {
        let mine = self.mine.as_mut()?;
        let message = shared.dequeue(mine.slot.queue?)?;
        if is_batch(&message) {
            mine.slot.taken = mine.slot.taken.wrapping_add(1);
            mine.slot.taken_bytes = mine.slot.taken_bytes.wrapping_add(message.len() as u64);
        }
        Some(message)
    }

    /// Keeps the slot, and looks at the others. When it is somebody else's, leases another one.
    pub fn tick(&mut self, shared: &(impl Shared + ?Sized), applied: (Epoch, u64), now: Time) -> Ticked {
        let mut ticked = Ticked::default();
        let Some(mine) = &mut self.mine else { return ticked };
        if now.since(mine.slot.heartbeat) >= HEARTBEAT || mine.slot.queue.is_none() {
            (mine.slot.epoch, mine.slot.applied, mine.slot.heartbeat) = (applied.0, applied.1, now);
            if mine.slot.queue.is_none() {
                mine.slot.queue = shared.register_queue(&queue_name(mine.number));
            }
            if !self.write(shared) {
                ticked.lost = true;
                self.mine = None;
                // Another nonce, so that nobody takes the new lease for the old one.
                self.nonce = self.nonce.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(2) | 1;
                self.lease(shared, now);
            }
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            ticked.gone = self.look(shared, now);
        }
        ticked
    }

    /// Says something to every other live router VM.
    pub fn tell(&self, shared: &(impl Shared + ?Sized), message: &[u8]) {
        self.peers.iter().for_each(|peer| {
            shared.enqueue(peer.queue, message);
        });
    }

    /// A queue of another router VM, for a message that it sends back.
    pub fn any_peer(&self) -> Option<QueueId> {
        self.peers.first().map(|peer| peer.queue)
    }

    /// All slots whose VM is alive, for people to look at.
    pub fn live_slots(&self, shared: &(impl Shared + ?Sized), now: Time) -> Vec<u32> {
        let slots = (0..MAX_SLOTS).map_while(|number| Some((number, Slot::read(shared, number)?.0)));
        slots.filter(|(_, slot)| slot.live(now)).map(|(number, _)| number).collect()
    }

    /// The generation of the own slot.
    pub fn generation(&self) -> u64 {
        self.mine.map_or(0, |mine| mine.slot.generation)
    }

    /// The bridge that leads, so that pulling can begin before its first batch.
    pub fn leader(&self, shared: &(impl Shared + ?Sized)) -> Option<Epoch> {
        Lead::read(shared).map(|(lead, _)| lead.epoch).filter(|epoch| epoch.id != 0)
    }

    /// Writes the own slot. False: it is somebody else's.
    fn write(&mut self, shared: &(impl Shared + ?Sized)) -> bool {
        let Some(mine) = &mut self.mine else { return false };
        for _ in 0..3 {
            match shared.shared_set(&slot_key(mine.number), &mine.slot.encode(), mine.cas) {
                Set::Failed => return true, // the next tick tries again; until then the slot ages
                Set::Done | Set::Changed => {}
            }
            match Slot::read(shared, mine.number) {
                Some((seen, cas)) if seen.nonce == self.nonce => {
                    mine.cas = cas;
                    if seen == mine.slot {
                        return true;
                    }
                }
                _ => return false,
            }
        }
        true
    }

    fn look(&mut self, shared: &(impl Shared + ?Sized), now: Time) -> Vec<u32> {
        let before = std::mem::take(&mut self.peers);
        for number in 0..MAX_SLOTS {
            let Some((slot, _)) = Slot::read(shared, number) else { break };
            if let Some(queue) = slot.queue
                && slot.live(now)
                && slot.nonce != self.nonce
            {
                self.peers.push(Peer { number, nonce: slot.nonce, queue });
            }
        }
        let stayed = |old: &Peer| self.peers.iter().any(|new| new.number == old.number && new.nonce == old.nonce);
        before.iter().filter(|old| !stayed(old)).map(|old| old.number).collect()
    }
}
