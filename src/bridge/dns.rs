//! Replicas behind one DNS name: every address that it has is a replica.
//!
//! For places where replicas come and go by themselves: a compose service that is scaled, a headless Kubernetes
//! service. Envoy's cluster asks the same name (`STRICT_DNS`), so that both know the same `ip:port`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::config::ReplicaSpec;
use crate::feed::role::Role;

/// A replica's settings with a name in the place of its address: a DNS name, or a Kubernetes service
/// ([`super::kubernetes`]).
#[derive(Clone, Debug, PartialEq)]
pub struct NamedReplicas {
    /// As [`ReplicaSpec::parse`] reads it, but for the host.
    text: String,
    host: String,
    port: u16,
}

impl NamedReplicas {
    /// Reads `http=http://NAME:8000,model=m,kv=tcp://NAME:5557,…`: the keys of a replica without `name` and
    /// `address`, which are made of the addresses behind NAME.
    pub fn parse(text: &str) -> Result<NamedReplicas, String> {
        if text.split(',').any(|part| part.starts_with("name=") || part.starts_with("address=")) {
            return Err("leave out name and address: they come from what the name stands for".into());
        }
        let http = text.split(',').find_map(|part| part.strip_prefix("http=http://"));
        let (host, port) = http
            .and_then(|http| http.trim_end_matches('/').rsplit_once(':'))
            .and_then(|(host, port)| Some((host.to_owned(), port.parse::<u16>().ok()?)))
            .ok_or("http: write http://NAME:PORT")?;
        let replicas = NamedReplicas { text: text.to_owned(), host, port };
        // The rest is right or wrong whatever the address will be.
        replicas.at(IpAddr::from([127, 0, 0, 1]))?;
        Ok(replicas)
    }

    /// The addresses that the name has now; all of one family, so that they are those that Envoy takes.
    pub async fn resolve(&self) -> std::io::Result<BTreeSet<IpAddr>> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await?;
        let (v4, v6): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = found.map(|at| at.ip()).partition(IpAddr::is_ipv4);
        Ok(if v4.is_empty() { v6 } else { v4 })
    }

    /// The replicas at these addresses.
    pub fn at_all(&self, addresses: &BTreeSet<IpAddr>) -> Vec<ReplicaSpec> {
        addresses.iter().filter_map(|address| self.at(*address).ok()).collect()
    }

    /// The same where the role of some is known, which is then not that of the settings.
    pub fn with_roles(&self, addresses: &BTreeMap<IpAddr, Option<Role>>) -> Vec<ReplicaSpec> {
        let at = |(address, role): (&IpAddr, &Option<Role>)| {
            let spec = self.at(*address).ok()?;
            Some(ReplicaSpec { role: role.unwrap_or(spec.role), ..spec })
        };
        addresses.iter().filter_map(at).collect()
    }

    fn at(&self, address: IpAddr) -> Result<ReplicaSpec, String> {
        let bare = match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        let text = self.text.replace(&format!("://{}:", self.host), &format!("://{bare}:"));
        ReplicaSpec::parse(&format!("name={bare}:{},{text}", self.port))
    }

    /// The name, for logs.
    pub fn host(&self) -> &str {
        &self.host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_becomes_a_replica() {
        let text = "http=http://replica:8000,model=m,block-size=16,kv=tcp://replica:5557,replay=tcp://replica:5558";
        let addresses: BTreeSet<IpAddr> = ["10.0.0.2", "10.0.0.1"].map(|ip| ip.parse().unwrap()).into();
        let specs = NamedReplicas::parse(text).unwrap().at_all(&addresses);
        let expected = ["10.0.0.1", "10.0.0.2"].map(|ip| {
            let at = text.replace("replica:", &format!("{ip}:"));
            ReplicaSpec::parse(&format!("name={ip}:8000,{at}")).unwrap()
        });
        assert_eq!(specs, expected);
        assert_eq!(specs[1].address(), "10.0.0.2:8000");
    }

    #[test]
    fn mistakes_are_named_before_anything_is_resolved() {
        for (text, part) in [
            ("http=http://replica,model=m", "write http://NAME:PORT"),
            ("http=http://replica:8000", "model is missing"),
            ("name=a,http=http://replica:8000,model=m", "leave out name"),
            ("http=http://replica:8000,model=m,kv=5557", "tcp://"),
        ] {
            let error = NamedReplicas::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn localhost_has_one_address() {
        let replicas = NamedReplicas::parse("http=http://localhost:8000,model=m").unwrap();
        assert_eq!(replicas.resolve().await.unwrap(), BTreeSet::from([IpAddr::from([127, 0, 0, 1])]));
    }
}
