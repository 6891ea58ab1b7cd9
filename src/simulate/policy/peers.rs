//! The rules of other routers, as their source and documentation give them. Each hashes the same tokens as kvroute
//! does, which is kind to those that go by characters.

use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;

use super::seen::{ByEvents, BySending};
use super::{Policy, View};
use crate::blocks::BlockHash;
use crate::clock::{SECOND, Time};
use crate::simulate::feed::Delivery;
use crate::simulate::traffic::Call;
use crate::simulate::{Dice, Scenario};

/// The index of the greatest value; by chance among equals.
fn greatest(dice: &mut Dice, values: impl Iterator<Item = f64>) -> usize {
    let (mut best, mut found, mut alike) = (0, f64::NEG_INFINITY, 0usize);
    for (at, value) in values.enumerate() {
        if value > found {
            (best, found, alike) = (at, value, 1);
        } else if value == found {
            alike += 1;
            if dice.below(alike) == 0 {
                best = at;
            }
        }
    }
    best
}

/// SGLang's router and SMG, `model_gateway/src/policies/cache_aware.rs`, without events: one tree of what was sent
/// for each worker. When the loads are out of balance (max - min > 32 and max > 1.1 min) the least loaded; else the
/// best match, when it is more than half of the prompt; else the worker with the smallest tree.
pub struct Sglang {
    dice: Dice,
    trees: BySending,
    most: usize,
    swept: Time,
}

impl Sglang {
    pub fn new(scenario: &Scenario, dice: Dice) -> Self {
        // 2^26 characters a tree, at 4 characters a token.
        let most = (1 << 24) / scenario.block_size.max(1) as usize;
        Sglang { dice, trees: BySending::default(), most, swept: Time(0) }
    }
}

impl Policy for Sglang {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        let replicas = view.own.len();
        let matched = self.trees.matched(call.prompt_chain(), replicas);
        let (most, least) = (view.own.iter().max(), view.own.iter().min());
        let (most, least) = (most.copied().unwrap_or(0), least.copied().unwrap_or(0));
        let best = greatest(&mut self.dice, matched.iter().map(|m| *m as f64));
        let picked = if most - least > 32 && f64::from(most) > 1.1 * f64::from(least) {
            greatest(&mut self.dice, view.own.iter().map(|n| -f64::from(*n)))
        } else if matched[best] as f64 > 0.5 * call.prompt_blocks.max(1) as f64 {
            best
        } else {
            let sizes = self.trees.sizes();
            greatest(&mut self.dice, sizes.iter().take(replicas).map(|n| -(*n as f64)))
        };
        self.trees.sent(call.prompt_chain(), picked, view.now);
        picked
    }

    fn tick(&mut self, now: Time) {
        if now.since(self.swept) >= 30 * SECOND {
            self.swept = now;
            self.trees.shrink(self.most);
        }
    }
}

#[derive(Clone, Debug)]
struct Active {
    replica: usize,
    prefill: f64,
    chain: Arc<[BlockHash]>,
    blocks: usize,
}

/// Dynamo's KV router (`scheduling/selector/reference.rs`) with events, at its defaults: the blocks to prefill on a
/// worker, this request's included and less its overlap, plus the blocks in use there; ties by chance. Blocks that
/// several requests use count once.
pub struct Dynamo {
    dice: Dice,
    block_size: f64,
    index: ByEvents,
    active: HashMap<usize, Active>,
    prefill: Vec<f64>,
    /// Blocks in use on each worker, by how many requests.
    used: Vec<HashMap<BlockHash, u32>>,
}

impl Dynamo {
    pub fn new(scenario: &Scenario, dice: Dice) -> Self {
        let block_size = f64::from(scenario.block_size);
        let index = ByEvents::new();
        Dynamo { dice, block_size, index, active: HashMap::new(), prefill: Vec::new(), used: Vec::new() }
    }
}

