//! From the engines' KV cache events to the feed of the filter.
//!
//! ```text
//! engine ─ZMQ─▶ zmtp ─▶ source ─▶ stream ( cursor, wire, cache, trust ) ─▶ replica ─▶ hub ─▶ push ─▶ Envoy
//!          └/metrics─▶ scrape ──────────────────────────────────────────────┘        └─▶ serve (snapshots)
//! ```
//!
//! | module | what it knows |
//! |---|---|
//! | [`zmtp`] | frames on a socket |
//! | [`wire`] | the payloads of every engine version |
//! | [`cursor`] | sequence numbers: contiguous, gap, restart |
//! | [`cache`] | what one replica holds, under our block hashes |
//! | [`trust`] | how far that can be trusted |
//! | [`stream`] | the four together, without sockets |
//! | [`source`] | the sockets of one stream |
//! | [`ask`], [`facts`] | where an engine publishes, and the rest that it says of itself |
//! | [`scrape`], [`adapters`] | load from metrics; LoRA adapters |
//! | [`replica`], [`registry`] | one replica at run time; all of them |
//! | [`discovery`], [`dns`], [`kubernetes`] | which replicas there are |
//! | [`hub`], [`shards`] | the sequence of batches; the state for snapshots |
//! | [`push`], [`serve`], [`tls`] | the way out |
//! | [`workers`], [`gateways`] | what the workers of the Envoys say of requests, for the page |
//! | [`checkpoint`] | the caches on disk |
//! | [`recording`] | what the engines said, in a file and back |
//!
//! Nothing that arrives on a socket is trusted: it is bounded, checked, and what cannot be used is counted.

pub mod adapters;
pub mod ask;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod cursor;
pub mod discovery;
pub mod dns;
pub mod facts;
pub mod gateways;
pub mod hub;
pub mod kubernetes;
pub mod push;
pub mod recording;
pub mod registry;
pub mod replica;
pub mod scrape;
pub mod serve;
pub mod shards;
pub mod source;
pub mod stream;
pub mod tls;
pub mod trust;
pub mod wire;
pub mod workers;
pub mod zmtp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use config::ReplicaSpec;
use discovery::Discovery;
use dns::NamedReplicas;
use gateways::Gateways;
use hub::Hub;
use push::Envoy;
use registry::Registry;
use tls::{TlsFiles, TlsListener};

/// How a bridge runs.
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// Ingest listeners, as URLs.
    pub envoys: Vec<String>,
    /// Shared with the ingest listeners and the workers.
    pub secret: String,
    /// Where snapshots and metrics are served.
    pub listen: SocketAddr,
    /// Certificates, for Envoys on other hosts: shown to `https` ingest listeners, and asked of whoever connects.
    pub tls: Option<TlsFiles>,
    /// The deployment's seed of block hashes.
    pub hash_seed: String,
    /// Replicas of the command line.
    pub replicas: Vec<ReplicaSpec>,
    /// YAML file with replicas, watched.
    pub file: Option<PathBuf>,
    /// Replicas behind DNS names, watched.
    pub dns: Vec<NamedReplicas>,
    /// Replicas behind Kubernetes services, watched; `NAME` or `NAME.NAMESPACE` stands for the host.
    pub kubernetes: Vec<NamedReplicas>,
    /// The API of Kubernetes, where it is not that of the cluster that this runs in.
    pub kubernetes_api: Option<String>,
    /// Where the caches are kept over a restart.
    pub checkpoint: Option<PathBuf>,
    /// How often they are written.
    pub checkpoint_every: Duration,
    /// How often metrics are read.
    pub scrape_every: Duration,
    /// Blocks tracked per replica at most.
    pub max_blocks: usize,
    /// Where to note what the engines say ([`recording`]).
    pub record: Option<PathBuf>,
    /// Bytes of that file at most.
    pub max_record_bytes: u64,
    /// Bytes of sealed batches kept for Envoys that are behind.
    pub max_ring_bytes: usize,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        BridgeConfig {
            envoys: Vec::new(),
            secret: String::new(),
            listen: ([127, 0, 0, 1], 7070).into(),
            tls: None,
            hash_seed: String::new(),
            replicas: Vec::new(),
            file: None,
            dns: Vec::new(),
            kubernetes: Vec::new(),
            kubernetes_api: None,
            checkpoint: None,
            checkpoint_every: Duration::from_secs(5),
            scrape_every: Duration::from_millis(200),
            max_blocks: 8 << 20,
            record: None,
            max_record_bytes: 1 << 30,
            max_ring_bytes: 64 << 20,
        }
    }
}

