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

/// The last decisions, the oldest first.
#[derive(Debug, Default)]
pub struct Recent(VecDeque<(Time, Decision)>);

impl Recent {
    /// What was decided on a job.
    pub fn decided(&mut self, job: &Job, now: Time, outcome: Outcome, pick: &str, reason: Reason, tokens: (u64, u64)) {
        let model = job.model.and_then(|at| job.setup.config.models.get(at)).map_or("", |model| &model.name);
        self.chosen(now, outcome, model, pick, reason, tokens);
    }

    /// A request for `model` was sent to `pick`, or would have been.
    pub fn chosen(&mut self, now: Time, outcome: Outcome, model: &str, pick: &str, reason: Reason, tokens: (u64, u64)) {
        let decision = Decision {
            outcome: outcome.label().to_owned(),
            model: model.to_owned(),
            pick: Some(pick.to_owned()),
            reason: Some(reason.label().to_owned()),
            prompt_tokens: tokens.0,
            matched_tokens: tokens.1,
            ..Decision::default()
        };
        self.push(now, decision);
    }

    /// The same; what comes by other paths is nobody's prompt, and not worth a look at the clock.
    pub fn left(&mut self, why: NoKey, host: &dyn Host) {
        if why != NoKey::NotOurPath {
            self.passed(host.now(), why);
        }
    }

    /// A request got no key.
    pub fn passed(&mut self, now: Time, why: NoKey) {
        self.push(now, Decision { outcome: why.label().to_owned(), ..Decision::default() });
    }

    fn push(&mut self, now: Time, decision: Decision) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back((now, decision));
    }

    /// The latest first.
    #[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
    pub fn list(&self, now: Time) -> Vec<Decision> {
        let aged =
            |(at, decision): &(Time, Decision)| Decision { age_ms: now.since(*at) / 1_000_000, ..decision.clone() };
        self.0.iter().rev().map(aged).collect()
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
