//! The plugin configuration: what `kvroute.wasm` is told by Envoy's `configuration` field, as JSON.
//!
//! [`Config::parse`] reads and checks it; the first mistake comes back as one line that names the field and says
//! how to mend it. `on_configure` fails with that line, which `envoy --mode validate` shows.

// Never in the filter, and what it indexes are objects of its own.
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::indexing_slicing)]
pub mod describe;
mod networks;
mod parse;
mod read;

pub use networks::Networks;
pub use parse::unset_secret;
pub use read::Kind;

use serde_json::Value;

use crate::nokey::{NoKey, NoKeyReason};
use crate::request::{ApiPaths, EngineFlags};
use crate::routing::Policy;

/// One line: where the mistake is, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field, as `models[0].block_size`; empty for the whole document.
    pub path: String,
    /// What is wrong and what would be right.
    pub what: String,
}

impl ConfigError {
    /// A mistake at `path`.
    pub fn new(path: &str, what: impl Into<String>) -> Self {
        ConfigError { path: path.to_owned(), what: what.into() }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.path.is_empty() { "configuration" } else { &self.path };
        write!(f, "{place} {}", self.what)
    }
}

impl std::error::Error for ConfigError {}

/// What one instance of the filter is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Steers requests.
    Router,
    /// Takes the feed and hands it to the router VMs.
    Ingest,
    /// Answers questions about the router VM that it shares.
    Admin,
}

/// How Envoy is told the pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectionMode {
    /// base64 of `ip:port` for the `stateful_session` filter, and a plain list of the next best for the
    /// `override_host` policy. Honours health.
    StatefulSession,
    /// A plain list, best first, for the `override_host` policy alone. Ignores health.
    OverrideHost,
}

/// How the pick is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The mechanism.
    pub mode: SelectionMode,
    /// Header with the pick.
    pub header: String,
    /// Header with the next best (`StatefulSession` only).
    pub fallback_header: String,
    /// Response header with the outcome and the matched and prompt tokens; `None` adds nothing.
    pub outcome_header: Option<String>,
    /// Request header whose value is a session: a weak preference, as much as `policy.session` says. `None`: no
    /// header is looked at.
    pub session_header: Option<String>,
}

/// One model that this gateway knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// The model id as the replicas of the feed carry it, and as clients name it.
    pub name: String,
    /// Other names by which clients may ask for it.
    pub aliases: Vec<String>,
    /// LoRA adapters that its replicas serve, by the names that events have for them: the same prompts, with cached
    /// blocks of their own. Requests have the same names, or with SGLang `MODEL:ADAPTER`.
    pub adapters: Vec<String>,
    /// Name of the pack with its tokenizer and template.
    pub pack: String,
    /// Tokens per block of its replicas. What a replica says itself in the feed must agree.
    pub block_size: u32,
    /// Flags of the engine that change the prompt.
    pub engine: EngineFlags,
    /// False: its requests get no key.
    pub enabled: bool,
    /// It is decided where its requests should go, and counted, and they are sent by plain load balancing all the same.
    pub shadow: bool,
    /// Of its conversations, so many in a hundred are routed, all turns of each or none; the rest gets no key.
    pub rollout_percent: f64,
}

/// Bounds of one VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Larger bodies are let go without a key.
    pub max_inspect_bytes: usize,
    /// Envoy's own limit for bodies that a filter holds (`per_connection_buffer_limit_bytes` of the listener or
    /// `request_body_buffer_limit` of the route): beyond it Envoy answers 413, so a body is held only up to here, and to
    /// 8 MiB less where its length is not known beforehand.
    pub buffer_limit_bytes: usize,
    /// Bodies and what is made of them, all jobs together.
    pub max_job_bytes: usize,
    /// Jobs under way.
    pub max_jobs: usize,
    /// How long a request may be held, in milliseconds.
    pub time_budget_ms: u64,
    /// How much work may be done for a request after it was let go, in milliseconds.
    pub finish_budget_ms: u64,
    /// Work at a stretch before the event loop runs again, in milliseconds.
    pub slice_ms: f64,
    /// Memory of the index.
    pub index_bytes: usize,
    /// Memory of what earlier prompts began with; 0: nothing is remembered.
    pub prompt_memory_bytes: usize,
    /// Memory of the whole VM, past which no new job begins. Envoy ends a VM at 1 GiB.
    pub memory_bytes: usize,
    /// Batches that a slot may lag behind before it is drained and pulls a snapshot.
    pub max_backlog: u64,
}

/// Where snapshots are pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Envoy's name for the cluster of the bridge.
    pub cluster: String,
    /// How long one answer may take, in milliseconds.
    pub timeout_ms: u64,
}

