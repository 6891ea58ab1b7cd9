//! What a run came to.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;

use super::client::Outcome;
use super::conversation::Conversation;

/// Name for replicas that do not tell theirs.
const UNKNOWN: &str = "unknown";

/// See the fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// All that were sent.
    pub requests: u64,
    /// Those without a complete answer.
    pub errors: u64,
    /// Their causes.
    pub error_causes: BTreeMap<String, u64>,
    /// Of answered requests.
    pub prompt_tokens: u64,
    /// Of those, from the replicas' caches.
    pub cached_tokens: u64,
    /// Cached of all prompt tokens, 0 to 1.
    pub cached_share: f64,
    /// Generated.
    pub completion_tokens: u64,
    /// To the first token, or without streaming to the end.
    pub ttft_ms: Percentiles,
    /// To the end of the answer.
    pub latency_ms: Percentiles,
    /// Answered requests by the replica that answered.
    pub requests_per_replica: BTreeMap<String, u64>,
    /// Of the turns after the first: how many went to the replica of the turn before, 0 to 1. Absent where
    /// replicas do not tell their names.
    pub same_replica_share: Option<f64>,
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Complete answers.
    pub requests_per_second: f64,
    /// Generated tokens.
    pub tokens_per_second: f64,
}

/// Milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half are at most this.
    pub p50: f64,
    /// Nine of ten.
    pub p90: f64,
    /// 99 of 100.
    pub p99: f64,
}

impl Percentiles {
    /// Nearest rank, to the microsecond.
    fn of(mut times: Vec<f64>) -> Percentiles {
        times.sort_by(f64::total_cmp);
        let at = |percent: f64| {
            let rank = (times.len() as f64 * percent / 100.0).ceil() as usize;
            let time = times.get(rank.saturating_sub(1)).copied().unwrap_or(0.0);
            (time * 1e3).round() / 1e3
        };
        Percentiles { p50: at(50.0), p90: at(90.0), p99: at(99.0) }
    }
}

impl std::fmt::Display for Percentiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} / {:.1} / {:.1}", self.p50, self.p90, self.p99)
    }
}

/// A report that grows.
#[derive(Debug, Default)]
pub struct Tally {
    report: Report,
    first_token: Vec<f64>,
    total: Vec<f64>,
    followed: u64,
    followable: u64,
}

impl Tally {
    /// Adds one request; `conversation` has heard the outcome.
    pub fn add(&mut self, conversation: &Conversation, outcome: &Outcome) {
        let report = &mut self.report;
        report.requests += 1;
        let answer = match outcome {
            Ok(answer) => answer,
            Err(cause) => {
                report.errors += 1;
                *report.error_causes.entry(cause.clone()).or_default() += 1;
                return;
            }
        };
        report.prompt_tokens += answer.usage.prompt;
        report.cached_tokens += answer.usage.cached;
        report.completion_tokens += answer.usage.completion;
        let replica = answer.replica.as_deref().unwrap_or(UNKNOWN);
        *report.requests_per_replica.entry(replica.to_owned()).or_default() += 1;
        self.first_token.push(answer.first_token.as_secs_f64() * 1e3);
        self.total.push(answer.total.as_secs_f64() * 1e3);
        if let (Some(before), Some(now)) = (&conversation.previous_replica, &conversation.replica) {
            self.followable += 1;
            self.followed += u64::from(before == now);
        }
    }

    /// The end of the run.
    pub fn report(self, elapsed: Duration) -> Report {
        let mut report = self.report;
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        report.cached_share = share(report.cached_tokens, report.prompt_tokens);
        report.same_replica_share = (self.followable > 0).then(|| share(self.followed, self.followable));
        report.ttft_ms = Percentiles::of(self.first_token);
        report.latency_ms = Percentiles::of(self.total);
        report.seconds = elapsed.as_secs_f64();
        let seconds = report.seconds.max(1e-9);
        report.requests_per_second = (report.requests - report.errors) as f64 / seconds;
        report.tokens_per_second = report.completion_tokens as f64 / seconds;
        report
    }
}

impl Report {
    /// The report for people.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        row("requests", self.requests.to_string());
        row("errors", self.errors.to_string());
        for (cause, count) in &self.error_causes {
            row(&format!("  {cause}"), count.to_string());
        }
        row("prompt tokens", self.prompt_tokens.to_string());
        row("cached share", format!("{:.1} %", self.cached_share * 100.0));
        row("time to first token, ms (p50 / p90 / p99)", self.ttft_ms.to_string());
        row("to the end, ms (p50 / p90 / p99)", self.latency_ms.to_string());
        for (replica, count) in &self.requests_per_replica {
            row(&format!("requests at {replica}"), count.to_string());
        }
        if let Some(share) = self.same_replica_share {
            row("turns at the replica of the turn before", format!("{:.1} %", share * 100.0));
        }
        row("seconds", format!("{:.1}", self.seconds));
        row("requests/s", format!("{:.1}", self.requests_per_second));
        row("output tokens/s", format!("{:.0}", self.tokens_per_second));
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let of = |n: u32| Percentiles::of((1..=n).rev().map(f64::from).collect());
        assert_eq!(of(0), Percentiles::default());
        assert_eq!(of(1), Percentiles { p50: 1.0, p90: 1.0, p99: 1.0 });
        assert_eq!(of(100), Percentiles { p50: 50.0, p90: 90.0, p99: 99.0 });
        assert_eq!(of(1000), Percentiles { p50: 500.0, p90: 900.0, p99: 990.0 });
    }
}