/// A bridge at work.
pub struct Bridge {
    /// Where it listens; the port is chosen if the configuration says 0.
    pub address: SocketAddr,
    config: BridgeConfig,
    registry: Arc<Registry>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Bridge {
    /// Starts one; errors are those of the configuration.
    pub async fn start(config: BridgeConfig) -> Result<Bridge, String> {
        let mut discovery = Discovery::new(&config)?;
        let wanted = discovery.replicas().await?;
        let builder =
            || reqwest::Client::builder().connect_timeout(Duration::from_secs(2)).tcp_nodelay(true).no_proxy();
        let client = builder().build().map_err(|e| e.to_string())?;
        // Engines are asked by the one, Envoys by the others.
        let with_files = |builder| match &config.tls {
            Some(files) => files.client(builder),
            None => Ok(builder),
        };
        let to_envoy = with_files(builder())?.build().map_err(|e| e.to_string())?;
        let to_workers = with_files(builder().pool_max_idle_per_host(0))?.build().map_err(|e| e.to_string())?;
        let listener =
            TcpListener::bind(config.listen).await.map_err(|e| format!("cannot listen on {}: {e}", config.listen))?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let hub = Hub::new(config.max_ring_bytes);
        let registry = Registry::new(&config, hub.clone(), client.clone())?;
        let mut saved = config.checkpoint.as_deref().map(checkpoint::read).unwrap_or_default();
        registry.reconcile(&wanted, &mut saved);
        let envoys: Vec<_> = config.envoys.iter().map(|url| Envoy::new(url, &config.secret)).collect();
        let mut tasks = Vec::new();
        for envoy in &envoys {
            tasks.push(tokio::spawn(envoy.clone().run(hub.clone(), to_envoy.clone())));
        }
        let (secret, hash_seed) = (config.secret.clone(), config.hash_seed.clone());
        let gateways = Gateways::new(&config.envoys, &config.secret, to_workers);
        let shown = serve::Shown { secret, hash_seed, hub, envoys, gateways, registry: registry.clone() };
        let routes = serve::routes(Arc::new(shown));
        let ended = |end: std::io::Result<()>| end.unwrap_or_else(|error| tracing::error!("listener: {error}"));
        match &config.tls {
            Some(files) => {
                let listener = TlsListener::new(listener, files)?;
                tasks.push(tokio::spawn(async move { ended(axum::serve(listener, routes).await) }));
            }
            None => tasks.push(tokio::spawn(async move { ended(axum::serve(listener, routes).await) })),
        }
        if let Some(path) = config.checkpoint.clone() {
            let (registry, seed, every) = (registry.clone(), config.hash_seed.clone(), config.checkpoint_every);
            tasks.push(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(every).await;
                    save(path.clone(), registry.clone(), seed.clone()).await;
                }
            }));
        }
        tasks.push(tokio::spawn(discovery.watch(registry.clone())));
        Ok(Bridge { address, config, registry, tasks })
    }

    /// The replicas that it follows.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Ends it; writes the checkpoint.
    pub async fn stop(self) {
        if let Some(path) = self.config.checkpoint.clone() {
            save(path, self.registry.clone(), self.config.hash_seed.clone()).await;
        }
        self.tasks.iter().for_each(|t| t.abort());
        self.registry.reconcile(&[], &mut Vec::new());
    }
}

async fn save(path: PathBuf, registry: Arc<Registry>, seed: String) {
    let work = tokio::task::spawn_blocking(move || {
        let bytes = checkpoint::encode(&registry.replicas(), &seed);
        crate::whole::write(&path, &bytes).map_err(|e| format!("{}: {e}", path.display()))
    });
    match work.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!("checkpoint {error}"),
        Err(error) => tracing::warn!("checkpoint: {error}"),
    }
}
