//! Asks Envoy, the admin instance and the bridge, all at once, and puts down what they say and who says nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::bridge::facts::plain;
use crate::bridge::workers::Workers;
use crate::doctor::proxy::{self, Proxy};
use crate::doctor::{Report, Target};
use crate::look::{SECRET_HEADER, WorkerState};

/// What everybody said at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// By the clock of this process.
    pub at_ms: u64,
    /// Envoy's version.
    pub envoy: Option<String>,
    /// The filter's counters and gauges, without the prefix that all have.
    pub stats: BTreeMap<String, u64>,
    /// `ip:port` of the replicas, and whether Envoy finds them healthy.
    pub healthy: BTreeMap<String, bool>,
    /// The workers.
    pub workers: Vec<WorkerState>,
    /// The bridge.
    pub bridge: Option<Overview>,
    /// Who could not be asked, and why.
    pub silent: Vec<(&'static str, String)>,
}

/// The bridge's `/kvroute/v1/replicas`, as far as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Overview {
    /// The feed's last batch.
    pub seq: u64,
    /// Receivers.
    pub envoys: Vec<Sender>,
    /// Replicas.
    pub replicas: Vec<Followed>,
}

/// An Envoy, as the bridge sees it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sender {
    /// Where it is.
    pub url: String,
    /// The bridge leads there.
    pub leading: bool,
    /// Why the last message did not arrive.
    pub error: String,
}

/// A replica, as the bridge sees it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // named as the bridge's own
pub struct Followed {
    pub name: String,
    pub rank: u32,
    pub address: String,
    pub model: String,
    pub trust: String,
    pub reason: String,
    pub blocks: BTreeMap<String, u64>,
    pub capacity_blocks: u64,
    pub last_event_age_ms: Option<u64>,
    pub restarts: u64,
    pub gaps: u64,
    pub running: Option<u32>,
    pub waiting: Option<u32>,
    pub kv_usage: Option<f64>,
    pub load_age_ms: Option<u64>,
    pub api: String,
    pub api_error: String,
}

/// Asks again and again.
pub struct Asker {
    client: reqwest::Client,
    /// A connection belongs to one worker: each request takes a new one.
    fresh: reqwest::Client,
    target: Target,
    /// Who does not answer within this is said not to.
    patience: Duration,
    gateway: Option<String>,
    proxy: Option<Proxy>,
    workers: Workers,
    began: Instant,
}

impl Asker {
    /// Nothing is asked yet. `gateway`: the listener of the admin instance, where Envoy does not say it.
    pub fn new(target: Target, gateway: Option<String>, patience: Duration) -> Result<Asker> {
        let client = || reqwest::Client::builder().no_proxy().timeout(patience).connect_timeout(patience);
        Ok(Asker {
            client: client().build()?,
            fresh: client().pool_max_idle_per_host(0).build()?,
            target,
            patience,
            gateway,
            proxy: None,
            workers: Workers::default(),
            began: Instant::now(),
        })
    }

    /// Asks everybody once.
    pub async fn look(&mut self) -> Seen {
        let mut seen = Seen::default();
        let envoy = self.envoy(&mut seen).await;
        if let Err(error) = envoy {
            self.proxy = None;
            seen.silent.push(("Envoy", format!("{error:#}")));
        }
        let known = self.proxy.as_ref();
        let secret = self.target.secret.clone().or_else(|| known?.secret.clone());
        let gateway = self.gateway.clone().or_else(|| known?.ingest.clone());
        let bridge = self.target.bridge.clone().or_else(|| known?.bridge.clone());
        let (client, fresh) = (self.client.clone(), self.fresh.clone());
        match secret {
            None => seen.silent.push(("secret", "not known: give --secret-file, or set KVROUTE_SECRET".into())),
            Some(secret) => {
                let meet = async {
                    self.workers.forget();
                    let gateway = gateway.context("no admin instance is known: --gateway")?;
                    self.workers.meet(&fresh, &gateway, &secret).await
                };
                let (told, workers) = tokio::join!(overview(&client, bridge, &secret), meet);
                match told {
                    Ok(told) => seen.bridge = Some(told),
                    Err(error) => seen.silent.push(("bridge", format!("{error:#}"))),
                }
                if let Err(error) = workers {
                    seen.silent.push(("filter", format!("{error:#}")));
                }
            }
        }
        seen.workers = self.workers.states().map(|(_, state)| state.clone()).collect();
        seen.at_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        seen
    }

