//! Many runs: each traffic by each policy, and the search for what each can bear.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Scenario;
use super::measure::Outcome;
use super::policy::PolicyName;
use super::run::{Watch, run};
use super::traffic::Traffic;

/// What is to be compared.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The deployment.
    pub scenario: Scenario,
    /// The traffic.
    pub traffics: Vec<Traffic>,
    /// Who chooses.
    pub policies: Vec<PolicyName>,
    /// Delays of events in nanoseconds; each is a run of its own.
    pub delays: Vec<u64>,
    /// Milliseconds of p90 TTFT within which throughput is searched for; `None`: it is not.
    pub bound_ms: Option<f64>,
    /// Runs at a time.
    pub threads: usize,
}

/// Runs of one search at most; with the main run.
pub const SEARCH_RUNS: usize = 9;
/// Load is varied by no more than this.
const MOST_FACTOR: f64 = 16.0;

impl Suite {
    /// Requests that all runs together answer, if each search takes as long as it may.
    pub fn work(&self) -> usize {
        let requests: usize = self.traffics.iter().map(Traffic::requests).sum();
        requests * self.policies.len() * self.delays.len() * if self.bound_ms.is_some() { SEARCH_RUNS } else { 1 }
    }

    /// All outcomes, by traffic, then policy, then delay. `done` hears of the requests that are answered, or not to
    /// be run after all.
    pub fn run(&self, done: &(dyn Fn(usize) + Sync)) -> Vec<Outcome> {
        let mut cells = Vec::new();
        for traffic in &self.traffics {
            for policy in &self.policies {
                cells.extend(self.delays.iter().map(|delay| (traffic, *policy, *delay)));
            }
        }
        let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(vec![None; cells.len()]));
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, cells.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some((traffic, policy, delay)) = cells.get(at) else { break };
                        let outcome = self.cell(traffic, *policy, *delay, done);
                        outcomes.lock().expect("no run panics")[at] = Some(outcome);
                    }
                });
            }
        });
        outcomes.into_inner().expect("no run panics").into_iter().flatten().collect()
    }

    fn cell(&self, traffic: &Traffic, policy: PolicyName, delay: u64, done: &(dyn Fn(usize) + Sync)) -> Outcome {
        let scenario = Scenario { event_delay: delay, ..self.scenario.clone() };
        let tick = || done(1);
        let watch = Watch { wrong_picks: true, on_answer: Some(&tick) };
        let mut outcome = run(&scenario, traffic, policy, watch);
        if let Some(bound) = self.bound_ms {
            let mut runs = 1;
            let p90 = |factor: f64| {
                runs += 1;
                let watch = Watch { wrong_picks: false, on_answer: Some(&tick) };
                let tried = run(&scenario, &traffic.faster(factor), policy, watch);
                (tried.ttft_ms.p90, tried.throughput)
            };
            let first = (outcome.ttft_ms.p90, outcome.throughput);
            outcome.bound_throughput = Some(search(bound, first, p90));
            done(SEARCH_RUNS.saturating_sub(runs) * traffic.requests());
        }
        outcome
    }
}

/// The greatest throughput with p90 of at most `bound`, where `run(factor)` gives (p90, throughput) under `factor`
/// times the load; between two runs by the logarithms.
fn search(bound: f64, first: (f64, f64), mut run: impl FnMut(f64) -> (f64, f64)) -> f64 {
    let (mut good, mut bad) = match first.0 <= bound {
        true => (Some((1.0, first)), None),
        false => (None, Some((1.0, first))),
    };
    for _ in 0..SEARCH_RUNS - 1 {
        let factor = match (good, bad) {
            (Some((low, _)), None) => low * 1.5,
            (None, Some((high, _))) => high / 1.5,
            (Some((low, _)), Some((high, _))) => f64::sqrt(low * high),
            (None, None) => 1.0,
        };
        if !(1.0 / MOST_FACTOR..=MOST_FACTOR).contains(&factor) {
            break;
        }
        let tried = run(factor);
        match tried.0 <= bound {
            true => good = Some((factor, tried)),
            false => bad = Some((factor, tried)),
        }
    }
    match (good, bad) {
        (Some((_, (low, at_low))), Some((_, (high, at_high)))) if high > low && low > 0.0 => {
            let part = (bound / low).ln() / (high / low).ln();
            at_low + (at_high - at_low).max(0.0) * part
        }
        (Some((_, (_, throughput))), _) => throughput,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_where_the_bound_is_crossed() {
        // A queue: waiting grows without end towards a load of 3.
        let run = |factor: f64| (100.0 / (1.0 - (factor / 3.0).min(0.999)), 10.0 * factor);
        let found = search(1000.0, run(1.0), run);
        assert!((found - 27.0).abs() < 0.3, "{found}");
        let found = search(120.0, run(1.0), run);
        assert!((found - 5.0).abs() < 0.2, "{found}");
        assert_eq!(search(1.0, run(1.0), run), 0.0);
    }
}
