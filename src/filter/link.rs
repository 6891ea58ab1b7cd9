//! A router VM's way to the others: its slot and the queue of it, snapshot pulls, and bounces.
//!
//! A *bounce* is a message that another VM sends back at once: it calls this VM again sooner than a tick would.

use super::host::{Host, Level};
use super::metrics::{Counter, Gauge};
use crate::clock::{MS, SECOND, Time};
use crate::config::Bridge;
use crate::feed::SNAPSHOT_PATH;
use crate::feed::slots::{QueueId, SlotLease};
use crate::feed::sync::SyncCounts;
use crate::replicas::Fleet;
use crate::replicas::peers::Message;

/// Between two looks at the numbers for metrics.
const REPORT: u64 = SECOND >> 1;
/// A bounce that has not come back after this long is given up.
const LOST: u64 = 20 * MS;

const BOUNCE: &[u8] = b"KVT>";
const BOUNCED: &[u8] = b"KVT<";

/// See the [module](self).
pub struct Link {
    lease: SlotLease,
    news: bool,
    bounced: Option<Time>,
    reported: Time,
    counts: SyncCounts,
}

impl Link {
    /// Without a slot.
    pub fn new(random: u64) -> Link {
        Link {
            lease: SlotLease::new(random),
            news: false,
            bounced: None,
            reported: Time(0),
            counts: SyncCounts::default(),
        }
    }

    /// The number of the slot.
    pub fn slot(&self) -> Option<u32> {
        self.lease.number()
    }

    /// The lease behind it.
    pub fn lease(&self) -> &SlotLease {
        &self.lease
    }

    /// The VM serves requests: it needs a slot from now on.
    pub fn serve(&mut self, host: &dyn Host, fleet: &mut Fleet, now: Time) {
        if self.lease.number().is_some() || !self.lease.lease(host, now) {
            return;
        }
        self.news = true;
        if let Some(leader) = self.lease.leader(host) {
            fleet.adopt(leader, now);
        }
        host.log(Level::Info, &format!("slot {} leased", self.lease.number().unwrap_or(0)));
    }

    /// The current root context is new, or another one went: the queue's announcements go to it from now on.
    pub fn register(&mut self, host: &dyn Host) {
        self.lease.register(host);
        self.news = true;
    }

    /// Something lies in the queue.
    pub fn announce(&mut self) {
        self.news = true;
    }

    /// Whether the queue may have something.
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Keeps the slot, notices who went, and writes the metrics.
    pub fn tick(&mut self, host: &dyn Host, fleet: &mut Fleet, jobs: (usize, usize), now: Time) {
        if self.lease.number().is_none() {
            return;
        }
        // An announcement may have been lost with the root context that it was for.
        self.news = true;
        let ticked = self.lease.tick(host, fleet.applied(), now);
        if ticked.lost {
            host.log(Level::Warn, "the slot was somebody else's: everything is pulled again");
            fleet.distrust(now);
        }
        ticked.gone.into_iter().for_each(|slot| fleet.peer_gone(slot));
        if let Some(leader) = self.lease.leader(host) {
            fleet.adopt(leader, now);
        }
        if now.since(self.reported) >= REPORT {
            self.reported = now;
            self.report(host, fleet, jobs, now);
        }
    }

    /// Takes messages off the queue until `until`.
    pub fn receive(&mut self, host: &dyn Host, fleet: &mut Fleet, until: Time) {
        while self.news {
            let now = host.now();
            if now >= until {
                return;
            }
            let Some(message) = self.lease.take(host) else {
                self.news = false;
                return;
            };
            if let Some(from) = message.strip_prefix(BOUNCE) {
                if let Some(from) = from.first_chunk::<4>() {
                    host.enqueue(QueueId(u32::from_le_bytes(*from)), BOUNCED);
                }
            } else if message == BOUNCED {
                self.bounced = None;
            } else if Message::is(&message) {
                // A message that does not decode is as good as lost, which the next one mends.
                let _ = fleet.on_peer(&message, now);
            } else {
                fleet.on_frame(&message, now);
            }
        }
    }

    /// Tells the others what they should hear, and asks the bridge for the next range.
    pub fn talk(&mut self, host: &dyn Host, fleet: &mut Fleet, bridge: Option<&Bridge>, secret: &str) {
        let (Some(slot), now) = (self.lease.number(), host.now()) else { return };
        if let Some(message) = fleet.take_message(slot, self.lease.nonce(), now) {
            self.lease.tell(host, &message);
        }
        let Some(bridge) = bridge else { return };
        if let Some(from) = fleet.next_pull(now) {
            let epoch = fleet.applied().0.id;
            let path = format!("{SNAPSHOT_PATH}?from={from:016x}&epoch={epoch:016x}");
            if !host.get(&bridge.cluster, &path, secret, bridge.timeout_ms) {
                fleet.on_pull_failed(now);
            }
        }
    }

    /// Whether another VM would send a bounce back.
    pub fn can_bounce(&self) -> bool {
        self.lease.any_peer().is_some() && self.lease.queue().is_some()
    }

    /// Asks another VM to call this one. False: nobody would.
    pub fn bounce(&mut self, host: &dyn Host, now: Time) -> bool {
        let (Some(peer), Some(own)) = (self.lease.any_peer(), self.lease.queue()) else { return false };
        if let Some(sent) = self.bounced {
            // One at a time; one that is not answered says that the peer is busy or dead.
            if now.since(sent) < LOST {
                return true;
            }
            self.bounced = None;
            return false;
        }
        let mut message = BOUNCE.to_vec();
        message.extend_from_slice(&own.0.to_le_bytes());
        let sent = host.enqueue(peer, &message);
        self.bounced = sent.then_some(now);
        sent
    }

    fn report(&mut self, host: &dyn Host, fleet: &Fleet, (jobs, job_bytes): (usize, usize), now: Time) {
        let Some(slot) = self.lease.number() else { return };
        let stats = fleet.stats(now);
        let (new, old) = (stats.sync.counts, self.counts);
        for (counter, new, old) in [
            (Counter::FeedBatches, new.batches, old.batches),
            (Counter::FeedGaps, new.gaps, old.gaps),
            (Counter::Snapshots, new.answers, old.answers),
            (Counter::FailedPulls, new.failed_pulls, old.failed_pulls),
            (Counter::Repaired, new.repaired, old.repaired),
        ] {
            if new > old {
                host.count(counter, new - old);
            }
        }
        self.counts = new;
        for (gauge, value) in [
            (Gauge::Jobs, jobs as u64),
            (Gauge::JobBytes, job_bytes as u64),
            (Gauge::MemoryBytes, host.memory_used() as u64),
            (Gauge::IndexBlocks, stats.index.entries as u64),
            (Gauge::IndexBytes, stats.index.bytes as u64),
            (Gauge::Synced, u64::from(stats.sync.synced)),
            (Gauge::AppliedSeq, stats.sync.applied),
        ] {
            host.gauge(gauge, slot, value);
        }
    }
}
