//! Load from an engine's `/metrics`, by the names that vLLM and SGLang have used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::adapters::AtWork;
use super::facts::{Served, plain};
use super::replica::Replica;
use super::trust::Traffic;

const TIMEOUT: Duration = Duration::from_secs(2);
/// How often the engine is asked which adapters it serves: they may be loaded and unloaded while it runs.
const MODELS_EVERY: Duration = Duration::from_secs(5);
/// A page of metrics has 50 to 200 kB.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// One data-parallel rank's numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Requests in the batch.
    pub running: u32,
    /// Requests that wait.
    pub waiting: u32,
    /// Share of the cache in use by running requests.
    pub kv_usage: f64,
    /// Blocks that the cache can hold.
    pub capacity_blocks: Option<u64>,
    /// Tokens per block, by the engine's configuration.
    pub block_size: Option<u32>,
    /// Prompt tokens looked up in the cache, counted up.
    pub queries: u64,
    /// Prompt tokens found there, counted up.
    pub hits: u64,
    /// LoRA adapters at work; `None`: the engine does not say.
    #[serde(default)]
    pub adapters: Option<AtWork>,
    /// Start of the process, seconds since 1970.
    pub start_time: Option<f64>,
    /// Something in the page was about load at all.
    pub valid: bool,
}

impl Reading {
    /// What it says of the engine's traffic.
    pub fn traffic(&self) -> Traffic {
        Traffic { running: self.running, uncached_tokens: self.queries.saturating_sub(self.hits), tokens: self.queries }
    }
}

/// Reads a page. Numbers of a rank are those labelled with it as `engine`, `dp_rank` or `engine_id`, or with none.
pub fn parse(page: &str, rank: u32) -> Reading {
    let mut reading = Reading::default();
    let (mut sglang_tokens, mut page_size) = (None, None);
    let mut adapters_at = f64::MIN;
    for line in page.lines() {
        let Some((name, labels, value)) = sample(line) else { continue };
        if labels
            .iter()
            .any(|(k, v)| matches!(*k, "engine" | "dp_rank" | "engine_id") && v.parse::<u32>().is_ok_and(|r| r != rank))
        {
            continue;
        }
        let count = value.clamp(0.0, u64::MAX as f64) as u64;
        let small = count.min(u64::from(u32::MAX)) as u32;
        match name {
            "vllm:num_requests_running" | "sglang:num_running_reqs" => {
                reading.running = reading.running.saturating_add(small);
                reading.valid = true;
            }
            "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => {
                reading.waiting = reading.waiting.saturating_add(small);
            }
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                reading.kv_usage = reading.kv_usage.max(value);
            }
            "vllm:prefix_cache_queries_total" | "vllm:gpu_prefix_cache_queries_total" => reading.queries += count,
            "vllm:prefix_cache_hits_total" | "vllm:gpu_prefix_cache_hits_total" => reading.hits += count,
            "sglang:prompt_tokens_total" => reading.queries += count,
            "sglang:cached_tokens_total" => reading.hits += count,
            "sglang:max_total_num_tokens" => sglang_tokens = Some(count),
            "vllm:cache_config_info" | "sglang:cache_config_info" => {
                let label = |key| labels.iter().find(|(k, _)| *k == key).and_then(|(_, v)| v.parse::<u64>().ok());
                reading.capacity_blocks = label("num_gpu_blocks").or(reading.capacity_blocks);
                page_size = label("page_size").or(page_size);
                reading.block_size = label("block_size").and_then(|b| b.try_into().ok()).or(reading.block_size);
            }
            // Every change has a line of its own that stays; the value is when it was written.
            "vllm:lora_requests_info" if value >= adapters_at => {
                let label = |key| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
                let names = label("running_lora_adapters").unwrap_or_default().split(',').map(str::trim);
                let running = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
                let slots = label("max_lora").and_then(|n| n.parse().ok()).unwrap_or(0);
                (reading.adapters, adapters_at) = (Some(AtWork { running, slots }), value);
            }
            "process_start_time_seconds" => reading.start_time = Some(value),
            _ => {}
        }
    }
    if let (Some(tokens), Some(page)) = (sglang_tokens, page_size.filter(|p| *p > 0)) {
        reading.capacity_blocks = Some(tokens / page);
        reading.block_size = u32::try_from(page).ok();
    }
    reading
}

