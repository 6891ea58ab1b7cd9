//! The state of a router VM: requests under way, what is believed, and the work that is left.
//!
//! It outlives the root contexts, which come and go with Envoy's configuration. Envoy's callbacks bring requests
//! and news; [`Router::turn`] does the work that they left, as long as [`Turns`] allows, and says how soon it
//! wants to be called again.
//!
//! A request is held from the end of its body to the choice of its replica, at most for its time budget. After
//! that it is *finishing*: tokenized to its end, so that what is booked and predicted for it is complete.

mod flights;

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;

use super::accounts::{Accounts, Watch};
use super::host::{Host, Level};
use super::job::Job;
use super::link::{Link, Uses};
use super::metrics::{Counter, Gauge, Outcome};
use super::models::{Setup, Tokenizers, Tools};
use super::recent::Recent;
use super::setups::Setups;
use super::shadow::Shadows;
use super::steer::selection_headers;
use super::turns::{Left, Next, Turns};
use crate::clock::{MS, SECOND, Time};
use crate::config::{Config, ConfigError};
use crate::nokey::{NoKey, NoKeyReason};
use crate::pack::Pack;
use crate::replicas::{Ask, BookingId, Fleet, FleetSettings, Matching, Pick};
use crate::request::Api;
use crate::routing::Receipt;
use crate::tokenizer::memory::PromptMemory;
use flights::Flight;
pub use flights::Reads;

/// How long the first requests of a VM may wait for the first snapshot, within their own time budget.
const FIRST_SYNC: u64 = 2 * SECOND;
/// How often the fleet's time passes. Ticks may come more often.
const FLEET_TICK: u64 = 10 * MS;
/// Longer values of the session header are no sessions.
const MAX_SESSION: usize = 256;
/// Milliseconds between ticks while nothing waits.
pub const IDLE_TICK: u32 = 50;

/// A request that is held until its replica is chosen.
struct Held {
    job: Job,
    matching: Option<Matching>,
    /// Blocks of the job that the matching has.
    pushed: usize,
    /// A receipt is to be written.
    watch: Option<Box<Watch>>,
}

/// What was decided on a held request.
enum Choice {
    /// It goes to the pick.
    Steer(Pick),
    /// It would have gone to the pick.
    Shadow(Box<Receipt>),
}

/// A request that was let go and is tokenized to its end.
struct Finishing {
    job: Job,
    /// `None`: of a shadow nothing is booked; it is only remembered for the next turn.
    booking: Option<BookingId>,
    /// Of its prefill on another replica.
    prefill: Option<BookingId>,
    /// Blocks of the job that the booking has.
    pushed: usize,
    worked: u64,
}

/// What is to be done with a request whose body has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It may go on now.
    Pass,
    /// It is held; [`Router::turn`] resumes it.
    Held,
}

/// Why [`Router::turn`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A tick.
    Tick,
    /// Anything else that brought work, a bounce among it.
    News,
}

/// See the [module](self).
pub struct Router {
    /// The configurations.
    pub setups: Setups,
    /// What is believed.
    pub fleet: Fleet,
    /// The way to the other VMs and the bridge.
    pub link: Link,
    /// What jobs work with.
    pub tools: Tools,
    turns: Turns,
    held: VecDeque<Held>,
    finishing: VecDeque<Finishing>,
    job_bytes: usize,
    flights: HashMap<u32, Flight>,
    /// What is told of single requests.
    pub accounts: Accounts,
    shadows: Shadows,
    /// What was decided last.
    pub recent: Recent,
    first_request: Option<Time>,
    /// When the fleet's time passed last.
    passed: Time,
}

fn settings(config: &Config) -> FleetSettings {
    FleetSettings {
        policy: config.policy.clone(),
        max_index_bytes: config.limits.index_bytes,
        ..FleetSettings::default()
    }
}

fn slice(config: &Config) -> u64 {
    (config.limits.slice_ms * MS as f64) as u64
}

