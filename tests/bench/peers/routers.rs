//! The routers that are compared, each before mock replicas of its own.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvroute::gateway::Balancing;
use kvroute::mock::{Config, Replica};
use serde_json::{Value, json};

use super::harness::{BLOCK, Gateway, MODEL, Setup, client, free_address};

/// Longest wait for a router to serve.
const START: Duration = Duration::from_secs(90);
/// The peers, by their packages on PyPI.
const PACKAGES: [&str; 2] = ["sglang-router==0.3.2", "vllm-router==0.1.17"];

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Kvroute,
    RoundRobin,
    LeastRequest,
    RingHash,
    SglangCacheAware,
    VllmCacheAware,
    VllmKvAware,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::Kvroute,
        Kind::RoundRobin,
        Kind::LeastRequest,
        Kind::RingHash,
        Kind::SglangCacheAware,
        Kind::VllmCacheAware,
        Kind::VllmKvAware,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Kvroute => "kvroute",
            Kind::RoundRobin => "envoy round_robin",
            Kind::LeastRequest => "envoy least_request",
            Kind::RingHash => "envoy ring_hash",
            Kind::SglangCacheAware => "sglang cache_aware",
            Kind::VllmCacheAware => "vllm cache_aware",
            Kind::VllmKvAware => "vllm kv_aware",
        }
    }

    /// The program of a peer; `None`: it is Envoy.
    fn program(self) -> Option<&'static str> {
        match self {
            Kind::SglangCacheAware => Some("sglang-router"),
            Kind::VllmCacheAware | Kind::VllmKvAware => Some("vllm-router"),
            _ => None,
        }
    }
}

/// A router that serves. Dropping it ends it and its replicas.
pub struct Router {
    pub url: String,
    /// Its processes.
    pub pids: Vec<u32>,
    /// Replicas before which it stands.
    pub replicas: usize,
    running: Running,
}

enum Running {
    Envoy(Box<Gateway>),
    Peer { child: Child, replicas: Vec<Replica> },
}

impl Router {
    pub async fn start(kind: Kind, replicas: usize, mock: &Config) -> Result<Router, String> {
        match kind.program() {
            None => Ok(envoy(kind, replicas, mock).await),
            Some(program) => peer(kind, program, replicas, mock).await,
        }
    }

    pub fn replica(&self, at: usize) -> &Replica {
        match &self.running {
            Running::Envoy(gateway) => gateway.replica(at),
            Running::Peer { replicas, .. } => &replicas[at],
        }
    }