/// The labels of `cache_config_info`: the engine's flags of its cache. `None`: the page has none.
pub fn cache_config(page: &str) -> Option<BTreeMap<String, String>> {
    let samples = page.lines().filter_map(sample);
    let config = samples.filter(|(name, _, _)| name.ends_with(":cache_config_info")).map(|(_, labels, _)| labels);
    let owned = |labels: Vec<(&str, &str)>| labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    config.map(owned).next()
}

type Sample<'a> = (&'a str, Vec<(&'a str, &'a str)>, f64);

/// One line of the text format: name, labels, value.
fn sample(line: &str) -> Option<Sample<'_>> {
    let wanted = ["vllm:", "sglang:", "process_start"];
    if !wanted.iter().any(|w| line.starts_with(w)) {
        return None;
    }
    let (name, labels, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, rest) = labels(rest)?;
            (name, labels, rest)
        }
        None => {
            let (name, rest) = line.split_once(' ')?;
            (name, Vec::new(), rest)
        }
    };
    let value = rest.split_whitespace().next()?.parse::<f64>().ok().filter(|v| v.is_finite())?;
    Some((name, labels, value))
}

/// Labels up to the closing brace; escapes stay as they are, no label that counts has any.
fn labels(mut rest: &str) -> Option<(Vec<(&str, &str)>, &str)> {
    let mut out = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((out, after));
        }
        let (key, value) = rest.split_once("=\"")?;
        let mut escaped = false;
        let end = value.char_indices().find(|(_, c)| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        })?;
        out.push((key, &value[..end.0]));
        rest = &value[end.0 + 1..];
    }
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nobody answers.
    Silent(String),
    /// What answers has no metrics of an engine.
    NoMetrics(String),
}

/// Scrapes one engine for all its ranks until it is aborted.
pub async fn run(client: reqwest::Client, ranks: Vec<Arc<Replica>>, every: Duration) {
    let Some(first) = ranks.first() else { return };
    let base = first.spec.http.trim_end_matches('/');
    let (url, models_url) = (format!("{base}/metrics"), format!("{base}/v1/models"));
    let mut listed: Option<Instant> = None;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        ranks.iter().for_each(|replica| replica.asked());
        let due = listed.is_none_or(|at| at.elapsed() >= MODELS_EVERY);
        if due {
            listed = Some(Instant::now());
        }
        let models = async { if due { fetch(&client, &models_url).await.ok() } else { None } };
        let (page, models) = tokio::join!(fetch(&client, &url), models);
        // An engine that wants a key for it does not tell.
        if let Some(models) = models.and_then(|text| Served::list(&text)) {
            ranks.iter().for_each(|r| r.models(&models));
        }
        match page {
            Ok(page) => {
                for replica in &ranks {
                    let reading = parse(&page, replica.rank);
                    if reading.valid {
                        replica.answered(None);
                        replica.reading(reading);
                    } else {
                        replica.answered(Some(Failure::NoMetrics("GET /metrics: none of vLLM or SGLang".into())));
                        replica.with(|_, _| ());
                    }
                }
            }
            Err(failure) => {
                tracing::debug!("{url}: {failure:?}");
                for replica in &ranks {
                    replica.answered(Some(failure.clone()));
                    replica.with(|_, _| ());
                }
            }
        }
    }
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<String, Failure> {
    let silent = |error| Failure::Silent(format!("GET /metrics: {}", plain(&error)));
    let unusable = |why: String| Failure::NoMetrics(format!("GET /metrics: {why}"));
    let response = client.get(url).timeout(TIMEOUT).send().await.map_err(silent)?;
    if !response.status().is_success() {
        return Err(unusable(response.status().to_string()));
    }
    let mut page = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(chunk) = body.next().await {
        page.extend_from_slice(&chunk.map_err(silent)?);
        if page.len() > MAX_PAGE_BYTES {
            return Err(unusable("page too large".into()));
        }
    }
    String::from_utf8(page).map_err(|_| unusable("no text".into()))
}

/// The kind of a family, and its lines: labels and value.
type Family<'a> = (&'a str, Vec<(String, f64)>);

