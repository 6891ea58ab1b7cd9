//! The engine's scheduler, without time: [`Scheduler::schedule`] picks the tokens of one step and gives them
//! blocks, [`Scheduler::finish`] samples. How long a step takes is for the caller to say.
//!
//! As vLLM does it: running requests first, in order of arrival, then waiting ones while the token budget and
//! the batch have room; long prompts in chunks; when blocks run out the youngest running request is preempted
//! and starts again later. Blocks count as cached, and are announced, from the step that computes them.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::events::{Event, EventHash, ExtraKeys};
use super::pool::{BlockId, BlockPool, FreeOrder};
use crate::blocks::TokenId;

/// Names a request inside the engine.
pub type RequestId = u64;

/// What the scheduler may do in a step.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks of the cache, the null block included.
    pub blocks: u32,
    /// Requests that run at once.
    pub max_batch: usize,
    /// Tokens of one step.
    pub step_tokens: usize,
    /// See [`FreeOrder`].
    pub free_order: FreeOrder,
}

/// A request as it is submitted.
#[derive(Clone, Debug, Default)]
pub struct NewRequest {
    /// The prompt; at least one token.
    pub prompt: Vec<TokenId>,
    /// What will be generated; at least one token.
    pub output: Vec<TokenId>,
    /// See [`ExtraKeys`].
    pub extra: ExtraKeys,
    /// Copied into events.
    pub session_id: Option<String>,
    /// Announce the reused blocks as well (vLLM's `kv_cache_report_mode: full`).
    pub report_reused: bool,
    /// Hashes of the first full blocks of prompt and output, where the caller has them: those are not computed,
    /// and the tokens may be anything.
    pub hashes: Vec<EventHash>,
}

#[derive(Debug)]
struct Request {
    // Prompt and what is generated so far.
    tokens: Vec<TokenId>,
    prompt_tokens: usize,
    output: Vec<TokenId>,
    generated: usize,
    extra: ExtraKeys,
    session_id: Option<String>,
    report_reused: bool,
    hashes: Vec<EventHash>,
    blocks: Vec<BlockId>,
    // Tokens with KV.
    computed: usize,
    // Full blocks that have their hash in the pool.
    announced: usize,
    cached_tokens: Option<usize>,
}

/// The work of one step.
#[derive(Debug, Default)]
pub struct Step {
    work: Vec<(RequestId, usize)>,
    /// Prompt tokens that are computed.
    pub prefill_tokens: usize,
    /// Requests that get their next output token.
    pub decodes: usize,
    /// Tokens in the contexts of those.
    pub context_tokens: usize,
}

/// A token that a step gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Of which request.
    pub id: RequestId,
    /// Its position in the output, from 0.
    pub index: usize,
    /// Whether it is the last one.
    pub last: bool,
    /// Prompt tokens that came from the cache when the request was first scheduled.
    pub cached_tokens: usize,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tokens that were looked up in the cache.
    pub queried_tokens: u64,
    /// Of those, found.
    pub hit_tokens: u64,
    /// Prompt tokens of finished and running requests.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Requests that had to start again.
    pub preemptions: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    requests: HashMap<RequestId, Request>,
    running: Vec<RequestId>,
    waiting: VecDeque<RequestId>,
    next_id: RequestId,
    totals: Totals,
}

