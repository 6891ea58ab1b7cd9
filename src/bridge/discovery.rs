//! Which replicas there are: those of the command line, of the watched file, and those behind DNS names and
//! Kubernetes services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::BridgeConfig;
use super::config::{self, ReplicaSpec};
use super::dns::NamedReplicas;
use super::kubernetes;
use super::registry::Registry;
use tokio::sync::watch;

/// How often files and names are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the start waits for the first answer of Kubernetes.
const FIRST_SLICES: Duration = Duration::from_secs(10);

/// See the module.
pub struct Discovery {
    fixed: Vec<ReplicaSpec>,
    file: Option<PathBuf>,
    names: Vec<Name>,
    services: Vec<Service>,
}

/// A Kubernetes service; a task follows it.
struct Service {
    replicas: NamedReplicas,
    addresses: watch::Receiver<kubernetes::Found>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Name {
    replicas: NamedReplicas,
    addresses: BTreeSet<IpAddr>,
    error: Option<String>,
}

impl Discovery {
    /// As the configuration says; nothing was looked up yet. An error: this is no place to ask Kubernetes from.
    pub fn new(config: &BridgeConfig) -> Result<Discovery, String> {
        let names = config.dns.iter().cloned();
        let names = names.map(|replicas| Name { replicas, addresses: BTreeSet::new(), error: None }).collect();
        let mut services = Vec::new();
        for replicas in &config.kubernetes {
            let api = kubernetes::Api::new(config.kubernetes_api.as_deref())?;
            let (found, addresses) = watch::channel(None);
            let task = tokio::spawn(kubernetes::follow(api, replicas.clone(), found));
            services.push(Service { replicas: replicas.clone(), addresses, task });
        }
        Ok(Discovery { fixed: config.replicas.clone(), file: config.file.clone(), names, services })
    }

    /// All replicas that there are now. An error is one of the file, or two replicas of one name.
    pub async fn replicas(&mut self) -> Result<Vec<ReplicaSpec>, String> {
        let mut all = self.fixed.clone();
        if let Some(path) = &self.file {
            all.extend(read_file(path)?);
        }
        for name in &mut self.names {
            name.refresh().await;
            all.extend(name.replicas.at_all(&name.addresses));
        }
        for service in &mut self.services {
            let first = service.addresses.wait_for(Option::is_some);
            let _ = tokio::time::timeout(FIRST_SLICES, first).await;
            let addresses = service.addresses.borrow_and_update().clone().unwrap_or_default();
            all.extend(service.replicas.with_roles(&addresses));
        }
        config::check_all(&all)?;
        Ok(all)
    }

    /// Returns when it is time to look again: a service changed, or a second is over.
    async fn wait(&mut self) {
        let changes = self.services.iter_mut().map(|s| Box::pin(s.addresses.changed()));
        let changes: Vec<_> = changes.collect();
        if changes.is_empty() {
            return tokio::time::sleep(INTERVAL).await;
        }
        tokio::select! {
            _ = futures::future::select_all(changes) => {}
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }

    /// Follows changes for ever. A file that is wrong changes nothing.
    pub async fn watch(mut self, registry: Arc<Registry>) {
        if self.file.is_none() && self.names.is_empty() && self.services.is_empty() {
            return;
        }
        let mut shown = None;
        loop {
            let now = self.replicas().await;
            if shown.as_ref() != Some(&now) {
                match &now {
                    Ok(replicas) => registry.reconcile(replicas, &mut Vec::new()),
                    Err(error) => tracing::warn!("replicas unchanged: {error}"),
                }
                shown = Some(now);
            }
            self.wait().await;
        }
    }
}

impl Name {
    /// Asks again. Without an answer the addresses stay: a name server that is down takes no replica away.
    async fn refresh(&mut self) {
        let error = match self.replicas.resolve().await {
            Ok(addresses) => {
                self.addresses = addresses;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if error != self.error {
            if let Some(error) = &error {
                tracing::warn!("{}: {error}; its replicas stay as they were", self.replicas.host());
            }
            self.error = error;
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<ReplicaSpec>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(config::parse_file(&text).map_err(|e| format!("{}: {e}", path.display()))?.replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn command_line_file_and_names_together() {
        let file = std::env::temp_dir().join(format!("kvroute-discovery-{}.yaml", std::process::id()));
        std::fs::write(&file, "replicas:\n- {name: b, http: 'http://10.0.0.2:8000', model: m}\n").unwrap();
        let config = BridgeConfig {
            replicas: vec![ReplicaSpec::parse("name=a,http=http://10.0.0.1:8000,model=m").unwrap()],
            file: Some(file.clone()),
            dns: vec![NamedReplicas::parse("http=http://localhost:8000,model=m").unwrap()],
            ..BridgeConfig::default()
        };
        let mut discovery = Discovery::new(&config).unwrap();
        let names: Vec<String> = discovery.replicas().await.unwrap().into_iter().map(|spec| spec.name).collect();
        assert_eq!(names, ["a", "b", "127.0.0.1:8000"]);
        std::fs::write(&file, "replicas:\n- {name: a, http: 'http://10.0.0.2:8000', model: m}\n").unwrap();
        assert!(discovery.replicas().await.unwrap_err().contains("two replicas"));
        std::fs::remove_file(&file).unwrap();
        assert!(discovery.replicas().await.is_err());
    }

    #[tokio::test]
    async fn a_name_without_an_answer_keeps_its_addresses() {
        let replicas = NamedReplicas::parse("http=http://no-such-name.invalid:8000,model=m").unwrap();
        let addresses = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
        let mut name = Name { replicas, addresses: addresses.clone(), error: None };
        name.refresh().await;
        assert_eq!(name.addresses, addresses);
        assert!(name.error.is_some());
    }
}
