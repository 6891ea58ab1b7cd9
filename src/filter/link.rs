//! A router VM's way to the others: its slot and the queue of it, snapshot pulls, and [bounces](super::bounce).
//!
//! A queue's messages are announced to the root context that registered it last, and to nobody once that is gone
//! (its listener was removed, say). Whoever notices makes the next tick register it again; noticed is a root context
//! that ends or begins, and a message that a tick finds without an announcement.

use super::bounce::Bounces;
use super::host::{Host, Level};
use super::metrics::{Counter, Gauge};
use crate::clock::{SECOND, Time};
use crate::config::Bridge;
use crate::feed::SNAPSHOT_PATH;
use crate::feed::slots::SlotLease;
use crate::feed::sync::SyncCounts;
use crate::replicas::Fleet;
use crate::replicas::peers::Message;

/// Between two looks at the numbers for metrics.
const REPORT: u64 = SECOND >> 1;

/// What the requests of a VM take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Uses {
    /// Requests under way.
    pub jobs: usize,
    /// Memory set aside for them.
    pub job_bytes: usize,
    /// Memory of what earlier prompts began with.
    pub prompt_bytes: usize,
}

/// See the [module](self).
pub struct Link {
    lease: SlotLease,
    /// The queue may have something.
    news: bool,
    /// Only a tick says so.
    unannounced: bool,
    /// The next tick is to register the queue.
    claim: bool,
    bounces: Bounces,
    reported: Time,
    counts: SyncCounts,
    evicted: u64,
}

impl Link {
    /// Without a slot.
    pub fn new(random: u64) -> Link {
        Link {
            lease: SlotLease::new(random),
            news: false,
            unannounced: false,
            claim: false,
            bounces: Bounces::default(),
            reported: Time(0),
            counts: SyncCounts::default(),
            evicted: 0,
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

    /// A root context is new or has gone: the queue's announcements must go to one that lives.
    pub fn claim(&mut self) {
        self.claim = true;
    }

    /// Something lies in a queue.
    pub fn announce(&mut self, host: &dyn Host) {
        self.bounces.answer(host);
        if self.lease.number().is_some() {
            (self.news, self.unannounced) = (true, false);
            host.count(Counter::QueueWakes, 1);
        }
    }

    /// Whether the queue may have something.
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Keeps the slot, notices who went, and writes the metrics now and then. True: it did.
    pub fn tick(&mut self, host: &dyn Host, fleet: &mut Fleet, uses: Uses, now: Time) -> bool {
        let nonce = self.lease.nonce();
        if self.lease.number().is_none() {
            self.bounces.offer(host, nonce, now);
            return false;
        }
        self.bounces.look(host, nonce, now);
        if std::mem::take(&mut self.claim) {
            self.lease.register(host);
        }
        if !self.news {
            (self.news, self.unannounced) = (true, true);
        }
        let ticked = self.lease.tick(host, fleet.applied(), now);
        if ticked.lost {
            host.log(Level::Warn, "the slot was somebody else's: everything is pulled again");
            fleet.distrust(now);
        }
        ticked.gone.into_iter().for_each(|slot| fleet.peer_gone(slot));
        if let Some(leader) = self.lease.leader(host) {
            fleet.adopt(leader, now);
        }
        let due = now.since(self.reported) >= REPORT;
        if due {
            self.reported = now;
            self.report(host, fleet, uses, now);
        }
        due
    }

    /// Takes messages off the queue until `until`.
    pub fn receive(&mut self, host: &dyn Host, fleet: &mut Fleet, until: Time) {
        while self.news {
            let now = host.now();
            if now >= until {
                return;
            }
            let Some(message) = self.lease.take(host) else {
                (self.news, self.unannounced) = (false, false);
                return;
            };
            if std::mem::take(&mut self.unannounced) {
                // Perhaps it is only on its way; registering again does no harm.
                host.count(Counter::QueueMissed, 1);
                self.claim = true;
            }
            if self.bounces.receive(&message, host) {
                continue;
            }
            if Message::is(&message) {
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
        if let Some(pull) = fleet.next_pull(now) {
            let epoch = fleet.applied().0.id;
            let path = format!("{SNAPSHOT_PATH}?{}&epoch={epoch:016x}", pull.query());
            if !host.ask(&bridge.cluster, &path, secret, &fleet.take_words(), bridge.timeout_ms) {
                fleet.on_pull_failed(now);
            }
        }
    }

    /// Whether another VM would send a bounce back.
    pub fn can_bounce(&self) -> bool {
        self.lease.queue().is_some() && (self.bounces.partner().is_some() || self.lease.any_peer().is_some())
    }

    /// Asks another VM to call this one. False: nobody would.
    pub fn bounce(&mut self, host: &dyn Host, now: Time) -> bool {
        let partner = self.bounces.partner().or_else(|| self.lease.any_peer());
        let (Some(to), Some(own)) = (partner, self.lease.queue()) else { return false };
        self.bounces.send(host, to, own, now)
    }

    fn report(&mut self, host: &dyn Host, fleet: &Fleet, uses: Uses, now: Time) {
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
        host.count(Counter::Evicted, stats.index.evicted.saturating_sub(self.evicted));
        self.evicted = stats.index.evicted;
        for (gauge, value) in [
            (Gauge::Jobs, uses.jobs as u64),
            (Gauge::JobBytes, uses.job_bytes as u64),
            (Gauge::PromptBytes, uses.prompt_bytes as u64),
            (Gauge::FeedBytes, stats.sync.backlog_bytes as u64),
            (Gauge::Bookings, stats.bookings as u64),
            (Gauge::MemoryBytes, host.memory_used() as u64),
            (Gauge::IndexBlocks, stats.index.entries as u64),
            (Gauge::IndexBytes, stats.index.bytes as u64),
            (Gauge::Synced, u64::from(stats.sync.synced)),
            (Gauge::AppliedSeq, stats.sync.applied),
            (Gauge::Version, crate::VERSION_NUMBER),
        ] {
            host.gauge(gauge, slot, value);
        }
    }
}
