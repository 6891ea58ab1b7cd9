//! Everything beside the APIs: health, metrics, discovery, and the switches for tests under `/mock`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::engine::{Gauges, Speed};
use super::http::{Shared, api, not_found, refused};
use super::publish::Endpoints;
use crate::request::Api;

type App = State<Arc<Shared>>;

/// All routes of a replica.
pub fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health))
        .route("/version", get(version))
        .route("/v1/models", get(models))
        .route("/metrics", get(metrics))
        .route("/load", get(load))
        .route("/kv_event_sources", get(kv_event_sources))
        .route("/tokenize", post(tokenize))
        .route("/reset_prefix_cache", post(reset))
        .route("/mock/reset", post(reset))
        .route("/mock/restart", post(restart))
        .route("/mock/fail", post(fail))
        .route("/mock/hang", post(hang))
        .route("/mock/release", post(release))
        .route("/mock/drop-events", post(drop_events))
        .route("/mock/health", post(set_health))
        .route("/mock/speed", post(set_speed))
        .route("/mock/forget", post(forget))
        .route("/mock/stats", get(stats))
        .route("/mock/requests", get(requests))
        .route("/{*path}", post(api))
        .fallback(not_found)
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(shared.clone(), stand_still))
        .with_state(shared)
}

/// Nothing but the switches is served while it is frozen.
async fn stand_still(State(shared): App, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/mock/") {
        shared.faults.while_frozen().await;
    }
    next.run(request).await
}

async fn health(State(shared): App) -> StatusCode {
    StatusCode::from_u16(shared.faults.health()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE)
}

async fn models(State(shared): App) -> Json<Value> {
    let config = &shared.config;
    let model = |name: &String| {
        let parent = config.adapters.contains(name).then_some(&config.model);
        json!({
            "id": name, "object": "model", "created": 0, "owned_by": "kvroute",
            "root": name, "parent": parent, "max_model_len": config.max_model_len,
        })
    };
    let names = std::iter::once(&config.model).chain(&config.aliases).chain(&config.adapters);
    Json(json!({"object": "list", "data": names.map(model).collect::<Vec<_>>()}))
}

async fn version(State(shared): App) -> Json<Value> {
    Json(json!({"version": shared.config.version()}))
}

async fn load(State(shared): App) -> Json<Value> {
    let gauges = shared.ranks.gauges();
    Json(json!({"server_load": gauges.running + gauges.waiting}))
}

async fn kv_event_sources(State(shared): App) -> Json<Value> {
    // Sockets of all addresses are what the engine has; it says so by a star.
    let seen = |endpoint: &str| endpoint.rsplit_once(':').map(|(_, port)| format!("tcp://*:{port}"));
    let rank = |(rank, at): (usize, &Endpoints)| {
        let said = json!({
            "enable_kv_cache_events": shared.config.publishes(),
            "publisher": if shared.config.publishes() { "zmq" } else { "null" },
            "endpoint": seen(&at.events),
            "replay_endpoint": seen(&at.replay),
            "topic": shared.config.topic,
            "buffer_steps": shared.config.replay_batches,
            "hwm": 100_000,
            "max_queue_size": 100_000,
        });
        (rank.to_string(), said)
    };
    Json(shared.ranks.endpoints().iter().enumerate().map(rank).collect::<serde_json::Map<_, _>>().into())
}

async fn tokenize(State(shared): App, body: Bytes) -> Response {
    match shared.tokenize(body).await {
        Ok(tokens) => Json(tokens).into_response(),
        Err(refusal) => refused(Api::ChatCompletions, &refusal),
    }
}

async fn reset(State(shared): App) -> Json<Value> {
    Json(json!({"success": shared.ranks.reset_cache().await}))
}

async fn restart(State(shared): App) -> StatusCode {
    shared.ranks.restart();
    StatusCode::OK
}

/// Query of the switches; each uses what concerns it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Switch {
    requests: Option<u64>,
    batches: Option<u64>,
    status: Option<u16>,
    from_replay: bool,
    prefill_us_per_token: Option<f64>,
    decode_ms_per_token: Option<f64>,
}

async fn fail(State(shared): App, Query(switch): Query<Switch>) -> StatusCode {
    shared.faults.fail(switch.requests.unwrap_or(1), switch.status.unwrap_or(503));
    StatusCode::OK
}

async fn hang(State(shared): App, Query(switch): Query<Switch>) -> StatusCode {
    shared.faults.hang(switch.requests.unwrap_or(1));
    StatusCode::OK
}

