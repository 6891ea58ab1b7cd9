//! Conversations with the gateway, and what each request came to on both sides.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvroute::look::{Choice, EXPLAIN_PATH, SECRET_HEADER};
use kvroute::mock::words::{Dice, text};
use serde_json::{Value, json};

use super::{BLOCK, MODEL};

/// Text that tokenizers like to disagree on.
const ODD: [&str; 6] = [
    "naïve café — “quoted” … 日本語のテキスト、한국어 문장, עברית.",
    "fn main() {\n    let x\t= 0x1F_u64;   // spaces\r\n}\n\n\n",
    "12345678901234567890 3.14159e-10 1,000,000.00 €",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u{301} \u{a0}\u{200b} \u{feff}",
    "<|im_start|> is spelled by a user, <think> too.",
    "   leading and trailing   ",
];

/// One request, seen by kvroute at the pick and by the engine.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which conversation and turn.
    pub name: String,
    /// Tokens of the prompt, as the engine counts them.
    pub prompt: u64,
    /// What kvroute expected in the cache of the replica that it chose, predictions included.
    pub matched: u64,
    /// Of that, what was only predicted.
    pub predicted: u64,
    /// What the engine says it found.
    pub cached: u64,
    /// Whether the ids are the same.
    pub same_ids: bool,
    /// Where it went.
    pub to: String,
    /// Why it went there.
    pub reason: String,
    /// Another request with the same beginning was under way when it was sent, or had ended less than this ago.
    pub beside: Option<Beside>,
}

/// What else went on with the same beginning of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// A request of another conversation with the same system prompt was under way.
    UnderWay,
    /// One of them, or the turn before, had ended less than 100 ms ago.
    JustEnded,
}

/// The gateway, and who else asks it.
pub struct Talk {
    /// `http://host:port` of clients.
    pub public: String,
    /// The loopback listener.
    pub inside: String,
    /// Its secret.
    pub secret: String,
    /// Shared.
    pub client: reqwest::Client,
    /// By system prompt: requests under way, and when the last one ended.
    pub beginnings: Mutex<HashMap<u64, (usize, Option<Instant>)>>,
}

/// One conversation.
pub struct Conversation {
    number: u64,
    turn: usize,
    system: u64,
    dice: Dice,
    messages: Vec<Value>,
}

impl Conversation {
    /// Number `number`; those with the same `system` share the system prompt.
    pub fn new(number: u64, system: u64, system_words: usize) -> Conversation {
        let prompt = text(&mut Dice(system.wrapping_mul(7919).wrapping_add(1)), system_words);
        Conversation {
            number,
            turn: 0,
            system,
            dice: Dice(number.wrapping_mul(104_729).wrapping_add(3)),
            messages: vec![json!({"role": "system", "content": prompt})],
        }
    }

    /// The next turn, as far as it is asked.
    fn ask(&mut self) -> Value {
        self.turn += 1;
        let words = 10 + (self.dice.roll() % 300) as usize;
        let odd = ODD[(self.dice.roll() % ODD.len() as u64) as usize];
        let question = format!("{} {odd}", text(&mut self.dice, words));
        self.messages.push(json!({"role": "user", "content": question}));
        json!({
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": 2 + self.dice.roll() % 70,
            "seed": self.dice.roll() % 1000,
            "ignore_eos": true,
            "return_token_ids": true,
        })
    }
}

impl Talk {
    /// Asks the next turn and compares.
    pub async fn turn(self: &Arc<Self>, conversation: &mut Conversation) -> Result<Record> {
        let body = conversation.ask();
        let name = format!("conversation {} turn {}", conversation.number, conversation.turn);
        let bytes = body.to_string();
        let ids = self.explained(&bytes).await?;
        let beside = self.begin(conversation.system);
        let answer = self
            .client
            .post(format!("{}/v1/chat/completions", self.public))
            .header("content-type", "application/json")
            .body(bytes)
            .send()
            .await?;
        let status = answer.status();
        let outcome = answer.headers().get("x-kvroute-outcome").and_then(|v| v.to_str().ok()).unwrap_or("").to_owned();
        let answer: Value = answer.json().await?;
        self.end(conversation.system);
        ensure!(status.is_success(), "{name}: status {status}: {answer}");
        let part = |key: &str| {
            let parts = outcome.split("; ").find_map(|p| p.strip_prefix(key)?.strip_prefix('='));
            parts.with_context(|| format!("{name}: outcome {outcome:?} without {key}"))
        };
        let content = answer.pointer("/choices/0/message/content").cloned().unwrap_or_default();
        conversation.messages.push(json!({"role": "assistant", "content": content}));
        let engine: Vec<u32> = serde_json::from_value(answer["prompt_token_ids"].clone())?;
        let usage = &answer["usage"];
        Ok(Record {
            same_ids: engine == ids,
            prompt: usage["prompt_tokens"].as_u64().context("usage.prompt_tokens")?,
            cached: usage.pointer("/prompt_tokens_details/cached_tokens").and_then(Value::as_u64).unwrap_or(0),
            matched: part("matched")?.parse()?,
            predicted: part("predicted")?.parse()?,
            reason: part("reason")?.to_owned(),
            to: part("to")?.to_owned(),
            name,
            beside,
        })
    }

    /// The ids that the filter makes of a body.
    async fn explained(&self, body: &str) -> Result<Vec<u32>> {
        let url = format!("{}{EXPLAIN_PATH}?path=/v1/chat/completions", self.inside);
        let request = self.client.post(url).header(SECRET_HEADER, &self.secret).body(body.to_owned());
        let choice: Choice = request.send().await?.error_for_status()?.json().await?;
        ensure!(choice.explanation.no_key.is_none(), "no key: {:?}", choice.explanation.no_key);
        Ok(choice.explanation.token_ids)
    }

    fn begin(&self, system: u64) -> Option<Beside> {
        let mut all = self.beginnings.lock().unwrap();
        let (under_way, ended) = all.entry(system).or_default();
        *under_way += 1;
        let just = ended.is_some_and(|at| at.elapsed() < Duration::from_millis(100));
        if *under_way > 1 { Some(Beside::UnderWay) } else { just.then_some(Beside::JustEnded) }
    }

    fn end(&self, system: u64) {
        if let Some((under_way, ended)) = self.beginnings.lock().unwrap().get_mut(&system) {
            *under_way -= 1;
            *ended = Some(Instant::now());
        }
    }
}

/// The rule of the engine that explains a difference, as far as it is known.
pub fn rule(record: &Record) -> &'static str {
    let Record { matched, predicted, cached, beside, .. } = record;
    let block = u64::from(BLOCK);
    match (matched.cmp(cached), beside) {
        (std::cmp::Ordering::Equal, _) => "equal",
        (std::cmp::Ordering::Less, Some(Beside::UnderWay)) => "under: the same beginning was under way",
        (std::cmp::Ordering::Less, Some(Beside::JustEnded)) => "under: an event was in flight",
        (std::cmp::Ordering::Less, None) if cached - matched <= block => "under: the last block of the answer before",
        (std::cmp::Ordering::Less, None) => "under: unexplained",
        (std::cmp::Ordering::Greater, _) if matched - predicted <= *cached => "predicted: not computed yet",
        (std::cmp::Ordering::Greater, _) => "OVER",
    }
}
