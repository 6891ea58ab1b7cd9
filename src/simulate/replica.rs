//! A replica: the scheduler and the paged prefix cache of the [mock](crate::mock), in simulated time.

use std::sync::Arc;

use hashbrown::HashMap;

use super::Scenario;
use super::traffic::Call;
use crate::blocks::BlockHash;
use crate::clock::Time;
use crate::feed::FeedReplicaId;
use crate::feed::record::{LoadReport, Record, Tier};
use crate::mock::FreeOrder;
use crate::mock::events::{Event, EventHash};
use crate::mock::scheduler::{Limits, NewRequest, RequestId, Scheduler, Step, Totals};

/// The scheduler's name of a block: here the same as the gateway's, so that no map is needed between them.
pub fn event_hashes(chain: &[BlockHash]) -> Vec<EventHash> {
    chain.iter().map(|hash| EventHash(hash.0)).collect()
}

/// A request on a replica.
#[derive(Debug)]
struct Guest {
    call: usize,
    prompt: usize,
    /// Prompt tokens that need not be computed, as known when it came.
    cached: usize,
    chain: Arc<[BlockHash]>,
    blocks: usize,
    answering: bool,
}

/// What a step brought to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The request.
    pub call: usize,
    /// Its first token.
    pub first: bool,
    /// Its last token.
    pub last: bool,
    /// Prompt tokens that came from the cache.
    pub cached: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Replica {
    scheduler: Scheduler,
    block_size: usize,
    blocks: f64,
    speed: f64,
    times: [f64; 3],
    step: Option<Step>,
    guests: HashMap<RequestId, Guest>,
    /// In the order in which they came: sums over it are the same each time.
    order: Vec<RequestId>,
    /// Blocks of the prompts under way, by how many requests.
    coming: HashMap<BlockHash, u32>,
    context: usize,
    /// Time spent in steps, in nanoseconds.
    pub busy: u64,
    /// Prompt tokens computed.
    pub prefilled: u64,
    /// When it came.
    pub since: Time,
}

impl Replica {
    /// A replica with a cold cache, `speed` times as fast as the scenario says.
    pub fn new(scenario: &Scenario, speed: f64, since: Time) -> Replica {
        let limits = Limits {
            block_size: scenario.block_size,
            blocks: scenario.blocks,
            max_batch: scenario.max_batch,
            step_tokens: scenario.step_tokens,
            free_order: FreeOrder::EmptyFirst,
        };
        Replica {
            scheduler: Scheduler::new(limits),
            block_size: scenario.block_size as usize,
            blocks: f64::from(scenario.blocks),
            speed,
            times: [scenario.prefill_us * 1e3, scenario.decode_ms * 1e6, scenario.context_us],
            step: None,
            guests: HashMap::new(),
            order: Vec::new(),
            coming: HashMap::new(),
            context: 0,
            busy: 0,
            prefilled: 0,
            since,
        }
    }

    /// Takes a request. False: it could never run here.
    pub fn submit(&mut self, call: &Call) -> bool {
        let cached = self.held(call.prompt_chain(), true) * self.block_size;
        let tokens = call.prompt + call.output;
        let hashes = event_hashes(&call.chain[..(tokens / self.block_size).min(call.chain.len())]);
        let new =
            NewRequest { prompt: vec![0; call.prompt], output: vec![0; call.output], hashes, ..NewRequest::default() };
        let Some(id) = self.scheduler.submit(new) else { return false };
        call.prompt_chain().iter().for_each(|hash| *self.coming.entry(*hash).or_insert(0) += 1);
        let (chain, blocks) = (call.chain.clone(), call.prompt_chain().len());
        self.context += call.prompt;
        self.order.push(id);
        self.guests.insert(id, Guest { call: call.id, prompt: call.prompt, cached, chain, blocks, answering: false });
        true
    }

    /// Begins the next step, if none is under way and there is something to do. Gives its end.
    pub fn begin(&mut self, now: Time) -> Option<Time> {
        if self.step.is_some() {
            return None;
        }
        let step = self.scheduler.schedule()?;
        let decode = if step.decodes > 0 { self.times[1] + self.times[2] * step.context_tokens as f64 } else { 0.0 };
        let takes = (self.times[0] * step.prefill_tokens as f64 + decode) / self.speed;
        let takes = (takes as u64).max(1000);
        self.busy += takes;
        self.prefilled += step.prefill_tokens as u64;
        self.step = Some(step);
        Some(now.after(takes))
    }