impl Router {
    /// A VM that has just been started, by its first root context. `random` differs from VM to VM and is secret.
    pub fn new(root: u32, config: Config, packs: &[Pack], random: u64) -> Result<Router, ConfigError> {
        let setups = Setups::new(root, config, packs)?;
        let config = &setups.newest().config;
        let memory = PromptMemory::new(config.limits.prompt_memory_bytes, random.rotate_left(32));
        let mut router = Router {
            fleet: Fleet::new(settings(config), random),
            link: Link::new(random),
            tools: Tools { tokenizers: Tokenizers::default(), memory },
            turns: Turns::new(slice(config)),
            setups,
            held: VecDeque::new(),
            finishing: VecDeque::new(),
            job_bytes: 0,
            flights: HashMap::new(),
            accounts: Accounts::new(random.rotate_left(16)),
            shadows: Shadows::default(),
            recent: Recent::default(),
            first_request: None,
            passed: Time(0),
        };
        router.apply();
        Ok(router)
    }

    /// Takes the configuration of a root context. What is believed stays; requests under way keep the one they
    /// began with.
    pub fn configure(&mut self, root: u32, config: Config, packs: &[Pack]) -> Result<Rc<Setup>, ConfigError> {
        let setup = self.setups.put(root, config, packs)?;
        self.apply();
        Ok(setup)
    }

    /// A root context has ended: its replicas go, and the others have to look after the queue.
    pub fn root_gone(&mut self, root: u32) {
        self.setups.remove(root);
        self.apply();
        self.link.claim();
    }

    fn apply(&mut self) {
        let config = &self.setups.newest().config;
        self.turns.set_slice(slice(config));
        self.fleet.configure(settings(config));
        self.tools.memory.set_max_bytes(config.limits.prompt_memory_bytes);
        self.fleet.set_static(&self.setups.replicas());
    }

    /// Jobs under way and the memory set aside for them.
    pub fn jobs(&self) -> (usize, usize) {
        (self.held.len() + self.finishing.len(), self.job_bytes)
    }

    /// A request has come: a VM without a slot gets one now.
    pub fn on_request(&mut self, host: &dyn Host) {
        if self.first_request.is_some() && self.link.slot().is_some() {
            return;
        }
        let now = host.now();
        self.first_request.get_or_insert(now);
        self.link.serve(host, &mut self.fleet, now);
    }

    /// Whether a body of this size may be copied in. Makes room by ending what is only finishing.
    pub fn admit(&mut self, setup: &Setup, body_bytes: usize, host: &dyn Host) -> Result<(), NoKeyReason> {
        let limits = &setup.config.limits;
        let cost = Job::cost(body_bytes);
        let full = |r: &Router| {
            r.held.len() + r.finishing.len() >= limits.max_jobs
                || r.job_bytes.saturating_add(cost) > limits.max_job_bytes
        };
        while full(self) {
            let Some(oldest) = self.finishing.pop_front() else {
                let (jobs, bytes) = self.jobs();
                return Err(NoKeyReason::new(NoKey::Busy, format!("{jobs} jobs with {bytes} bytes are under way")));
            };
            self.finished(oldest);
        }
        let used = host.memory_used();
        if used.saturating_add(cost) > limits.memory_bytes {
            return Err(NoKeyReason::new(NoKey::Busy, format!("the VM uses {used} bytes")));
        }
        Ok(())
    }

    /// The body of a request is complete. Called in the callback of its stream, which began at `began`: the body was
    /// copied since.
    pub fn submit(
        &mut self,
        stream: u32,
        setup: Rc<Setup>,
        api: Api,
        body: Vec<u8>,
        began: Time,
        host: &dyn Host,
    ) -> Submitted {
        let mut job = Job::new(stream, setup, api, body, began);
        if let Some(name) = &job.setup.config.selection.session_header {
            job.session = host.request_header(name).filter(|s| (1..=MAX_SESSION).contains(&s.len()));
        }
        self.job_bytes = self.job_bytes.saturating_add(job.reserved());
        let watch = self.accounts.watch(stream, &job.setup);
        let mut held = Held { job, matching: None, pushed: 0, watch };
        let long = self.turns.begin(began).unwrap_or(began);
        let until = if held.job.is_small() { self.turns.small(began) } else { long };
        let chosen = match host.now() < until && !held.job.is_long() {
            true => {
                host.count(Counter::Slices, 1);
                self.advance(&mut held, until, host)
            }
            false => None,
        };
        let now = host.now();
        self.turns.end(began, now, Left::Nothing, false);
        if held.job.is_small() {
            self.turns.expect_small(now);
        }
        if let Some(result) = chosen {
            self.settle(held, result, host);
            return Submitted::Pass;
        }
        self.held.push_back(held);
        Submitted::Held
    }