    /// Events and load that the router follows have come to it.
    pub async fn settled(&self) {
        match &self.running {
            Running::Envoy(gateway) if gateway.bridge.is_some() => gateway.settled().await,
            _ => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }

    /// Memory of its processes now.
    pub fn memory(&self) -> u64 {
        self.pids.iter().map(|pid| resident(*pid)).sum()
    }

    pub async fn stop(self) {
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if let Running::Peer { child, .. } = &mut self.running {
            // Those that it started go first: nobody else knows them.
            for pid in tree(child.id()).into_iter().skip(1) {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn envoy(kind: Kind, replicas: usize, mock: &Config) -> Router {
    let mut setup =
        Setup { replicas, concurrency: 1, mock: mock.clone(), bridge: kind == Kind::Kvroute, ..Setup::default() };
    setup.bootstrap.balancing = match kind {
        Kind::Kvroute => Balancing::Kvroute,
        Kind::LeastRequest => Balancing::LeastRequest,
        _ => Balancing::RoundRobin,
    };
    setup.bootstrap.router["selection"] = json!({});
    if kind == Kind::RingHash {
        setup.config = Box::new(|bootstrap, dir| by_first_message(bootstrap.to_json(dir)));
    }
    let gateway = Gateway::start(setup).await;
    let mut pids = vec![gateway.envoy.pid()];
    pids.extend(gateway.bridge.as_ref().map(|bridge| bridge.pid()));
    Router { url: gateway.url(""), pids, replicas, running: Running::Envoy(Box::new(gateway)) }
}

/// Envoy cannot hash a body, so a script makes a header of its first message.
fn by_first_message(mut config: Value) -> Value {
    const SCRIPT: &str = r#"
function envoy_on_request(handle)
  local body = handle:body()
  if body == nil then return end
  local first = string.match(body:getBytes(0, body:length()), '"messages":%[(.-)}')
  if first ~= nil then handle:headers():replace("x-first-message", string.sub(first, 1, 4096)) end
end"#;
    let listener = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"];
    let lua = json!({"name": "envoy.filters.http.lua", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": SCRIPT},
    }});
    listener["http_filters"].as_array_mut().unwrap().insert(0, lua);
    for route in listener["route_config"]["virtual_hosts"][0]["routes"].as_array_mut().unwrap() {
        route["route"]["hash_policy"] = json!([{"header": {"header_name": "x-first-message"}}]);
        route["request_headers_to_remove"] = json!(["x-first-message"]);
    }
    let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
    let replicas = clusters.iter_mut().find(|cluster| cluster["name"] == "replicas").unwrap();
    replicas.as_object_mut().unwrap().remove("load_balancing_policy");
    replicas["lb_policy"] = "RING_HASH".into();
    config
}

/// Where the peers are installed.
fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/peers")
}

/// Installs the peers where they are not there yet.
fn program(name: &str) -> Result<PathBuf, String> {
    let path = home().join("bin").join(name);
    if path.exists() {
        return Ok(path);
    }
    eprintln!("installing {} into {} …", PACKAGES.join(", "), home().display());
    let run = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
            Err(text.lines().last().unwrap_or("it failed without a word").to_owned())
        }
        Err(error) => Err(error.to_string()),
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(home())).map_err(|e| format!("no venv: {e}"))?;
    let pip = home().join("bin/pip");
    run(Command::new(pip).args(["install", "-q", "--disable-pip-version-check"]).args(PACKAGES))
        .map_err(|e| format!("pip could not install it: {e}"))?;
    path.exists().then_some(path).ok_or_else(|| format!("the package has no program {name}"))
}

async fn peer(kind: Kind, name: &str, replicas: usize, mock: &Config) -> Result<Router, String> {
    let name = name.to_owned();
    let program = tokio::task::spawn_blocking(move || program(&name)).await.map_err(|e| e.to_string())??;
    let start = |i| Replica::start(Config { name: Some(format!("r{i}")), ..mock.clone() }).unwrap();
    let replicas: Vec<Replica> = (0..replicas).map(start).collect();
    let (at, metrics) = (free_address(), free_address());
    let mut command = Command::new(program);
    if kind == Kind::SglangCacheAware {
        command.arg("launch");
    }
    let [port, metrics_port] = [at, metrics].map(|address| address.port().to_string());
    command.args(["--host", "127.0.0.1", "--port", &port, "--prometheus-host", "127.0.0.1"]);
    // A line for each request costs something, and Envoy writes none either.
    let warn = if kind == Kind::SglangCacheAware { "warn" } else { "warning" };
    command.args(["--log-level", warn, "--prometheus-port", &metrics_port, "--worker-urls"]);
    command.args(replicas.iter().map(Replica::url));
    match kind {
        Kind::VllmKvAware => {
            command.args(["--policy", "kv_aware", "--kv-event-model", MODEL]);
            command.args(["--kv-event-block-size", &BLOCK.to_string()]);
            for replica in &replicas {
                command.args(["--kv-event-source", &format!("{}={}", replica.url(), replica.kv_endpoint())]);
            }
        }
        _ => {
            command.args(["--policy", "cache_aware"]);
        }
    }
    let log = std::env::temp_dir().join(format!("kvroute-peers-{}-{port}.log", std::process::id()));
    let file = File::create(&log).map_err(|e| e.to_string())?;
    let copy = file.try_clone().map_err(|e| e.to_string())?;
    let child = command.stdin(Stdio::null()).stdout(file).stderr(copy).spawn().map_err(|e| e.to_string())?;
    let count = replicas.len();
    let mut router = Router {
        url: format!("http://{at}"),
        pids: Vec::new(),
        replicas: count,
        running: Running::Peer { child, replicas },
    };
    let served = serves(&mut router, at).await;
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    if let Err(error) = served {
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        router.stop().await;
        return Err(format!("{error}; its log ends with: {}", last.into_iter().rev().collect::<Vec<_>>().join(" | ")));
    }
    Ok(router)
}

/// Waits until a chat is answered.
async fn serves(router: &mut Router, at: SocketAddr) -> Result<(), String> {
    let deadline = Instant::now() + START;
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).to_string();
    loop {
        let request =
            client().post(format!("http://{at}/v1/chat/completions")).header("content-type", "application/json");
        let said = match request.body(body.clone()).timeout(Duration::from_secs(5)).send().await {
            Ok(answer) if answer.status().is_success() => break,
            Ok(answer) => format!("status {}", answer.status()),
            Err(error) => error.to_string(),
        };
        let Running::Peer { child, .. } = &mut router.running else { break };
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("it ended: {status}"));
        }
        if Instant::now() > deadline {
            return Err(format!("it does not serve: {said}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if let Running::Peer { child, .. } = &router.running {
        router.pids = tree(child.id());
    }
    Ok(())
}

/// A process and all that it started.
fn tree(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten();
    let all = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = all.filter_map(|pid| Some((pid, parent(pid)?))).collect();
    let (mut tree, mut at) = (vec![pid], 0);
    while let Some(one) = tree.get(at).copied() {
        tree.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| *pid));
        at += 1;
    }
    tree
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
