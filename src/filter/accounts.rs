//! What is told of single requests: the outcome header, receipts, and the filter state for access logs and spans.
//!
//! Nothing of it is made unless the configuration asks for it. Filter state, each with `wasm.` before it:
//!
//! | name | |
//! |---|---|
//! | `kvroute.outcome` | the label in `kvroute_requests_total` |
//! | `kvroute.model` | the model, by its name in the configuration |
//! | `kvroute.replica` | `ip:port` of the pick |
//! | `kvroute.reason` | what decided |
//! | `kvroute.prompt_tokens`, `kvroute.matched_tokens` | of the prompt, and of them those that the pick was expected to have cached |
//! | `kvroute.held_us` | microseconds from the end of the body until it was let go |
//! | `kvroute.receipt` | of the requests in the sample: [`Line`] |

use hashbrown::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::host::Host;
use super::job::{Job, Step};
use super::metrics::Timing;
use super::models::{Setup, Tools};
use crate::clock::Time;
use crate::nokey::{NoKey, NoKeyReason};
use crate::replicas::Pick;
use crate::routing::{Line, Mode, Reason, Receipt, Spent};

/// The request header that asks for a receipt.
pub const EXPLAIN_HEADER: &str = "x-kvroute-explain";

/// Of so many requests one is timed for the histograms.
const TIMED: f64 = 1.0 / 16.0;

/// Times the steps of a request, for a receipt and for the histograms.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// It goes into the response.
    shown: bool,
    /// It goes into the filter state.
    logged: bool,
    spent: Spent,
}

impl Watch {
    /// A receipt is to be written.
    pub fn writes(&self) -> bool {
        self.shown || self.logged
    }