    /// A request that gets no key before its body was looked at.
    pub fn pass(&mut self, stream: u32, setup: &Setup, reason: &NoKeyReason, host: &dyn Host) {
        self.passed(stream, setup, reason, None, host);
    }

    /// A request that gets no key, and since when it was watched.
    fn passed(
        &mut self,
        stream: u32,
        setup: &Setup,
        reason: &NoKeyReason,
        watch: Option<(Box<Watch>, Time)>,
        host: &dyn Host,
    ) {
        host.count(Counter::Requests(Outcome::NoKey(reason.kind)), 1);
        self.recent.left(reason.kind, host);
        if host.logs(Level::Debug) {
            host.log(Level::Debug, &format!("#{stream} no key: {reason}"));
        }
        self.accounts.passed(stream, setup, reason, watch, host);
    }

    /// Does the work that is left, for as long as the event loop may wait. Gives the milliseconds until the next
    /// tick that it needs.
    pub fn turn(&mut self, cause: Cause, host: &dyn Host) -> u32 {
        let now = host.now();
        if cause == Cause::News {
            self.turns.called(now);
        }
        if cause == Cause::Tick {
            host.refresh();
            self.turns.ticked();
            if now.since(self.passed) >= FLEET_TICK {
                self.passed = now;
                self.fleet.tick(now);
            }
            let (jobs, job_bytes) = self.jobs();
            let uses = Uses { jobs, job_bytes, prompt_bytes: self.tools.memory.bytes() };
            if self.link.tick(host, &mut self.fleet, uses, now) {
                host.gauge(Gauge::LongestSlice, self.link.slot().unwrap_or(0), self.turns.take_longest() >> 10);
            }
        }
        self.overdue(now, host);
        let long = self.turns.begin(now);
        let (spare, until) = (long.unwrap_or(now), self.turns.small(now));
        if match self.left(now) {
            Left::Nothing => false,
            Left::Long => now < spare,
            Left::Small => now < until,
        } {
            host.count(Counter::Slices, 1);
            self.work(now, until, spare, host);
        }
        if long.is_some() {
            let config = &self.setups.newest().config;
            self.link.talk(host, &mut self.fleet, config.bridge.as_ref(), &config.secret);
        }
        let after = host.now();
        match self.turns.end(now, after, self.left(after), self.link.can_bounce()) {
            Next::Nothing if self.held.is_empty() && !self.turns.is_busy() => IDLE_TICK,
            Next::Bounce => {
                self.link.bounce(host, after);
                1
            }
            _ => 1,
        }
    }

    /// After [`Router::submit`], in the callback of the stream: calls for what is left to do, and gives the
    /// milliseconds until the next tick that it needs, if any.
    pub fn call_again(&mut self, host: &dyn Host) -> Option<u32> {
        if !self.held.is_empty() {
            self.link.bounce(host, host.now());
        }
        let (jobs, _) = self.jobs();
        (jobs > 0 || self.turns.is_busy()).then_some(1)
    }

    /// The stream has ended, in whatever way.
    pub fn ended(&mut self, stream: u32, host: &dyn Host) {
        self.accounts.ended(stream);
        self.shadows.ended(stream);
        if let Some(at) = self.held.iter().position(|h| h.job.stream == stream)
            && let Some(held) = self.held.remove(at)
        {
            host.count(Counter::Requests(Outcome::Cancelled), 1);
            self.release(&held.job);
        }
        self.landed(stream, host);
    }

    fn choose(&mut self, held: &mut Held, now: Time, host: &dyn Host) -> Result<Choice, NoKeyReason> {
        let matching = held.matching.as_ref();
        let matching = matching.ok_or_else(|| NoKeyReason::new(NoKey::Internal, "nothing was matched"))?;
        let (tokens, exact) = held.job.tokens();
        let setup = &held.job.setup;
        let (policy, only) = (Some(&setup.config.policy), setup.only.as_deref());
        let shadow = held.job.model.and_then(|at| setup.config.models.get(at)).is_some_and(|model| model.shadow);
        let explain = held.watch.as_ref().is_some_and(|watch| watch.writes());
        let session = held.job.session.as_deref();
        let (tokens, estimated, adapter) = (tokens as u64, !exact, held.job.adapter());
        let ask = Ask { tokens, estimated, adapter, explain, session, policy, only, now };
        let choice = match shadow {
            false => self.fleet.choose(matching, &ask).map(Choice::Steer),
            true => self.fleet.preview(matching, &ask).map(|receipt| Choice::Shadow(Box::new(receipt))),
        };
        if let Some(watch) = &mut held.watch {
            watch.chose(now, host.now());
        }
        choice.map_err(|kind| NoKeyReason::new(kind, "no candidate"))
    }

