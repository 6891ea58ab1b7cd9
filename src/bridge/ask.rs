//! Asks an engine where it publishes its KV events, for replicas whose description names no endpoint: vLLM 0.32 says it at
//! `/kv_event_sources`, a source for each data-parallel rank, and SGLang (0.5.23) in `kv_events` of its `/server_info`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::replica::Replica;
use super::source::{self, Source};
use super::stream::Input;
use super::zmtp::Endpoint;

const TIMEOUT: Duration = Duration::from_secs(2);
/// Until the engine is asked again: it may not serve yet, and may publish elsewhere once it began anew.
const AGAIN: Duration = Duration::from_secs(2);
/// The same where the answer costs the engine more: SGLang asks its scheduler.
const AGAIN_SGLANG: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// The path that tells, with vLLM and with SGLang.
pub(super) const PATH: &str = "/kv_event_sources";
pub(super) const SERVER_INFO: &str = "/server_info";

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

/// `kv_events` of SGLang's `/server_info`: rank n is at the ports plus n.
#[derive(Debug, Deserialize)]
struct Described {
    publisher: String,
    endpoint_host: String,
    endpoint_port_base: u16,
    #[serde(default)]
    topic: String,
    dp_size: Option<u16>,
    replay_endpoint_port_base: Option<u16>,
}

/// What SGLang's `/server_info` says of each rank; `None`: nothing.
pub(super) fn of_server_info(info: &Value) -> Option<HashMap<String, Answer>> {
    let described = Described::deserialize(info.get("kv_events")?).ok()?;
    let host = &described.endpoint_host;
    let at = |port: u16, rank: u16| Some(format!("tcp://{host}:{}", port.checked_add(rank)?));
    let ranks = (0..described.dp_size.unwrap_or(1)).map(|rank| {
        let answer = Answer {
            enable_kv_cache_events: true,
            publisher: Some(described.publisher.clone()),
            endpoint: at(described.endpoint_port_base, rank),
            replay_endpoint: described.replay_endpoint_port_base.and_then(|port| at(port, rank)),
            topic: Some(described.topic.clone()),
        };
        (rank.to_string(), answer)
    });
    Some(ranks.collect())
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
    let base = replica.spec.http.trim_end_matches('/');
    let (url, of_sglang) = (format!("{base}{PATH}"), format!("{base}{SERVER_INFO}"));
    let address = replica.spec.http.split_once("://").map_or("", |(_, rest)| rest);
    let authority = address.split('/').next().unwrap_or("");
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).to_owned();
    let mut now: Option<(Answer, Following)> = None;
    loop {
        let mut again = AGAIN;
        let mut answers: Result<HashMap<String, Answer>, String> = fetch(&client, &url).await;
        if answers.is_err() {
            let info: Result<Value, String> = fetch(&client, &of_sglang).await;
            answers = info.and_then(|info| {
                again = AGAIN_SGLANG;
                of_server_info(&info).ok_or_else(|| "it does not say".into())
            });
        }
        if let Ok(answers) = answers
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
        sleep(again).await;
    }
}

/// A task that ends with this.
struct Following(JoinHandle<()>);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn fetch<T: DeserializeOwned>(client: &reqwest::Client, url: &str) -> Result<T, String> {
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
    fn as_sglang_describes() {
        let info = serde_json::json!({"kv_events": {"publisher": "zmq", "endpoint_host": "*", "endpoint_port_base": 5557,
            "topic": "", "block_size": 64, "dp_size": 2, "replay_endpoint_port_base": 5600}});
        let answers = of_server_info(&info).unwrap();
        let source = answers["1"].source("h").unwrap();
        assert_eq!(source.events.to_string(), "tcp://h:5558");
        assert_eq!((answers.len(), source.replay.map(|r| r.to_string())), (2, Some("tcp://h:5601".into())));
        assert_eq!(of_server_info(&serde_json::json!({"kv_events": null})), None);
        assert_eq!(of_server_info(&serde_json::json!({"vllm_config": "x"})), None);
    }

    #[test]
    fn as_vllm_answers() {
        let text = r#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",
            "replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":""}}"#;
        let answers: HashMap<String, Answer> = serde_json::from_str(text).unwrap();
        assert!(answers["0"].source("h").is_some_and(|s| s.replay.is_none()));
    }
}
