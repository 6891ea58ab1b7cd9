//! Traffic like that of chat users: conversations of several turns that share a system prompt, over any
//! OpenAI-compatible endpoint.
//!
//! | step | module |
//! |---|---|
//! | what is said: seeded pseudo-text, histories | `conversation` |
//! | one request, measured | `client` |
//! | who asks when: closed or open loop | this one |
//! | sums, percentiles, the table | [`report`] |
//!
//! The turns of all conversations interleave: a conversation that got its answer queues up behind the others.

mod client;
mod conversation;
pub mod report;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub use report::{Percentiles, Report};

use client::Client;
use conversation::Conversation;
use report::Tally;

use crate::mock::words::Dice;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many at once: the next one when an answer is complete.
    Closed {
        /// Requests under way.
        concurrency: usize,
    },
    /// At random times, so many a second on average, whatever the answers do; but never two turns of one
    /// conversation at once.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// See the fields.
#[derive(Clone)]
pub struct Options {
    /// `http://host:port`, with or without `/v1` or the whole path.
    pub url: String,
    /// Model that requests name.
    pub model: String,
    /// Conversations.
    pub conversations: usize,
    /// Turns of each.
    pub turns: usize,
    /// Different system prompts; conversations share them evenly.
    pub system_prompts: usize,
    /// Words of a system prompt; about as many tokens.
    pub system_words: usize,
    /// Words of a question.
    pub question_words: usize,
    /// Tokens that an answer may have.
    pub max_tokens: u64,
    /// Server-sent events.
    pub stream: bool,
    /// See [`Pace`].
    pub pace: Pace,
    /// The same seed gives the same text and times.
    pub seed: u64,
    /// For one request.
    pub timeout: Duration,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// Response header that names the replica.
    pub replica_header: String,
    /// HTTP/2 without TLS.
    pub http2: bool,
    /// Called after each request.
    pub on_answer: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            url: "http://127.0.0.1:8000".to_owned(),
            model: "mock".to_owned(),
            conversations: 30,
            turns: 4,
            system_prompts: 1,
            system_words: 500,
            question_words: 100,
            max_tokens: 32,
            stream: true,
            pace: Pace::Closed { concurrency: 8 },
            seed: 1,
            timeout: Duration::from_secs(300),
            headers: Vec::new(),
            replica_header: "x-mock-replica".to_owned(),
            http2: false,
            on_answer: None,
        }
    }
}

/// Sends all turns of all conversations. An error means that nothing could be sent at all; failed requests are
/// counted in the report.
pub async fn run(options: Options) -> anyhow::Result<Report> {
    let client = Arc::new(Client::new(&options)?);
    let mut ready: VecDeque<Conversation> = (0..options.conversations)
        .map(|number| Conversation::new(&options, number))
        .filter(|conversation| !conversation.is_over())
        .collect();
    let mut under_way: JoinSet<(Conversation, client::Outcome)> = JoinSet::new();
    let mut tally = Tally::default();
    let mut dice = Dice(options.seed ^ 0x70_61_63_65);
    let begin = Instant::now();
    let mut next_start = begin;
    while !ready.is_empty() || !under_way.is_empty() {
        let may_start = !ready.is_empty()
            && match options.pace {
                Pace::Closed { concurrency } => under_way.len() < concurrency.max(1),
                Pace::Open { .. } => Instant::now() >= next_start,
            };
        if may_start && let Some(mut conversation) = ready.pop_front() {
            let client = client.clone();
            under_way.spawn(async move {
                let body = conversation.ask();
                let outcome = client.send(body).await;
                (conversation, outcome)
            });
            if let Pace::Open { rate } = options.pace {
                next_start += gap(&mut dice, rate);
            }
            continue;
        }
        // For the next answer, or in an open loop for the next start if there is somebody to start.
        let starts = matches!(options.pace, Pace::Open { .. }) && !ready.is_empty();
        tokio::select! {
            Some(joined) = under_way.join_next() => {
                let (mut conversation, outcome) = joined?;
                conversation.hear(outcome.as_ref().ok());
                tally.add(&conversation, &outcome);
                if let Some(tell) = &options.on_answer {
                    tell();
                }
                if !conversation.is_over() {
                    ready.push_back(conversation);
                }
            }
            () = tokio::time::sleep_until(next_start.into()), if starts => {}
        }
    }
    Ok(tally.report(begin.elapsed()))
}

/// Time to the next arrival of a Poisson process.
fn gap(dice: &mut Dice, rate: f64) -> Duration {
    let uniform = (dice.roll() >> 11) as f64 / (1u64 << 53) as f64;
    Duration::try_from_secs_f64(-(1.0 - uniform).ln() / rate).unwrap_or(Duration::from_secs(3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_wanted_rate() {
        let mut dice = Dice(3);
        let total: Duration = (0..10_000).map(|_| gap(&mut dice, 50.0)).sum();
        let rate = 10_000.0 / total.as_secs_f64();
        assert!((48.0..52.0).contains(&rate), "{rate}");
    }
}
