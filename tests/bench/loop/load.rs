//! The load: small requests that are timed, and long ones beside them.
//!
//! It stands for other machines, and must not take from the one that is measured: long bodies are made beforehand, go
//! over plain connections and are thrown away by who receives them; and all threads of it yield to Envoy's (a nice value).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Gateway, MODEL, words};
use crate::wire::{Wire, post};

/// Of each part; Envoy sums up its histograms every five seconds.
const SECONDS: u64 = 20;
/// Small requests between two of which a client waits, and how many clients.
const PAUSE: Duration = Duration::from_millis(5);
const CLIENTS: u64 = 4;
/// Long requests under way: two, so that there is always one.
const LANES: usize = 2;
/// What bodies made beforehand may take.
const POOL: usize = 48 << 20;
/// How much less than Envoy the load is preferred.
const NICE: i32 = 5;

/// What long prompts consist of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Words of random letters.
    Words,
    /// One word.
    Word,
    /// Spaces.
    Spaces,
}

/// Long prompts: what they consist of, and how many bytes.
pub type Long = (Kind, usize);

fn chat(text: &str) -> Vec<u8> {
    let messages = json!([{"role": "user", "content": text}]);
    let body = json!({"model": MODEL, "max_tokens": 1, "messages": messages});
    post("/v1/chat/completions", &body.to_string().into_bytes())
}

/// In the place of it each request has a number, so that each is new from its first word on.
const NUMBER: &str = "0000000000";

/// A request with a long prompt, and where its number stands.
fn long(seed: u64, (kind, bytes): Long) -> (Vec<u8>, usize) {
    let mut text = format!("{NUMBER} ");
    match kind {
        Kind::Words => text.push_str(&words(seed, bytes / 4)),
        Kind::Word => text.extend(words(seed, bytes / 2).chars().filter(char::is_ascii_alphabetic)),
        Kind::Spaces => text.extend(std::iter::repeat_n(' ', bytes)),
    }
    text.truncate(bytes);
    let request = chat(&text);
    let at = request.windows(NUMBER.len()).position(|part| part == NUMBER.as_bytes()).unwrap();
    (request, at)
}

/// The same for a whole part: fewer bodies than requests, but the words of one are long forgotten when it comes again.
pub fn pool(of: Long) -> Vec<(Vec<u8>, usize)> {
    let bodies = (POOL / of.1).clamp(LANES, 64);
    (0..bodies as u64).map(|seed| long(1 << 40 | seed << 8, of)).collect()
}

/// One measured part.
pub struct Part {
    /// Of the small requests, in milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Turns of the loop in microseconds, each the middle one of Envoy's intervals.
    pub loop_p999: f64,
    pub loop_max: f64,
    /// Long prompts that were answered meanwhile.
    pub long: u64,
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// P99.9 and P100 of the worker's loop in the last interval: `name: P0(interval,all) …`, `nan` where there is none.
fn loop_duration(gateway: &Gateway) -> Option<(f64, f64)> {
    let page = gateway.envoy.admin_get("/stats?filter=worker_0.dispatcher.loop_duration_us").unwrap();
    let line = page.lines().find(|line| line.contains("loop_duration_us"))?;
    let of = |name: &str| {
        let (_, rest) = line.split_once(&format!("{name}("))?;
        rest.split_once(',')?.0.parse().ok().filter(|value: &f64| value.is_finite())
    };
    Some((of("P99.9")?, of("P100")?))
}

/// Lets all threads of this process, the mock replicas' too, yield to other programs.
pub fn yield_to_others() {
    let nice = rustix::process::getpriority_process(None).unwrap_or(0) + NICE;
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let thread =
            task.unwrap().file_name().to_str().and_then(|name| rustix::process::Pid::from_raw(name.parse().ok()?));
        // One that has ended meanwhile needs none.
        let _ = rustix::process::setpriority_process(thread, nice);
    }
}

/// Small requests for some time, beside these long ones, if any.
pub async fn part(gateway: &Arc<Gateway>, pool: &Arc<Vec<(Vec<u8>, usize)>>) -> Part {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let (done, long) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let at = gateway.envoy.public();
    let mut background = tokio::task::JoinSet::new();
    for lane in 0..LANES {
        if pool.is_empty() {
            continue;
        }
        let (done, long, pool) = (done.clone(), long.clone(), pool.clone());
        background.spawn(async move {
            let mut wire = Wire::connect(at).await;
            for (request, number) in pool.iter().cycle().skip(lane * pool.len() / LANES) {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                wire.send(&request[..*number]).await;
                wire.send(format!("{:010}", NUMBERS.fetch_add(1, Ordering::Relaxed)).as_bytes()).await;
                wire.send(&request[number + NUMBER.len()..]).await;
                assert!(wire.receive().await.0, "a long prompt was refused");
                long.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut small = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let done = done.clone();
        small.spawn(async move {
            let mut wire = Wire::connect(at).await;
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let mut text = words(NUMBERS.fetch_add(1, Ordering::Relaxed), 150);
                text.truncate(600);
                let request = chat(&text);
                let begun = Instant::now();
                wire.ask(&request).await;
                times.push(begun.elapsed().as_secs_f64() * 1e3);
                tokio::time::sleep(PAUSE).await;
            }
            times
        });
    }
    let (mut p999, mut max) = (Vec::new(), Vec::new());
    for second in 0..SECONDS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // The first interval has some of what was before.
        if let Some((high, highest)) = loop_duration(gateway).filter(|_| second > 6) {
            p999.push(high);
            max.push(highest);
        }
    }
    done.store(true, Ordering::Relaxed);
    let mut times: Vec<f64> = small.join_all().await.into_iter().flatten().collect();
    background.join_all().await;
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
    Part {
        p50: at(50),
        p99: at(99),
        loop_p999: middle(p999),
        loop_max: middle(max),
        long: long.load(Ordering::Relaxed),
    }
}
