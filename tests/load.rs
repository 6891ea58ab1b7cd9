//! The traffic generator against mock replicas.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kvroute::load::{Options, Pace, run};
use kvroute::mock::{Config, Replica};
use serde_json::Value;

fn replica() -> Replica {
    Replica::start(Config { name: Some("one".into()), block_size: 4, ..Config::default() }).unwrap()
}

fn options(replica: &Replica) -> Options {
    Options {
        url: replica.url(),
        conversations: 5,
        turns: 3,
        system_words: 40,
        question_words: 5,
        max_tokens: 7,
        ..Options::default()
    }
}

#[tokio::test]
async fn all_turns_are_sent_and_counted_as_the_replica_counts_them() {
    for (stream, pace, http2) in [
        (true, Pace::Closed { concurrency: 3 }, false),
        (false, Pace::Closed { concurrency: 100 }, true),
        (true, Pace::Open { rate: 500.0 }, false),
    ] {
        let replica = replica();
        let told = Arc::new(AtomicU64::new(0));
        let count = told.clone();
        let add = move || {
            count.fetch_add(1, Relaxed);
        };
        let on_answer = Some(Arc::new(add) as Arc<dyn Fn() + Send + Sync>);
        let report = run(Options { stream, pace, http2, on_answer, ..options(&replica) }).await.unwrap();
        assert_eq!((report.requests, report.errors, told.load(Relaxed)), (15, 0, 15));
        assert_eq!(report.completion_tokens, 15 * 7);
        assert_eq!(report.requests_per_replica["one"], 15);
        assert_eq!(report.same_replica_share, Some(1.0));
        let sums = replica.faults().sums();
        assert_eq!((report.prompt_tokens, report.cached_tokens), (sums.prompt_tokens, sums.cached_tokens));
        assert!(report.ttft_ms.p50 > 0.0 && report.ttft_ms.p50 <= report.latency_ms.p50);
    }
}

#[tokio::test]
async fn one_conversation_finds_all_it_said_before_in_the_cache() {
    let replica = replica();
    let one = Options { conversations: 1, pace: Pace::Closed { concurrency: 1 }, ..options(&replica) };
    let report = run(one).await.unwrap();
    let prompts: Vec<usize> = replica.faults().requests().iter().map(|request| request.prompt_tokens).collect();
    // A turn reuses the full blocks of the prompt before and of its answer, but for the last token of that.
    let expected: usize = prompts[..2].iter().map(|prompt| (prompt + 7 - 1) / 4 * 4).sum();
    assert_eq!(report.cached_tokens as usize, expected);
}

#[tokio::test]
async fn the_same_seed_sends_the_same_bytes() {
    let mut digests = Vec::new();
    for seed in [1, 1, 2] {
        let replica = replica();
        run(Options { seed, ..options(&replica) }).await.unwrap();
        let mut seen: Vec<String> =
            replica.faults().requests().into_iter().map(|request| request.body_sha256).collect();
        seen.sort();
        digests.push(seen);
    }
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0], digests[2]);
}

#[tokio::test]
async fn failures_are_counted_by_cause() {
    let replica = replica();
    replica.faults().fail(2, 503);
    let report = run(options(&replica)).await.unwrap();
    assert_eq!((report.requests, report.errors), (15, 2));
    assert_eq!(report.error_causes["status 503"], 2);
    let nowhere = Options { url: "http://127.0.0.1:1".into(), ..options(&replica) };
    let report = run(nowhere).await.unwrap();
    assert_eq!((report.errors, report.error_causes["no connection"]), (15, 15));
    assert!(run(Options { url: "?".into(), ..options(&replica) }).await.is_err());
}

#[test]
fn the_command_line_reports_and_fails_when_requests_failed() {
    let replica = replica();
    let load = |more: &[&str]| {
        let size = ["-n", "2", "-t", "2", "--system-words", "9", "--max-tokens", "3"];
        Command::new(env!("CARGO_BIN_EXE_kvroute")).arg("load").args(size).args(more).output().unwrap()
    };
    let good = load(&[&replica.url(), "--json"]);
    assert!(good.status.success());
    assert!(good.stderr.is_empty(), "no progress bar where there is no terminal");
    let report: Value = serde_json::from_slice(&good.stdout).unwrap();
    assert_eq!((&report["requests"], &report["errors"]), (&4.into(), &0.into()));
    for key in ["p50", "p90", "p99"] {
        assert!(report["ttft_ms"][key].is_f64());
    }
    let table = String::from_utf8(load(&[&replica.url()]).stdout).unwrap();
    assert!(table.contains("cached share") && table.contains("requests at one"), "{table}");
    replica.faults().fail(1, 500);
    assert_eq!(load(&[&replica.url(), "--json"]).status.code(), Some(1));
    assert_eq!(load(&["nowhere"]).status.code(), Some(2));
    assert_eq!(load(&[&replica.url(), "--rate", "0"]).status.code(), Some(2));
    assert_eq!(load(&[&replica.url(), "--header", "nocolon"]).status.code(), Some(2));
}
