//! Envoy and the bridge, run together until they are told to end.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::process::{arguments, fresh_dir};
use super::supervise::{Part, Stream};

/// How long a part may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long replicas may take to pass a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// What is run.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The Envoy.
    pub envoy: PathBuf,
    /// Its configuration.
    pub config: Value,
    /// Its worker threads.
    pub concurrency: u32,
    /// Arguments of the bridge, from `bridge` on.
    pub bridge: Vec<String>,
    /// Shared by both, in their environment as `KVROUTE_SECRET`.
    pub secret: String,
    /// How many replicas the cluster has.
    pub replicas: usize,
    /// How long answers under way are waited for at the end.
    pub drain: Duration,
    /// What to say when requests are served.
    pub ready: String,
}

/// What the loop waits for.
enum Event {
    Signal,
    Ended(&'static str, std::io::Result<ExitStatus>),
    Ready,
}

impl Gateway {
    /// Runs until SIGINT or SIGTERM, then lets answers under way end and stops both. An error: one of them ended by
    /// itself, or could not be started; nothing is left running then, either.
    pub async fn run(self, stream: Stream) -> Result<()> {
        // From the beginning, so that no signal finds a half-started gateway.
        let mut signals = Signals::new()?;
        let dir = Directory(fresh_dir()?);
        let mut envoy = Part::start(stream, "envoy", self.envoy_command(&dir.0)?)?;
        let mut bridge = match Part::start(stream, "bridge", self.bridge_command()?) {
            Ok(bridge) => bridge,
            Err(error) => {
                envoy.stop(PATIENCE).await;
                return Err(error);
            }
        };
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
        let admin = Admin { client, file: dir.0.join("admin.address") };
        let ready = admin.ready(self.replicas);
        tokio::pin!(ready);
        let mut is_ready = false;
        let ended = loop {
            let event = tokio::select! {
                () = signals.next() => Event::Signal,
                end = envoy.ended() => Event::Ended("envoy", end),
                end = bridge.ended() => Event::Ended("bridge", end),
                () = &mut ready, if !is_ready => Event::Ready,
            };
            match event {
                Event::Ready => {
                    is_ready = true;
                    stream.say("up", &self.ready);
                }
                Event::Signal => break None,
                Event::Ended(name, end) => break Some((name, end)),
            }
        };
        if ended.is_none() {
            stream.say("up", "ending");
            tokio::select! {
                () = admin.drain(self.drain, stream) => {}
                () = signals.next() => stream.say("up", "a second signal: not waiting for answers"),
            }
        }
        // Envoy first: until it is gone the bridge's feed is of use.
        envoy.stop(PATIENCE).await;
        bridge.stop(PATIENCE).await;
        match ended {
            None => Ok(()),
            Some((name, Ok(status))) => bail!("{name} ended ({status}): the gateway is down; its last lines say why"),
            Some((name, Err(error))) => bail!("{name}: {error}"),
        }
    }

    fn envoy_command(&self, dir: &Path) -> Result<Command> {
        let file = dir.join("envoy.json");
        std::fs::write(&file, serde_json::to_string_pretty(&self.config)?)?;
        let mut command = Command::new(&self.envoy);
        arguments(&mut command, &file, dir, self.concurrency);
        command.env("KVROUTE_SECRET", &self.secret);
        Ok(command)
    }

    fn bridge_command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.bridge).arg("--exit-with-stdin").env("KVROUTE_SECRET", &self.secret);
        Ok(command)
    }
}

/// A directory that goes with its owner.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        Ok(Signals { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
    }
}

/// Envoy's admin interface, whose address it writes into a file.
struct Admin {
    client: reqwest::Client,
    file: PathBuf,
}

impl Admin {
    fn url(&self, path: &str) -> Result<String> {
        Ok(format!("http://{}{path}", std::fs::read_to_string(&self.file)?.trim()))
    }

    async fn get(&self, path: &str) -> Result<String> {
        Ok(self.client.get(self.url(path)?).send().await?.error_for_status()?.text().await?)
    }

    async fn stat(&self, name: &str) -> Result<u64> {
        let page = self.get(&format!("/stats?filter=^{name}$")).await?;
        page.trim().rsplit_once(": ").context("no such stat")?.1.parse().context("no number")
    }

    /// Waits until Envoy serves and the replicas have passed their first health check, for as long as one that is
    /// well may need.
    async fn ready(&self, replicas: usize) {
        while !self.get("/ready").await.is_ok_and(|text| text.contains("LIVE")) {
            sleep(Duration::from_millis(50)).await;
        }
        let deadline = Instant::now() + HEALTH_TIMEOUT;
        while Instant::now() < deadline {
            let healthy = self.stat("cluster.replicas.membership_healthy").await;
            if healthy.is_ok_and(|n| n >= replicas as u64) {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// No new connections, and none ends before its answer.
    async fn drain(&self, longest: Duration, stream: Stream) {
        let Ok(url) = self.url("/drain_listeners") else { return };
        let _ = self.client.post(url).send().await;
        let deadline = Instant::now() + longest;
        let mut said = false;
        while let Ok(active @ 1..) = self.stat("http.public.downstream_rq_active").await {
            if Instant::now() >= deadline {
                stream.say("up", &format!("not complete after {} s: answers: {active}", longest.as_secs()));
                return;
            }
            if !said {
                stream.say("up", &format!("answers under way: {active}"));
                said = true;
            }
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// The version that an Envoy says it has.
pub fn envoy_version(binary: &Path) -> Result<String> {
    let at = || binary.display().to_string();
    let output = Command::new(binary).arg("--version").output().with_context(at)?;
    // envoy  version: COMMIT/1.40.0/Clean/RELEASE/BoringSSL
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_once("version:").and_then(|(_, rest)| rest.trim().split('/').nth(1));
    version.map(str::to_owned).with_context(|| format!("{}: no Envoy; it says {:?}", at(), text.trim()))
}
