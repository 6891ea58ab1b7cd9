//! The bridge's own listener.
//!
//! | path | | answer |
//! |---|---|---|
//! | `/kvroute/v1/snapshot?from=<16 hex>[&through=<16 hex>][&epoch=<16 hex>]` | secret | a frame of [`crate::feed::snapshot`]; 409 when the bridge's epoch is another |
//! | `/kvroute/v1/snapshot?digests&from=<16 hex>[&epoch=<16 hex>]` | secret | a frame of [`crate::feed::digest`] |
//! | `POST` of either | secret | the same; the body is a frame of [`crate::feed::word`] |
//! | `/kvroute/v1/replicas` | secret | JSON: replicas, Envoys, term, epoch, seq |
//! | `/kvroute/v1/gateways` | secret | JSON: what the workers of each Envoy say of requests ([`super::gateways`]) |
//! | `/` | | a page for people, which asks for the secret and then shows both |
//! | `/metrics` | | Prometheus text |
//! | `/healthz` | | 200 |

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Query, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};

use super::gateways::Gateways;
use super::hub::Hub;
use super::push::{Envoy, EnvoyState};
use super::registry::Registry;
use super::replica::State;
use super::scrape::exposition;
use crate::feed::{SNAPSHOT_PATH, word};
use crate::filter::secret;
use crate::look::SECRET_HEADER;

/// What the listener shows.
pub struct Shown {
    /// The secret that snapshots need.
    pub secret: String,
    /// The deployment's seed of block hashes.
    pub hash_seed: String,
    /// State.
    pub hub: Arc<Hub>,
    /// Receivers.
    pub envoys: Vec<Arc<Envoy>>,
    /// Their workers.
    pub gateways: Gateways,
    /// Replicas.
    pub registry: Arc<Registry>,
}

#[derive(Deserialize)]
struct Range {
    from: Option<String>,
    through: Option<String>,
    digests: Option<String>,
    epoch: Option<String>,
}

#[derive(Serialize)]
struct Overview {
    term: u64,
    epoch: String,
    seq: u64,
    entries: usize,
    /// Not the seed: what two that have the same one both say.
    hash_seed: String,
    envoys: Vec<EnvoyState>,
    replicas: Vec<State>,
}

/// The routes.
pub fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route(SNAPSHOT_PATH, get(snapshot).post(snapshot).layer(DefaultBodyLimit::max(word::MAX_BYTES)))
        .route("/kvroute/v1/replicas", get(replicas))
        .route("/kvroute/v1/gateways", get(gateways))
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(shown)
}

fn allowed(shown: &Shown, headers: &HeaderMap) -> bool {
    secret::opens(headers.get(SECRET_HEADER).map(|v| v.as_bytes()), &shown.secret)
}

fn error(status: StatusCode, text: &str) -> Response {
    (status, Json(serde_json::json!({ "error": text }))).into_response()
}

async fn snapshot(
    Shared(shown): Shared<Arc<Shown>>,
    Query(range): Query<Range>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if !allowed(&shown, &headers) {
        return error(StatusCode::UNAUTHORIZED, "wrong or no x-kvroute-secret");
    }
    let hex = |v: Option<&str>, default| v.map_or(Ok(default), |v| u64::from_str_radix(v, 16));
    let ends = hex(range.from.as_deref(), 0).and_then(|from| Ok((from, hex(range.through.as_deref(), u64::MAX)?)));
    let Some((from, through)) = ends.ok().filter(|(from, through)| from <= through) else {
        return error(StatusCode::BAD_REQUEST, "from, through: 16 hex digits each, in order");
    };
    if let Some(epoch) = range.epoch.as_deref()
        && u64::from_str_radix(epoch, 16) != Ok(shown.hub.stats().epoch.id)
    {
        return error(StatusCode::CONFLICT, "another bridge than the one asked for");
    }
    if !body.is_empty() {
        match word::decode(&body) {
            Ok(told) => shown.registry.heard(&told),
            Err(what) => return error(StatusCode::BAD_REQUEST, &format!("body: {what}")),
        }
    }
    let frame = match range.digests {
        Some(_) => shown.hub.digests(from).encode(),
        None => shown.hub.snapshot(from, through).encode(),
    };
    ([(header::CONTENT_TYPE, "application/octet-stream")], frame).into_response()
}

/// What a seed is known by, without giving it away.
pub fn seed_mark(seed: &str) -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(format!("hash_seed {seed}").as_bytes()))
}

async fn replicas(Shared(shown): Shared<Arc<Shown>>, headers: HeaderMap) -> Response {
    if !allowed(&shown, &headers) {
        return error(StatusCode::UNAUTHORIZED, "wrong or no x-kvroute-secret");
    }
    let stats = shown.hub.stats();
    Json(Overview {
        term: stats.epoch.term,
        epoch: format!("{:016x}", stats.epoch.id),
        seq: stats.seq,
        entries: stats.entries,
        hash_seed: seed_mark(&shown.hash_seed),
        envoys: shown.envoys.iter().map(|e| e.state()).collect(),
        replicas: shown.registry.states(),
    })
    .into_response()
}

async fn gateways(Shared(shown): Shared<Arc<Shown>>, headers: HeaderMap) -> Response {
    if !allowed(&shown, &headers) {
        return error(StatusCode::UNAUTHORIZED, "wrong or no x-kvroute-secret");
    }
    Json(serde_json::json!({ "gateways": shown.gateways.look().await })).into_response()
}

/// The page knows nothing by itself, so it needs no secret. Scripts and styles are its own, and it talks to the bridge
/// alone.
async fn page() -> Response {
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; \
                  connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'";
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, include_str!("page.html")).into_response()
}

async fn metrics(Shared(shown): Shared<Arc<Shown>>) -> String {
    let mut out = exposition(&shown.registry.states());
    let stats = shown.hub.stats();
    for (family, kind, value) in [
        ("kvroute_bridge_term", "gauge", stats.epoch.term),
        ("kvroute_bridge_feed_seq", "gauge", stats.seq),
        ("kvroute_bridge_ring_bytes", "gauge", stats.ring_bytes as u64),
        ("kvroute_bridge_entries", "gauge", stats.entries as u64),
        ("kvroute_bridge_version", "gauge", crate::VERSION_NUMBER),
    ] {
        out.push_str(&format!("# TYPE {family} {kind}\n{family} {value}\n"));
    }
    let states: Vec<_> = shown.envoys.iter().map(|e| (e, e.state())).collect();
    let mut family = |name: &str, kind: &str, value: &dyn Fn(&Envoy, &EnvoyState) -> u64| {
        out.push_str(&format!("# TYPE {name} {kind}\n"));
        for (envoy, state) in &states {
            out.push_str(&format!("{name}{{envoy=\"{}\"}} {}\n", state.url, value(envoy, state)));
        }
    };
    family("kvroute_bridge_leading", "gauge", &|_, s| u64::from(s.leading));
    family("kvroute_bridge_sent_total", "counter", &|e, _| e.counts.sent.load(Ordering::Relaxed));
    family("kvroute_bridge_failed_total", "counter", &|e, _| e.counts.failed.load(Ordering::Relaxed));
    family("kvroute_bridge_skipped_frames_total", "counter", &|e, _| e.counts.skipped.load(Ordering::Relaxed));
    family("kvroute_bridge_worker_backlog", "gauge", &|_, s| s.slots.iter().map(|s| s.backlog).max().unwrap_or(0));
    out
}
