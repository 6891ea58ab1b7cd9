//! One request on its way from the body to block hashes, in steps that can stop anywhere.
//!
//! The body is parsed piece by piece, but for copying a long text out of it, and rendered in one step; the text is looked
//! up among the remembered ones, in another one, and then tokenized piece by piece. After every step [`Job::hashes`] has the blocks that are
//! certain by then.

use std::rc::Rc;

use super::models::{Model, Setup, Tools};
use super::text::Text;
use crate::blocks::{BlockHash, Chain, TokenId, namespace};
use crate::clock::{Budget, Time};
use crate::explain::truncate;
use crate::nokey::{NoKey, NoKeyReason};
use crate::request::json::Parsing;
use crate::request::{Api, Body, Prepared, PromptInput, Truncate};
use crate::tokenizer::Step as TokenizerStep;
use crate::tokenizer::memory::Scope;

/// JSON that is parsed between two looks at the clock.
const STEP_JSON: usize = 16 << 10;
/// Text that is tokenized between two looks at the clock.
const STEP_BYTES: usize = 4 << 10;
/// Ids that are hashed between two looks at the clock, where the client sent them.
const STEP_IDS: usize = 16 << 10;
/// What a body of one byte may take while it is worked on: the body and its JSON, then the text, its ids and
/// what the tokenizer needs for a piece of it.
const BYTES_PER_BYTE: usize = 8;
/// What any job takes.
const BYTES_PER_JOB: usize = 64 << 10;
/// Bodies up to this size are small: what they take is less than a slice.
const SMALL: usize = 64 << 10;
/// From this size of the body on, a step that cannot be cut takes about a slice.
const LONG: usize = 256 << 10;
/// Bytes of English text that make a token, for a prompt that was not tokenized to its end.
const BYTES_PER_TOKEN: f64 = 4.0;

/// How far it has come.
enum Stage {
    /// The body, still to be parsed.
    Body(Vec<u8>),
    /// The body, parsed in part.
    Parsing(Parsing),
    /// The parsed body, still to be rendered.
    Parsed(Body),
    /// The rendered prompt, still to be looked up.
    Rendered(Box<Prepared>),
    /// Ids that the client sent, and how many of them are hashed.
    Ids(Vec<TokenId>, usize),
    /// Text under way.
    Text(Text),
    /// Everything is known.
    Done,
    /// There is no more to be known.
    Failed,
}

/// What a job does next, for whoever times it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reads JSON.
    Parse,
    /// Renders the template.
    Render,
    /// Makes ids and hashes.
    Tokenize,
}

/// One request.
pub struct Job {
    /// Number of the stream.
    pub stream: u32,
    /// The configuration that it began with.
    pub setup: Rc<Setup>,
    /// When its body was complete.
    pub since: Time,
    /// The model, once the body is parsed: its place in the configuration.
    pub model: Option<usize>,
    /// The LoRA adapter that it names.
    lora: Option<String>,
    /// The session that its header names.
    pub session: Option<String>,
    /// Tokens that the answer may have, if the client said so.
    pub max_output_tokens: Option<u64>,
    /// Whether the answer is streamed.
    pub streamed: bool,
    /// The blocks known so far.
    pub hashes: Vec<BlockHash>,
    api: Api,
    stage: Stage,
    chain: Option<Chain>,
    /// Of an open end the last token is held back; of a prompt that is to be cut all of them.
    held_back: Vec<TokenId>,
    open_ended: bool,
    truncate: Option<(Truncate, usize)>,
    tokens: usize,
    body_bytes: usize,
}

impl Job {
    /// A request whose body has come.
    pub fn new(stream: u32, setup: Rc<Setup>, api: Api, body: Vec<u8>, now: Time) -> Job {
        Job {
            stream,
            setup,
            since: now,
            model: None,
            lora: None,
            session: None,
            max_output_tokens: None,
            streamed: false,
            hashes: Vec::new(),
            api,
            body_bytes: body.len(),
            stage: Stage::Body(body),
            chain: None,
            held_back: Vec::new(),
            open_ended: false,
            truncate: None,
            tokens: 0,
        }
    }

    /// The LoRA adapter that it names.
    pub fn adapter(&self) -> Option<&str> {
        self.lora.as_deref()
    }

    /// Memory to set aside for a body of this size.
    pub fn cost(body_bytes: usize) -> usize {
        body_bytes.saturating_mul(BYTES_PER_BYTE).saturating_add(BYTES_PER_JOB)
    }

    /// Memory set aside for this one.
    pub fn reserved(&self) -> usize {
        Job::cost(self.body_bytes)
    }

