//! What came of a run.

use serde::Serialize;

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// Half are below it.
    pub p50: f64,
    /// Nine of ten are below it.
    pub p90: f64,
    /// All but one of a hundred.
    pub p99: f64,
}

/// The `share` quantile of sorted numbers, interpolated.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

impl Times {
    /// Of sorted milliseconds.
    pub fn of(sorted: &[f64]) -> Times {
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        Times { mean, p50: quantile(sorted, 0.5), p90: quantile(sorted, 0.9), p99: quantile(sorted, 0.99) }
    }
}

/// One policy under one traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Outcome {
    /// The policy.
    pub policy: String,
    /// The traffic.
    pub traffic: String,
    /// Milliseconds by which events are late.
    pub event_delay_ms: f64,
    /// Requests that were answered.
    pub requests: usize,
    /// Requests that no replica could take.
    pub refused: usize,
    /// Simulated seconds from the first request to the last answer.
    pub seconds: f64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Of those, tokens that the engines had cached.
    pub cached_tokens: u64,
    /// Tokens that the engines computed before answers.
    pub prefilled_tokens: u64,
    /// The same of each replica.
    pub prefilled: Vec<u64>,
    /// Cached share of the prompt tokens.
    pub hit_rate: f64,
    /// Time to the first token.
    pub ttft_ms: Times,
    /// Time to the last token.
    pub total_ms: Times,
    /// Requests answered a second while sessions begin: what comes after drains the queues.
    pub throughput: f64,
    /// Busy time of the busiest replica over the mean.
    pub busy_imbalance: f64,
    /// Tokens prefilled by the replica with the most over the mean.
    pub prefill_imbalance: f64,
    /// Mean share of its time that a replica is busy.
    pub busy: f64,
    /// Share of the picks that cost at least [`WRONG`] tokens more than another replica would have, by the oracle's
    /// cost at that instant. `None`: not counted.
    pub wrong_picks: Option<f64>,
    /// Requests that had to start again for want of cache.
    pub preemptions: u64,
    /// Most requests a second, of this traffic made denser or thinner, with p90 of the TTFT within the bound.
    pub bound_throughput: Option<f64>,
    /// The TTFT in milliseconds at 0, 1, … 100 %.
    pub ttft_curve: Vec<f64>,
    /// Requests on each replica, at even distances in time.
    pub load: Vec<Vec<u32>>,
    /// Seconds between two of those.
    pub load_every: f64,
}

/// Tokens by which a pick must be worse than another to count as wrong.
pub const WRONG: f64 = 512.0;

impl Outcome {
    /// How unevenly requests stand on the replicas, on average over time: standard deviation over mean.
    pub fn unevenness(&self) -> f64 {
        let at = |n: usize| {
            let now: Vec<f64> = self.load.iter().filter_map(|r| r.get(n)).map(|n| f64::from(*n)).collect();
            spread(&now)
        };
        let samples = self.load.iter().map(Vec::len).max().unwrap_or(0);
        let all: Vec<f64> = (0..samples).filter_map(at).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// How much the requests on one replica swing over time, of the mean over replicas: standard deviation over mean.
    pub fn swing(&self) -> f64 {
        let of = |series: &Vec<u32>| {
            // Without the first and last tenth: filling and draining are no swings.
            let edge = series.len() / 10;
            let inner: Vec<f64> = series[edge..series.len() - edge].iter().map(|n| f64::from(*n)).collect();
            spread(&inner)
        };
        let all: Vec<f64> = self.load.iter().filter_map(of).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }
}

fn spread(numbers: &[f64]) -> Option<f64> {
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / numbers.len().max(1) as f64;
    (mean > 0.0).then(|| variance.sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        let times = Times::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!((times.mean, times.p50, times.p90), (3.0, 3.0, 4.6));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn swings_are_told_from_standing_differences() {
        let still = Outcome { load: vec![vec![10; 50], vec![2; 50]], ..Outcome::default() };
        let wave: Vec<u32> = (0..50).map(|n| if n / 5 % 2 == 0 { 12 } else { 0 }).collect();
        let swinging = Outcome { load: vec![wave.clone(), wave], ..Outcome::default() };
        assert!(still.swing() == 0.0 && still.unevenness() > 0.6);
        assert!(swinging.swing() > 0.9 && swinging.unevenness() == 0.0);
    }
}
