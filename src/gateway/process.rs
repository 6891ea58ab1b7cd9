//! A real Envoy as a child process.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Bootstrap, http};

/// How long Envoy may take to start; it compiles the wasm first.
const START_TIMEOUT: Duration = Duration::from_secs(180);
/// How long replicas may take to pass a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// The Envoy to run: `ENVOY_BIN`, else `envoy` of the PATH, else `.kvroute/envoy` here or in a directory above this
/// program, which cargo builds below the checkout.
pub fn envoy_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("ENVOY_BIN").map(PathBuf::from) {
        if !path.is_file() {
            bail!("ENVOY_BIN: there is no file {}", path.display());
        }
        return Ok(path);
    }
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = std::env::split_paths(&on_path).map(|dir| dir.join("envoy"));
    let program = std::env::current_exe().unwrap_or_default();
    let above = program.ancestors().skip(1).map(|dir| dir.join(".kvroute/envoy"));
    candidates.chain([PathBuf::from(".kvroute/envoy")]).chain(above).find(|path| path.is_file()).context(
        "no Envoy found: set ENVOY_BIN or put envoy (1.35 or newer) on the PATH; scripts/setup leaves one at \
         .kvroute/envoy, https://www.envoyproxy.io/docs/envoy/latest/start/install has packages",
    )
}

/// The arguments with which Envoy runs on a configuration file: its own shared memory, its admin address in a file
/// of `dir`, and no more in the log than what people need (or what `KVROUTE_ENVOY_LOG` asks for).
pub(super) fn arguments(command: &mut Command, config: &Path, dir: &Path, concurrency: u32) {
    let level = std::env::var("KVROUTE_ENVOY_LOG").unwrap_or_else(|_| "warn,wasm:info".into());
    let (level, components) = level.split_once(',').unwrap_or((&level, "wasm:info"));
    command
        .arg("--config-path")
        .arg(config)
        .arg("--admin-address-path")
        .arg(dir.join("admin.address"))
        .args(["--use-dynamic-base-id", "--concurrency", &concurrency.to_string()])
        .args(["--log-level", level, "--component-log-level", components]);
}

/// A loopback address whose port was free a moment ago, for what must be known before it listens.
pub fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A running Envoy. Dropping it kills the process and removes its directory.
#[derive(Debug)]
pub struct Envoy {
    child: Child,
    dir: PathBuf,
    bootstrap: Bootstrap,
    version: u64,
    admin: SocketAddr,
    public: Vec<SocketAddr>,
    ingest: Option<SocketAddr>,
}

impl Envoy {
    /// Starts Envoy with this many workers and waits until it is live.
    pub fn start(bootstrap: Bootstrap, concurrency: u32) -> Result<Envoy> {
        Envoy::start_with(bootstrap, concurrency, Bootstrap::to_json)
    }

    /// Starts Envoy on a configuration that was made elsewhere, in which `bootstrap` tells what is where: the
    /// listeners `public` and `kvroute_ingest`, the cluster `replicas`. The secret is in its environment, as
    /// `KVROUTE_SECRET`.
    pub fn start_with(
        bootstrap: Bootstrap,
        concurrency: u32,
        config: impl FnOnce(&Bootstrap, &Path) -> Value,
    ) -> Result<Envoy> {
        let dir = fresh_dir()?;
        let wasm = fs::canonicalize(&bootstrap.wasm);
        if bootstrap.balancing == super::Balancing::Kvroute && wasm.is_err() {
            bail!("{} is not there: build it, or set KVROUTE_WASM", bootstrap.wasm.display());
        }
        let mut envoy = Envoy {
            child: spawn(&bootstrap, &config(&bootstrap, &dir), &dir, concurrency)?,
            dir,
            version: 1,
            admin: bootstrap.admin,
            public: Vec::new(),
            ingest: None,
            bootstrap,
        };
        envoy.await_live()?;
        Ok(envoy)
    }

    /// Where clients connect.
    pub fn public(&self) -> SocketAddr {
        self.public_at(0)
    }

