//! Asks an engine where it publishes its KV events: `GET /kv_event_sources` (vLLM 0.32), a source for each
//! data-parallel rank. For replicas whose description names no endpoint.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::replica::Replica;
use super::source::{self, Source};
use super::stream::Input;
use super::zmtp::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Until the engine is asked again: it may not serve yet, and may publish elsewhere once it began anew.
const AGAIN: Duration = Duration::from_secs(2);
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The path that tells.
pub(super) const PATH: &str = "/kv_event_sources";

/// Where one data-parallel rank publishes, as it says itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// `--kv-events-config` has it.
    pub enable_kv_cache_events: bool,
    /// `zmq`, or `null` for nowhere.
    pub publisher: Option<String>,
    /// Where events are published; `*` is every address of its host.
    pub endpoint: Option<String>,
    /// Where they can be asked for again.
    pub replay_endpoint: Option<String>,
    /// Their first frame.
    pub topic: Option<String>,
}

impl Answer {
    /// The source that it names, as seen from here: `*` is the host of the API. `None`: nothing to connect to.
    fn source(&self, host: &str) -> Option<Source> {
        if !self.enable_kv_cache_events || self.publisher.as_deref() != Some("zmq") {
            return None;
        }
        let seen = |text: &Option<String>| {
            let text = text.as_deref()?.replace("tcp://*:", &format!("tcp://{host}:"));
            let text = text.replace("tcp://[::]:", &format!("tcp://{host}:"));
            Endpoint::parse(&text.replace("tcp://0.0.0.0:", &format!("tcp://{host}:"))).ok()
        };
        let binds =
            self.endpoint.as_deref().is_some_and(|e| e.contains('*') || e.contains("::") || e.starts_with("ipc"));
        // Without a wildcard the engine connects to whoever listens there: kv-bind is for that.
        let events = seen(&self.endpoint).filter(|_| binds)?;
        // The replay socket always listens, also where it names an address of its own host.
        let topic = self.topic.clone().unwrap_or_default();
        Some(Source { events, bind: false, topic, replay: seen(&self.replay_endpoint) })
    }
}

/// Asks for ever; follows what is named until another source is. Ends when it is aborted.
pub async fn run(client: reqwest::Client, replica: Arc<Replica>) {
    let url = format!("{}{PATH}", replica.spec.http.trim_end_matches('/'));
    let address = replica.spec.http.split_once("://").map_or("", |(_, rest)| rest);
    let authority = address.split('/').next().unwrap_or("");
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_owned();
    let mut now: Option<(Answer, Following)> = None;
    loop {
        if let Ok(answers) = fetch(&client, &url).await
            && let Some(answer) = answers.get(&replica.rank.to_string())
            && now.as_ref().is_none_or(|(known, _)| known != answer)
        {
            drop(now.take());
            match answer.source(&host) {
                Some(source) => {
                    let (name, rank) = (&replica.spec.name, replica.rank);
                    tracing::info!("replica {name} rank {rank}: publishes at {}", source.events);
                    replica.take(Input::Announced);
                    let task = tokio::spawn(source::run(source, replica.clone()));
                    now = Some((answer.clone(), Following(task)));
                }
                None => tracing::debug!("{url}: {answer:?}: nothing to connect to"),
            }
        }
        sleep(AGAIN).await;
    }
}

/// A task that ends with this.
struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn fetch(client: &reqwest::Client, url: &str) -> Result<HashMap<String, Answer>, String> {
    let response = client.get(url).timeout(TIMEOUT).send().await.map_err(|e| e.to_string())?;
    let response = response.error_for_status().map_err(|e| e.to_string())?;
    if response.content_length().is_some_and(|n| n > MAX_ANSWER_BYTES as u64) {
        return Err("answer too large".into());
    }
    response.json().await.map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(endpoint: &str, replay: Option<&str>) -> Option<(String, Option<String>)> {
        let answer = Answer {
            enable_kv_cache_events: true,
            publisher: Some("zmq".into()),
            endpoint: Some(endpoint.into()),
            replay_endpoint: replay.map(str::to_owned),
            topic: None,
        };
        let source = answer.source("10.0.0.7")?;
        Some((source.events.to_string(), source.replay.map(|r| r.to_string())))
    }

    #[test]
    fn wildcards_are_the_host_of_the_api() {
        let found = source("tcp://*:5558", Some("tcp://*:5560"));
        assert_eq!(found, Some(("tcp://10.0.0.7:5558".into(), Some("tcp://10.0.0.7:5560".into()))));
        assert_eq!(source("ipc:///tmp/x", None), Some(("ipc:///tmp/x".into(), None)));
        assert_eq!(source("tcp://127.0.0.1:5558", None), None, "it connects to whoever listens there");
        assert_eq!(source("inproc://x", None), None);
        let off = Answer { endpoint: Some("tcp://*:1".into()), publisher: Some("zmq".into()), ..Answer::default() };
        assert!(off.source("h").is_none());
    }

    #[test]
    fn as_vllm_answers() {
        let text = r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
            "replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""}}"#;
        let answers: HashMap<String, Answer> = serde_json::from_str(text).unwrap();
        assert!(answers["0"].source("h").is_some_and(|s| s.replay.is_none()));
    }
}
