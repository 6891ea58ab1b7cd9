//! What a worker adds to Envoy's memory.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Gateway, MODEL, Setup, pack_file, words};
use crate::wire::{Wire, post};

/// Workers more, between two measurements.
const MORE: u32 = 3;

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap() << 10
}

/// Envoy's memory after some requests to each worker.
async fn after_requests(setup: Setup) -> usize {
    let workers = setup.concurrency;
    let gateway = Gateway::start(setup).await;
    // Workers accept by turns that the kernel takes: enough connections for each to have several.
    for number in 0..u64::from(16 * workers) {
        let mut wire = Wire::connect(gateway.envoy.public()).await;
        for chat in 0..4 {
            let messages = json!([{"role": "user", "content": words(number << 8 | chat, 200)}]);
            let body = json!({"model": MODEL, "max_tokens": 1, "messages": messages}).to_string();
            wire.ask(&post("/v1/chat/completions", body.as_bytes())).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    resident(gateway.envoy.pid())
}

/// Megabytes that a worker adds with the filter of `setup`: all of it.
pub async fn of_a_worker(setup: impl Fn(u32) -> Setup) -> f64 {
    let one = after_requests(setup(1)).await;
    let more = after_requests(setup(1 + MORE)).await;
    (more as f64 - one as f64) / f64::from(MORE) / 1e6
}

/// Megabytes of the pack, which each VM has in its memory.
pub fn pack() -> f64 {
    std::fs::metadata(pack_file()).unwrap().len() as f64 / 1e6
}
