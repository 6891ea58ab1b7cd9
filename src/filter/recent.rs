//! What a VM decided last, for people who watch: a handful, in memory.

use std::collections::VecDeque;

use super::host::Host;
use super::job::Job;
use super::metrics::Outcome;
use crate::clock::Time;
use crate::look::Decision;
use crate::nokey::NoKey;
use crate::routing::Reason;

/// So many are kept.
const KEPT: usize = 8;

/// One of them. Every request leaves one and hardly anybody looks, so its texts take the place of older ones.
#[derive(Debug, Default)]
struct Entry {
    at: Time,
    outcome: &'static str,
    model: String,
    pick: String,
    /// `None`: there was no pick.
    reason: Option<&'static str>,
    /// Of the prompt, and of those cached.
    tokens: (u64, u64),
}

/// The last decisions, the oldest first.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<Entry>);

impl Recent {
    /// What was decided on a job.
    pub fn decided(&mut self, job: &Job, now: Time, outcome: Outcome, pick: &str, reason: Reason, tokens: (u64, u64)) {
        let model = job.model.and_then(|at| job.setup.config.models.get(at)).map_or("", |model| &model.name);
        self.chosen(now, outcome, model, pick, reason, tokens);
    }

    /// A request for `model` was sent to `pick`, or would have been.
    pub fn chosen(&mut self, now: Time, outcome: Outcome, model: &str, pick: &str, reason: Reason, tokens: (u64, u64)) {
        self.push(now, outcome.label(), model, pick, Some(reason.label()), tokens);
    }

    /// The same; what comes by other paths is nobody's prompt, and not worth a look at the clock.
    pub fn left(&mut self, why: NoKey, host: &dyn Host) {
        if why != NoKey::NotOurPath {
            self.passed(host.now(), why);
        }
    }

    /// A request got no key.
    pub fn passed(&mut self, now: Time, why: NoKey) {
        self.push(now, why.label(), "", "", None, (0, 0));
    }

    fn push(
        &mut self,
        at: Time,
        outcome: &'static str,
        model: &str,
        pick: &str,
        reason: Option<&'static str>,
        tokens: (u64, u64),
    ) {
        let old = if self.0.len() >= KEPT { self.0.pop_front() } else { None };
        let mut entry = Entry { at, outcome, reason, tokens, ..old.unwrap_or_default() };
        for (text, new) in [(&mut entry.model, model), (&mut entry.pick, pick)] {
            text.clear();
            text.push_str(new);
        }
        self.0.push_back(entry);
    }

    /// The latest first.
    #[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
    pub fn list(&self, now: Time) -> Vec<Decision> {
        let told = |entry: &Entry| Decision {
            age_ms: now.since(entry.at) / 1_000_000,
            outcome: entry.outcome.to_owned(),
            model: entry.model.clone(),
            pick: entry.reason.map(|_| entry.pick.clone()),
            reason: entry.reason.map(str::to_owned),
            prompt_tokens: entry.tokens.0,
            matched_tokens: entry.tokens.1,
        };
        self.0.iter().rev().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let mut recent = Recent::default();
        for n in 0..20u64 {
            recent.chosen(Time(n * 1_000_000), Outcome::Routed, "m", "a:1", Reason::Cache, (n, 0));
        }
        recent.passed(Time(20_000_000), NoKey::TooShort);
        let list = recent.list(Time(25_000_000));
        assert_eq!((list.len(), list[0].outcome.as_str(), list[0].age_ms), (KEPT, "too_short", 5));
        assert_eq!((list[1].prompt_tokens, list[1].age_ms, list[1].reason.as_deref()), (19, 6, Some("cache")));
    }
}
