//! `kvroute up`: one command for the whole gateway, and all of it gone at the end.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use kvroute::gateway::{default_wasm, envoy_binary};
use kvroute::look::{SECRET_HEADER, STATE_PATH, WAKE_PATH, WorkerState};
use kvroute::mock::{self, Replica};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Answer, Conversation, MODEL, Setup, client, eventually, free_address, kvroute, model_dir, words};

const SECRET: &str = "of-the-test";

/// A running `kvroute up`.
struct Up {
    child: Child,
    listen: SocketAddr,
    ingest: SocketAddr,
    admin: SocketAddr,
}

fn replicas() -> Vec<Replica> {
    let mock = Setup::default().mock;
    let replica = |i| Replica::start(mock::Config { name: Some(format!("r{i}")), ..mock.clone() }).unwrap();
    (0..2).map(replica).collect()
}

/// The arguments that every run has.
fn arguments(replicas: &[Replica]) -> Vec<String> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("up-cache");
    let wasm = default_wasm();
    let mut args = vec!["up".to_owned(), "--concurrency=1".into()];
    for (flag, path) in [("--model", &model_dir(MODEL)), ("--cache", &cache), ("--wasm", &wasm)] {
        args.extend([flag.to_owned(), path.display().to_string()]);
    }
    args.extend(replicas.iter().flat_map(|replica| ["--replica".to_owned(), replica.url()]));
    args
}

impl Up {
    fn start(replicas: &[Replica]) -> Up {
        let (listen, ingest, admin) = (free_address(), free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvroute"));
        command.args(arguments(replicas)).args(["--listen", &listen.to_string(), "--ingest", &ingest.to_string()]);
        command.args(["--admin", &admin.to_string(), "--bridge", "127.0.0.1:0"]).env("KVROUTE_SECRET", SECRET);
        let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Up { child, listen, ingest, admin }
    }

    /// The processes that it has started.
    fn children(&self) -> BTreeSet<i32> {
        let pid = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<i32>>()).collect()
    }

    async fn turn(&self, conversation: &mut Conversation, text: &str) -> Answer {
        conversation.messages.push(serde_json::json!({"role": "user", "content": text}));
        let url = format!("http://{}/v1/chat/completions", self.listen);
        let request = client().post(url).header("content-type", "application/json").body(conversation.body());
        let answer = Answer::read(request.send().await.unwrap()).await;
        conversation.messages.push(answer.json["choices"][0]["message"].clone());
        answer
    }

    /// Waits until the worker is in step with the bridge and knows both replicas by their events, and Envoy that they
    /// are well.
    async fn synced(&self) {
        eventually("the replicas are healthy", async || {
            let url = format!("http://{}/stats?filter=membership_healthy", self.admin);
            let page = client().get(url).send().await.ok()?.text().await.ok()?;
            page.contains("cluster.replicas.membership_healthy: 2").then_some(())
        })
        .await;
        eventually("the replicas are exact", async || {
            let _ = client().post(format!("http://{}{WAKE_PATH}", self.listen)).send().await;
            let url = format!("http://{}{STATE_PATH}", self.ingest);
            let state = client().get(url).header(SECRET_HEADER, SECRET).send().await.ok()?;
            let state: WorkerState = state.json().await.ok()?;
            let exact = state.replicas.iter().filter(|replica| replica.trust == "exact").count();
            (exact == 2 && state.feed.sync == "synced").then_some(())
        })
        .await;
    }

    /// Waits for its end; gives what it said, too.
    async fn ended(mut self) -> (ExitStatus, String) {
        let mut stderr = self.child.stderr.take().unwrap();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let status = eventually("up has ended", async || self.child.try_wait().unwrap()).await;
        (status, reader.join().unwrap().unwrap())
    }
}