    /// Whether all blocks of the prompt are known, or no more can be.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done | Stage::Failed)
    }

    /// What [`Job::step`] does next.
    pub fn next_step(&self) -> Step {
        match self.stage {
            Stage::Body(_) | Stage::Parsing(_) => Step::Parse,
            Stage::Parsed(_) => Step::Render,
            Stage::Rendered(_) | Stage::Ids(..) | Stage::Text(_) | Stage::Done | Stage::Failed => Step::Tokenize,
        }
    }

    /// Whether all of it takes less than a slice.
    pub fn is_small(&self) -> bool {
        self.body_bytes <= SMALL
    }

    /// Whether taking its body from Envoy was about a slice's work already, in a turn in which Envoy read much of it.
    pub fn is_long(&self) -> bool {
        self.body_bytes >= LONG
    }

    /// Whether the next step takes about a slice or more, and cannot be cut: it should have a slice of its own.
    pub fn next_is_long(&self) -> bool {
        self.is_long() && matches!(self.stage, Stage::Parsed(_) | Stage::Rendered(_))
    }

    /// About how many bytes there are still to work on.
    pub fn remaining_bytes(&self) -> usize {
        match &self.stage {
            Stage::Text(text) => text.remaining_bytes(),
            Stage::Ids(ids, done) => ids.len().saturating_sub(*done).saturating_mul(size_of::<TokenId>()),
            Stage::Done | Stage::Failed => 0,
            Stage::Body(_) | Stage::Parsing(_) | Stage::Parsed(_) | Stage::Rendered(_) => self.body_bytes,
        }
    }

    /// Tokens of the prompt: counted where it was tokenized to its end, else estimated. The flag says which.
    pub fn tokens(&self) -> (f64, bool) {
        match &self.stage {
            Stage::Done => (self.tokens as f64, true),
            Stage::Ids(ids, _) => (ids.len() as f64, true),
            Stage::Text(text) => {
                let rest = text.remaining_bytes();
                let done = text.bytes().saturating_sub(rest) as f64;
                // From a few kilobytes on the text itself says best how long its tokens are.
                let ratio = if done >= 2048.0 && self.tokens > 0 { done / self.tokens as f64 } else { BYTES_PER_TOKEN };
                (self.tokens as f64 + rest as f64 / ratio, false)
            }
            Stage::Body(_) | Stage::Parsing(_) | Stage::Parsed(_) | Stage::Rendered(_) | Stage::Failed => {
                (self.body_bytes as f64 / BYTES_PER_TOKEN, false)
            }
        }
    }

    /// Works on as long as `budget` allows, at least one step. Ends early when a new block is known, so that the
    /// caller can look whether further ones still matter, and before a step that should have a slice of its own. An
    /// error ends the job.
    pub fn step(&mut self, tools: &mut Tools, unix_seconds: u64, budget: Budget<'_>) -> Result<(), NoKeyReason> {
        let known = self.hashes.len();
        loop {
            let result = self.one(tools, unix_seconds);
            if result.is_err() {
                self.stage = Stage::Failed;
            }
            result?;
            if self.is_done() || self.hashes.len() > known || self.next_is_long() || !budget() {
                return Ok(());
            }
        }
    }

    fn one(&mut self, tools: &mut Tools, unix_seconds: u64) -> Result<(), NoKeyReason> {
        match &mut self.stage {
            Stage::Body(body) => {
                let parsing = Body::parsing(std::mem::take(body));
                self.stage = Stage::Parsing(parsing);
                Ok(())
            }
            Stage::Parsing(parsing) => match Body::step(parsing, STEP_JSON)? {
                Some(body) => self.parsed(body),
                None => Ok(()),
            },
            Stage::Parsed(_) => match std::mem::replace(&mut self.stage, Stage::Failed) {
                Stage::Parsed(body) => self.render(&body, unix_seconds),
                _ => Ok(()),
            },
            Stage::Rendered(_) => match std::mem::replace(&mut self.stage, Stage::Failed) {
                Stage::Rendered(prepared) => self.begin(*prepared, tools),
                _ => Ok(()),
            },
            Stage::Text(text) => {
                let mut ids = Vec::new();
                let step = text.step(STEP_BYTES, &mut ids);
                let step = step.map_err(|e| NoKeyReason::new(NoKey::TokenizerError, e.0))?;
                self.take(&ids);
                if let (Stage::Text(text), Some(chain)) = (&mut self.stage, &self.chain) {
                    text.remember(&mut tools.memory, self.tokens, &self.hashes, chain);
                }
                if step == TokenizerStep::Done {
                    self.finish();
                }
                Ok(())
            }
            Stage::Ids(ids, at) => {
                let end = at.saturating_add(STEP_IDS).min(ids.len());
                let part = ids.get(*at..end).unwrap_or_default().to_vec();
                let done = end == ids.len();
                *at = end;
                self.take(&part);
                if done {
                    self.finish();
                }
                Ok(())
            }
            Stage::Done | Stage::Failed => Ok(()),
        }
    }

    fn parsed(&mut self, body: Body) -> Result<(), NoKeyReason> {
        let (at, model, lora) = self.setup.config.asked(body.model())?;
        self.lora = lora.map(str::to_owned);
        if model.rollout_percent < 100.0 && body.conversation(self.api, &model.name) * 100.0 >= model.rollout_percent {
            let detail = format!("not among the {} % of {}", model.rollout_percent, model.name);
            return Err(NoKeyReason::new(NoKey::HeldOut, detail));
        }
        self.model = Some(at);
        self.stage = Stage::Parsed(body);
        Ok(())
    }

    fn render(&mut self, body: &Body, unix_seconds: u64) -> Result<(), NoKeyReason> {
        let prepared = model_of(&self.setup, self.model)?.renderer()?.prepare(self.api, body, unix_seconds)?;
        self.stage = Stage::Rendered(Box::new(prepared));
        Ok(())
    }

    fn begin(&mut self, prepared: Prepared, tools: &mut Tools) -> Result<(), NoKeyReason> {
        let setup = self.setup.clone();
        let model = model_of(&setup, self.model)?;
        let Prepared { input, add_special_tokens, truncate, cache_salt, open_ended, .. } = prepared;
        let in_front = if add_special_tokens { model.specials_in_front() } else { 0 };
        self.max_output_tokens = prepared.max_output_tokens;
        self.streamed = prepared.stream;
        self.open_ended = open_ended;
        self.truncate = truncate.map(|cut| (cut, in_front));
        let root =
            namespace(&self.setup.config.hash_seed, &model.config.name, self.lora.as_deref(), cache_salt.as_deref());
        self.chain = Some(Chain::new(root, model.config.block_size));
        let tokenizer = tools.tokenizers.of(model)?;
        self.stage = match input {
            PromptInput::Ids(ids) => Stage::Ids(ids, 0),
            PromptInput::Pieces(pieces) => Stage::Text(Text::pieces(tokenizer, pieces, add_special_tokens)),
            // Of these the last tokens are held back, so what is hashed lags behind what is tokenized.
            PromptInput::Text(text) if open_ended || truncate.is_some() => {
                Stage::Text(Text::pieces(tokenizer, vec![text], add_special_tokens))
            }
            PromptInput::Text(text) => {
                let block_size = model.config.block_size;
                let scope = Scope { root, block_size, tokenizer: model.tokenizer_id(add_special_tokens) };
                let (text, beginning) = Text::whole(tokenizer, text, add_special_tokens, scope, &mut tools.memory);
                if let Some(beginning) = beginning {
                    self.tokens = beginning.at.tokens;
                    self.hashes = beginning.hashes;
                    self.chain = Some(beginning.chain);
                }
                Stage::Text(text)
            }
        };
        Ok(())
    }

    /// The next ids of the prompt.
    fn take(&mut self, ids: &[TokenId]) {
        self.tokens += ids.len();
        let Some(chain) = &mut self.chain else { return };
        if self.truncate.is_some() {
            self.held_back.extend_from_slice(ids);
        } else if self.open_ended {
            if let Some((last, rest)) = ids.split_last() {
                chain.extend(&self.held_back, &mut self.hashes);
                chain.extend(rest, &mut self.hashes);
                self.held_back.clear();
                self.held_back.push(*last);
            }
        } else {
            chain.extend(ids, &mut self.hashes);
        }
    }

    /// There are no more ids.
    fn finish(&mut self) {
        self.stage = Stage::Done;
        let (Some((cut, in_front)), Some(chain)) = (self.truncate, &mut self.chain) else { return };
        let mut ids = std::mem::take(&mut self.held_back);
        truncate(&mut ids, cut, in_front);
        self.tokens = ids.len();
        if self.open_ended {
            ids.pop();
        }
        chain.extend(&ids, &mut self.hashes);
    }
}

fn model_of(setup: &Setup, at: Option<usize>) -> Result<&Model, NoKeyReason> {
    at.and_then(|at| setup.models.get(at)).ok_or_else(|| NoKeyReason::new(NoKey::Internal, "models out of step"))
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