    /// Where clients of the n-th public listener connect.
    pub fn public_at(&self, n: usize) -> SocketAddr {
        self.public[n]
    }

    /// Where the bridge posts and `state` and `explain` answer.
    ///
    /// # Panics
    /// When Envoy was started with a baseline policy, which has no such listener.
    pub fn ingest(&self) -> SocketAddr {
        self.ingest.expect("a baseline policy has no ingest listener")
    }

    /// Envoy's admin interface.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it was started with.
    pub fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }

    /// A page of the admin interface.
    pub fn admin_get(&self, path: &str) -> Result<String> {
        http::request("GET", self.admin, path)
    }

    /// A counter or gauge by its full name; 0 where Envoy does not have it yet.
    pub fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.stats(name)?.into_iter().find(|(n, _)| n == name).map_or(0, |(_, v)| v))
    }

    /// Counters and gauges whose name contains `part`.
    pub fn stats(&self, part: &str) -> Result<Vec<(String, u64)>> {
        let page = self.admin_get("/stats")?;
        let lines = page.lines().filter_map(|line| line.split_once(": "));
        Ok(lines.filter(|(n, _)| n.contains(part)).filter_map(|(n, v)| Some((n.into(), v.parse().ok()?))).collect())
    }

    /// What Envoy has logged so far.
    pub fn log(&self) -> String {
        fs::read(self.dir.join("envoy.log")).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Changes the bootstrap of a `dynamic` Envoy and writes its listeners (LDS) and the router's configuration
    /// (ECDS) anew. Returns once Envoy has taken or refused both; the error of a refusal names the reason.
    pub fn update(&mut self, change: impl FnOnce(&mut Bootstrap)) -> Result<()> {
        if !self.bootstrap.dynamic {
            bail!("only a dynamic bootstrap can be updated");
        }
        let before = self.discovery_counts()?;
        change(&mut self.bootstrap);
        self.version += 1;
        // The listeners keep the ports that they were given at the start.
        for (at, known) in self.bootstrap.public.iter_mut().zip(&self.public) {
            *at = *known;
        }
        if let Some(ingest) = self.ingest {
            self.bootstrap.ingest = ingest;
        }
        let files = self.bootstrap.dynamic_files(&self.dir, self.version);
        let mut expected = Vec::new();
        for (name, content) in files {
            let (path, next) = (self.dir.join(name), self.dir.join(format!("{name}.next")));
            let text = content.to_string();
            // Only the resources count: Envoy does not apply what did not change.
            let same = |old: &str| {
                let resources = |t: &str| serde_json::from_str::<Value>(t).map(|v| v["resources"].clone());
                matches!((resources(old), resources(&text)), (Ok(a), Ok(b)) if a == b)
            };
            if fs::read_to_string(&path).is_ok_and(|old| same(&old)) {
                continue;
            }
            fs::write(&next, text)?;
            fs::rename(&next, &path)?;
            expected.push(name);
        }
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let now = self.discovery_counts()?;
            let settled = |name: &str| {
                let i = usize::from(name == "lds.json");
                now[i].0 > before[i].0 || now[i].1 > before[i].1
            };
            if expected.iter().all(|name| settled(name)) {
                if now[0].1 > before[0].1 || now[1].1 > before[1].1 {
                    bail!("Envoy refused the update:\n{}", tail(&self.log()));
                }
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("Envoy did not take the update:\n{}", tail(&self.log()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// (taken, refused) of ECDS and LDS.
    fn discovery_counts(&self) -> Result<[(u64, u64); 2]> {
        let stats = self.stats("")?;
        let sum = |part: &str, ends: &[&str]| {
            let of = stats.iter().filter(|(n, _)| n.contains(part) && ends.iter().any(|e| n.ends_with(e)));
            of.map(|(_, v)| v).sum::<u64>()
        };
        Ok([
            (
                sum("extension_config_discovery.", &["config_reload"]),
                sum("extension_config_discovery.", &["config_fail", "update_rejected"]),
            ),
            (
                sum("listener_manager.lds.", &["update_success"]),
                sum("listener_manager.lds.", &["update_rejected", "update_failure"]),
            ),
        ])
    }

    fn await_live(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("Envoy ended at its start ({status}):\n{}", tail(&self.log()));
            }
            if self.addresses().is_ok() {
                return self.await_healthy();
            }
            if Instant::now() > deadline {
                bail!("Envoy was not live in time:\n{}", tail(&self.log()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the replicas have passed their first health check, for as long as one that is well may need.
    /// The first check often times out, since Envoy compiles the wasm meanwhile, and until the next one Envoy
    /// sends nothing where it is told to.
    fn await_healthy(&self) -> Result<()> {
        let deadline = Instant::now() + HEALTH_TIMEOUT;
        let all = self.bootstrap.replicas.len() as u64;
        while self.bootstrap.health_path.is_some()
            && self.stat("cluster.replicas.membership_healthy")? < all
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Reads the addresses that Envoy chose; an error while it is not live.
    fn addresses(&mut self) -> Result<()> {
        self.admin = fs::read_to_string(self.dir.join("admin.address"))?.trim().parse()?;
        if !http::request("GET", self.admin, "/ready")?.contains("LIVE") {
            bail!("not live");
        }
        let page: Value = serde_json::from_str(&self.admin_get("/listeners?format=json")?)?;
        let at = |name: &str| -> Result<SocketAddr> {
            let all = page["listener_statuses"].as_array().context("no listeners")?;
            let one = all.iter().find(|l| l["name"] == name).context("listener not there")?;
            let socket = &one["local_address"]["socket_address"];
            let ip = socket["address"].as_str().context("no address")?;
            let port = socket["port_value"].as_u64().context("no port")?;
            Ok(SocketAddr::new(ip.parse()?, u16::try_from(port)?))
        };
        self.public = (0..self.bootstrap.public.len())
            .map(|i| if i == 0 { at("public") } else { at(&format!("public_{i}")) })
            .collect::<Result<_>>()?;
        if self.bootstrap.balancing == super::Balancing::Kvroute {
            self.ingest = Some(at("kvroute_ingest")?);
        }
        Ok(())
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the end of Envoy's log:\n{}", tail(&self.log()));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn spawn(bootstrap: &Bootstrap, json: &Value, dir: &Path, concurrency: u32) -> Result<Child> {
    if bootstrap.dynamic {
        for (name, content) in bootstrap.dynamic_files(dir, 1) {
            fs::write(dir.join(name), content.to_string())?;
        }
    }
    let config = dir.join("bootstrap.json");
    fs::write(&config, serde_json::to_string_pretty(json)?)?;
    let log = File::create(dir.join("envoy.log"))?;
    let binary = envoy_binary()?;
    let mut command = Command::new(&binary);
    arguments(&mut command, &config, dir, concurrency);
    command
        .args(["--drain-time-s", &bootstrap.drain_time_s.to_string()])
        .env("KVROUTE_SECRET", &bootstrap.secret)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    spawn_for_good(command).with_context(|| format!("starting {}", binary.display()))
}

/// Envoy asks the kernel for a SIGTERM when the *thread* that started it ends, and the threads of a pool end when
/// they are idle. This one lives as long as the process.
fn spawn_for_good(mut command: Command) -> std::io::Result<Child> {
    let (give, take) = std::sync::mpsc::channel();
    std::thread::Builder::new().name("envoy-parent".into()).spawn(move || {
        let _ = give.send(command.spawn());
        loop {
            std::thread::park();
        }
    })?;
    take.recv().map_err(std::io::Error::other)?
}

/// A new directory of this process's own.
pub(super) fn fresh_dir() -> Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("kvroute-envoy-{}-{count}", std::process::id()));
    if dir.exists() {
        fs::remove_dir_all(&dir)?; // left behind by an earlier process of the same id
    }
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
