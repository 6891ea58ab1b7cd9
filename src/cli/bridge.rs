//! `kvroute bridge`: follows the replicas' KV events and feeds them to Envoy.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;

use super::ask::needed_secret;
use super::table::say;
use crate::bridge::config::ReplicaSpec;
use crate::bridge::dns::NamedReplicas;
use crate::bridge::tls::TlsFiles;
use crate::bridge::{Bridge, BridgeConfig};

const EXAMPLES: &str = r#"Examples:
  KVROUTE_SECRET=… kvroute bridge --envoy http://127.0.0.1:10100 \
    --replica name=r0,http=http://10.0.0.1:8000,model=m,kv=tcp://10.0.0.1:5557,replay=tcp://10.0.0.1:5558
  kvroute bridge --envoy http://127.0.0.1:10100 --secret-file secret --config replicas.yaml --checkpoint caches
  kvroute bridge --envoy https://10.0.0.9:10101 --listen 10.0.0.5:7070 --tls-cert bridge.pem --tls-key bridge.key \
    --tls-ca ca.pem --secret-file secret --config replicas.yaml"#;

/// Follows the replicas' KV events and feeds them to Envoy.
///
/// Runs until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Ingest listener of an Envoy, http://HOST:PORT, or https:// with --tls-cert; once for each Envoy
    #[arg(long = "envoy", value_name = "URL", required = true)]
    envoys: Vec<String>,
    /// A replica: name=r0,http=http://10.0.0.1:8000,model=ID,kv=tcp://10.0.0.1:5557[,replay=tcp://10.0.0.1:5558]
    /// [,block-size=N][,address=IP:PORT][,topic=T][,ranks=N][,kv-bind=tcp://IP:PORT]; once for each
    #[arg(long = "replica", value_name = "K=V,...", value_parser = ReplicaSpec::parse)]
    replicas: Vec<ReplicaSpec>,
    /// Replicas behind a DNS name, each address one: http=http://NAME:8000,model=ID,kv=tcp://NAME:5557,… with the
    /// keys of --replica but name and address; asked again every second, once for each name
    #[arg(long = "replica-dns", value_name = "K=V,...", value_parser = NamedReplicas::parse)]
    dns: Vec<NamedReplicas>,
    /// Replicas behind a Kubernetes service, followed through its EndpointSlices: http=http://NAME.NAMESPACE:8000,
    /// model=ID,kv=tcp://NAME.NAMESPACE:5557,… with the keys of --replica but name and address; once for each
    /// service. The service account must be allowed to list and watch them (envoy/kubernetes/rbac.yaml)
    #[arg(long = "replica-kubernetes", value_name = "K=V,...", value_parser = NamedReplicas::parse)]
    kubernetes: Vec<NamedReplicas>,
    /// Kubernetes' API where this does not run in the cluster (kubectl proxy)
    #[arg(long, value_name = "URL")]
    kubernetes_api: Option<String>,
    /// YAML file with `replicas:`, watched for changes
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// File with the secret shared with the ingest listener and the workers
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The secret itself
    #[arg(long, env = "KVROUTE_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Where snapshots and metrics are served
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Certificate of the bridge in PEM, for Envoys on other hosts (envoy/mtls.yaml): it is shown to their ingest
    /// listeners, and whoever connects to --listen must show one, too
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The CA that signed the certificates of the Envoys
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// The deployment's hash_seed, as in the filter's configuration
    #[arg(long, default_value = "", value_name = "TEXT")]
    hash_seed: String,
    /// Where the caches are kept over a restart
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Milliseconds between two readings of /metrics
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    scrape_ms: u64,
    /// End when this file changes. For a container in Envoy's network namespace, which is a new one when Envoy's
    /// container starts again: Envoy writes the file (--admin-address-path), the container's restart policy does
    /// the rest
    #[arg(long, value_name = "FILE")]
    exit_when_changed: Option<PathBuf>,
    /// End when standard input closes: with whoever started this, however that ends
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
    /// Note what the engines say in this file, for `kvroute replay`. It will contain the token ids of every prompt
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// The recording ends at this size
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    record_mb: u64,
    /// Blocks tracked per replica at most
    #[arg(long, value_name = "N", default_value_t = 8 << 20)]
    max_blocks: usize,
}

