//! `--replica` of `kvroute up`: an URL, and what else the bridge may be told of it.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};

use crate::bridge::config::ReplicaSpec;

/// `http://HOST:PORT[,kv=…][,replay=…]…`, as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    host: String,
    port: u16,
    /// Keys of [`ReplicaSpec::parse`].
    more: Vec<String>,
}

impl Given {
    /// Reads it.
    pub fn parse(text: &str) -> Result<Given, String> {
        let mut parts = text.split(',');
        let url = parts.next().unwrap_or_default();
        let url = url.strip_prefix("http=").unwrap_or(url).trim_end_matches('/');
        let authority = match url.split_once("://") {
            Some(("http", authority)) => authority,
            Some(("https", _)) => {
                return Err(
                    "https is not set up here: take --print-config, and give the cluster a transport_socket".into()
                );
            }
            _ => return Err(format!("{url:?}: write http://HOST:PORT")),
        };
        let (host, port) = authority.rsplit_once(':').ok_or_else(|| format!("{url}: the port is missing"))?;
        let port = port.parse().map_err(|_| format!("{url}: {port:?} is no port; no path may follow"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let more: Vec<String> = parts.map(str::to_owned).collect();
        for part in &more {
            match part.split_once('=').map(|(key, _)| key) {
                Some("http" | "model" | "address") => {
                    return Err(format!("{part}: the URL and --model say it already"));
                }
                Some(_) => {}
                None => return Err(format!("{part:?}: write key=value (kv, replay, topic, ranks, block-size, name)")),
            }
        }
        let given = Given { host, port, more };
        // The rest is right or wrong whatever the address will be.
        given.spec(IpAddr::from([127, 0, 0, 1]), 0, "m", &Patterns::default())?;
        Ok(given)
    }

    /// A replica for each address of the host; all of one family.
    pub async fn resolve(&self) -> Result<Vec<IpAddr>> {
        let at = || format!("--replica http://{}:{}", self.host, self.port);
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await.with_context(at)?;
        let (mut v4, mut v6): (Vec<IpAddr>, Vec<IpAddr>) = found.map(|at| at.ip()).partition(IpAddr::is_ipv4);
        v4.dedup();
        v6.dedup();
        let found = if v4.is_empty() { v6 } else { v4 };
        if found.is_empty() {
            bail!("{}: the name has no address", at());
        }
        Ok(found)
    }

    fn spec(&self, ip: IpAddr, number: usize, model: &str, patterns: &Patterns) -> Result<ReplicaSpec, String> {
        let at = SocketAddr::new(ip, self.port);
        let mut text = format!("http=http://{at},model={model}");
        let has = |key: &str| self.more.iter().any(|part| part.starts_with(&format!("{key}=")));
        if !has("name") {
            text.push_str(&format!(",name=r{number}"));
        }
        let host = match ip {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        for (key, pattern) in [("kv", &patterns.kv), ("replay", &patterns.replay)] {
            if let Some(pattern) = pattern.as_ref().filter(|_| !has(key)) {
                text.push_str(&format!(",{key}={}", pattern.replace("{host}", &host)));
            }
        }
        for part in &self.more {
            text.push_str(&format!(",{part}"));
        }
        ReplicaSpec::parse(&text)
    }
}

/// `--kv` and `--replay`, for the replicas that do not say it themselves.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    pub kv: Option<String>,
    pub replay: Option<String>,
}

/// All replicas, at their addresses.
#[derive(Clone, Debug)]
pub struct Replicas(Vec<(Given, IpAddr)>);

impl Replicas {
    /// Looks the names up. A name with several addresses is several replicas.
    pub async fn resolve(given: &[Given]) -> Result<Replicas> {
        let mut all = Vec::new();
        for one in given {
            for ip in one.resolve().await? {
                if all.iter().any(|(other, known): &(Given, IpAddr)| *known == ip && other.port == one.port) {
                    bail!("--replica: {} is given twice", SocketAddr::new(ip, one.port));
                }
                all.push((one.clone(), ip));
            }
        }
        Ok(Replicas(all))
    }

    /// Where they are.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().map(|(given, ip)| SocketAddr::new(*ip, given.port)).collect()
    }

    /// As the bridge is told of them: the values of its `--replica`.
    pub fn specs(&self, model: &str, patterns: &Patterns) -> Result<Vec<String>> {
        let specs = self.0.iter().enumerate().map(|(number, (given, ip))| {
            let spec = given.spec(*ip, number, model, patterns).map_err(anyhow::Error::msg)?;
            Ok(text(&spec))
        });
        specs.collect()
    }
}

/// What [`ReplicaSpec::parse`] reads.
fn text(spec: &ReplicaSpec) -> String {
    let mut text = format!("name={},http={},model={}", spec.name, spec.http, spec.model);
    let mut put = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(",{key}={value}"));
        }
    };
    put("block-size", spec.block_size.map(|n| n.to_string()));
    put("kv", spec.kv.clone());
    put("kv-bind", spec.kv_bind.clone());
    put("replay", spec.replay.clone());
    put("topic", Some(spec.topic.clone()).filter(|topic| !topic.is_empty()));
    put("ranks", Some(spec.ranks.to_string()).filter(|_| spec.ranks != 1));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn specs(given: &[&str], kv: Option<&str>) -> Result<Vec<String>> {
        let given: Vec<Given> = given.iter().map(|text| Given::parse(text).unwrap()).collect();
        let patterns = Patterns { kv: kv.map(str::to_owned), replay: None };
        Replicas::resolve(&given).await?.specs("m", &patterns)
    }

    #[tokio::test]
    async fn an_url_is_enough_and_the_pattern_fills_in() {
        let found = specs(&["http://127.0.0.1:8000/", "http://[::1]:8001"], Some("tcp://{host}:5557")).await.unwrap();
        assert_eq!(
            found,
            [
                "name=r0,http=http://127.0.0.1:8000,model=m,kv=tcp://127.0.0.1:5557",
                "name=r1,http=http://[::1]:8001,model=m,kv=tcp://[::1]:5557",
            ]
        );
        let own = "http://127.0.0.1:8000,name=a,kv=tcp://127.0.0.1:1,replay=tcp://127.0.0.1:2,ranks=2,topic=t";
        let found = specs(&[own], Some("tcp://{host}:5557")).await.unwrap();
        let expected =
            "name=a,http=http://127.0.0.1:8000,model=m,kv=tcp://127.0.0.1:1,replay=tcp://127.0.0.1:2,topic=t,ranks=2";
        assert_eq!(found, [expected]);
        for spec in found {
            ReplicaSpec::parse(&spec).unwrap();
        }
    }

    #[tokio::test]
    async fn one_address_is_one_replica() {
        let twice = specs(&["http://127.0.0.1:8000", "http://127.0.0.1:8000"], None).await.unwrap_err();
        assert!(twice.to_string().contains("127.0.0.1:8000 is given twice"), "{twice}");
        let nowhere = specs(&["http://no.such.host.invalid:8000"], None).await.unwrap_err();
        assert!(nowhere.to_string().contains("no.such.host.invalid"), "{nowhere}");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("127.0.0.1:8000", "write http://HOST:PORT"),
            ("https://h:1", "transport_socket"),
            ("http://h", "the port is missing"),
            ("http://h:1/v1", "no path may follow"),
            ("http://h:1,kv", "write key=value"),
            ("http://h:1,model=x", "--model say"),
            ("http://h:1,kv=5557", "tcp://HOST:PORT"),
            ("http://h:1,nonsense=5", "unknown key"),
        ] {
            let error = Given::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
