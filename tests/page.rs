//! The bridge's own page, in a real browser: it asks for the secret, keeps it to itself, shows requests and decisions,
//! and a fault, also while the workers of an Envoy are silent.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvroute::bridge::config::ReplicaSpec;
use kvroute::bridge::{Bridge, BridgeConfig};
use kvroute::feed::FEED_PATH;
use kvroute::look::{Decision, RequestCounts, SECRET_HEADER, STATE_PATH, WorkerState};
use kvroute::mock::{Config, Replica};

const SECRET: &str = "of-the-test";
/// Never waited for in a test that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a person does, and what that person sees: the wrong secret, then the right one.
const PERSON: &str = r#"<script>
const type = secret => { at("secret").value = secret; at("ask").requestSubmit(); };
let typed = 0;
setInterval(() => {
  if (typed === 0) { typed = 1; type("not this one"); }
  if (typed === 1 && !at("error").hidden) { typed = 2; setTimeout(type, 300, "of-the-test"); }
  const kept = [location.href, document.cookie, ...Object.values(localStorage), ...Object.values(sessionStorage)];
  const wide = document.documentElement.scrollWidth > innerWidth;
  const seen = `${document.body.innerText}\nwide ${wide}\nkept ${kept.join(" ").includes("of-the-test")}`;
  fetch("seen", { method: "POST", body: seen });
}, 50);
</script></body>"#;

/// Stands between browser and bridge, so that a person can be played.
struct Between {
    bridge: String,
    client: reqwest::Client,
    seen: Mutex<String>,
    dead: Mutex<bool>,
}

type Shared = Arc<Between>;

async fn page(State(between): State<Shared>) -> Response {
    let answer = between.client.get(format!("{}/", between.bridge)).send().await.unwrap();
    let policy = answer.headers()[header::CONTENT_SECURITY_POLICY.as_str()].to_str().unwrap().to_owned();
    let text = answer.text().await.unwrap().replace("</body>", PERSON);
    ([(header::CONTENT_TYPE, "text/html".to_owned()), (header::CONTENT_SECURITY_POLICY, policy)], text).into_response()
}

