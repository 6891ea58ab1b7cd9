//! Why a request went where it went, for `explain` and the access log.

use std::fmt::{self, Write};

use serde::Serialize;

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It holds more of the prompt than any other.
    Cache,
    /// It is less loaded, though another holds as much of the prompt or more.
    Load,
    /// Several were alike; the one whose turn it was, or the lot.
    Tie,
    /// There is no other.
    Only,
}

impl Reason {
    /// The name in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Cache => "cache",
            Reason::Load => "load",
            Reason::Tie => "tie",
            Reason::Only => "only",
        }
    }
}

/// One replica in a receipt. Tokens, except where it says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CandidateReceipt {
    /// `ip:port`.
    pub address: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// Trust in its events.
    pub trust: &'static str,
    /// Why.
    pub trust_reason: String,
    /// Blocks that it holds from the start.
    pub matched_blocks: u32,
    /// Tokens of them that the engine can use.
    pub matched: u64,
    /// Of those, tokens that are only predicted.
    pub predicted: u64,
    /// Of those, tokens whose blocks are not confirmed.
    pub unconfirmed: u64,
    /// Tokens of the match that counted, after the discounts.
    pub credit: u64,
    /// Tokens of the rest that are not counted, since a copy would have saved them to earlier requests; left out where
    /// there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub wanted: f64,
    /// Tokens of this prompt that it would have to prefill.
    pub uncached: u64,
    /// Requests booked there by this gateway.
    pub booked_requests: u32,
    /// Prompt tokens booked there and not prefilled yet.
    pub booked_prefill: u64,
    /// Tokens in the context of the requests booked there.
    pub booked_context: u64,
    /// Requests that its engine says it runs.
    pub reported_running: Option<u32>,
    /// Requests that its engine says wait.
    pub reported_waiting: Option<u32>,
    /// Share of its cache that its engine says is in use.
    pub reported_kv_usage: Option<f64>,
    /// Age of that in milliseconds.
    pub reported_age_ms: Option<u64>,
    /// Conversations that live there.
    pub homes: u32,
    /// Of the cost, what it has for being home to more conversations than the others.
    pub crowding: f64,
    /// Of a request for a LoRA adapter: `loaded`, `served` (it has to be loaded first), `absent` or `unknown`; left out of
    /// others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adapter: Option<&'static str>,
    /// Of the cost, what it has for loading the adapter; left out where it has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub loading: f64,
    /// The sum that decides; smaller is better. It is what of the prompt is not credited (less what is wanted
    /// there), the crowding, and for the rest load.
    pub cost: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_zero(cost: &f64) -> bool {
    *cost == 0.0
}

/// Which replica was asked to prefill, of a model that has replicas for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PrefillReceipt {
    /// The address that was named; null: the one that answers prefills itself.
    pub pick: Option<String>,
    /// Tokens that it would have to prefill.
    pub uncached: u64,
    /// From so many on another one is asked (`policy.remote_prefill`).
    pub from: u64,
    /// Replicas that were compared.
    pub compared: usize,
    /// The best of them, best first.
    pub candidates: Vec<CandidateReceipt>,
}

/// The whole story of one choice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Receipt {
    /// The model as the replicas serve it.
    pub model: String,
    /// The LoRA adapter that the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// True where that is an estimate.
    pub estimated: bool,
    /// Blocks whose hashes were known when it was chosen.
    pub known_blocks: u32,
    /// Replicas that were compared.
    pub compared: usize,
    /// The address that was picked.
    pub pick: String,
    /// What decided.
    pub reason: Reason,
    /// Whether all that is believed was confirmed.
    pub synced: bool,
    /// Milliseconds since the feed was last heard of.
    pub feed_age_ms: Option<u64>,
    /// Of a model with replicas that prefill for others: which one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill: Option<PrefillReceipt>,
    /// The best candidates (at most 16), best first.
    pub candidates: Vec<CandidateReceipt>,
}

/// How a request was treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Sent to the pick.
    Steered,
    /// Left to plain load balancing, though there was a pick.
    Shadow,
    /// Left to plain load balancing.
    Passed,
}

/// Microseconds that the filter spent on a request until it was let go, by step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// JSON of the body.
    pub parse: u64,
    /// Chat template.
    pub render: u64,
    /// Token ids and block hashes.
    pub tokenize: u64,
    /// Who holds the blocks.
    pub r#match: u64,
    /// Cost and ranking.
    pub choose: u64,
    /// From the end of the body until it was let go; waiting for other requests included.
    pub held: u64,
}

/// Candidates in a line, at most: clients take headers of 8 KiB.
const SHOWN: usize = 8;
/// Of those, candidates for the prefill.
const SHOWN_PREFILL: usize = 2;

/// A receipt as one line of JSON, for a header and the access log.
///
/// | field | |
/// |---|---|
/// | `v` | 1; another number when a field changes its meaning or goes |
/// | `mode` | [`Mode`] |
/// | `outcome` | the label in `kvroute_requests_total` |
/// | `detail` | why there is no key, exactly |
/// | `us` | [`Spent`] |
/// | the rest | [`Receipt`], with at most eight candidates, those for the prefill included; absent where nothing was chosen |
#[derive(Clone, Debug, Serialize)]
pub struct Line<'a> {
    v: u32,
    /// How it was treated.
    pub mode: Mode,
    /// What became of it.
    pub outcome: &'a str,
    /// Why there is no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'a str>,
    /// Where the time went.
    pub us: Spent,
    /// The choice.
    #[serde(flatten)]
    pub receipt: Option<Receipt>,
}