/// A replica that is named here instead of by the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticReplica {
    /// `ip:port` as Envoy's cluster resolves it.
    pub address: String,
    /// Name of the model that it serves.
    pub model: String,
    /// Data-parallel rank.
    pub rank: u32,
    /// What it is for, where prefill and decode are apart.
    pub role: crate::feed::role::Role,
    /// Blocks that its cache holds; 0 when unknown.
    pub capacity_blocks: u64,
}

/// Who is told why a request went where it went. Match counts tell of other tenants' prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipts {
    /// A request with `x-kvroute-explain: 1` and the secret gets its receipt in a response header.
    pub explain: bool,
    /// From where somebody may ask for one, the secret apart; empty: from everywhere. Of an admin instance: for its
    /// `/kvroute/v1/explain`.
    pub allow: Networks,
    /// That header.
    pub header: String,
    /// Share of the requests with a prompt whose receipt goes into the filter state, for the access log.
    pub sample: f64,
    /// The decision on each request goes into the filter state, for access logs and spans.
    pub filter_state: bool,
}

/// The salt of a tenant's cache, by a header that the gateway sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantSalt {
    /// The header; its value takes the place of the body's `cache_salt`. `None`: the body's own holds.
    pub header: Option<String>,
    /// The salt is written into the body, too; a body that cannot be changed is refused.
    pub write: bool,
}

/// Switches that exist for tests only; all off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestSwitches {
    /// A request with this header traps the VM.
    pub trap_header: Option<String>,
}

/// A configuration that was checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What the instance is there for.
    pub role: Role,
    /// The models; never empty for a router.
    pub models: Vec<Model>,
    /// Ends of the paths of each API.
    pub paths: ApiPaths,
    /// How the pick is told to Envoy.
    pub selection: Selection,
    /// Weights of the choice.
    pub policy: Policy,
    /// Bounds.
    pub limits: Limits,
    /// What keeps the caches of tenants apart.
    pub tenant_salt: TenantSalt,
    /// Who is told why.
    pub receipts: Receipts,
    /// Goes into every block hash; the bridge must have the same.
    pub hash_seed: String,
    /// Shared with the bridge and whoever may look inside; never empty for ingest and admin. Stands in `secret`, or
    /// in the environment variable that `secret_env` names.
    pub secret: String,
    /// Where snapshots come from; `None` with static replicas only.
    pub bridge: Option<Bridge>,
    /// Replicas named here; empty: from the feed.
    pub replicas: Vec<StaticReplica>,
    /// For tests only.
    pub test: TestSwitches,
}

impl Config {
    /// Reads and checks a configuration.
    pub fn parse(json: &[u8]) -> Result<Config, ConfigError> {
        if json.iter().all(u8::is_ascii_whitespace) {
            return Err(ConfigError::new("", "is empty: give at least {\"role\": ...}"));
        }
        let value: Value =
            serde_json::from_slice(json).map_err(|e| ConfigError::new("", format!("is not JSON: {e}")))?;
        Config::from_value(&value)
    }

    /// The model that a request is for, by its place, and the LoRA adapter that it names. A request that names no
    /// model is answered by whatever model the engine serves, so it is for the only one that there is.
    pub fn asked<'a>(&'a self, name: Option<&str>) -> Result<(usize, &'a Model, Option<&'a str>), NoKeyReason> {
        let unknown = |what: String| NoKeyReason::new(NoKey::UnknownModel, what);
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return match self.models.as_slice() {
                [only] => Ok((0, only, None)),
                _ => Err(unknown("the body names no model, and there are several".to_owned())),
            };
        };
        let asked = |(at, model): (usize, &'a Model)| Some((at, model, model.asked(name)?));
        let found = self.models.iter().enumerate().find_map(asked);
        found.ok_or_else(|| unknown(format!("no model is called {name:.100?}")))
    }

    /// The model that a request names, by its name, an alias or an adapter.
    pub fn model(&self, name: &str) -> Option<(usize, &Model)> {
        self.models.iter().enumerate().find(|(_, model)| model.asked(name).is_some())
    }
}

impl Model {
    /// Whether a request that asks for `name` asks for this model, and for which of its adapters.
    fn asked(&self, name: &str) -> Option<Option<&str>> {
        let mut own = std::iter::once(&self.name).chain(&self.aliases);
        if own.clone().any(|own| own == name) {
            return Some(None);
        }
        // SGLang takes an adapter behind the name of the model.
        let adapter = match self.engine.engine.as_str() {
            "sglang" => own.find_map(|own| name.strip_prefix(own.as_str())?.strip_prefix(':'))?.trim(),
            _ => name,
        };
        self.adapters.iter().map(String::as_str).find(|known| *known == adapter).map(Some)
    }
}

#[cfg(test)]
mod tests;