/// Two replicas and the gateway before them, all in step; `None`, and said, where there is no tokenizer.
async fn running() -> Option<(Vec<Replica>, Up)> {
    if !model_dir(MODEL).exists() {
        eprintln!("SKIPPED: no tokenizer {MODEL}; run scripts/setup");
        return None;
    }
    let replicas = replicas();
    let up = Up::start(&replicas);
    up.synced().await;
    Some((replicas, up))
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether a process is there; one that has ended and was not waited for is not.
fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

fn name(pid: i32) -> String {
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = command.split('\0');
    let program = PathBuf::from(words.next().unwrap_or_default());
    format!("{} {}", program.file_name().unwrap_or_default().to_string_lossy(), words.next().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn up_routes_and_leaves_nothing_behind() {
    let Some((replicas, up)) = running().await else { return };
    let mut conversations: Vec<_> = (0..8).map(|seed| Conversation::with_system(&words(seed, 200))).collect();
    let mut firsts = Vec::new();
    for conversation in &mut conversations {
        firsts.push(up.turn(conversation, "one").await);
    }
    assert!(firsts.iter().all(|answer| answer.status == 200), "{firsts:?}");
    for (conversation, first) in conversations.iter_mut().zip(&firsts) {
        let second = up.turn(conversation, "two").await;
        assert_eq!(second.replica, first.replica);
        assert!(second.cached_tokens() > 200, "{} of {} tokens", second.cached_tokens(), second.prompt_tokens());
    }

    // Why it went there, for whoever has the secret, and the count of it.
    let url = format!("http://{}/v1/chat/completions", up.listen);
    let request = client().post(url).header("content-type", "application/json").body(conversations[0].body());
    let request = request.header("x-kvroute-explain", "1").header(SECRET_HEADER, SECRET);
    let answer = request.send().await.unwrap();
    let receipt: serde_json::Value = serde_json::from_slice(answer.headers()["x-kvroute-receipt"].as_bytes()).unwrap();
    let replica =
        replicas.iter().find(|replica| receipt["candidates"][0]["address"] == replica.http_addr().to_string());
    assert_eq!(answer.headers()["x-mock-replica"], replica.unwrap().name(), "{receipt}");
    eventually("the requests are counted", async || {
        let url = format!("http://{}/stats/prometheus?filter=kvroute_requests", up.admin);
        let page = client().get(url).send().await.ok()?.text().await.ok()?;
        let count = page.lines().find(|line| line.contains("routed"))?.rsplit(' ').next()?.parse::<u64>().ok()?;
        (count >= 17).then_some(())
    })
    .await;

    let children = up.children();
    let names: BTreeSet<String> = children.iter().map(|pid| name(*pid)).collect();
    assert!(names.contains("kvroute bridge") && names.len() == 2, "{names:?}");
    // An answer that is under way is waited for.
    replicas.iter().for_each(|replica| replica.faults().hang(1));
    let (mut last, url) = (conversations.swap_remove(0), format!("http://{}/v1/chat/completions", up.listen));
    last.messages.push(serde_json::json!({"role": "user", "content": "three"}));
    let request = client().post(url).header("content-type", "application/json").body(last.body());
    let answer = tokio::spawn(request.send());
    eventually("the request has reached a replica", async || {
        let sent: u64 = replicas.iter().map(|replica| replica.faults().sums().requests).sum();
        (sent == 18).then_some(())
    })
    .await;
    send(up.child.id().cast_signed(), Signal::TERM);
    eventually("no new connection is taken", async || {
        client().get(format!("http://{}/", up.listen)).send().await.err()
    })
    .await;
    assert!(children.iter().all(|pid| runs(*pid)), "it did not wait");
    replicas.iter().for_each(|replica| replica.faults().release());
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    let (status, said) = up.ended().await;
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(!children.iter().any(|pid| runs(*pid)), "{said}");
    // One is the request's; more, when one of the connections tried above was still taken.
    for line in ["up     | ready: http://", "bridge | ", "envoy  | ", "up     | answers under way: "] {
        assert!(said.contains(line), "no {line:?} in:\n{said}");
    }
    assert!(!said.contains(SECRET), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn up_ends_with_either_of_its_parts() {
    let Some((replicas, up)) = running().await else { return };
    let children = up.children();
    let bridge = children.iter().copied().find(|pid| name(*pid) == "kvroute bridge").unwrap();
    send(bridge, Signal::KILL);
    let (status, said) = up.ended().await;
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("bridge ended (signal: 9"), "{said}");
    assert!(!children.iter().any(|pid| runs(*pid)), "{said}");

    // And they do not outlive it, however it ends.
    let up = Up::start(&replicas);
    up.synced().await;
    let children = up.children();
    assert_eq!(children.len(), 2);
    send(up.child.id().cast_signed(), Signal::KILL);
    eventually("both have ended", async || (!children.iter().any(|pid| runs(*pid))).then_some(())).await;
}

#[test]
fn the_printed_configuration_is_one_to_start_with() {
    if !model_dir(MODEL).exists() {
        eprintln!("SKIPPED: no tokenizer {MODEL}; run scripts/setup");
        return;
    }
    let replicas = replicas();
    let mut args = arguments(&replicas);
    args.extend(["--print-config".to_owned(), "--kv".into(), "tcp://{host}:5557".into()]);
    let text = kvroute(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("up-envoy.yaml");
    std::fs::write(&file, &text).unwrap();
    kvroute(&["check-config", "--strict", file.to_str().unwrap()]);
    let mut envoy = Command::new(envoy_binary().unwrap());
    envoy.args(["--mode", "validate", "-c", file.to_str().unwrap()]).env("KVROUTE_SECRET", SECRET);
    let output = envoy.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let comments: Vec<&str> = text.lines().take_while(|line| line.starts_with('#')).collect();
    assert!(comments.iter().any(|line| line.contains("kv=tcp://127.0.0.1:5557")), "{comments:?}");
}