impl<'a> Line<'a> {
    /// Of a request that was compared.
    pub fn chosen(mode: Mode, outcome: &'a str, mut receipt: Receipt, us: Spent) -> Line<'a> {
        receipt.candidates.truncate(SHOWN);
        if let Some(prefill) = &mut receipt.prefill {
            prefill.candidates.truncate(SHOWN_PREFILL);
            receipt.candidates.truncate(SHOWN - SHOWN_PREFILL);
        }
        Line { v: 1, mode, outcome, detail: None, us, receipt: Some(receipt) }
    }

    /// Of a request without a key.
    pub fn passed(outcome: &'a str, detail: &'a str, us: Spent) -> Line<'a> {
        Line { v: 1, mode: Mode::Passed, outcome, detail: Some(detail), us, receipt: None }
    }
}

/// One line of visible ASCII, as a header takes it.
impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self).map_err(|_| fmt::Error)?;
        for c in json.chars() {
            // JSON itself is ASCII: what is not stands in a string, where it may be escaped.
            if (' '..='~').contains(&c) {
                f.write_char(c)?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(f, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(candidates: usize) -> Receipt {
        let candidate = CandidateReceipt {
            address: "10.0.0.1:8000".into(),
            rank: 0,
            trust: "exact",
            trust_reason: "from_the_start".into(),
            matched_blocks: 4,
            matched: 64,
            predicted: 0,
            unconfirmed: 0,
            wanted: 0.0,
            credit: 64,
            uncached: 36,
            booked_requests: 1,
            booked_prefill: 2,
            booked_context: 3,
            reported_running: Some(1),
            reported_waiting: None,
            reported_kv_usage: Some(0.5),
            reported_age_ms: Some(7),
            homes: 1,
            crowding: 0.0,
            adapter: None,
            loading: 0.0,
            cost: 36.25,
        };
        Receipt {
            model: "m\u{e9}\u{1f600}\n".into(),
            lora: None,
            prompt_tokens: 100,
            estimated: false,
            known_blocks: 6,
            compared: candidates,
            pick: "10.0.0.1:8000".into(),
            reason: Reason::Cache,
            synced: true,
            feed_age_ms: Some(3),
            prefill: None,
            candidates: vec![candidate; candidates],
        }
    }

    #[test]
    fn a_line_is_stable_ascii_json() {
        let us = Spent { parse: 1, render: 2, tokenize: 3, r#match: 4, choose: 5, held: 20 };
        let line = Line::chosen(Mode::Steered, "routed", receipt(1), us).to_string();
        let expected = concat!(
            r#"{"v":1,"mode":"steered","outcome":"routed","us":{"parse":1,"render":2,"tokenize":3,"match":4,"choose":5,"#,
            r#""held":20},"model":"m\u00e9\ud83d\ude00\n","prompt_tokens":100,"estimated":false,"known_blocks":6,"#,
            r#""compared":1,"pick":"10.0.0.1:8000","reason":"cache","synced":true,"feed_age_ms":3,"candidates":[{"#,
            r#""address":"10.0.0.1:8000","rank":0,"trust":"exact","trust_reason":"from_the_start","matched_blocks":4,"#,
            r#""matched":64,"predicted":0,"unconfirmed":0,"credit":64,"uncached":36,"booked_requests":1,"#,
            r#""booked_prefill":2,"booked_context":3,"reported_running":1,"reported_waiting":null,"#,
            r#""reported_kv_usage":0.5,"reported_age_ms":7,"homes":1,"crowding":0.0,"cost":36.25}]}"#,
        );
        assert_eq!(line, expected);
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["model"], "m\u{e9}\u{1f600}\n");
        let passed = Line::passed("too_short", "3 tokens", Spent::default()).to_string();
        assert!(passed.starts_with(r#"{"v":1,"mode":"passed","outcome":"too_short","detail":"3 tokens","us":{"#));
    }

    #[test]
    fn a_line_fits_a_header() {
        let line = Line::chosen(Mode::Steered, "routed", receipt(100), Spent::default()).to_string();
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((back["candidates"].as_array().unwrap().len(), &back["compared"]), (SHOWN, &100.into()));
        assert!(line.len() < 6 << 10, "{} bytes", line.len());
        let prefill = PrefillReceipt {
            pick: Some("10.0.0.9:8000".into()),
            uncached: 36,
            from: 16,
            compared: 100,
            candidates: receipt(100).candidates,
        };
        let apart = Receipt { prefill: Some(prefill), ..receipt(100) };
        let line = Line::chosen(Mode::Steered, "routed", apart, Spent::default()).to_string();
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        let count = |list: &serde_json::Value| list.as_array().unwrap().len();
        assert_eq!((count(&back["candidates"]), count(&back["prefill"]["candidates"])), (6, 2));
        assert!(line.len() < 6 << 10, "{} bytes", line.len());
    }
}
