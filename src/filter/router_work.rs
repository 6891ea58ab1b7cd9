//! What a turn works on, and in which order.
//!
//! News of the feed first, then requests, small ones before long ones, then what nobody waits for. Whatever takes
//! more than a slice is cut, and what cannot be cut (rendering a long prompt, say) has a slice of its own.

use super::super::host::Host;
use super::super::job::Job;
use super::super::turns::Left;
use super::{Choice, FIRST_SYNC, Held, Router};
use crate::clock::{MS, Time};
use crate::nokey::{NoKey, NoKeyReason};

/// Nanoseconds that a request waits, for each of its bytes, behind those that came after it: twice what it takes. So
/// small ones pass long ones, and no long one waits for ever.
const BEHIND: u64 = 16;

impl Router {
    /// What [`Router::turn`] could do now.
    pub(super) fn left(&self, now: Time) -> Left {
        let waits = self.syncing(now);
        let mut held = self.held.iter().filter(|held| !(waits && held.job.is_done())).peekable();
        let some = held.peek().is_some() || !self.finishing.is_empty();
        match some || self.fleet.has_work() || self.link.has_news() {
            _ if held.any(|held| held.job.is_small()) => Left::Small,
            true => Left::Long,
            false => Left::Nothing,
        }
    }

    /// Whether requests should wait for the first snapshot.
    fn syncing(&self, now: Time) -> bool {
        self.setups.newest().config.bridge.is_some()
            && !self.fleet.synced()
            && self.first_request.is_some_and(|first| now.since(first) < FIRST_SYNC)
    }

    /// Lets go what was held for its whole time budget.
    pub(super) fn overdue(&mut self, now: Time, host: &dyn Host) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            if now.since(held.job.since) < budget(&held.job) {
                at += 1;
                continue;
            }
            let Some(mut held) = self.held.remove(at) else { return };
            let result = match self.follow(&mut held) {
                Ok(_) if held.job.hashes.is_empty() => {
                    Err(NoKeyReason::new(NoKey::TimeBudget, "the budget ended before the first block"))
                }
                Ok(_) => self.choose(&mut held, now, host),
                Err(reason) => Err(reason),
            };
            self.release_held(held, result, host);
        }
    }

    /// Feed first, up to half of the time if requests wait; then requests; then what is finishing. After `spare` only
    /// small requests, up to `until`.
    pub(super) fn work(&mut self, now: Time, until: Time, spare: Time, host: &dyn Host) {
        let feed_until = if self.held.is_empty() { spare } else { now.after(spare.since(now) >> 1) };
        self.link.receive(host, &mut self.fleet, feed_until);
        if self.fleet.has_work() {
            self.fleet.work(now, &mut || host.now() < feed_until);
        }
        let mut first = true;
        loop {
            let now = host.now();
            let Some(at) = self.next_held(now, now < spare, first).filter(|_| now < until) else { break };
            let Some(mut held) = self.held.remove(at) else { break };
            let until = if held.job.is_small() { until } else { spare };
            match self.advance(&mut held, until, host) {
                Some(result) => self.release_held(held, result, host),
                None => self.held.push_back(held),
            }
            first = false;
        }
        while host.now() < spare {
            let Some(mut finishing) = self.finishing.pop_front() else { break };
            let began = host.now();
            let setup = finishing.job.setup.clone();
            let unix = host.unix_seconds();
            let result = finishing.job.step(&mut self.tools, unix, &mut || host.now() < spare);
            finishing.worked = finishing.worked.saturating_add(host.now().since(began));
            let spent = finishing.worked > setup.config.limits.finish_budget_ms.saturating_mul(MS);
            if result.is_err() || finishing.job.is_done() || spent {
                self.finished(finishing);
            } else {
                self.finishing.push_back(finishing);
            }
        }
    }

    /// Which held request is to be worked on next, if any may: see [`BEHIND`]. `long`: it may be a long one; `first`:
    /// nothing was done in this slice.
    fn next_held(&self, now: Time, long: bool, first: bool) -> Option<usize> {
        let waits = self.syncing(now);
        let may = |job: &Job| !(waits && job.is_done()) && (job.is_small() || (long && (first || !job.next_is_long())));
        let turn = |job: &Job| job.since.after((job.remaining_bytes() as u64).saturating_mul(BEHIND));
        let held = self.held.iter().enumerate().filter(|(_, held)| may(&held.job));
        held.min_by_key(|(_, held)| turn(&held.job)).map(|(at, _)| at)
    }

    /// Works on a held request. `Some`: it is decided.
    pub(super) fn advance(
        &mut self,
        held: &mut Held,
        until: Time,
        host: &dyn Host,
    ) -> Option<Result<Choice, NoKeyReason>> {
        loop {
            let waits = self.syncing(host.now());
            if !waits || !held.job.is_done() {
                let step = match &mut held.watch {
                    None => held.job.step(&mut self.tools, host.unix_seconds(), &mut || host.now() < until),
                    Some(watch) => watch.step(&mut held.job, &mut self.tools, host),
                };
                if let Err(reason) = step
                    && held.job.hashes.is_empty()
                {
                    return Some(Err(reason));
                }
            }
            if !waits {
                let began = held.watch.is_some().then(|| host.now());
                let followed = self.follow(held);
                if let (Some(watch), Some(began)) = (&mut held.watch, began) {
                    watch.matched(began, host.now());
                }
                match followed {
                    Err(reason) => return Some(Err(reason)),
                    Ok(open) if held.job.is_done() || (!open && held.matching.is_some()) => {
                        if held.job.is_done() && held.job.hashes.is_empty() {
                            let detail = "the prompt does not fill a block";
                            return Some(Err(NoKeyReason::new(NoKey::TooShort, detail)));
                        }
                        return Some(self.choose(held, host.now(), host));
                    }
                    Ok(_) => {}
                }
            }
            if host.now() >= until || held.job.next_is_long() || (waits && held.job.is_done()) {
                return None;
            }
        }
    }

    /// Brings the matching up to the blocks that the job has. True: further blocks may change it.
    fn follow(&mut self, held: &mut Held) -> Result<bool, NoKeyReason> {
        if held.job.hashes.is_empty() {
            return Ok(true);
        }
        if held.matching.is_none() {
            let model = held.job.model.and_then(|at| held.job.setup.models.get(at));
            let model = model.ok_or_else(|| NoKeyReason::new(NoKey::Internal, "a job without its model"))?;
            let begun = self.fleet.begin(&model.config.name, model.config.block_size);
            let what = |kind| NoKeyReason::new(kind, format!("for {}", model.config.name));
            held.matching = Some(begun.map_err(what)?);
        }
        let Some(matching) = &mut held.matching else { return Ok(true) };
        self.fleet.push_all(matching, held.job.hashes.get(held.pushed..).unwrap_or_default());
        held.pushed = held.job.hashes.len();
        Ok(matching.open())
    }
}

/// How long a request may be held.
fn budget(job: &Job) -> u64 {
    job.setup.config.limits.time_budget_ms.saturating_mul(MS)
}
