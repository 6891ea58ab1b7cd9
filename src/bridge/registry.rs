//! The replicas that are followed, and the tasks that follow them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::cache::{CacheConfig, Word};
use super::checkpoint::Saved;
use super::config::ReplicaSpec;
use super::hub::Hub;
use super::recording::Recorder;
use super::replica::{Replica, State};
use super::source::{self, Source};
use super::stream::Input;
use super::zmtp::Endpoint;
use super::{BridgeConfig, ask, scrape};
use crate::feed::word::Told;

struct Followed {
    spec: ReplicaSpec,
    ranks: Vec<Arc<Replica>>,
    tasks: Vec<JoinHandle<()>>,
}

/// See the module.
pub struct Registry {
    hub: Arc<Hub>,
    hash_seed: String,
    max_blocks: usize,
    scrape_every: Duration,
    client: reqwest::Client,
    recorder: Option<Arc<Recorder>>,
    followed: Mutex<BTreeMap<String, Followed>>,
}

impl Registry {
    /// Nobody is followed yet. An error: the recording cannot be written.
    pub fn new(config: &BridgeConfig, hub: Arc<Hub>, client: reqwest::Client) -> Result<Arc<Registry>, String> {
        let recorder =
            |path: &PathBuf| Recorder::create(path, config.max_record_bytes, &config.hash_seed).map(Arc::new);
        Ok(Arc::new(Registry {
            hub,
            hash_seed: config.hash_seed.clone(),
            max_blocks: config.max_blocks,
            scrape_every: config.scrape_every,
            client,
            recorder: config.record.as_ref().map(recorder).transpose()?,
            followed: Mutex::default(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Followed>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows exactly `wanted` from here on. A replica that is not among them leaves with its blocks; one whose
    /// description changed leaves and comes anew. `saved`: what a checkpoint knows.
    pub fn reconcile(&self, wanted: &[ReplicaSpec], saved: &mut Vec<Saved>) {
        let mut followed = self.lock();
        let gone: Vec<String> =
            followed.iter().filter(|(_, f)| !wanted.contains(&f.spec)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            if let Some(old) = followed.remove(&name) {
                tracing::info!("replica {name}: gone");
                old.tasks.iter().for_each(|t| t.abort());
                old.ranks.iter().for_each(|r| r.leave());
            }
        }
        for spec in wanted {
            if !followed.contains_key(&spec.name) {
                let new = self.follow(spec, saved);
                followed.insert(spec.name.clone(), new);
            }
        }
    }

    fn follow(&self, spec: &ReplicaSpec, saved: &mut Vec<Saved>) -> Followed {
        let mut tasks = Vec::new();
        let mut ranks = Vec::new();
        for rank in 0..spec.ranks {
            let cache = CacheConfig {
                hash_seed: self.hash_seed.clone(),
                model: spec.model.clone(),
                block_size: spec.block_size,
                max_blocks: self.max_blocks,
                ..CacheConfig::default()
            };
            let replica = Replica::new(spec.clone(), rank, cache.clone(), self.hub.clone(), self.recorder.clone());
            if let Some(at) = saved.iter().position(|s| s.is_of(spec, rank)) {
                saved.swap_remove(at).restore(&replica, cache);
            }
            let endpoint =
                |text: &Option<String>| text.as_deref().and_then(|t| Endpoint::parse(t).ok()).map(|e| e.of_rank(rank));
            let bind = spec.kv_bind.is_some();
            if let Some(events) = endpoint(&spec.kv).or_else(|| endpoint(&spec.kv_bind)) {
                let source = Source { events, bind, topic: spec.topic.clone(), replay: endpoint(&spec.replay) };
                tasks.push(tokio::spawn(source::run(source, replica.clone())));
            } else {
                tasks.push(tokio::spawn(ask::run(self.client.clone(), replica.clone())));
            }
            ranks.push(replica);
        }
        tasks.push(tokio::spawn(scrape::run(self.client.clone(), ranks.clone(), self.scrape_every)));
        Followed { spec: spec.clone(), ranks, tasks }
    }

    /// All replicas.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        self.lock().values().flat_map(|f| f.ranks.iter().cloned()).collect()
    }

    /// What router VMs tell of requests that they sent there.
    pub fn heard(&self, told: &[Told]) {
        let replicas = self.replicas();
        for told in told {
            if let Some(replica) = replicas.iter().find(|r| r.id == told.replica) {
                let cached = told.cached.map(|cached| cached as usize);
                replica.take(Input::Heard(Word { chain: &told.chain, claimed: told.claimed as usize, cached }));
            }
        }
    }

    /// Their states.
    pub fn states(&self) -> Vec<State> {
        self.replicas().iter().map(|r| r.state()).collect()
    }
}
