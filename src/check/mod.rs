//! Judges a configuration before Envoy runs on it.
//!
//! In: the plugin's configuration alone, or files with Envoy's configuration around it. Out: a [`Report`]: every
//! instance of the filter that was found, and what is wrong, first with each configuration (the same line that
//! `on_configure` gives), then with what stands around it and breaks a gateway without a word.
//!
//! | part | module |
//! |---|---|
//! | files, JSON and YAML, what they refer to | `input` |
//! | values with the path at which they stand | `tree` |
//! | listeners, filter chains, clusters | `envoy` |
//! | instances of the filter, each for itself | `instance` |
//! | filters and routes around a router, routes without it | `chain`, `route`, `bypass` |
//! | instances against each other | `together` |
//! | models against their packs | `models` |
//! | the configuration of a running Envoy | [`live`] |

mod bypass;
mod chain;
mod envoy;
mod input;
mod instance;
pub mod live;
mod models;
mod route;
mod together;
mod tree;

use serde::Serialize;

use crate::config::Config;
use crate::pack::Pack;
use input::Input;
pub use input::Source;
use instance::Instance;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Envoy refuses it, requests hang or fail, or the filter has no effect.
    Error,
    /// It works, but less well than it could, or no longer after a fault.
    Warning,
    /// Worth knowing.
    Note,
}

/// Something that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// The listener and filter for people; empty where the whole input is meant.
    pub place: String,
    /// Where it stands in the input: `static_resources.listeners[0]…`.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What would be right; `None` where `what` says it already.
    pub mend: Option<String>,
}

/// A model of a router.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    /// Its name.
    pub name: String,
    /// Other names.
    pub aliases: Vec<String>,
    /// Name of its pack.
    pub pack: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Engine and version.
    pub engine: String,
    /// False: its requests get no key.
    pub enabled: bool,
    /// Its requests are decided and not steered.
    pub shadow: bool,
    /// Of its conversations, so many in a hundred are routed.
    pub rollout_percent: f64,
}

/// An instance of the filter that was found.
#[derive(Clone, Debug, Serialize)]
pub struct InstanceSummary {
    /// The listener and filter; empty for a configuration alone.
    pub place: String,
    /// Where it stands in the input.
    pub path: String,
    /// `router`, `ingest` or `admin`; `None` where the configuration is refused.
    pub role: Option<&'static str>,
    /// `vm_id` and vm configuration: instances with the same ones, and the same code, share a VM.
    pub vm: Option<String>,
    /// The filter's file.
    pub wasm: Option<String>,
    /// Of a router.
    pub models: Vec<ModelSummary>,
}

/// What a check came to.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `plugin` or `envoy`.
    pub kind: &'static str,
    /// Every instance, the refused ones too.
    pub instances: Vec<InstanceSummary>,
    /// The worst first, else in the order of the input.
    pub findings: Vec<Finding>,
}

impl Report {
    /// How many findings have this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|f| f.level == level).count()
    }
}

/// Findings as they are made.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, place: &str, path: &str, what: impl Into<String>, mend: impl Into<String>) {
        let (place, path, what, mend) = (place.to_owned(), path.to_owned(), what.into(), mend.into());
        let finding = Finding { level, place, path, what, mend: Some(mend).filter(|mend| !mend.is_empty()) };
        // The same mistake is found once for each listener that uses a cluster or a file.
        if !self.0.iter().any(|f| f.path == finding.path && f.what == finding.what) {
            self.0.push(finding);
        }
    }
}

/// Checks `text`. `packs` stand in for those of the filter's files.
pub fn check(text: &[u8], source: &Source, packs: Option<&[Pack]>) -> Report {
    let mut findings = Findings::default();
    let (kind, instances) = match input::read(text, source, &mut findings) {
        Input::Plugin => ("plugin", vec![plugin_alone(text, packs, &mut findings)]),
        Input::Nothing => ("envoy", Vec::new()),
        Input::Envoy(documents) => ("envoy", envoy_configuration(&documents, packs, &mut findings)),
    };
    let mut findings = findings.0;
    findings.sort_by_key(|f| f.level);
    Report { kind, instances, findings }
}

fn plugin_alone(text: &[u8], packs: Option<&[Pack]>, findings: &mut Findings) -> InstanceSummary {
    let config = Config::parse(text);
    match &config {
        Ok(config) => models::check(config, packs, "", "", findings),
        Err(e) => findings.add(Level::Error, "", &e.path, e.to_string(), ""),
    }
    instance::summary("", "", None, None, config.ok().as_ref())
}

fn envoy_configuration(
    documents: &[input::Document],
    packs: Option<&[Pack]>,
    findings: &mut Findings,
) -> Vec<InstanceSummary> {
    let envoy = envoy::Envoy::of(documents);
    let mut all: Vec<Instance> = Vec::new();
    for manager in &envoy.managers {
        let found = manager.filters.iter().enumerate();
        let found: Vec<Instance> = found.filter_map(|(i, filter)| Instance::in_chain(manager, i, filter)).collect();
        for one in &found {
            one.check(packs, findings);
            chain::check(one, manager, &envoy, findings);
        }
        all.extend(found);
    }
    for loose in &envoy.loose {
        if let Some(one) = Instance::outside(loose) {
            one.check(packs, findings);
            all.push(one);
        }
    }
    for service in &envoy.services {
        if Instance::outside(service).is_some() {
            let what =
                "runs kvroute as a bootstrap service: there it sees no request, and stays dead after its first fault";
            let mend = "put it among the http_filters of a listener";
            findings.add(Level::Error, &service.place, &service.plugin.path, what, mend);
        }
    }
    if all.is_empty() && findings.0.is_empty() {
        let mend = "a kvroute filter has a wasm file of kvroute's, or a configuration with a \"role\"";
        findings.add(Level::Error, "", "", "there is no kvroute filter in it", mend);
    }
    together::check(&all, &envoy, findings);
    all.iter().map(Instance::summary).collect()
}

#[cfg(test)]
mod tests;