    /// Lets a held request go, from outside of its own callbacks.
    fn release_held(&mut self, held: Held, result: Result<Choice, NoKeyReason>, host: &dyn Host) {
        let stream = held.job.stream;
        if !host.enter(stream) {
            // It is gone, though nobody said so.
            if let Ok(Choice::Steer(pick)) = &result {
                self.undo(pick, host.now());
            }
            self.release(&held.job);
            return;
        }
        self.settle(held, result, host);
        host.resume();
        host.leave();
    }

    /// Sets the headers of the current stream by what was decided, and remembers it.
    fn settle(&mut self, held: Held, result: Result<Choice, NoKeyReason>, host: &dyn Host) {
        let Held { job, pushed, watch, .. } = held;
        let (stream, setup) = (job.stream, job.setup.clone());
        let mut pick = match result {
            Ok(Choice::Steer(pick)) => pick,
            Ok(Choice::Shadow(receipt)) => {
                let (tokens, matched) =
                    (job.tokens().0 as u64, receipt.candidates.first().map_or(0, |best| best.matched));
                self.recent.decided(
                    &job,
                    host.now(),
                    Outcome::Shadow,
                    &receipt.pick,
                    receipt.reason,
                    (tokens, matched),
                );
                self.shadows.decided(stream, tokens, &receipt, host);
                self.accounts.shadowed(&job, *receipt, watch, host);
                self.finish(Finishing { job, booking: None, prefill: None, pushed, worked: 0 });
                return;
            }
            Err(reason) => {
                self.passed(stream, &setup, &reason, watch.map(|watch| (watch, job.since)), host);
                self.release(&job);
                return;
            }
        };
        for (name, value) in selection_headers(&setup.config.selection, &pick) {
            if !host.set_request_header(name, &value) {
                self.undo(&pick, host.now());
                self.pass(stream, &setup, &NoKeyReason::new(NoKey::HostError, "a header was refused"), host);
                self.release(&job);
                return;
            }
        }
        let (tokens, _) = job.tokens();
        host.count(Counter::Requests(Outcome::Routed), 1);
        host.count(Counter::Picks(pick.reason), 1);
        host.count(Counter::PromptTokens, tokens as u64);
        host.count(Counter::MatchedTokens, pick.matched);
        let both = (tokens as u64, pick.matched);
        self.recent.decided(&job, host.now(), Outcome::Routed, &pick.best.address, pick.reason, both);
        self.accounts.steered(&job, &mut pick, watch, host);
        if host.logs(Level::Debug) {
            let (to, reason) = (&pick.best.address, pick.reason.label());
            let held_us = host.now().since(job.since) >> 10;
            let line = format!("#{stream} to {to} by {reason}: {} of {tokens} tokens, {held_us} us", pick.matched);
            host.log(Level::Debug, &line);
        }
        let flight = Flight::of(&pick);
        let prefill = flight.prefill;
        if prefill.is_some() {
            host.count(Counter::RemotePrefills, 1);
        }
        self.flights.insert(stream, flight);
        self.finish(Finishing { job, booking: Some(pick.booking), prefill, pushed, worked: 0 });
    }

    /// What is left of a request that was let go.
    fn finish(&mut self, finishing: Finishing) {
        if finishing.job.is_done() {
            self.finished(finishing);
        } else {
            self.finishing.push_back(finishing);
        }
    }

    /// Tells the booking what is known of the whole prompt.
    fn finished(&mut self, finishing: Finishing) {
        let Finishing { job, booking, prefill, pushed, .. } = finishing;
        for booking in booking.into_iter().chain(prefill) {
            let rest = job.hashes.get(pushed..).unwrap_or_default();
            self.fleet.complete(booking, rest, job.tokens().0 as u64);
        }
        self.release(&job);
    }

    fn release(&mut self, job: &Job) {
        self.job_bytes = self.job_bytes.saturating_sub(job.reserved());
    }
}

#[path = "router_work.rs"]
mod work;

#[cfg(test)]
#[path = "router_tests.rs"]
pub(super) mod tests;

#[cfg(test)]
#[path = "router_reasons_tests.rs"]
mod reasons_tests;