async fn told(State(between): State<Shared>, Path(what): Path<String>, headers: HeaderMap) -> Response {
    if *between.dead.lock().unwrap() {
        // As a proxy would say it; a browser that is refused the connection shows the same.
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let secret = headers.get(SECRET_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let url = format!("{}/kvroute/v1/{what}", between.bridge);
    let answer = between.client.get(url).header(SECRET_HEADER, secret).send().await.unwrap();
    let status = StatusCode::from_u16(answer.status().as_u16()).unwrap();
    (status, answer.text().await.unwrap()).into_response()
}

async fn seen(State(between): State<Shared>, text: String) {
    *between.seen.lock().unwrap() = text;
}

async fn between(bridge: String) -> (Shared, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let shared = Arc::new(Between { bridge, client, seen: Mutex::default(), dead: Mutex::default() });
    let routes = Router::new()
        .route("/", get(page))
        .route("/kvroute/v1/{what}", get(told))
        .route("/seen", post(seen))
        .with_state(shared.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (shared, url)
}

/// Waits until the person sees what fits.
async fn sees(between: &Between, what: &str, fits: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let seen = between.seen.lock().unwrap().clone();
        if fits(&seen) {
            return seen;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: waited in vain; the page shows\n{seen}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same for a fault, and how long it took to show: for scripts/fault-times.
async fn tells(between: &Between, fault: &str, begun: Instant, fits: impl Fn(&str) -> bool) -> String {
    let seen = sees(between, fault, fits).await;
    eprintln!("SHOWN page | {fault} | {:.2} s", begun.elapsed().as_secs_f64());
    seen
}

/// A headless browser with a profile of its own.
struct Browser {
    child: Child,
    profile: PathBuf,
}

impl Browser {
    fn find() -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
        std::env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name))).find(|file| file.is_file())
    }

    fn open(program: &std::path::Path, url: &str) -> Browser {
        let profile = std::env::temp_dir().join(format!("kvroute-page-{}", std::process::id()));
        let mut command = Command::new(program);
        // As wide as a phone. The sandbox needs rights that containers have not; only this page is opened.
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--no-proxy-server", "--remote-debugging-port=0", "--window-size=500,900"]);
        command.arg(format!("--user-data-dir={}", profile.display())).arg(url);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Browser { child: command.spawn().unwrap(), profile }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

/// Where a replica stands that no mock is: only a decision has it.
const PICK: &str = "10.9.9.9:8000";

/// The loopback listener of an Envoy with one worker: it takes the feed, and tells of one more request with each look.
#[derive(Default)]
struct Worker {
    routed: AtomicU64,
    /// It takes questions and gives no answers.
    silent: AtomicBool,
}

impl Worker {
    async fn start() -> (Arc<Worker>, String) {
        let worker = Arc::new(Worker::default());
        let routes = Router::new()
            .route(STATE_PATH, get(Worker::state))
            .route(FEED_PATH, post(|| async { "{}" }))
            .layer(DefaultBodyLimit::disable())
            .with_state(worker.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (worker, url)
    }

    async fn state(State(worker): State<Arc<Worker>>, headers: HeaderMap) -> Response {
        if headers.get(SECRET_HEADER).is_none_or(|secret| secret.as_bytes() != SECRET.as_bytes()) {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        if worker.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let routed = worker.routed.fetch_add(1, Ordering::Relaxed) + 1;
        let outcomes = [("routed", routed), ("too_short", 3), ("not_our_path", 7)];
        let state = WorkerState {
            slot: Some(0),
            live_slots: vec![0],
            requests: RequestCounts {
                outcomes: outcomes.map(|(label, count)| (label.to_owned(), count)).into(),
                prompt_tokens: routed * 1000,
                matched_tokens: routed * 750,
            },
            decisions: vec![Decision {
                outcome: "routed".into(),
                model: "m".into(),
                pick: Some(PICK.into()),
                reason: Some("cache".into()),
                prompt_tokens: 1234,
                matched_tokens: 617,
                ..Decision::default()
            }],
            ..WorkerState::default()
        };
        axum::Json(state).into_response()
    }
}

fn replica() -> Replica {
    Replica::start(Config { model: "m".into(), block_size: 4, ..Config::default() }).unwrap()
}

async fn bridge(replicas: &[&Replica], envoys: &[&str]) -> Bridge {
    let config = BridgeConfig {
        envoys: envoys.iter().map(|url| (*url).to_owned()).collect(),
        secret: SECRET.into(),
        listen: ([127, 0, 0, 1], 0).into(),
        replicas: replicas.iter().map(|r| ReplicaSpec::parse(&r.bridge_spec()).unwrap()).collect(),
        ..BridgeConfig::default()
    };
    Bridge::start(config).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_one_file_that_tells_nothing_by_itself() {
    let replica = replica();
    let bridge = bridge(&[&replica], &[]).await;
    let answer = reqwest::Client::builder().no_proxy().build().unwrap().get(format!("http://{}/", bridge.address));
    let answer = answer.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    assert!(answer.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let text = answer.text().await.unwrap();
    for outside in
        ["src=", "http://", "https://", "@import", "url(", "innerHTML", SECRET, &replica.http_addr().to_string()]
    {
        assert!(!text.contains(outside), "{outside}");
    }
    assert_eq!(text.matches("href=").count(), text.matches("href=\"data:").count());
    // What it shows is for whoever has the secret.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for what in ["replicas", "gateways"] {
        let url = format!("http://{}/kvroute/v1/{what}", bridge.address);
        assert_eq!(client.get(&url).send().await.unwrap().status(), 401, "{what}");
        assert_eq!(client.get(&url).header(SECRET_HEADER, SECRET).send().await.unwrap().status(), 200, "{what}");
    }
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_with_the_secret_sees_a_fault() {
    let Some(program) = Browser::find() else {
        eprintln!(
            "SKIPPED: no Chromium on PATH, so the bridge's page was not opened in a browser; get it by \
             apt-get install chromium, or put one on the PATH as chromium, chromium-browser, google-chrome or chrome"
        );
        return;
    };
    let (stays, leaves) = (replica(), replica());
    let (worker, envoy) = Worker::start().await;
    let bridge = bridge(&[&stays, &leaves], &[&envoy]).await;
    let (between, url) = between(format!("http://{}", bridge.address)).await;
    let _browser = Browser::open(&program, &url);
    let seen = sees(&between, "the wrong secret is refused", |seen| seen.contains("another secret")).await;
    assert!(!seen.contains("exact") && !seen.contains(PICK), "{seen}");
    let well = sees(&between, "all is well", |seen| seen.contains("nothing is wrong")).await;
    for replica in [&stays, &leaves] {
        assert!(well.contains(&replica.http_addr().to_string()), "{well}");
    }
    assert!(well.contains("kept false") && well.contains("wide false"), "{well}");
    assert!(!well.contains("another secret"), "{well}");

    // Requests as the workers tell of them, and what was decided.
    let requests = sees(&between, "requests and decisions", |seen| {
        seen.contains("hit share 75.0 %, of late 75.0 %") && seen.contains(PICK)
    })
    .await;
    for word in ["routed", "too_short", "cache", "1,234", "50.0 %"] {
        assert!(requests.contains(word), "{word}: {requests}");
    }
    assert!(!requests.contains("not_our_path") && requests.contains("wide false"), "{requests}");
    // They go on being counted, and once they are silent that is said.
    let later = worker.routed.load(Ordering::Relaxed) + 5;
    let all = (later + 3..later + 200).map(|n| format!("{n} since the workers began")).collect::<Vec<_>>();
    sees(&between, "more requests", |seen| all.iter().any(|line| seen.contains(line.as_str()))).await;
    worker.silent.store(true, Ordering::Relaxed);
    sees(&between, "silent workers", |seen| seen.contains("its workers do not answer")).await;

    // It hangs: its connections stay, and nothing is answered.
    let silent = format!("{}: its API does not answer", leaves.name());
    leaves.faults().freeze(true);
    let fault = tells(&between, "a replica hangs", Instant::now(), |seen| seen.contains(&silent)).await;
    assert!(!fault.contains("nothing is wrong"), "{fault}");
    leaves.faults().freeze(false);
    sees(&between, "it answers again", |seen| seen.contains("nothing is wrong")).await;

    // Events are lost for good.
    let lost = format!("{}: catching_up: gap", leaves.name());
    for text in ["a prompt whose events come", "one whose events nobody gets", "another one, after which that is known"]
    {
        if text.contains("nobody") {
            let come = || bridge.registry().states().iter().any(|s| s.name == leaves.name() && s.messages > 0);
            sees(&between, "the first events come", |_| come()).await;
            leaves.drop_events(1, true);
        }
        let request = between.client.post(format!("{}/v1/completions", leaves.url()));
        let body = serde_json::json!({"model": "m", "prompt": text, "max_tokens": 1});
        assert!(request.json(&body).send().await.unwrap().status().is_success());
    }
    tells(&between, "events are lost", Instant::now(), |seen| seen.contains(&lost)).await;

    // It dies.
    let stale = format!("{}: stale: disconnected", leaves.name());
    std::thread::spawn(move || leaves.stop());
    let begun = Instant::now();
    tells(&between, "a replica dies", begun, |seen| seen.contains(&silent)).await;
    tells(&between, "a replica dies: its events are stale", begun, |seen| seen.contains(&stale)).await;

    // And the bridge.
    bridge.stop().await;
    *between.dead.lock().unwrap() = true;
    let gone = "No answer of the bridge";
    tells(&between, "the bridge dies", Instant::now(), |seen| seen.contains(gone)).await;
}
