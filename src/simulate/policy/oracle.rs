//! kvroute's cost with the truth in place of what a gateway can know.

use super::{Policy, View};
use crate::clock::{SECOND, Time};
use crate::replicas::{Homes, ReplicaIdx};
use crate::routing::{self, Candidate, Request, Wants, rank, taught};
use crate::simulate::traffic::Call;
use crate::simulate::truth::candidates;
use crate::simulate::{Dice, Scenario};

/// See the module.
pub struct Oracle {
    policy: routing::Policy,
    block_size: u32,
    dice: Dice,
    homes: Homes,
    picked: Vec<Time>,
    wants: Vec<Wants>,
}

impl Oracle {
    pub fn new(scenario: &Scenario, dice: Dice) -> Self {
        let (policy, block_size) = (scenario.policy.clone(), scenario.block_size);
        Oracle { policy, block_size, dice, homes: Homes::default(), picked: Vec::new(), wants: Vec::new() }
    }
}

impl Policy for Oracle {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        let mut all = candidates(view.truth, call, self.block_size);
        self.picked.resize(all.len(), Time(0));
        self.wants.resize(all.len(), Wants::default());
        let block_size = f64::from(self.block_size);
        let lacks = |c: &Candidate| call.prompt_chain().get((c.matched / block_size) as usize).copied();
        for (at, candidate) in all.iter_mut().enumerate() {
            candidate.homes = f64::from(self.homes.at(ReplicaIdx(at as u16)));
            let from = lacks(candidate);
            candidate.wanted = from.map_or(0.0, |from| self.wants[at].tokens(from, view.now));
            candidate.rested = view.now.since(self.picked[at]) as f64 / 1e9;
        }
        let mean_homes = all.iter().map(|c| c.homes).sum::<f64>() / all.len().max(1) as f64;
        let request = Request { tokens: call.prompt as f64, mean_homes, seed: self.dice.draw() };
        let picked = rank(&self.policy, &request, &all, 0).first().map_or(0, |s| s.candidate);
        self.picked[picked] = view.now;
        for (at, from, lesson) in taught(&self.policy, &all, picked, |at| lacks(&all[at])) {
            self.wants[at].learn(from, lesson, view.now);
        }
        let matched = (all[picked].matched / f64::from(self.block_size)) as usize;
        self.homes.settle(call.prompt_chain(), matched, ReplicaIdx(picked as u16), view.now);
        picked
    }

    fn tick(&mut self, now: Time) {
        self.homes.tick(Time(now.0.saturating_sub(self.policy.home_seconds * SECOND)));
    }
}
