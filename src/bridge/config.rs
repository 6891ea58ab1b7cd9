//! What the bridge is told: on the command line, or in a YAML file.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::zmtp::Endpoint;
use crate::feed::role::Role;

/// The YAML file. Every field may be given on the command line as well.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Replicas.
    #[serde(default)]
    pub replicas: Vec<ReplicaSpec>,
}

/// One engine.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaSpec {
    /// Its name in states and logs.
    pub name: String,
    /// `http://ip:port` of its API, where `/metrics` is too.
    pub http: String,
    /// `ip:port` as Envoy's cluster resolves it, where it is not that of `http`.
    #[serde(default)]
    pub address: Option<String>,
    /// Served model id.
    pub model: String,
    /// Tokens per block; taken from its events when left out.
    #[serde(default, rename = "block-size", alias = "block_size")]
    pub block_size: Option<u32>,
    /// Where it publishes KV events: connect there. Left out together with `kv_bind`, the engine is asked
    /// (`GET /kv_event_sources`).
    #[serde(default)]
    pub kv: Option<String>,
    /// Or: listen here, it connects (vLLM does when its endpoint has no `*`).
    #[serde(default, rename = "kv-bind", alias = "kv_bind")]
    pub kv_bind: Option<String>,
    /// Its replay endpoint.
    #[serde(default)]
    pub replay: Option<String>,
    /// Topic to subscribe to; everything when left out.
    #[serde(default)]
    pub topic: String,
    /// Data-parallel ranks; rank n is at the ports plus n.
    #[serde(default = "one")]
    pub ranks: u32,
    /// What it is for, where prefill and decode are apart.
    #[serde(default)]
    pub role: Role,
}

fn one() -> u32 {
    1
}

impl ReplicaSpec {
    /// Reads `name=r0,http=http://10.0.0.1:8000,model=m,kv=tcp://10.0.0.1:5557,…`.
    pub fn parse(text: &str) -> Result<ReplicaSpec, String> {
        let mut spec = ReplicaSpec { ranks: 1, ..ReplicaSpec::default() };
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?}: write key=value"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{key}: {value:?} is no number"));
            let text = value.to_owned();
            match key {
                "name" => spec.name = text,
                "http" => spec.http = text,
                "address" => spec.address = Some(text),
                "model" => spec.model = text,
                "block-size" => spec.block_size = Some(number()?),
                "kv" => spec.kv = Some(text),
                "kv-bind" => spec.kv_bind = Some(text),
                "replay" => spec.replay = Some(text),
                "topic" => spec.topic = text,
                "ranks" => spec.ranks = number()?,
                "role" => {
                    let role = Role::from_label(value);
                    spec.role = role.ok_or_else(|| format!("role: {value:?} is none of both, prefill, decode"))?;
                }
                other => {
                    return Err(format!(
                        "unknown key {other:?}: name, http, address, model, block-size, kv, kv-bind, replay, topic, ranks, \
                         role"
                    ));
                }
            }
        }
        spec.check()?;
        Ok(spec)
    }

    /// `ip:port` as Envoy names it.
    pub fn address(&self) -> String {
        self.address.clone().unwrap_or_else(|| {
            let rest = self.http.split_once("://").map_or(self.http.as_str(), |(_, rest)| rest);
            rest.split('/').next().unwrap_or(rest).to_owned()
        })
    }

    /// What is wrong with it, and how to mend it.
    pub fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if name.is_empty() {
            return Err("replica without name".into());
        }
        if self.model.is_empty() {
            return Err(format!("replica {name}: model is missing (the id under which it is served)"));
        }
        if !self.http.starts_with("http://") && !self.http.starts_with("https://") {
            return Err(format!("replica {name}: http: write http://IP:PORT"));
        }
        let address = self.address();
        if address.parse::<std::net::SocketAddr>().is_err() {
            return Err(format!("replica {name}: {address:?} is no IP:PORT, which Envoy must be told: set address"));
        }
        if self.block_size == Some(0) {
            return Err(format!("replica {name}: block-size must be 1 or more"));
        }
        if !(1..=1024).contains(&self.ranks) {
            return Err(format!("replica {name}: ranks must be 1 to 1024"));
        }
        if self.kv.is_some() && self.kv_bind.is_some() {
            return Err(format!("replica {name}: kv (connect) and kv-bind (listen) exclude each other"));
        }
        for endpoint in [&self.kv, &self.kv_bind, &self.replay].into_iter().flatten() {
            Endpoint::parse(endpoint).map_err(|e| format!("replica {name}: {e}"))?;
        }
        if self.kv_bind.as_deref().is_some_and(|e| !e.starts_with("tcp://")) {
            return Err(format!("replica {name}: kv-bind must be tcp://IP:PORT"));
        }
        Ok(())
    }
}

/// Checks a list of replicas as a whole.
pub fn check_all(replicas: &[ReplicaSpec]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for spec in replicas {
        spec.check()?;
        if !names.insert(&spec.name) {
            return Err(format!("two replicas are named {:?}", spec.name));
        }
    }
    Ok(())
}

/// Reads the YAML file.
pub fn parse_file(text: &str) -> Result<FileConfig, String> {
    let config: FileConfig = serde_norway::from_str(text).map_err(|e| e.to_string())?;
    check_all(&config.replicas)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_and_file_say_the_same() {
        let flag = ReplicaSpec::parse(
            "name=a,http=http://10.0.0.1:8000,model=m,block-size=16,kv=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558,\
             role=prefill",
        );
        let file = parse_file(
            "replicas:\n- name: a\n  http: http://10.0.0.1:8000\n  model: m\n  block-size: 16\n  \
             kv: tcp://10.0.0.1:5557\n  replay: tcp://10.0.0.1:5558\n  role: prefill\n",
        );
        assert_eq!(vec![flag.clone().unwrap()], file.unwrap().replicas);
        assert_eq!(flag.unwrap().address(), "10.0.0.1:8000");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("http=http://1.1.1.1:1,model=m", "without name"),
            ("name=a,http=http://1.1.1.1:1", "model is missing"),
            ("name=a,http=1.1.1.1:1,model=m", "write http://"),
            ("name=a,http=http://host:1,model=m", "is no IP:PORT"),
            ("name=a,http=http://1.1.1.1:1,model=m,kv=5557", "tcp://HOST:PORT"),
            ("name=a,http=http://1.1.1.1:1,model=m,kw=tcp://a:1", "unknown key"),
            ("name=a,http=http://1.1.1.1:1,model=m,block-size=x", "is no number"),
            ("name=a,http=http://1.1.1.1:1,model=m,block-size=0", "1 or more"),
            ("name=a,http=http://1.1.1.1:1,model=m,role=encode", "none of both, prefill, decode"),
        ] {
            let error = ReplicaSpec::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse_file("replicas: [{name: a, http: 'http://1.1.1.1:1', model: m, blocksize: 3}]").is_err());
        let twice = "replicas:\n- {name: a, http: 'http://1.1.1.1:1', model: m}\n- {name: a, http: 'http://1.1.1.1:2', model: m}";
        assert!(parse_file(twice).unwrap_err().contains("two replicas"));
    }
}
