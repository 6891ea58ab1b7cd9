//! What an engine says about itself over HTTP: its version, the models that it serves, its cache, where it publishes.
//!
//! For people's commands, which ask once; the bridge itself goes by events, [`super::scrape`] and [`super::ask`].

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ask::{self, Answer};
use super::scrape::{self, Reading};

const TIMEOUT: Duration = Duration::from_secs(5);

/// See the module. What an engine does not say is `None`, or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// `vllm` or `sglang`: by the names of its metrics, or where it serves none by what else only one of them has.
    pub engine: Option<&'static str>,
    /// Its version.
    pub version: Option<String>,
    /// `/v1/models`
    pub models: Vec<Served>,
    /// The labels of `cache_config_info`: `block_size`, `enable_prefix_caching`, …
    pub cache: Option<BTreeMap<String, String>>,
    /// Its load and the size of its cache.
    pub reading: Option<Reading>,
    /// Where each rank publishes KV events; `None`: it does not say (vLLM does from 0.32 on, SGLang where it publishes).
    pub sources: Option<HashMap<String, Answer>>,
    /// `/server_info`: with SGLang all its flags (0.5.20 has it at `/get_server_info`, too); with vLLM its configuration
    /// and environment, where it was started with `VLLM_SERVER_DEV_MODE=1`.
    pub server_info: Option<Value>,
}

/// A name under which it serves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Served {
    /// The name.
    pub id: String,
    /// Of a LoRA adapter: the model.
    pub parent: Option<String>,
    /// Longest prompt with its answer.
    pub max_model_len: Option<u64>,
}

impl Served {
    /// What `/v1/models` answers.
    pub fn list(text: &str) -> Option<Vec<Served>> {
        #[derive(Deserialize)]
        struct Models {
            data: Vec<Served>,
        }
        serde_json::from_str::<Models>(text).ok().map(|models| models.data)
    }
}

impl Facts {
    /// Asks the engine at `http://host:port`. An error: nobody answers there.
    pub async fn ask(client: &reqwest::Client, base: &str) -> Result<Facts, String> {
        let base = base.trim_end_matches('/');
        let url = |path: &str| format!("{base}{path}");
        let (models, version, info, metrics, sources) =
            (url("/v1/models"), url("/version"), url(ask::SERVER_INFO), url("/metrics"), url(ask::PATH));
        let models = get(client, &models).await?;
        let (version, info, metrics, sources) = tokio::join!(
            json::<Value>(client, &version),
            json::<Value>(client, &info),
            get(client, &metrics),
            json(client, &sources),
        );
        let info = match info {
            None => json::<Value>(client, &url("/get_server_info")).await,
            info => info,
        };
        let page = metrics.unwrap_or_default().unwrap_or_default();
        let engine = ["vllm", "sglang"].into_iter().find(|name| page.lines().any(|l| begins(l, name)));
        let flags_of_sglang = info.as_ref().is_some_and(|info| info.get("disable_radix_cache").is_some());
        let engine =
            engine.or_else(|| flags_of_sglang.then_some("sglang")).or_else(|| version.as_ref().map(|_| "vllm"));
        let says = |value: &Option<Value>| Some(value.as_ref()?["version"].as_str()?.to_owned());
        Ok(Facts {
            engine,
            version: says(&version).or_else(|| says(&info)),
            models: models.and_then(|text| Served::list(&text)).unwrap_or_default(),
            cache: scrape::cache_config(&page),
            reading: Some(scrape::parse(&page, 0)).filter(|reading| reading.valid),
            sources: sources.or_else(|| ask::of_server_info(info.as_ref()?)),
            server_info: info,
        })
    }

    /// Tokens per block.
    pub fn block_size(&self) -> Option<u32> {
        let of_metrics = self.reading.as_ref().and_then(|reading| reading.block_size);
        let of_events = || self.flag("kv_events")?.get("block_size");
        of_metrics.or_else(|| of_events().or_else(|| self.flag("page_size"))?.as_u64()?.try_into().ok())
    }

    /// A flag of SGLang's server.
    fn flag(&self, name: &str) -> Option<&Value> {
        self.server_info.as_ref()?.get(name)
    }

    /// Whether it tokenizes with fastokens instead of the model's own tokenizer; `None`: it does not say.
    pub fn fastokens(&self) -> Option<bool> {
        let sglang = || Some(self.flag("tokenizer_backend")?.as_str()? == "fastokens");
        let vllm = || self.flag("vllm_env")?.get("VLLM_USE_FASTOKENS")?.as_bool();
        sglang().or_else(vllm)
    }