impl Policy for Dynamo {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        let replicas = view.own.len();
        self.prefill.resize(replicas, 0.0);
        self.used.resize_with(replicas, HashMap::new);
        let matched = self.index.matched(call.prompt_chain(), replicas);
        let chain = call.prompt_chain();
        let costs = (0..replicas).map(|r| {
            let raw = (self.prefill[r] + call.prompt as f64) / self.block_size;
            let fresh = chain.iter().rev().take_while(|hash| !self.used[r].contains_key(*hash)).count();
            let decode = self.used[r].len() + fresh;
            -((raw - matched[r] as f64).max(0.0) + decode as f64)
        });
        let costs: Vec<f64> = costs.collect();
        let replica = greatest(&mut self.dice, costs.into_iter());
        let prefill = (call.prompt as f64 - matched[replica] as f64 * self.block_size).max(0.0);
        self.prefill[replica] += prefill;
        for hash in chain {
            *self.used[replica].entry(*hash).or_insert(0) += 1;
        }
        self.active.insert(call.id, Active { replica, prefill, chain: call.chain.clone(), blocks: call.prompt_blocks });
        replica
    }

    fn first_data(&mut self, call: usize, _: Time) {
        if let Some(active) = self.active.get_mut(&call) {
            self.prefill[active.replica] -= std::mem::take(&mut active.prefill);
        }
    }

    fn ended(&mut self, call: usize, now: Time) {
        self.first_data(call, now);
        let Some(active) = self.active.remove(&call) else { return };
        let used = &mut self.used[active.replica];
        for hash in &active.chain[..active.blocks] {
            if let Some(count) = used.get_mut(hash) {
                *count -= 1;
                if *count == 0 {
                    used.remove(hash);
                }
            }
        }
    }

    fn events(&mut self, delivery: Option<&Rc<Delivery>>, _: Time) {
        if let Some(delivery) = delivery {
            self.index.apply(&delivery.records);
        }
    }

    /// Its listener sees the gap and asks the engine to replay it.
    fn has_gaps_filled(&self) -> bool {
        true
    }
}

/// llm-d's scheduler: prefix 3, queue 2, cache in use 2 (its default weights), the prefix exact by events. The queue
/// scores from 1 (shortest) to 0 (longest) of what the engines reported, the cache by what of it is free.
pub struct LlmD {
    dice: Dice,
    index: ByEvents,
}

impl LlmD {
    pub fn new(_: &Scenario, dice: Dice) -> Self {
        LlmD { dice, index: ByEvents::new() }
    }
}

impl Policy for LlmD {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        let matched = self.index.matched(call.prompt_chain(), view.own.len());
        let total = call.prompt_blocks.max(1) as f64;
        let waiting = |at: usize| view.reports.get(at).map_or(0.0, |r| f64::from(r.waiting));
        let all: Vec<f64> = (0..view.own.len()).map(waiting).collect();
        let (low, high) = all.iter().fold((f64::MAX, 0.0f64), |(l, h), w| (l.min(*w), h.max(*w)));
        let scores = matched.iter().enumerate().map(|(at, blocks)| {
            let queue = if high > low { (high - all[at]) / (high - low) } else { 1.0 };
            let free = 1.0 - view.reports.get(at).map_or(0.0, |r| f64::from(r.kv_usage_ppm) / 1e6);
            3.0 * *blocks as f64 / total + 2.0 * queue + 2.0 * free
        });
        let scores: Vec<f64> = scores.collect();
        greatest(&mut self.dice, scores.into_iter())
    }

    fn events(&mut self, delivery: Option<&Rc<Delivery>>, _: Time) {
        if let Some(delivery) = delivery {
            self.index.apply(&delivery.records);
        }
    }
}

/// AIBrix's prefix-cache rule without KV sync: out of balance (max - min > 8) the least requests; else the greatest
/// match among those with at most a standard deviation more requests than the mean; no match: least requests.
/// Forgets what was idle for 20 minutes.
pub struct Aibrix {
    dice: Dice,
    table: BySending,
    swept: Time,
}

impl Aibrix {
    pub fn new(_: &Scenario, dice: Dice) -> Self {
        Aibrix { dice, table: BySending::default(), swept: Time(0) }
    }
}

impl Policy for Aibrix {
    fn pick(&mut self, call: &Call, view: View<'_>) -> usize {
        let own: Vec<f64> = view.own.iter().map(|n| f64::from(*n)).collect();
        let matched = self.table.matched(call.prompt_chain(), own.len());
        let (low, high) = own.iter().fold((f64::MAX, 0.0f64), |(l, h), n| (l.min(*n), h.max(*n)));
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        let sigma = (own.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / own.len() as f64).sqrt();
        let allowed = |at: usize| high - low <= 8.0 && matched[at] > 0 && own[at] <= mean + sigma;
        // Equal matches: fewer requests.
        let score = |at: usize| if allowed(at) { matched[at] as f64 * 1e6 - own[at] } else { -1e12 - own[at] };
        let picked = greatest(&mut self.dice, (0..own.len()).map(score));
        self.table.sent(call.prompt_chain(), picked, view.now);
        picked
    }

    fn tick(&mut self, now: Time) {
        if now.since(self.swept) >= 60 * SECOND {
            self.swept = now;
            self.table.forget(Time(now.0.saturating_sub(1200 * SECOND)));
        }
    }
}
