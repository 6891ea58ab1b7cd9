//! The load book: what this VM sent to each replica and is not done with.
//!
//! Booked at the pick, so that the next pick sees it at once. The prefill shrinks as the request's own blocks are
//! stored, and by the replica's measured speed where no event tells; it is over at the first data. The context
//! is there until the end and grows with the answer. A booking ends once, whatever is said of it later.

use hashbrown::HashMap;

use super::members::ReplicaIdx;
use crate::clock::Time;

/// One booked request of this VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BookingId(pub u64);

/// Requests and tokens on one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Load {
    /// Requests that have not ended.
    pub requests: u32,
    /// Prompt tokens that are still to be prefilled.
    pub prefill: f64,
    /// Tokens in the context of those requests, the answers so far included.
    pub context: f64,
}

impl Load {
    fn add(&mut self, other: Load, sign: f64) {
        self.requests = match sign > 0.0 {
            true => self.requests.saturating_add(other.requests),
            false => self.requests.saturating_sub(other.requests),
        };
        self.prefill = (self.prefill + sign * other.prefill).max(0.0);
        self.context = (self.context + sign * other.context).max(0.0);
        if self.requests == 0 {
            *self = Load::default(); // no rounding error outlives the last request
        }
    }

    /// The sum of two.
    pub fn plus(mut self, other: Load) -> Load {
        self.add(other, 1.0);
        self
    }
}

#[derive(Clone, Debug)]
struct Booking {
    replica: ReplicaIdx,
    prefill: f64,
    context: f64,
    booked: Time,
    uncached: f64,
}

/// What a booking came to at its first data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstData {
    /// Where it runs.
    pub replica: ReplicaIdx,
    /// Nanoseconds since the pick.
    pub after: u64,
    /// Prompt tokens that were thought not to be cached.
    pub uncached: f64,
}

/// The book of one VM.
#[derive(Debug, Default)]
pub struct Book {
    bookings: HashMap<BookingId, Booking>,
    next: u64,
    own: Vec<Load>,
    ticked: Option<Time>,
    changed: Vec<ReplicaIdx>,
}

impl Book {
    /// Books a request: `uncached` of its `context` tokens have to be prefilled.
    pub fn book(&mut self, replica: ReplicaIdx, uncached: f64, context: f64, now: Time) -> BookingId {
        self.next += 1;
        let id = BookingId(self.next);
        self.bookings.insert(id, Booking { replica, prefill: uncached, context, booked: now, uncached });
        self.change(replica, Load { requests: 1, prefill: uncached, context }, 1.0);
        id
    }

    /// The prompt turned out to have other numbers of tokens.
    pub fn correct(&mut self, id: BookingId, uncached: f64, context: f64) {
        self.update(id, |b| {
            if b.prefill > 0.0 {
                b.prefill = (b.prefill + uncached - b.uncached).max(0.0);
            }
            (b.uncached, b.context) = (uncached, context);
        });
    }

    /// `tokens` of its prompt were seen to be stored.
    pub fn prefilled(&mut self, id: BookingId, replica: ReplicaIdx, tokens: f64) {
        if self.replica(id) == Some(replica) {
            self.update(id, |b| b.prefill = (b.prefill - tokens).max(0.0));
        }
    }

    /// The first data of the answer: the prefill is over. `None` when it was over before.
    pub fn first_data(&mut self, id: BookingId, now: Time) -> Option<FirstData> {
        let booking = self.bookings.get(&id).filter(|b| b.prefill > 0.0 || b.uncached > 0.0)?;
        let seen = FirstData { replica: booking.replica, after: now.since(booking.booked), uncached: booking.uncached };
        self.update(id, |b| (b.prefill, b.uncached) = (0.0, 0.0));
        Some(seen)
    }

    /// The answer grew by `tokens`.
    pub fn grown(&mut self, id: BookingId, tokens: f64) {
        self.update(id, |b| b.context += tokens);
    }

    /// Envoy sent it elsewhere. Gives where it was.
    pub fn moved(&mut self, id: BookingId, to: ReplicaIdx) -> Option<ReplicaIdx> {
        let booking = self.bookings.get_mut(&id).filter(|b| b.replica != to)?;
        let from = std::mem::replace(&mut booking.replica, to);
        let load = Load { requests: 1, prefill: booking.prefill, context: booking.context };
        self.change(from, load, -1.0);
        self.change(to, load, 1.0);
        Some(from)
    }

    /// It has ended. Gives where it was; `None` when it had ended before.
    pub fn release(&mut self, id: BookingId) -> Option<ReplicaIdx> {
        let b = self.bookings.remove(&id)?;
        self.change(b.replica, Load { requests: 1, prefill: b.prefill, context: b.context }, -1.0);
        Some(b.replica)
    }

    /// Where a booking is.
    pub fn replica(&self, id: BookingId) -> Option<ReplicaIdx> {
        self.bookings.get(&id).map(|b| b.replica)
    }

    /// Lets the prefill shrink by the speed of each replica (tokens a second; 0: events tell, or it is unknown), for
    /// answers that come whole and engines that tell nothing. A replica prefills one request after the other, in the
    /// order in which they came.
    pub fn tick(&mut self, now: Time, rate: impl Fn(ReplicaIdx) -> f64) {
        let passed = self.ticked.replace(now).map_or(0, |before| now.since(before)) as f64 / 1e9;
        let booked = self.bookings.iter().filter(|(_, b)| b.prefill > 0.0);
        let mut booked: Vec<_> =
            booked.map(|(id, b)| (b.replica, *id)).filter(|(replica, _)| rate(*replica) > 0.0).collect();
        booked.sort_unstable();
        let (mut at, mut left) = (None, 0.0);
        for (replica, id) in booked {
            if at != Some(replica) {
                (at, left) = (Some(replica), rate(replica) * passed);
            }
            self.update(id, |b| {
                let done = b.prefill.min(left);
                b.prefill -= done;
                left -= done;
            });
        }
    }

    /// What this VM has on a replica.
    pub fn own(&self, replica: ReplicaIdx) -> Load {
        self.own.get(usize::from(replica.0)).copied().unwrap_or_default()
    }

    /// Requests that have not ended.
    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    /// Nothing is booked.
    pub fn is_empty(&self) -> bool {
        self.bookings.is_empty()
    }

    /// A replica is gone: its number may soon be another's.
    pub fn forget(&mut self, replica: ReplicaIdx) {
        self.bookings.retain(|_, b| b.replica != replica);
        if let Some(own) = self.own.get_mut(usize::from(replica.0)) {
            *own = Load::default();
        }
        self.changed.retain(|r| *r != replica);
    }

    /// The replicas whose load changed since the last call.
    pub fn take_changed(&mut self) -> Vec<ReplicaIdx> {
        std::mem::take(&mut self.changed)
    }

    fn update(&mut self, id: BookingId, change: impl FnOnce(&mut Booking)) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let (replica, before) = (booking.replica, (booking.prefill, booking.context));
        change(booking);
        let delta = (booking.prefill - before.0, booking.context - before.1);
        if delta != (0.0, 0.0) {
            self.change(replica, Load { requests: 0, prefill: delta.0, context: delta.1 }, 1.0);
        }
    }

    fn change(&mut self, replica: ReplicaIdx, load: Load, sign: f64) {
        let at = usize::from(replica.0);
        if self.own.len() <= at {
            self.own.resize(at + 1, Load::default());
        }
        if let Some(own) = self.own.get_mut(at) {
            own.add(load, sign);
        }
        if !self.changed.contains(&replica) {
            self.changed.push(replica);
        }
    }
}
