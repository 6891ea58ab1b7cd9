//! The data-parallel ranks of a replica: engines with caches of their own behind one HTTP address. Rank n publishes its
//! events at the ports plus n.

use super::config::Config;
use super::engine::{Engine, Gauges, Speed};
use super::events::Encoder;
use super::prompt::Refusal;
use super::publish::{Endpoints, Publisher};

/// How often free ports that follow each other are looked for.
const TRIES: usize = 50;

/// See the module. One rank is an engine without data parallelism.
pub struct Ranks {
    engines: Vec<Engine>,
    endpoints: Vec<Endpoints>,
}

impl Ranks {
    /// Binds the sockets and starts the engines, on the current tokio runtime.
    pub async fn start(config: &Config) -> anyhow::Result<Ranks> {
        let free = config.ranks > 1 && (config.kv_port == 0 || config.replay_port == 0);
        let mut bound = bind(config).await;
        for _ in 0..if free { TRIES } else { 0 } {
            if bound.is_ok() {
                break;
            }
            bound = bind(config).await;
        }
        let (mut engines, mut endpoints) = (Vec::new(), Vec::new());
        for (publisher, at) in bound? {
            engines.push(Engine::start(config.limits(), config.speed()?, publisher));
            endpoints.push(at);
        }
        let ranks = Ranks { engines, endpoints };
        if !config.publishes() {
            ranks.drop_events(u64::MAX, true);
        }
        Ok(ranks)
    }

    /// The engine for a request: the rank that its header names, else the one with the least to do.
    pub fn engine(&self, rank: Option<u32>) -> Result<&Engine, Refusal> {
        let busy = |engine: &&Engine| {
            let gauges = engine.gauges();
            gauges.running + 4 * gauges.waiting
        };
        let engine = match rank {
            Some(rank) => self.engines.get(rank as usize),
            None => self.engines.iter().min_by_key(busy),
        };
        engine.ok_or_else(|| {
            let (rank, ranks) = (rank.unwrap_or_default(), self.engines.len());
            Refusal::bad_request(format!("data_parallel_rank {rank} is out of range [0, {ranks})."))
        })
    }

    /// Where each rank publishes.
    pub fn endpoints(&self) -> &[Endpoints] {
        &self.endpoints
    }

    /// The state of each.
    pub fn each(&self) -> impl Iterator<Item = Gauges> {
        self.engines.iter().map(Engine::gauges)
    }

    /// The state of all together; the first one's where a sum says nothing.
    pub fn gauges(&self) -> Gauges {
        let mut all = self.each();
        let mut sum = all.next().unwrap_or_default();
        for more in all {
            sum.running += more.running;
            sum.waiting += more.waiting;
            sum.usage = sum.usage.max(more.usage);
            sum.cached_blocks += more.cached_blocks;
            sum.queried_tokens += more.queried_tokens;
            sum.hit_tokens += more.hit_tokens;
            sum.prompt_tokens += more.prompt_tokens;
            sum.output_tokens += more.output_tokens;
            sum.preemptions += more.preemptions;
        }
        sum
    }

    /// See [`Engine::reset_cache`].
    pub async fn reset_cache(&self) -> bool {
        let mut all = true;
        for engine in &self.engines {
            all &= engine.reset_cache().await;
        }
        all
    }

    /// See [`Engine::restart`].
    pub fn restart(&self) {
        self.engines.iter().for_each(Engine::restart);
    }

    /// See [`Engine::drop_events`].
    pub fn drop_events(&self, batches: u64, from_replay: bool) {
        self.engines.iter().for_each(|engine| engine.drop_events(batches, from_replay));
    }

    /// See [`Engine::set_speed`].
    pub fn set_speed(&self, speed: Speed) {
        self.engines.iter().for_each(|engine| engine.set_speed(speed));
    }
}

async fn bind(config: &Config) -> anyhow::Result<Vec<(Publisher, Endpoints)>> {
    let mut bound: Vec<(Publisher, Endpoints)> = Vec::new();
    for rank in 0..config.ranks {
        let ports = match bound.first() {
            None => (config.kv_port, config.replay_port),
            Some((_, first)) => (after(&first.events, rank)?, after(&first.replay, rank)?),
        };
        let encoder = Encoder { wire: config.wire, hashes: config.hashes, block_size: config.block_size, rank };
        bound.push(Publisher::bind(config.host, ports, encoder, &config.topic, config.replay_batches).await?);
    }
    Ok(bound)
}

/// The port of an endpoint plus the rank.
fn after(endpoint: &str, rank: u32) -> anyhow::Result<u16> {
    let first: u32 = endpoint.rsplit_once(':').map(|(_, port)| port.parse()).transpose()?.unwrap_or(0);
    Ok(u16::try_from(first + rank)?)
}