    async fn envoy(&mut self, seen: &mut Seen) -> Result<()> {
        let admin = self.target.admin.trim_end_matches('/').to_owned();
        if self.proxy.is_none() {
            let mut report = Report::default();
            let found = tokio::time::timeout(self.patience, proxy::look(&self.client, &self.target, &mut report)).await;
            self.proxy = Some(found.with_context(|| format!("{admin} does not answer"))??);
        }
        let Some(proxy) = &self.proxy else { return Ok(()) };
        let page = async {
            let url = format!("{admin}/stats?usedonly&filter=kvroute_");
            let answer = self.client.get(&url).send().await.and_then(reqwest::Response::error_for_status);
            let text = match answer {
                Ok(answer) => answer.text().await,
                Err(error) => Err(error),
            };
            text.map_err(|error| anyhow::anyhow!("{url}: {}", plain(&error)))
        };
        let (page, healthy) = tokio::join!(page, proxy::health(&self.client, &admin, &proxy.clusters));
        seen.stats = stats(&page?);
        seen.healthy = healthy?;
        seen.envoy = Some(proxy.version.clone());
        Ok(())
    }
}

async fn overview(client: &reqwest::Client, bridge: Option<String>, secret: &str) -> Result<Overview> {
    let bridge = bridge.context("not known where it is: --bridge")?;
    let bridge = bridge.trim_end_matches('/');
    let answer = client.get(format!("{bridge}/kvroute/v1/replicas")).header(SECRET_HEADER, secret).send().await;
    let answer = answer.map_err(|error| anyhow::anyhow!("{bridge} does not answer: {}", plain(&error)))?;
    if answer.status() == 401 {
        bail!("{bridge}: 401, the bridge has another secret");
    }
    answer.json().await.map_err(|error| anyhow::anyhow!("{bridge}: what answers is no bridge: {}", plain(&error)))
}

/// Envoy's page: `wasmcustom.kvroute_NAME: N`. Histograms are left out.
fn stats(page: &str) -> BTreeMap<String, u64> {
    let lines = page.lines().filter_map(|line| line.split_once(": "));
    let known = lines.filter_map(|(name, n)| Some((name.split_once("kvroute_")?.1, n.parse().ok()?)));
    known.map(|(name, n)| (name.to_owned(), n)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_gauges_of_the_page() {
        let page = "wasmcustom.kvroute_requests_total.outcome.routed: 12\nwasmcustom.kvroute_moved_total: 1\n\
                    wasmcustom.kvroute_step_seconds: P0(1,1) P25(1,1)\nother: 3\n";
        let expected = [("moved_total", 1), ("requests_total.outcome.routed", 12)];
        assert_eq!(stats(page), expected.map(|(name, n)| (name.to_owned(), n)).into());
    }

    fn patience() -> Duration {
        Duration::from_secs(5)
    }

    #[tokio::test]
    async fn who_cannot_be_asked_is_named() {
        // Nothing listens there: the port was free a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let nowhere = format!("http://127.0.0.1:{port}");
        let target = Target {
            admin: nowhere.clone(),
            url: None,
            secret: Some("s".into()),
            bridge: Some(nowhere.clone()),
            no_requests: true,
            patience: patience(),
            timeout: patience(),
        };
        let seen = Asker::new(target.clone(), Some(nowhere), patience()).unwrap().look().await;
        let silent: Vec<&str> = seen.silent.iter().map(|(who, _)| *who).collect();
        assert_eq!(silent, ["Envoy", "bridge", "filter"], "{:?}", seen.silent);
        let seen = Asker::new(Target { secret: None, ..target }, None, patience()).unwrap().look().await;
        assert_eq!(seen.silent.last().map(|(who, _)| *who), Some("secret"));
    }
}
