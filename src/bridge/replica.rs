//! One replica (one data-parallel rank of one engine) at run time: its stream, and what the hub is told of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::adapters::Known;
use super::cache::CacheConfig;
use super::config::ReplicaSpec;
use super::facts::Served;
use super::hub::Hub;
use super::recording::{Recorder, Tape};
use super::scrape::{self, Reading};
use super::stream::{Changes, Input, Step, Stream, StreamCounts};
use super::trust::TrustMachine;
use crate::feed::FeedReplicaId;
use crate::feed::record::{LoadReport, ReplicaInfo, Trust};

/// See the module.
pub struct Replica {
    /// As configured.
    pub spec: ReplicaSpec,
    /// Data-parallel rank.
    pub rank: u32,
    /// Its number in the feed.
    pub id: FeedReplicaId,
    hub: Arc<Hub>,
    born: Instant,
    inner: Mutex<Inner>,
}

/// Whether the engine's API answers, by the question for its metrics.
#[derive(Clone, Debug, Default)]
struct Api {
    /// A question is under way.
    asked: Option<Instant>,
    /// How the last one ended: `None`, with a page.
    error: Option<scrape::Failure>,
    /// There was an answer, or an end, at all.
    known: bool,
}

/// A question that takes longer is not waited for before it is said that there is no answer.
const SLOW: Duration = Duration::from_secs(1);

impl Api {
    /// In one word, and why.
    fn state(&self) -> (&'static str, String) {
        match (&self.error, self.asked) {
            (Some(scrape::Failure::Silent(why)), _) => ("silent", why.clone()),
            (_, Some(asked)) if asked.elapsed() >= SLOW => ("silent", "GET /metrics: no answer for 1 s".into()),
            (Some(scrape::Failure::NoMetrics(why)), _) => ("no_metrics", why.clone()),
            (None, _) => (if self.known { "answers" } else { "unknown" }, String::new()),
        }
    }
}

struct Inner {
    stream: Stream,
    closed: bool,
    shown: Option<(Trust, &'static str)>,
    /// Since when, and how often it changed.
    shown_since: Instant,
    changes: u64,
    reading: Option<(Reading, Instant)>,
    api: Api,
    adapters: Known,
    tape: Option<(Arc<Recorder>, Tape)>,
}

/// A replica's state as people read it.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names say it, and the documentation of the bridge lists them
pub struct State {
    pub name: String,
    pub rank: u32,
    pub id: u32,
    pub address: String,
    pub model: String,
    pub role: &'static str,
    pub topic: String,
    pub block_size: Option<u32>,
    pub capacity_blocks: u64,
    pub trust: &'static str,
    pub reason: &'static str,
    pub trust_age_ms: u64,
    pub trust_changes: u64,
    pub seq: Option<u64>,
    pub last_event_age_ms: Option<u64>,
    pub blocks: std::collections::BTreeMap<&'static str, u64>,
    pub unconfirmed_blocks: u64,
    pub orphan_runs: usize,
    pub messages: u64,
    pub events: u64,
    pub events_by_kind: std::collections::BTreeMap<&'static str, u64>,
    pub gaps: u64,
    pub gaps_lost: u64,
    pub restarts: u64,
    pub duplicates: u64,
    pub replays: u64,
    pub skipped: std::collections::BTreeMap<&'static str, u64>,
    pub running: Option<u32>,
    pub waiting: Option<u32>,
    pub kv_usage: Option<f64>,
    pub load_age_ms: Option<u64>,
    /// `answers`, `no_metrics` (what it says of its load cannot be used), `silent`, `unknown`.
    pub api: &'static str,
    pub api_error: String,
    /// LoRA adapters by name; true: ready.
    pub adapters: std::collections::BTreeMap<String, bool>,
}

/// Events by their kind; `unused` are those that the cache has no use for.
fn kinds(counts: &StreamCounts) -> std::collections::BTreeMap<&'static str, u64> {
    let [stored, removed, cleared] = counts.kinds;
    let unused = counts.events.saturating_sub(stored + removed + cleared);
    [("stored", stored), ("removed", removed), ("cleared", cleared), ("unused", unused)].into()
}

