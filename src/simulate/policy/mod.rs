//! Who chooses the replica. Each gateway has one of its own, and sees only what a gateway sees.
//!
//! * `kvroute`: the code of the filter.
//! * `plain`: what proxies do without looking into the prompt.
//! * `peers`: the rules of other routers that look into it, from their documentation and source.
//! * `oracle`: kvroute's cost, with every cache and queue as it is at this instant.

mod kvroute;
mod oracle;
mod peers;
mod plain;
mod seen;

use std::rc::Rc;

use super::Scenario;
use super::feed::Delivery;
use super::replica::Replica;
use super::traffic::Call;
use crate::clock::Time;
use crate::feed::record::LoadReport;
use crate::feed::sync::Pull;

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum PolicyName {
    /// kvroute's cost, all caches and queues known at once
    Oracle,
    /// This project
    Kvroute,
    /// By chance
    Random,
    /// One after the other
    RoundRobin,
    /// The less busy of two taken by chance, as Envoy does it
    LeastRequest,
    /// Consistent hash of how the user's message begins, with bounded loads, as KubeAI does it
    BoundedHash,
    /// The approximate tree of SGLang's router
    Sglang,
    /// The cost of Dynamo's KV router
    Dynamo,
    /// The scorers of llm-d with exact events, at their default weights
    LlmD,
    /// The prefix-cache rule of AIBrix
    Aibrix,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 10] = [
        PolicyName::Oracle,
        PolicyName::Kvroute,
        PolicyName::Random,
        PolicyName::RoundRobin,
        PolicyName::LeastRequest,
        PolicyName::BoundedHash,
        PolicyName::Sglang,
        PolicyName::Dynamo,
        PolicyName::LlmD,
        PolicyName::Aibrix,
    ];

    /// The name on the command line.
    pub fn label(self) -> &'static str {
        match self {
            PolicyName::Oracle => "oracle",
            PolicyName::Kvroute => "kvroute",
            PolicyName::Random => "random",
            PolicyName::RoundRobin => "round-robin",
            PolicyName::LeastRequest => "least-request",
            PolicyName::BoundedHash => "bounded-hash",
            PolicyName::Sglang => "sglang",
            PolicyName::Dynamo => "dynamo",
            PolicyName::LlmD => "llm-d",
            PolicyName::Aibrix => "aibrix",
        }
    }

    /// Whether it is one that people run today.
    pub fn is_baseline(self) -> bool {
        !matches!(self, PolicyName::Oracle | PolicyName::Kvroute)
    }

    /// One of it, for the gateway of this number.
    pub fn build(self, scenario: &Scenario, gateway: usize) -> Box<dyn Policy> {
        let dice = super::Dice::new(scenario.seed, 100 + gateway as u64);
        match self {
            PolicyName::Oracle => Box::new(oracle::Oracle::new(scenario, dice)),
            PolicyName::Kvroute => Box::new(kvroute::Kvroute::new(scenario, dice)),
            PolicyName::Random => Box::new(plain::Random(dice)),
            PolicyName::RoundRobin => Box::new(plain::RoundRobin(0)),
            PolicyName::LeastRequest => Box::new(plain::LeastRequest(dice)),
            PolicyName::BoundedHash => Box::new(plain::BoundedHash::default()),
            PolicyName::Sglang => Box::new(peers::Sglang::new(scenario, dice)),
            PolicyName::Dynamo => Box::new(peers::Dynamo::new(scenario, dice)),
            PolicyName::LlmD => Box::new(peers::LlmD::new(scenario, dice)),
            PolicyName::Aibrix => Box::new(peers::Aibrix::new(scenario, dice)),
        }
    }
}

/// What a gateway has before its eyes at a pick.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Now.
    pub now: Time,
    /// Requests that this gateway has on each replica; there are as many as replicas.
    pub own: &'a [u32],
    /// What the engines reported last.
    pub reports: &'a [LoadReport],
    /// The truth: only for the oracle.
    pub truth: &'a [Replica],
}

/// A policy of one gateway.
pub trait Policy {
    /// Where the call goes.
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize;
    /// The first data of its answer has come.
    fn first_data(&mut self, _call: usize, _now: Time) {}
    /// It has ended.
    fn ended(&mut self, _call: usize, _now: Time) {}
    /// A batch of events has come; `None`: one was lost on the way.
    fn events(&mut self, _delivery: Option<&Rc<Delivery>>, _now: Time) {}
    /// Whether a batch that was lost comes again before the next one.
    fn has_gaps_filled(&self) -> bool {
        false
    }
    /// What it asks the bridge for; the answer comes by [`Policy::answer`].
    fn pull(&mut self, _now: Time) -> Option<Pull> {
        None
    }
    /// The bridge's answer.
    fn answer(&mut self, _frame: &[u8], _now: Time) {}
    /// Time passes: called every 50 ms.
    fn tick(&mut self, _now: Time) {}
}
