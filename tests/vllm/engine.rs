//! One real vLLM as a child process.

use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvroute::bridge::config::ReplicaSpec;
use kvroute::gateway::free_address;
use serde_json::json;

use super::{BLOCK, MODEL};

/// It imports for a minute where nothing else runs, two start at once, and a busy machine made it nine.
const START: Duration = Duration::from_secs(1200);
/// From SIGTERM to its own end.
const END: Duration = Duration::from_secs(15);

/// A running engine; dropping it ends it and its children.
pub struct Engine {
    child: Child,
    log: PathBuf,
    /// Where it serves.
    pub http: SocketAddr,
    /// As the bridge is told of it.
    pub spec: ReplicaSpec,
}

impl Engine {
    /// Starts number `n` of a run; [`Engine::ready`] waits for it. Even numbers bind their events to a Unix socket,
    /// odd ones connect to the bridge, as vLLM does when its endpoint has no `*`.
    pub fn start(python: &Path, model: &Path, dir: &Path, n: usize) -> Result<Engine> {
        let (http, events, replay) = (free_address()?, free_address()?, free_address()?);
        let log = dir.join(format!("engine-{n}.log"));
        let endpoint = match n % 2 {
            0 => format!("ipc://{}", dir.join(format!("kv-{n}")).display()),
            _ => format!("tcp://{events}"),
        };
        let kv_events = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": format!("tcp://{replay}"),
        });
        let output = File::create(&log)?;
        let mut command = Command::new(python);
        command
            .args(["-m", "vllm.entrypoints.cli.main", "serve"])
            .arg(model)
            .args(["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", &http.port().to_string()])
            .args(["--dtype", "bfloat16", "--max-model-len", "16384", "--enforce-eager"])
            .args(["--enable-prompt-tokens-details", "--block-size", &BLOCK.to_string()])
            .args(["--kv-events-config", &kv_events.to_string()])
            .envs([
                ("HF_HUB_OFFLINE", "1"),
                ("VLLM_NO_USAGE_STATS", "1"),
                ("VLLM_HOST_IP", "127.0.0.1"),
                ("VLLM_CPU_KVCACHE_SPACE", "1"),
                ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
                ("OMP_NUM_THREADS", "1"),
            ])
            // It starts processes of its own: a group, so that all of them end.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = command.spawn().with_context(|| python.display().to_string())?;
        let connection = if n.is_multiple_of(2) { "kv" } else { "kv-bind" };
        let spec = format!("name=r{n},http=http://{http},model={MODEL},{connection}={endpoint},replay=tcp://{replay}");
        let spec = ReplicaSpec::parse(&spec).map_err(anyhow::Error::msg)?;
        Ok(Engine { child, log, http, spec })
    }

    /// Waits until it serves.
    pub async fn ready(&mut self, client: &reqwest::Client) -> Result<()> {
        let begun = Instant::now();
        let url = format!("http://{}/health", self.http);
        loop {
            if let Ok(answer) = client.get(&url).timeout(Duration::from_secs(2)).send().await
                && answer.status().is_success()
            {
                return Ok(());
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(25)..].join("\n");
                bail!("vLLM did not start ({ended:?}); the end of its log:\n{tail}");
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let group = format!("-{}", self.child.id());
        let signal = |name: &str| {
            let _ = Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status();
        };
        signal("-TERM");
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END {
            std::thread::sleep(Duration::from_millis(50));
        }
        signal("-KILL");
        let _ = self.child.wait();
    }
}
