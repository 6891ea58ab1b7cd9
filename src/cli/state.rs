//! `kvroute state`: what the workers of a running gateway believe.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ask::GatewayArgs;
use super::table::{Paint, bytes, grouped, table};
use crate::look::{FeedState, Load, ReplicaState, WorkerState};

const EXAMPLES: &str = r#"Examples:
  kvroute state --gateway http://127.0.0.1:10100 --secret-file secret
  kvroute state --gateway http://127.0.0.1:10100 --secret-file secret --all-workers
  kvroute state --gateway http://127.0.0.1:10100 --secret-file secret --json | jq '.[0].replicas'"#;

/// Shows what a running gateway knows: feed, replicas, load, index, memory.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StateArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// JSON: a list with one object per worker.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: StateArgs) -> Result<ExitCode> {
    let workers = args.gateway.state()?;
    if args.json {
        println!("{}", serde_json::to_string(&workers)?);
        return Ok(ExitCode::SUCCESS);
    }
    for (i, worker) in workers.iter().enumerate() {
        if i > 0 {
            println!();
        }
        print!("{}", text(worker, Paint::new()));
    }
    Ok(ExitCode::SUCCESS)
}

/// A worker for people.
fn text(worker: &WorkerState, paint: Paint) -> String {
    let index = &worker.index;
    let memory: Vec<String> = worker.memory.iter().map(|m| format!("{} {}", m.owner, bytes(m.bytes))).collect();
    let mut out = format!(
        "{}\nfeed      {}\nindex     {} blocks, {} of {}\nmemory    {}\nrequests  {} under way\n",
        paint.bold(&title(worker.slot, &worker.live_slots)),
        feed(&worker.feed),
        grouped(index.blocks),
        bytes(index.bytes),
        bytes(index.max_bytes),
        if memory.is_empty() { "unknown".to_owned() } else { memory.join(", ") },
        worker.jobs,
    );
    if worker.replicas.is_empty() {
        out.push_str("replicas  none known\n");
        return out;
    }
    let headers = [
        "replica",
        "model",
        "trust",
        "blocks",
        "unconfirmed",
        "predicted",
        "of",
        "booked",
        "prefill",
        "running",
        "waiting",
        "cache",
    ];
    let rows = worker.replicas.iter().map(row);
    out.push_str(&format!("\n{}\n", table(&headers, 3, rows).trim_fmt()));
    out
}

/// Which worker, and of how many.
pub fn title(slot: Option<u32>, live_slots: &[u32]) -> String {
    match slot {
        Some(slot) => format!("worker with slot {slot} (live slots: {})", list(live_slots)),
        None => format!("worker without a slot yet (live slots: {})", list(live_slots)),
    }
}

fn list(slots: &[u32]) -> String {
    let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
    if slots.is_empty() { "none".to_owned() } else { slots.join(", ") }
}

fn feed(feed: &FeedState) -> String {
    let age = feed.age_ms.map_or("never heard of".to_owned(), |ms| format!("last heard of {ms} ms ago"));
    let progress = if feed.sync == "syncing" { format!(" {:.0} %", feed.progress * 100.0) } else { String::new() };
    format!(
        "{}{progress}, term {} of bridge {}, applied {} of {}, {} waiting, {age}",
        feed.sync, feed.term, feed.epoch, feed.applied_seq, feed.known_seq, feed.backlog
    )
}

fn row(r: &ReplicaState) -> Vec<String> {
    let [booked, prefill, running, waiting, cache] = load(&r.load);
    vec![
        address(&r.address, r.rank),
        r.model.clone(),
        r.trust.clone(),
        grouped(r.blocks),
        grouped(r.unconfirmed_blocks),
        grouped(r.predicted_blocks),
        if r.capacity_blocks == 0 { "?".to_owned() } else { grouped(r.capacity_blocks) },
        booked,
        prefill,
        running,
        waiting,
        cache,
    ]
}

/// The replica's address, with its rank where it has several.
pub fn address(address: &str, rank: u32) -> String {
    if rank == 0 { address.to_owned() } else { format!("{address} rank {rank}") }
}

/// Booked requests and prefill tokens; running, waiting and cache use by the engine's own report.
pub fn load(load: &Load) -> [String; 5] {
    let reported = |n: Option<u32>| n.map_or("-".to_owned(), |n| grouped(n.into()));
    [
        grouped(load.booked_requests),
        grouped(load.booked_prefill_tokens),
        reported(load.running),
        reported(load.waiting),
        load.kv_usage.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_reads_as_an_aligned_table() {
        let replica = |address: &str, blocks| ReplicaState {
            address: address.into(),
            model: "m".into(),
            trust: "exact".into(),
            blocks,
            ..Default::default()
        };
        let worker = WorkerState {
            slot: Some(1),
            live_slots: vec![0, 1],
            replicas: vec![replica("10.0.0.1:8000", 5), replica("10.0.0.12:8000", 12_345)],
            ..Default::default()
        };
        let text = text(&worker, Paint::plain());
        assert!(text.starts_with("worker with slot 1 (live slots: 0, 1)\n"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|l| l.contains("8000") || l.contains("trust")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(lines[0], "blocks"), end(lines[2], "12,345"), "{text}");
        assert_eq!(end(lines[1], " 5"), end(lines[2], "12,345"), "{text}");
        assert!(!text.contains('\x1b') && text.lines().all(|l| l == l.trim_end()), "{text:?}");
    }
}
