//! The mock replica: a stand-in for an inference engine, good enough to judge routing by.
//!
//! It has no weights. It has what routing depends on: the engine's block pool and scheduler, checked against
//! recordings of real engines; prompts tokenized with the model's own pack; answers that take as long as their
//! uncached tokens and their batch make them; and the same KV events, metrics and headers, at the same moments.
//!
//! | step | module |
//! |---|---|
//! | HTTP: the APIs, and everything else | `http`, `admin` |
//! | body to tokens | [`prompt`], `pack_tokenizer`, `request` |
//! | the scheduler, without time | [`scheduler`], `pool` |
//! | the scheduler in time; data-parallel ranks | `engine`, `ranks` |
//! | KV events and their bytes, over ZMQ | [`events`], [`publish`] |
//! | answers | `answer`, [`words`] |
//! | what tests can break and look up | [`faults`] |
//!
//! [`Replica::start`] runs one inside the process, on threads of its own.

mod admin;
mod answer;
mod config;
mod engine;
pub mod events;
pub mod faults;
mod http;
mod msgpack;
mod pack_tokenizer;
mod pool;
pub mod prompt;
pub mod publish;
mod ranks;
mod request;
pub mod scheduler;
pub mod words;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::http::HeaderValue;
use axum::serve::ListenerExt;

pub use config::{Config, TokenizeTime};
pub use engine::{Gauges, Speed};
pub use pool::FreeOrder;
pub use publish::Endpoints;

use faults::Faults;
use http::Shared;
use prompt::Tokenizers;
use ranks::Ranks;

/// A running mock replica. Dropping it stops it: connections break off, ports are free again.
pub struct Replica {
    shared: Arc<Shared>,
    address: SocketAddr,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Replica {
    /// Starts a replica and returns when it can be reached.
    pub fn start(config: Config) -> anyhow::Result<Replica> {
        config.check()?;
        let tokenizers = Tokenizers::start(&config.tokenizer, config.tokenizer_threads)?;
        let wanted = SocketAddr::new(config.host, config.port);
        let listener = TcpListener::bind(wanted).with_context(|| format!("cannot bind http://{wanted}"))?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.threads.max(1))
            .thread_name("mock")
            .enable_all()
            .build()?;
        // Its own thread: the caller may itself be inside a runtime, which must not be blocked on.
        let (runtime, shared) = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let shared = runtime.block_on(Self::serve(config, listener, address, tokenizers))?;
                    anyhow::Ok((runtime, shared))
                })
                .join()
                .expect("starting a replica does not panic")
        })?;
        Ok(Replica { shared, address, runtime: Some(runtime) })
    }

    async fn serve(
        config: Config,
        listener: TcpListener,
        address: SocketAddr,
        tokenizers: Tokenizers,
    ) -> anyhow::Result<Arc<Shared>> {
        let ranks = Ranks::start(&config).await?;
        let name = config.name.clone().unwrap_or_else(|| address.to_string());
        let name = HeaderValue::from_str(&name).context("the name of the replica must fit into a header")?;
        let faults = Faults::default();
        let (calls, tokenizing_until) = (AtomicU64::new(1), Mutex::new(Instant::now()));
        let adapters = Mutex::default();
        let shared = Arc::new(Shared { config, name, ranks, tokenizers, tokenizing_until, faults, calls, adapters });
        let listener = tokio::net::TcpListener::from_std(listener)?.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let routes = admin::routes(shared.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(shared)
    }

    /// Where HTTP is served.
    pub fn http_addr(&self) -> SocketAddr {
        self.address
    }

    /// `http://ip:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `tcp://ip:port` of the PUB socket.
    pub fn kv_endpoint(&self) -> &str {
        &self.shared.ranks.endpoints()[0].events
    }

    /// `tcp://ip:port` of the replay socket.
    pub fn replay_endpoint(&self) -> &str {
        &self.shared.ranks.endpoints()[0].replay
    }

    /// How the bridge is told of it: the value of its `--replica`.
    pub fn bridge_spec(&self) -> String {
        let config = &self.shared.config;
        format!(
            "name={},http={},model={},kv={},replay={},block-size={},ranks={}",
            self.name(),
            self.url(),
            config.model,
            self.kv_endpoint(),
            self.replay_endpoint(),
            config.block_size,
            config.ranks
        )
    }

    /// What the replica calls itself in `x-mock-replica`.
    pub fn name(&self) -> &str {
        self.shared.name.to_str().unwrap_or_default()
    }

    /// Failures on demand, and the requests that were seen.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// The engine's state after its last step.
    pub fn gauges(&self) -> Gauges {
        self.shared.ranks.gauges()
    }

    /// Empties the prefix cache; false while requests run. As with the real engine, the event waits for the next
    /// step.
    pub async fn reset_cache(&self) -> bool {
        self.shared.ranks.reset_cache().await
    }

    /// As if the engine's process died and came back, with the sockets left open: requests break off, the cache
    /// is cold, event numbers begin at 0, and no event says so.
    pub fn restart(&self) {
        self.shared.ranks.restart();
    }

    /// The next batches get numbers but are not published; `from_replay`: nor can they be replayed.
    pub fn drop_events(&self, batches: u64, from_replay: bool) {
        self.shared.ranks.drop_events(batches, from_replay);
    }

    /// Changes the speed from the next step on.
    pub fn set_speed(&self, speed: Speed) {
        self.shared.ranks.set_speed(speed);
    }

    /// As if the process was killed.
    pub fn stop(self) {}
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On another thread, since waiting is not allowed inside of a runtime.
            let wait = std::thread::spawn(move || runtime.shutdown_timeout(Duration::from_secs(5)));
            let _ = wait.join();
        }
    }
}
