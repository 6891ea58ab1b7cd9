//! What is wrong with a running gateway: Envoy, filter, bridge and engines, each by its own word and all against each
//! other.
//!
//! Everything is found from Envoy's admin interface: its configuration names the listeners, the clusters their
//! replicas and the bridge. Steps, each of which needs what the one before has found:
//!
//! | step | module | asks |
//! |---|---|---|
//! | Envoy and its configuration | [`proxy`] | `/server_info`, `/config_dump`, `/clusters`, `/stats` |
//! | the engines | [`engines`] | each replica's own API ([`crate::bridge::facts`]) |
//! | the feed | [`feed`] | the admin instance of the filter, the bridge |
//! | real requests | [`probes`] | explain, the engine's tokenizer, two turns of a conversation |
//!
//! A [`Finding`] says what is, why it matters, and the mend. Nothing is changed; the two turns are two short requests.

pub mod engines;
pub mod feed;
pub mod probes;
pub mod proxy;
mod reasons;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

pub use crate::check::Level;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Target {
    /// Envoy's admin interface, `http://host:port`.
    pub admin: String,
    /// Where clients connect, where that is not what the listener says.
    pub url: Option<String>,
    /// The secret, where it does not stand in Envoy's configuration.
    pub secret: Option<String>,
    /// The bridge, where it is not the address of its cluster.
    pub bridge: Option<String>,
    /// Send no requests of its own.
    pub no_requests: bool,
    /// How long events and workers are waited for.
    pub patience: Duration,
    /// How long the answer to a short chat may take.
    pub timeout: Duration,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What kind of finding this is; does not change with wording.
    pub id: &'static str,
    /// Where: a replica, a listener, the bridge.
    pub place: String,
    /// What is.
    pub what: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    pub mend: String,
}

/// A replica, as all sides see it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Replica {
    /// `ip:port`
    pub address: String,
    /// Engine and version.
    pub engine: String,
    /// Models that it serves.
    pub models: Vec<String>,
    /// Tokens per block.
    pub block_size: Option<u32>,
    /// Envoy's health check.
    pub healthy: bool,
    /// How far its events are trusted, and why.
    pub trust: String,
    /// Blocks that it is believed to hold.
    pub blocks: u64,
}

/// What a look came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Envoy's version.
    pub envoy: String,
    /// Where requests were sent.
    pub url: Option<String>,
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// The steps that were made, in words.
    pub checked: Vec<String>,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many findings have this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    fn add(&mut self, level: Level, id: &'static str, place: &str, text: [&str; 3]) {
        let [what, why, mend] = text.map(str::to_owned);
        let finding = Finding { level, id, place: place.to_owned(), what, why, mend };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    fn replica(&mut self, address: &str) -> &mut Replica {
        if let Some(at) = self.replicas.iter().position(|replica| replica.address == address) {
            return &mut self.replicas[at];
        }
        self.replicas.push(Replica { address: address.to_owned(), ..Replica::default() });
        let last = self.replicas.len() - 1;
        &mut self.replicas[last]
    }
}

/// Looks at everything. An error: Envoy's admin interface cannot be asked. `step` is told what is done next.
pub async fn look(target: &Target, step: &(dyn Fn(&str) + Sync)) -> Result<Report> {
    let client = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(3)).build()?;
    let mut report = Report::default();
    step("Envoy");
    let proxy = proxy::look(&client, target, &mut report).await?;
    step("engines");
    let engines = engines::look(&client, &proxy, &mut report).await;
    if !target.no_requests {
        step("requests");
        probes::wake(&client, &proxy).await;
    }
    step("feed");
    let feed = feed::look(&client, target, &proxy, &engines, &mut report).await;
    if !target.no_requests {
        step("conversations");
        probes::look(&client, target, &proxy, &engines, &feed, &mut report).await;
    }
    report.findings.sort_by_key(|finding| finding.level);
    Ok(report)
}

/// `ip:port`, as the filter and Envoy write it.
fn authority(ip: &str, port: u64) -> String {
    match ip.parse::<std::net::IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, u16::try_from(port).unwrap_or(0)).to_string(),
        Err(_) => format!("{ip}:{port}"),
    }
}