impl Scheduler {
    /// An engine with a cold cache.
    pub fn new(limits: Limits) -> Self {
        Scheduler {
            limits,
            pool: BlockPool::new(limits.blocks, limits.free_order),
            requests: HashMap::new(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            next_id: 0,
            totals: Totals::default(),
        }
    }

    /// Queues a request. `None` when it could never run: nothing to compute, or larger than the cache.
    pub fn submit(&mut self, new: NewRequest) -> Option<RequestId> {
        let slots = new.prompt.len() + new.output.len();
        if new.prompt.is_empty() || new.output.is_empty() || self.blocks_for(slots) > self.pool.usable_blocks() {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let prompt_tokens = new.prompt.len();
        self.requests.insert(
            id,
            Request {
                tokens: new.prompt,
                prompt_tokens,
                output: new.output,
                generated: 0,
                extra: new.extra,
                session_id: new.session_id,
                report_reused: new.report_reused,
                hashes: new.hashes,
                blocks: Vec::new(),
                computed: 0,
                announced: 0,
                cached_tokens: None,
            },
        );
        self.waiting.push_back(id);
        Some(id)
    }

    /// Drops a request whose client has gone.
    pub fn abort(&mut self, id: RequestId) {
        if let Some(request) = self.requests.remove(&id) {
            self.pool.release(&request.blocks);
            self.running.retain(|other| *other != id);
            self.waiting.retain(|other| *other != id);
        }
    }

    /// Empties the prefix cache; false while requests run. The event waits for the next step.
    pub fn reset_cache(&mut self) -> bool {
        self.pool.reset()
    }

    /// The next step; `None` when there is nothing to do.
    pub fn schedule(&mut self) -> Option<Step> {
        let mut step = Step::default();
        let mut budget = self.limits.step_tokens;
        let mut preempted = false;

        let mut position = 0;
        while position < self.running.len() && budget > 0 {
            let id = self.running[position];
            let new_tokens = self.pending_tokens(id).min(budget);
            let mut placed = self.place(id, &[], new_tokens);
            while !placed {
                // The youngest gives way; it may be the one in need.
                let victim = self.running.pop()?;
                self.preempt(victim);
                preempted = true;
                if victim == id {
                    break;
                }
                placed = self.place(id, &[], new_tokens);
            }
            if !placed {
                break;
            }
            self.add_work(&mut step, id, new_tokens);
            budget -= new_tokens;
            position += 1;
        }

        while !preempted && budget > 0 && self.running.len() < self.limits.max_batch {
            let Some(&id) = self.waiting.front() else { break };
            let hits = self.find_hits(id);
            let hit_tokens = hits.len() * self.limits.block_size as usize;
            let all = self.requests[&id].tokens.len() - hit_tokens;
            // Admitted only when the whole prompt has room, or two half-placed ones could block each other.
            if !self.fits(id, &hits, all) {
                break;
            }
            let new_tokens = all.min(budget);
            self.count_first_schedule(id, hit_tokens);
            self.place(id, &hits, new_tokens);
            self.waiting.pop_front();
            self.running.push(id);
            self.add_work(&mut step, id, new_tokens);
            budget -= new_tokens;
        }
        (!step.work.is_empty()).then_some(step)
    }

    /// Ends a step: the tokens that it sampled.
    pub fn finish(&mut self, step: Step) -> Vec<Sampled> {
        let mut sampled = Vec::with_capacity(step.work.len());
        for (id, new_tokens) in step.work {
            // Aborted meanwhile.
            let Some(request) = self.requests.get_mut(&id) else { continue };
            request.computed += new_tokens;
            if request.computed < request.tokens.len() {
                continue;
            }
            let index = request.generated;
            request.tokens.push(request.output[index]);
            request.generated += 1;
            self.totals.output_tokens += 1;
            let last = request.generated == request.output.len();
            sampled.push(Sampled { id, index, last, cached_tokens: request.cached_tokens.unwrap_or(0) });
            if last {
                self.abort(id);
            }
        }
        sampled
    }

    /// The events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.pool.take_events()
    }

    /// Requests that have blocks.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait for room.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Blocks of this chain that are in the cache, from its start.
    pub fn held(&self, chain: &[EventHash]) -> usize {
        chain.iter().take_while(|hash| self.holds(**hash)).count()
    }

    /// Whether the cache has a block with this hash.
    pub fn holds(&self, hash: EventHash) -> bool {
        self.pool.find(hash).is_some()
    }

    /// Tokens of a request that have their KV; 0 while it waits.
    pub fn computed(&self, id: RequestId) -> usize {
        self.requests.get(&id).map_or(0, |request| request.computed)
    }

    /// Share of the blocks that requests use now, cached-but-free ones not counted.
    pub fn usage(&self) -> f64 {
        let usable = self.pool.usable_blocks();
        (usable - self.pool.free_blocks()) as f64 / usable as f64
    }

    /// Blocks with content.
    pub fn cached_blocks(&self) -> usize {
        self.pool.cached_blocks()
    }

    /// See [`Totals`].
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.limits.block_size as usize)
    }

    fn pending_tokens(&self, id: RequestId) -> usize {
        let request = &self.requests[&id];
        request.tokens.len() - request.computed
    }

    fn add_work(&mut self, step: &mut Step, id: RequestId, new_tokens: usize) {
        let request = &self.requests[&id];
        if request.computed >= request.prompt_tokens {
            step.decodes += 1;
            step.context_tokens += request.computed;
        } else {
            step.prefill_tokens += new_tokens;
        }
        step.work.push((id, new_tokens));
    }

    /// The cached blocks from the start of the request. Never all of its tokens: the last one is always computed.
    fn find_hits(&mut self, id: RequestId) -> Vec<BlockId> {
        let block_size = self.limits.block_size as usize;
        let Some(request) = self.requests.get_mut(&id) else { return Vec::new() };
        request.extend_hashes(block_size);
        let limit = (request.tokens.len() - 1) / block_size;
        request.hashes[..limit].iter().map_while(|hash| self.pool.find(*hash)).collect()
    }

    fn count_first_schedule(&mut self, id: RequestId, hit_tokens: usize) {
        if let Some(request) = self.requests.get_mut(&id)
            && request.cached_tokens.is_none()
        {
            request.cached_tokens = Some(hit_tokens);
            self.totals.queried_tokens += request.tokens.len() as u64;
            self.totals.hit_tokens += hit_tokens as u64;
            self.totals.prompt_tokens += request.prompt_tokens as u64;
        }
    }

    fn fits(&self, id: RequestId, hits: &[BlockId], new_tokens: usize) -> bool {
        let request = &self.requests[&id];
        let tokens = request.computed + hits.len() * self.limits.block_size as usize + new_tokens;
        let fresh = self.blocks_for(tokens).saturating_sub(request.blocks.len() + hits.len());
        let revived = hits.iter().filter(|block| self.pool.is_free(**block)).count();
        fresh + revived <= self.pool.free_blocks()
    }

    /// Gives the request its hits and the blocks for `new_tokens` more tokens, and announces what becomes full.
    fn place(&mut self, id: RequestId, hits: &[BlockId], new_tokens: usize) -> bool {
        if !self.fits(id, hits, new_tokens) {
            return false;
        }
        let block_size = self.limits.block_size as usize;
        let Some(request) = self.requests.get_mut(&id) else { return false };
        hits.iter().for_each(|block| self.pool.touch(*block));
        request.blocks.extend_from_slice(hits);
        request.computed += hits.len() * block_size;
        request.announced += hits.len();

        let slots = request.computed + new_tokens;
        let fresh = slots.div_ceil(block_size).saturating_sub(request.blocks.len());
        self.pool.allocate(fresh, &mut request.blocks);

        request.extend_hashes(block_size);
        let full = slots.min(request.tokens.len()) / block_size;
        for index in request.announced..full {
            self.pool.set_hash(request.blocks[index], request.hashes[index]);
        }
        let first = if request.report_reused && !hits.is_empty() { 0 } else { request.announced };
        if first < full {
            self.pool.push_event(Event::Stored {
                hashes: request.hashes[first..full].to_vec(),
                parent: first.checked_sub(1).map(|before| request.hashes[before]),
                first_block: first,
                tokens: request.tokens[first * block_size..full * block_size].to_vec(),
                extra: request.extra.clone(),
                session_id: request.session_id.clone(),
            });
        }
        request.announced = request.announced.max(full);
        true
    }

    fn preempt(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            self.pool.release(&request.blocks);
            request.blocks.clear();
            request.computed = 0;
            request.announced = 0;
            self.waiting.push_front(id);
            self.totals.preemptions += 1;
        }
    }
}

impl Request {
    fn extend_hashes(&mut self, block_size: usize) {
        for (index, block) in self.tokens.chunks_exact(block_size).enumerate().skip(self.hashes.len()) {
            let hash = self.extra.block_hash(index, self.hashes.last().copied(), block);
            self.hashes.push(hash);
        }
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