/// The states of replicas as Prometheus text.
pub fn exposition(states: &[super::replica::State]) -> String {
    let mut out = String::new();
    let mut families: BTreeMap<&str, Family<'_>> = BTreeMap::new();
    let escape = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    for s in states {
        let who = format!("replica=\"{}\",rank=\"{}\"", escape(&s.name), s.rank);
        let mut add = |family, kind, labels: String, value: f64| {
            families.entry(family).or_insert((kind, Vec::new())).1.push((labels, value));
        };
        for trust in ["exact", "catching_up", "stale", "no_events"] {
            let labels = format!("{who},trust=\"{trust}\"");
            add("kvroute_bridge_trust", "gauge", labels, f64::from(u8::from(s.trust == trust)));
        }
        for (tier, blocks) in &s.blocks {
            add("kvroute_bridge_blocks", "gauge", format!("{who},tier=\"{tier}\""), *blocks as f64);
        }
        for (reason, n) in &s.skipped {
            add("kvroute_bridge_skipped_total", "counter", format!("{who},reason=\"{reason}\""), *n as f64);
        }
        for (kind, n) in &s.events_by_kind {
            add("kvroute_bridge_events_total", "counter", format!("{who},kind=\"{kind}\""), *n as f64);
        }
        for (family, n) in [
            ("kvroute_bridge_messages_total", s.messages),
            ("kvroute_bridge_gaps_total", s.gaps),
            ("kvroute_bridge_gaps_lost_total", s.gaps_lost),
            ("kvroute_bridge_restarts_total", s.restarts),
            ("kvroute_bridge_replays_total", s.replays),
            ("kvroute_bridge_trust_changes_total", s.trust_changes),
        ] {
            add(family, "counter", who.clone(), n as f64);
        }
        add("kvroute_bridge_answers", "gauge", who.clone(), f64::from(u8::from(s.api != "silent")));
        add("kvroute_bridge_trust_age_seconds", "gauge", who.clone(), s.trust_age_ms as f64 / 1e3);
        if let Some(age) = s.last_event_age_ms {
            add("kvroute_bridge_event_age_seconds", "gauge", who.clone(), age as f64 / 1e3);
        }
        add("kvroute_bridge_unconfirmed_blocks", "gauge", who.clone(), s.unconfirmed_blocks as f64);
        if let Some(seq) = s.seq {
            add("kvroute_bridge_seq", "gauge", who.clone(), seq as f64);
        }
    }
    for (family, (kind, samples)) in families {
        out.push_str(&format!("# TYPE {family} {kind}\n"));
        for (labels, value) in samples {
            out.push_str(&format!("{family}{{{labels}}} {value}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllm_by_rank() {
        let page = r#"# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0",model_name="a,\"}b"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1.5e+03
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1000.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="4096",num_cpu_blocks="None"} 1.0
vllm:num_requests_running{engine="0"
vllm:kv_cache_usage_perc{engine="0"} NaN
process_start_time_seconds 1.7e9
"#;
        let reading = parse(page, 0);
        assert_eq!((reading.running, reading.waiting, reading.kv_usage), (3, 2, 0.25));
        assert_eq!((reading.capacity_blocks, reading.block_size), (Some(4096), Some(32)));
        assert_eq!(reading.traffic(), Traffic { running: 3, uncached_tokens: 500, tokens: 1500 });
        assert_eq!(reading.start_time, Some(1.7e9));
        assert_eq!(parse(page, 1).running, 5);
        assert!(!parse("", 0).valid);
    }

    #[test]
    fn adapters_are_those_of_the_latest_line() {
        let page = "vllm:num_requests_running 1\n\
            vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"a, b\",waiting_lora_adapters=\"\"} 5.0\n\
            vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"c\",waiting_lora_adapters=\"a\"} 7.5\n\
            vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} 6.0\n";
        assert_eq!(parse(page, 0).adapters, Some(AtWork { running: vec!["c".into()], slots: 2 }));
        assert_eq!(parse("vllm:num_requests_running 1\n", 0).adapters, None);
    }

    #[test]
    fn sglang() {
        let page = "sglang:num_running_reqs{model_name=\"m\"} 7\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\n\
                    sglang:max_total_num_tokens 6400\nsglang:cache_config_info{page_size=\"64\"} 1\n";
        let reading = parse(page, 0);
        assert_eq!((reading.running, reading.waiting, reading.kv_usage), (7, 1, 0.5));
        assert_eq!((reading.capacity_blocks, reading.block_size), (Some(100), Some(64)));
    }
}