    /// The request is let go after `held` microseconds, with a decision or without one.
    fn end(&mut self, held: u64, host: &dyn Host) {
        self.spent.held = held;
        let Spent { parse, render, tokenize, r#match, choose, .. } = self.spent;
        let steps = [
            (Timing::Parse, parse),
            (Timing::Render, render),
            (Timing::Tokenize, tokenize),
            (Timing::Match, r#match),
            (Timing::Choose, choose),
            (Timing::Held, held),
        ];
        steps.into_iter().for_each(|(step, us)| host.time(step, us));
    }

    /// One step of the job.
    pub fn step(&mut self, job: &mut Job, tools: &mut Tools, host: &dyn Host) -> Result<(), NoKeyReason> {
        let (step, began, unix) = (job.next_step(), host.now(), host.unix_seconds());
        let result = job.step(tools, unix, &mut || false);
        let took = us(host.now().since(began));
        let place = match step {
            Step::Parse => &mut self.spent.parse,
            Step::Render => &mut self.spent.render,
            Step::Tokenize => &mut self.spent.tokenize,
        };
        *place = place.saturating_add(took);
        result
    }

    /// Blocks were matched since `began`.
    pub fn matched(&mut self, began: Time, now: Time) {
        self.spent.r#match = self.spent.r#match.saturating_add(us(now.since(began)));
    }

    /// Candidates were ranked since `began`.
    pub fn chose(&mut self, began: Time, now: Time) {
        self.spent.choose = us(now.since(began));
    }
}

/// What is to be told of streams that have not ended.
pub struct Accounts {
    random: u64,
    outcomes: HashMap<u32, String>,
    receipts: HashMap<u32, String>,
    asked: HashSet<u32>,
}

impl Accounts {
    /// `random` differs from VM to VM: it draws the sample.
    pub fn new(random: u64) -> Accounts {
        Accounts { random, outcomes: HashMap::new(), receipts: HashMap::new(), asked: HashSet::new() }
    }

    /// A stream that may have it wants its receipt.
    pub fn ask(&mut self, stream: u32) {
        self.asked.insert(stream);
    }

    /// A watch, where a receipt is to be written, or where it is this one's turn.
    pub fn watch(&self, stream: u32, setup: &Setup) -> Option<Box<Watch>> {
        let receipts = &setup.config.receipts;
        let shown = receipts.explain && self.asked.contains(&stream);
        let lot = self.draw(stream);
        let logged = lot < receipts.sample;
        (shown || logged || lot < TIMED).then(|| Box::new(Watch { shown, logged, ..Watch::default() }))
    }

    /// From 0 to below 1.
    fn draw(&self, stream: u32) -> f64 {
        (xxh3_64_with_seed(&stream.to_le_bytes(), self.random) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A stream was left to plain load balancing.
    pub fn passed(
        &mut self,
        stream: u32,
        setup: &Setup,
        reason: &NoKeyReason,
        watch: Option<(Box<Watch>, Time)>,
        host: &dyn Host,
    ) {
        let label = reason.kind.label();
        if setup.config.selection.outcome_header.is_some() {
            self.outcomes.insert(stream, label.to_owned());
        }
        if setup.config.receipts.filter_state {
            host.set_state("kvroute.outcome", label);
        }
        // One that was not watched so far has taken no time.
        let timed = watch.is_some();
        let watch = watch.or_else(|| Some((self.watch(stream, setup)?, host.now())));
        let Some((mut watch, since)) = watch.filter(|(w, _)| w.shown || reason.kind != NoKey::NotOurPath) else {
            return;
        };
        let held = us(host.now().since(since));
        match timed {
            true => watch.end(held, host),
            false => watch.spent.held = held,
        }
        if !watch.writes() {
            return;
        }
        let line = Line::passed(label, &reason.detail, watch.spent).to_string();
        self.give(stream, &watch, line, host);
    }

    /// A stream was sent to its pick.
    pub fn steered(&mut self, job: &Job, pick: &mut Pick, watch: Option<Box<Watch>>, host: &dyn Host) {
        let (config, stream) = (&job.setup.config, job.stream);
        let tokens = job.tokens().0 as u64;
        if config.selection.outcome_header.is_some() {
            let (matched, predicted) = (pick.matched, pick.predicted);
            let (reason, to) = (pick.reason.label(), &pick.best.address);
            let prefill = pick.prefill.as_ref().map(|prefill| format!("; prefill={}", prefill.target.address));
            let text = format!(
                "routed; matched={matched}; predicted={predicted}; prompt={tokens}; reason={reason}; to={to}{}",
                prefill.unwrap_or_default()
            );
            self.outcomes.insert(stream, text);
        }
        if !config.receipts.filter_state && watch.is_none() {
            return;
        }
        let held = us(host.now().since(job.since));
        if config.receipts.filter_state {
            state(job, "routed", &pick.best.address, pick.reason, pick.matched, held, host);
        }
        let Some(mut watch) = watch else { return };
        watch.end(held, host);
        if let Some(receipt) = pick.receipt.take().filter(|_| watch.writes()) {
            let line = Line::chosen(Mode::Steered, "routed", *receipt, watch.spent).to_string();
            self.give(stream, &watch, line, host);
        }
    }

    /// A stream would have been sent to a pick.
    pub fn shadowed(&mut self, job: &Job, receipt: Receipt, watch: Option<Box<Watch>>, host: &dyn Host) {
        let (config, stream) = (&job.setup.config, job.stream);
        let matched = receipt.candidates.first().map_or(0, |best| best.matched);
        if config.selection.outcome_header.is_some() {
            let (tokens, reason) = (job.tokens().0 as u64, receipt.reason.label());
            let text = format!("shadow; matched={matched}; prompt={tokens}; reason={reason}; to={}", receipt.pick);
            self.outcomes.insert(stream, text);
        }
        let held = us(host.now().since(job.since));
        if config.receipts.filter_state {
            state(job, "shadow", &receipt.pick, receipt.reason, matched, held, host);
        }
        let Some(mut watch) = watch else { return };
        watch.end(held, host);
        if watch.writes() {
            let line = Line::chosen(Mode::Shadow, "shadow", receipt, watch.spent).to_string();
            self.give(stream, &watch, line, host);
        }
    }

    fn give(&mut self, stream: u32, watch: &Watch, line: String, host: &dyn Host) {
        if watch.logged {
            host.set_state("kvroute.receipt", &line);
        }
        if watch.shown {
            self.receipts.insert(stream, line);
        }
    }

    /// What the outcome header says of a stream.
    pub fn outcome(&self, stream: u32) -> Option<&str> {
        self.outcomes.get(&stream).map(String::as_str)
    }

    /// The receipt that a stream asked for.
    pub fn receipt(&self, stream: u32) -> Option<&str> {
        self.receipts.get(&stream).map(String::as_str)
    }

    /// A stream has ended.
    pub fn ended(&mut self, stream: u32) {
        self.outcomes.remove(&stream);
        self.receipts.remove(&stream);
        self.asked.remove(&stream);
    }
}

/// The filter state of a stream with a pick.
fn state(job: &Job, outcome: &str, pick: &str, reason: Reason, matched: u64, held: u64, host: &dyn Host) {
    host.set_state("kvroute.outcome", outcome);
    host.set_state("kvroute.replica", pick);
    host.set_state("kvroute.reason", reason.label());
    if let Some(model) = job.model.and_then(|at| job.setup.config.models.get(at)) {
        host.set_state("kvroute.model", &model.name);
    }
    let tokens = job.tokens().0 as u64;
    for (name, value) in [("prompt_tokens", tokens), ("matched_tokens", matched), ("held_us", held)] {
        host.set_state(&format!("kvroute.{name}"), &value.to_string());
    }
}

#[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
fn us(nanoseconds: u64) -> u64 {
    nanoseconds / 1_000
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