/// Runs it.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    // From before the start: a change while it starts counts.
    let watched = args.exit_when_changed.as_ref().map(|path| Stamp::of(path));
    let watched = args.exit_when_changed.clone().zip(watched);
    let alone = args.exit_with_stdin.then(stdin_closes);
    let config = args.config()?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let bridge = Bridge::start(config).await.map_err(anyhow::Error::msg)?;
        say!("listening on {}", bridge.address)?;
        let changes = async {
            match watched {
                None => std::future::pending().await,
                Some((path, stamp)) => {
                    stamp.changes(&path).await;
                    tracing::info!("{} has changed: ending", path.display());
                }
            }
        };
        let alone = async {
            match alone {
                None => std::future::pending().await,
                Some(closes) => drop(closes.await),
            }
        };
        tokio::select! {
            () = wait_for_end() => {}
            () = changes => {}
            () = alone => {}
        }
        bridge.stop().await;
        Ok(ExitCode::SUCCESS)
    })
}

impl Args {
    fn config(self) -> anyhow::Result<BridgeConfig> {
        let secret = needed_secret(self.secret_file.as_deref(), self.secret.as_deref())?;
        let named = !self.dns.is_empty() || !self.kubernetes.is_empty();
        let some = !self.replicas.is_empty() || named || self.config.is_some();
        ensure!(some, "no replicas: give --replica, --replica-dns, --replica-kubernetes or --config");
        for url in &self.envoys {
            let is_url = url.starts_with("http://") || url.starts_with("https://");
            ensure!(is_url, "--envoy {url}: write http://HOST:PORT");
        }
        let tls = match (self.tls_cert, self.tls_key, self.tls_ca) {
            (Some(cert), Some(key), Some(ca)) => Some(TlsFiles { ca, cert, key }),
            _ => None,
        };
        Ok(BridgeConfig {
            envoys: self.envoys,
            secret,
            listen: self.listen,
            tls,
            hash_seed: self.hash_seed,
            replicas: self.replicas,
            file: self.config,
            dns: self.dns,
            kubernetes: self.kubernetes,
            kubernetes_api: self.kubernetes_api,
            checkpoint: self.checkpoint,
            scrape_every: Duration::from_millis(self.scrape_ms),
            max_blocks: self.max_blocks,
            record: self.record,
            max_record_bytes: self.record_mb.saturating_mul(1 << 20),
            ..BridgeConfig::default()
        })
    }
}

async fn wait_for_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Done once standard input is at its end. On a thread of its own: a read cannot be given up.
fn stdin_closes() -> tokio::sync::oneshot::Receiver<()> {
    let (closed, closes) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = closed.send(());
    });
    closes
}

/// What tells one version of a file from the next; `None` where there is no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp(Option<(u64, i64, i64)>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        Stamp(std::fs::metadata(path).ok().map(|m| (m.ino(), m.mtime(), m.mtime_nsec())))
    }

    /// Returns once the file is there and another one than this.
    async fn changes(self, path: &Path) {
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = Stamp::of(path);
            if now != self && now.0.is_some() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_written_again_has_changed() {
        let path = std::env::temp_dir().join(format!("kvroute-stamp-{}", std::process::id()));
        let absent = Stamp::of(&path);
        std::fs::write(&path, "127.0.0.1:9901").unwrap();
        absent.changes(&path).await;
        let first = Stamp::of(&path);
        assert_eq!(first, Stamp::of(&path));
        let next = path.with_extension("next");
        std::fs::write(&next, "127.0.0.1:9901").unwrap();
        std::fs::rename(&next, &path).unwrap();
        first.changes(&path).await;
        std::fs::remove_file(&path).unwrap();
    }
}