impl Replica {
    /// A new one, told to the hub at once.
    pub fn new(
        spec: ReplicaSpec,
        rank: u32,
        cache: CacheConfig,
        hub: Arc<Hub>,
        recorder: Option<Arc<Recorder>>,
    ) -> Arc<Replica> {
        let id = hub.reserve();
        let trust = TrustMachine::new(spec.kv.is_some() || spec.kv_bind.is_some(), 0);
        let stream = Stream::new(id, cache, trust);
        let tape = recorder.map(|recorder| {
            let tape = recorder.stream(&spec, rank);
            (recorder, tape)
        });
        let inner = Inner {
            stream,
            closed: false,
            shown: None,
            shown_since: Instant::now(),
            changes: 0,
            reading: None,
            api: Api::default(),
            adapters: Known::default(),
            tape,
        };
        let replica = Replica { spec, rank, id, hub, born: Instant::now(), inner: Mutex::new(inner) };
        replica.with(|_, _| ());
        Arc::new(replica)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds of this replica's clock.
    pub fn now(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    /// Works on the stream, then tells the hub what changed. Nothing happens once the replica has left.
    pub fn with<R: Default>(&self, work: impl FnOnce(&mut Stream, &mut Changes) -> R) -> R {
        let mut inner = self.lock();
        if inner.closed {
            return R::default();
        }
        let mut changes = Changes::default();
        let result = work(&mut inner.stream, &mut changes);
        // Under the lock, so that changes reach the hub in order.
        self.hub.publish(changes.records, &changes.wiped);
        self.show(&mut inner);
        result
    }

    fn show(&self, inner: &mut Inner) {
        let (trust, reason) = inner.stream.state(self.now());
        if inner.shown != Some((trust, reason)) {
            inner.changes += u64::from(inner.shown.is_some());
            (inner.shown, inner.shown_since) = (Some((trust, reason)), Instant::now());
            let (name, rank) = (&self.spec.name, self.rank);
            match reason {
                "never_published" | "silent" => tracing::warn!(
                    "replica {name} rank {rank} serves requests but publishes no KV events: check its \
                     --kv-events-config (enable_kv_cache_events, endpoint, topic)"
                ),
                "block_size_mismatch" => tracing::warn!(
                    "replica {name} rank {rank} uses blocks of {} tokens, configured are {}: its events are not used",
                    inner.stream.cache().refused().unwrap_or(0),
                    self.spec.block_size.unwrap_or(0)
                ),
                _ => tracing::info!("replica {name} rank {rank}: {} ({reason})", trust.label()),
            }
        }
        let cache = inner.stream.cache();
        let announced = inner.reading.as_ref().and_then(|(r, _)| r.block_size);
        self.hub.replica(ReplicaInfo {
            id: self.id,
            address: self.spec.address(),
            model: self.spec.model.clone(),
            block_size: cache.block_size().or(announced).unwrap_or(0),
            rank: self.rank,
            capacity_blocks: inner.stream.capacity,
            trust,
            reason: reason.to_owned(),
            dense: cache.dense(),
            adapters: inner.adapters.told(),
            role: self.spec.role,
        });
    }

    /// Hands an input to the stream, then tells the hub what changed.
    pub fn take(&self, input: Input<'_>) -> Step {
        let now = self.now();
        let mut inner = self.lock();
        if inner.closed {
            return Step::default();
        }
        if let Some((recorder, tape)) = &mut inner.tape {
            recorder.note(tape, &input);
        }
        let mut changes = Changes::default();
        let step = inner.stream.take(input, now, &mut changes);
        self.hub.publish(changes.records, &changes.wiped);
        self.show(&mut inner);
        step
    }

    /// Its metrics are being asked for.
    pub fn asked(&self) {
        self.lock().api.asked = Some(Instant::now());
    }

    /// How that ended.
    pub fn answered(&self, error: Option<scrape::Failure>) {
        self.lock().api = Api { asked: None, error, known: true };
    }

    /// A reading of its metrics.
    pub fn reading(&self, reading: Reading) {
        let load = LoadReport {
            running: reading.running,
            waiting: reading.waiting,
            kv_usage_ppm: (reading.kv_usage.clamp(0.0, 1.0) * 1e6) as u32,
            age_ms: 0,
        };
        {
            let mut inner = self.lock();
            if inner.closed {
                return;
            }
            let began = inner.reading.as_ref().and_then(|(before, _)| before.start_time);
            if began.is_some() && began != reading.start_time {
                inner.adapters.restarted();
            }
            if let Some(at_work) = &reading.adapters {
                inner.adapters.seen(at_work);
            }
            inner.reading = Some((reading.clone(), Instant::now()));
        }
        self.take(Input::Reading(&reading));
        self.hub.load(self.id, load);
    }

    /// Its list of models.
    pub fn models(&self, models: &[Served]) {
        let mut inner = self.lock();
        if !inner.closed {
            inner.adapters.listed(models);
            self.show(&mut inner);
        }
    }

    /// The replica leaves with its blocks. What its tasks still do has no effect.
    pub fn leave(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let held = inner.stream.leave();
        self.hub.gone(self.id, &held);
    }

    /// For `/kvroute/v1/replicas` and metrics.
    pub fn state(&self) -> State {
        let inner = self.lock();
        let (stream, cache) = (&inner.stream, inner.stream.cache());
        let (trust, reason) = stream.state(self.now());
        let [gpu, cpu, disk, unconfirmed] = cache.held();
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let load = inner.reading.as_ref();
        let (api, api_error) = inner.api.state();
        State {
            name: self.spec.name.clone(),
            rank: self.rank,
            id: self.id.0,
            address: self.spec.address(),
            model: self.spec.model.clone(),
            role: self.spec.role.label(),
            topic: self.spec.topic.clone(),
            block_size: cache.block_size(),
            capacity_blocks: stream.capacity,
            trust: trust.label(),
            reason,
            trust_age_ms: inner.shown_since.elapsed().as_millis() as u64,
            trust_changes: inner.changes,
            seq: stream.cursor().next().and_then(|n| n.checked_sub(1)),
            last_event_age_ms: (stream.last_ts > 0.0).then(|| ((wall - stream.last_ts).max(0.0) * 1e3) as u64),
            blocks: [("gpu", gpu), ("cpu", cpu), ("disk", disk)].into(),
            unconfirmed_blocks: unconfirmed,
            orphan_runs: cache.orphans(),
            messages: stream.counts.messages,
            events: stream.counts.events,
            events_by_kind: kinds(&stream.counts),
            gaps: stream.counts.gaps,
            gaps_lost: stream.counts.gaps_lost,
            restarts: stream.counts.restarts,
            duplicates: stream.counts.duplicates,
            replays: stream.counts.replays,
            skipped: cache.skips().iter().map(|(s, n)| (s.label(), n)).collect(),
            running: load.map(|(r, _)| r.running),
            waiting: load.map(|(r, _)| r.waiting),
            kv_usage: load.map(|(r, _)| r.kv_usage),
            load_age_ms: load.map(|(_, at)| at.elapsed().as_millis() as u64),
            api,
            api_error,
            adapters: inner.adapters.told().list.into_iter().map(|a| (a.name, a.loaded)).collect(),
        }
    }
}