    /// Whether SGLang publishes KV events; `None`: it does not say, or is another engine (see `sources`).
    pub fn sglang_events(&self) -> Option<bool> {
        let config = self.flag("disable_radix_cache").and(self.flag("kv_events_config"))?;
        Some(config.as_str().is_some_and(|config| !config.trim().is_empty()))
    }

    /// Whether the prefix cache is on; `None`: it does not say.
    pub fn prefix_caching(&self) -> Option<bool> {
        let vllm = || match self.cache.as_ref()?.get("enable_prefix_caching")?.as_str() {
            "True" | "true" => Some(true),
            "False" | "false" | "None" => Some(false),
            _ => None,
        };
        let sglang = || self.flag("disable_radix_cache")?.as_bool().map(|off| !off);
        vllm().or_else(sglang)
    }

    /// What it serves under this name.
    pub fn served(&self, name: &str) -> Option<&Served> {
        self.models.iter().find(|served| served.id == name)
    }

    /// The names of its models, without LoRA adapters.
    pub fn names(&self) -> Vec<&str> {
        self.models.iter().filter(|served| served.parent.is_none()).map(|served| served.id.as_str()).collect()
    }

    /// The LoRA adapters of a model.
    pub fn adapters(&self, model: &str) -> Vec<&str> {
        let of = self.models.iter().filter(|served| served.parent.as_deref() == Some(model));
        of.map(|served| served.id.as_str()).collect()
    }
}

fn begins(line: &str, engine: &str) -> bool {
    line.strip_prefix(engine).is_some_and(|rest| rest.starts_with(':'))
}

/// The text of a 200; `None` with another status.
async fn get(client: &reqwest::Client, url: &str) -> Result<Option<String>, String> {
    let answer = client.get(url).timeout(TIMEOUT).send().await.map_err(|e| plain(&e))?;
    if !answer.status().is_success() {
        return Ok(None);
    }
    answer.text().await.map(Some).map_err(|e| plain(&e))
}

async fn json<T: DeserializeOwned>(client: &reqwest::Client, url: &str) -> Option<T> {
    serde_json::from_str(&get(client, url).await.ok()??).ok()
}

/// The innermost cause, which is what people need ("Connection refused").
pub fn plain(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    if error.is_timeout() { format!("no answer in time ({cause})") } else { cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{Config, Replica};

    #[tokio::test]
    async fn an_engine_is_asked_for_all_that_it_says() {
        let config = Config {
            model: "m".into(),
            aliases: vec!["other".into()],
            adapters: vec!["lora".into()],
            block_size: 32,
            ..Config::default()
        };
        let replica = Replica::start(config).unwrap();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let facts = Facts::ask(&client, &replica.url()).await.unwrap();
        assert_eq!((facts.engine, facts.version.as_deref()), (Some("vllm"), Some("0.32.0")));
        assert_eq!((facts.block_size(), facts.prefix_caching()), (Some(32), Some(true)));
        assert_eq!((facts.names(), facts.adapters("m")), (vec!["m", "other"], vec!["lora"]));
        assert_eq!(facts.served("m").unwrap().max_model_len, Some(40_960));
        assert_eq!((facts.fastokens(), facts.sglang_events()), (None, None));
        assert!(facts.sources.unwrap()["0"].enable_kv_cache_events);
        drop(replica);
        let nobody = Facts::ask(&client, "http://127.0.0.1:1").await.unwrap_err();
        assert!(nobody.contains("refused"), "{nobody}");
    }

    /// A server that has these pages only.
    async fn server(pages: &[(&'static str, Value)]) -> String {
        let mut routes = axum::Router::new();
        for (path, page) in pages {
            let page = page.clone();
            routes = routes.route(path, axum::routing::get(|| async move { axum::Json(page) }));
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        url
    }

    #[tokio::test]
    async fn sglang_is_known_by_its_flags_where_it_serves_no_metrics() {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let flags = serde_json::json!({"version": "0.5.23", "disable_radix_cache": false, "page_size": 64,
            "tokenizer_backend": "fastokens", "kv_events_config": null});
        for path in ["/server_info", "/get_server_info"] {
            let url =
                server(&[("/v1/models", serde_json::json!({"data": [{"id": "m"}]})), (path, flags.clone())]).await;
            let facts = Facts::ask(&client, &url).await.unwrap();
            assert_eq!((facts.engine, facts.version.as_deref()), (Some("sglang"), Some("0.5.23")), "{path}");
            assert_eq!((facts.block_size(), facts.prefix_caching()), (Some(64), Some(true)));
            assert_eq!((facts.fastokens(), facts.sglang_events()), (Some(true), Some(false)));
        }
    }
}
