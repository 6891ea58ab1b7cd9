//! What the workers of each Envoy say of requests, for the bridge's page: asked when somebody looks, and not otherwise.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Mutex;

use super::workers::Workers;
use crate::look::{Decision, RequestCounts};

/// Whoever looks within this time is told what the one before was: several may look at once.
const FRESH: Duration = Duration::from_millis(200);
/// The page is to show a fault within two seconds, and looks twice a second.
const PATIENCE: Duration = Duration::from_millis(700);

/// An Envoy, by its workers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GatewayState {
    /// Its ingest listener.
    pub url: String,
    /// Why they were not met; empty when they were.
    pub error: String,
    /// The workers.
    pub workers: Vec<WorkerCounts>,
}

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct WorkerCounts {
    /// Its slot.
    pub slot: Option<u32>,
    /// How many VMs had this slot so far: each begins to count anew.
    pub generation: u64,
    /// Requests under way.
    pub jobs: u64,
    /// What became of requests.
    pub requests: RequestCounts,
    /// What it decided last, the latest first.
    pub decisions: Vec<Decision>,
}

/// All Envoys.
pub struct Gateways {
    client: reqwest::Client,
    secret: String,
    all: Vec<Gateway>,
}

struct Gateway {
    url: String,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    workers: Workers,
    error: String,
}

impl Gateways {
    /// Those whose ingest listeners are at these URLs. The client must not keep connections.
    pub fn new(urls: &[String], secret: &str, client: reqwest::Client) -> Gateways {
        let gateway = |url: &String| Gateway { url: url.trim_end_matches('/').to_owned(), seen: Mutex::default() };
        Gateways { client, secret: secret.to_owned(), all: urls.iter().map(gateway).collect() }
    }

    /// Asks all of them at once.
    pub async fn look(&self) -> Vec<GatewayState> {
        futures::future::join_all(self.all.iter().map(|gateway| gateway.look(&self.client, &self.secret))).await
    }
}

impl Gateway {
    async fn look(&self, client: &reqwest::Client, secret: &str) -> GatewayState {
        let mut seen = self.seen.lock().await;
        if seen.at.is_none_or(|at| at.elapsed() >= FRESH) {
            let met = tokio::time::timeout(PATIENCE, seen.workers.meet(client, &self.url, secret)).await;
            seen.error = match met {
                Ok(Ok(())) => String::new(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => "its workers do not answer".to_owned(),
            };
            seen.workers.forget();
            seen.at = Some(Instant::now());
        }
        let workers = seen.workers.states().map(|(age, state)| WorkerCounts {
            slot: state.slot,
            generation: state.generation,
            jobs: state.jobs,
            requests: state.requests.clone(),
            decisions: state.decisions.iter().map(|decision| aged(decision, age)).collect(),
        });
        GatewayState { url: self.url.clone(), error: seen.error.clone(), workers: workers.collect() }
    }
}

/// A decision of which a worker told so long ago.
fn aged(decision: &Decision, age: Duration) -> Decision {
    let age_ms = decision.age_ms.saturating_add(age.as_millis().try_into().unwrap_or(u64::MAX));
    Decision { age_ms, ..decision.clone() }
}