    /// Ends the step: what it brought, and what is new about the cache.
    pub fn end(&mut self, id: FeedReplicaId, records: &mut Vec<Record>) -> Vec<Progress> {
        let Some(step) = self.step.take() else { return Vec::new() };
        let sampled = self.scheduler.finish(step);
        let mut progress = Vec::with_capacity(sampled.len());
        for token in sampled {
            let Some(guest) = self.guests.get_mut(&token.id) else { continue };
            let first = !std::mem::replace(&mut guest.answering, true);
            progress.push(Progress { call: guest.call, first, last: token.last, cached: token.cached_tokens });
            if token.last
                && let Some(guest) = self.guests.remove(&token.id)
            {
                self.order.retain(|other| *other != token.id);
                self.context -= guest.prompt;
                for hash in &guest.chain[..guest.blocks] {
                    if let Some(count) = self.coming.get_mut(hash) {
                        *count -= 1;
                        if *count == 0 {
                            self.coming.remove(hash);
                        }
                    }
                }
            }
        }
        self.records(id, records);
        progress
    }

    fn records(&mut self, id: FeedReplicaId, records: &mut Vec<Record>) {
        for event in self.scheduler.take_events() {
            match event {
                Event::Stored { hashes, parent, .. } => records.push(Record::Stored {
                    replica: id,
                    tier: Tier::Gpu,
                    parent: parent.map(|hash| BlockHash(hash.0)),
                    ends: Vec::new(),
                    hashes: hashes.iter().map(|hash| BlockHash(hash.0)).collect(),
                }),
                Event::Removed { hash } => {
                    // Two blocks can have the same content; what came back meanwhile is announced after this.
                    if !self.scheduler.holds(hash) {
                        let gone = BlockHash(hash.0);
                        match records.last_mut() {
                            Some(Record::Removed { replica, hashes, .. }) if *replica == id => hashes.push(gone),
                            _ => records.push(Record::Removed { replica: id, tier: Tier::Gpu, hashes: vec![gone] }),
                        }
                    }
                }
                Event::Cleared => records.push(Record::Cleared(id)),
            }
        }
    }

    /// Blocks of a prompt that are cached here, from its start; `coming`: or will be, by requests under way.
    pub fn held(&self, chain: &[BlockHash], coming: bool) -> usize {
        let here =
            |hash: &BlockHash| self.scheduler.holds(EventHash(hash.0)) || (coming && self.coming.contains_key(hash));
        chain.iter().take_while(|hash| here(hash)).count()
    }

    /// Prompt tokens that are still to be computed.
    pub fn prefill(&self) -> f64 {
        let guests = self.order.iter().filter_map(|id| Some((id, self.guests.get(id)?)));
        let left = guests.filter(|(_, g)| !g.answering).map(|(id, g)| {
            let done = self.scheduler.computed(*id).max(g.cached);
            g.prompt.saturating_sub(done).max(1)
        });
        left.sum::<usize>() as f64
    }

    /// Prompt tokens of the requests that are here, or tokens of the cache that they use: what is more.
    pub fn context(&self) -> f64 {
        let in_use = self.scheduler.usage() * self.blocks * self.block_size as f64;
        in_use.max(self.context as f64)
    }

    /// Requests that are here.
    pub fn requests(&self) -> usize {
        self.order.len()
    }

    /// How fast it is.
    pub fn speed(&self) -> f64 {
        self.speed
    }

    /// What its engine reports.
    pub fn report(&self) -> LoadReport {
        LoadReport {
            running: self.scheduler.running() as u32,
            waiting: self.scheduler.waiting() as u32,
            kv_usage_ppm: (self.scheduler.usage() * 1e6) as u32,
            age_ms: 0,
        }
    }

    /// Counters of the scheduler.
    pub fn totals(&self) -> Totals {
        self.scheduler.totals()
    }
}
