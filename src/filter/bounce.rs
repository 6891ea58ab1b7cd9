//! Bounces: messages that another VM sends back at once, which calls this VM again sooner than a tick would.
//!
//! Who sends them back must run in another thread: a message to oneself is delivered before the event loop looks
//! at its sockets. VMs without a slot offer themselves, which in Envoy's main thread is one for ever, so that there
//! is somebody even with one worker. They share one queue. Its announcements go to whoever registered it last, so
//! they register it again and again; a shared key says who did. Where nobody offers, other slots do it.

use super::host::Host;
use super::metrics::Counter;
use crate::clock::{MS, SECOND, Time};
use crate::feed::slots::QueueId;

const KEY: &str = "kvroute-bouncer";
const QUEUE: &str = "kvroute-bounce";
/// Between two offers.
const OFFER: u64 = SECOND;
/// An offer that is older is not taken.
const STALE: u64 = 3 * SECOND;
/// Between two looks at who offers.
const LOOK: u64 = 250 * MS;
/// A bounce that has not come back after this long is given up.
const LOST: u64 = 20 * MS;
/// Messages that are sent back at a time.
const AT_ONCE: usize = 64;

const THERE: &[u8] = b"KVT>";
const BACK: &[u8] = b"KVT<";

/// A VM's side of it, both sides that is. See the [module](self).
#[derive(Debug, Default)]
pub struct Bounces {
    sent: Option<Time>,
    offers: Option<QueueId>,
    offered: Time,
    partner: Option<QueueId>,
    looked: Time,
}

impl Bounces {
    /// This VM, known by its `nonce`, has time to send back. For every tick.
    pub fn offer(&mut self, host: &dyn Host, nonce: u64, now: Time) {
        if self.offers.is_some() && now.since(self.offered) < OFFER {
            return;
        }
        self.offered = now;
        self.offers = host.register_queue(QUEUE);
        let Some(queue) = self.offers else { return };
        let mut value = nonce.to_le_bytes().to_vec();
        value.extend_from_slice(&now.0.to_le_bytes());
        value.extend_from_slice(&queue.0.to_le_bytes());
        host.shared_set(KEY, &value, 0);
        self.answer(host);
    }

    /// Sends back what waits for that.
    pub fn answer(&self, host: &dyn Host) {
        let Some(queue) = self.offers else { return };
        for _ in 0..AT_ONCE {
            let Some(message) = host.dequeue(queue) else { return };
            self.handle(&message, host);
        }
    }

    /// Looks for somebody to send back the own ones. For every tick.
    pub fn look(&mut self, host: &dyn Host, nonce: u64, now: Time) {
        if self.looked == Time(0) || now.since(self.looked) >= LOOK {
            self.looked = now;
            self.partner = partner(host, nonce, now);
        }
    }

    /// Who would send back, if not one of the other slots.
    pub fn partner(&self) -> Option<QueueId> {
        self.partner
    }

    /// Asks `to` to call the owner of `own`. False: it does not answer.
    pub fn send(&mut self, host: &dyn Host, to: QueueId, own: QueueId, now: Time) -> bool {
        if let Some(sent) = self.sent {
            // One at a time; one that is not answered says that the other is busy or dead.
            if now.since(sent) < LOST {
                return true;
            }
            self.sent = None;
            return false;
        }
        let mut message = THERE.to_vec();
        message.extend_from_slice(&own.0.to_le_bytes());
        let sent = host.enqueue(to, &message);
        self.sent = sent.then_some(now);
        sent
    }

    /// A message of a slot's queue. False: it is no bounce.
    pub fn receive(&mut self, message: &[u8], host: &dyn Host) -> bool {
        if message == BACK {
            self.sent = None;
            host.count(Counter::Bounces, 1);
            return true;
        }
        self.handle(message, host)
    }

    fn handle(&self, message: &[u8], host: &dyn Host) -> bool {
        let from = message.strip_prefix(THERE).and_then(|rest| rest.first_chunk::<4>());
        from.inspect(|from| _ = host.enqueue(QueueId(u32::from_le_bytes(**from)), BACK)).is_some()
    }
}

fn partner(host: &dyn Host, nonce: u64, now: Time) -> Option<QueueId> {
    let (value, _) = host.shared_get(KEY)?;
    let (who, rest) = value.split_first_chunk::<8>()?;
    let (when, queue) = rest.split_first_chunk::<8>()?;
    let fresh = now.since(Time(u64::from_le_bytes(*when))) < STALE;
    // What this VM itself offered, before it got its slot, would come back without a turn of the loop.
    let other = u64::from_le_bytes(*who) != nonce;
    (fresh && other).then_some(QueueId(u32::from_le_bytes(*queue.first_chunk()?)))
}