async fn release(State(shared): App) -> StatusCode {
    shared.faults.release();
    StatusCode::OK
}

async fn drop_events(State(shared): App, Query(switch): Query<Switch>) -> StatusCode {
    shared.ranks.drop_events(switch.batches.unwrap_or(1), switch.from_replay);
    StatusCode::OK
}

async fn set_health(State(shared): App, Query(switch): Query<Switch>) -> StatusCode {
    shared.faults.set_health(switch.status.unwrap_or(200));
    StatusCode::OK
}

async fn set_speed(State(shared): App, Query(switch): Query<Switch>) -> StatusCode {
    let config = &shared.config;
    let prefill = switch.prefill_us_per_token.unwrap_or(config.prefill_us_per_token);
    let decode = switch.decode_ms_per_token.unwrap_or(config.decode_ms_per_token);
    let (Ok(prefill), Ok(decode)) =
        (Duration::try_from_secs_f64(prefill / 1e6), Duration::try_from_secs_f64(decode / 1e3))
    else {
        return StatusCode::BAD_REQUEST;
    };
    shared.ranks.set_speed(Speed { prefill, decode });
    StatusCode::OK
}

async fn forget(State(shared): App) -> StatusCode {
    shared.faults.forget();
    StatusCode::OK
}

async fn stats(State(shared): App) -> Json<Value> {
    Json(json!({"requests": shared.faults.sums(), "engine": shared.ranks.gauges()}))
}

async fn requests(State(shared): App) -> Response {
    Json(shared.faults.requests()).into_response()
}

/// The metrics of vLLM that routers read, by its names.
async fn metrics(State(shared): App) -> Response {
    let mut out = String::new();
    for (rank, gauges) in shared.ranks.each().enumerate() {
        of_rank(&shared, rank, gauges, &mut out);
    }
    if !shared.config.adapters.is_empty() {
        let running: Vec<String> = shared.at_work().keys().cloned().collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (most, running) = (shared.config.max_loras, running.join(","));
        let _ = writeln!(out, "# TYPE vllm:lora_requests_info gauge");
        let labels = format!("max_lora=\"{most}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"\"");
        let _ = writeln!(out, "vllm:lora_requests_info{{{labels}}} {now:?}");
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], out).into_response()
}

fn of_rank(shared: &Shared, rank: usize, gauges: Gauges, out: &mut String) {
    let config = &shared.config;
    let labels = format!("engine=\"{rank}\",model_name=\"{}\"", config.model);
    let mut put = |kind: &str, name: &str, more: &str, value: f64| {
        // A counter's type line has its name without the suffix of the sample, as Python's client writes it.
        if rank == 0 && !more.contains("source=\"local_cache_hit\"") {
            let _ = writeln!(out, "# TYPE vllm:{} {kind}", name.trim_end_matches("_total"));
        }
        let _ = writeln!(out, "vllm:{name}{{{labels}{more}}} {value:?}");
    };
    let sums = shared.faults.sums();
    put("gauge", "num_requests_running", "", gauges.running as f64);
    put("gauge", "num_requests_waiting", "", gauges.waiting as f64);
    put("gauge", "kv_cache_usage_perc", "", gauges.usage);
    put("counter", "prefix_cache_queries_total", "", gauges.queried_tokens as f64);
    put("counter", "prefix_cache_hits_total", "", gauges.hit_tokens as f64);
    put("counter", "prompt_tokens_total", "", gauges.prompt_tokens as f64);
    put("counter", "prompt_tokens_cached_total", "", gauges.hit_tokens as f64);
    let computed = (gauges.prompt_tokens - gauges.hit_tokens.min(gauges.prompt_tokens)) as f64;
    put("counter", "prompt_tokens_by_source_total", ",source=\"local_compute\"", computed);
    put("counter", "prompt_tokens_by_source_total", ",source=\"local_cache_hit\"", gauges.hit_tokens as f64);
    put("counter", "generation_tokens_total", "", gauges.output_tokens as f64);
    put("counter", "num_preemptions_total", "", gauges.preemptions as f64);
    if rank == 0 {
        put("counter", "request_success_total", ",finished_reason=\"length\"", sums.completed as f64);
    }
    let cache = format!(
        ",block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"{}\",prefix_caching_hash_algo=\"sha256\"",
        config.block_size,
        config.blocks,
        if config.prefix_caching { "True" } else { "False" }
    );
    put("gauge", "cache_config_info", &cache, 1.0);
}
