//! What proxies do without looking into the prompt.

use super::{Policy, View};
use crate::simulate::Dice;
use crate::simulate::traffic::Call;

/// By chance.
pub struct Random(pub Dice);

impl Policy for Random {
    fn pick(&mut self, _: &Call, view: View<'_>) -> usize {
        self.0.below(view.own.len())
    }
}

/// One after the other.
pub struct RoundRobin(pub usize);

impl Policy for RoundRobin {
    fn pick(&mut self, _: &Call, view: View<'_>) -> usize {
        self.0 += 1;
        self.0 % view.own.len()
    }
}

/// Envoy's `LEAST_REQUEST` with equal weights: the one with fewer active requests of two taken by chance.
pub struct LeastRequest(pub Dice);

impl Policy for LeastRequest {
    fn pick(&mut self, _: &Call, view: View<'_>) -> usize {
        let (a, b) = (self.0.below(view.own.len()), self.0.below(view.own.len()));
        if view.own[b] < view.own[a] { b } else { a }
    }
}

/// KubeAI's `PrefixHash` (`internal/loadbalancer/balance_chwbl.go`): 256 places on a ring for each replica; from the
/// place of the first user message's beginning on, the first replica with at most 1.25 times the mean load.
#[derive(Default)]
pub struct BoundedHash {
    ring: Vec<(u64, usize)>,
    replicas: usize,
}

impl BoundedHash {
    fn rebuild(&mut self, replicas: usize) {
        self.replicas = replicas;
        let places = (0..replicas).flat_map(|r| (0..256).map(move |n| (Dice::new(r as u64, 5000 + n).draw(), r)));
        self.ring = places.collect();
        self.ring.sort_unstable();
    }
}

impl Policy for BoundedHash {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        if self.replicas != view.own.len() {
            self.rebuild(view.own.len());
        }
        let key = Dice::new(call.opening, 6000).draw();
        let total: u32 = view.own.iter().sum();
        let bound = f64::from(total + 1) / view.own.len() as f64 * 1.25;
        let start = self.ring.partition_point(|(place, _)| *place < key);
        let around = (0..self.ring.len()).map(|n| self.ring[(start + n) % self.ring.len()].1);
        let mut around = around.peekable();
        let first = around.peek().copied().unwrap_or(0);
        around.find(|r| total == 0 || f64::from(view.own[*r]) <= bound).unwrap_or(first)
    }
}
