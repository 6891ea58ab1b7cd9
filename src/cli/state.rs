//! `kvroute state`: what the workers of a running gateway believe.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::ask::GatewayArgs;
use super::table::{Paint, bytes, grouped, harmless, show, table};
use crate::look::{Adapter, FeedState, Load, ReplicaState, WorkerState};

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
        show(&format!("{}\n", serde_json::to_string(&workers)?))?;
        return Ok(ExitCode::SUCCESS);
    }
    let texts: Vec<String> = workers.iter().map(|worker| text(worker, Paint::new())).collect();
    let mut out = texts.join("\n");
    let replicas: Vec<&ReplicaState> = workers.iter().flat_map(|worker| &worker.replicas).collect();
    if !replicas.is_empty() {
        let notes = trust_notes(replicas.iter().map(|r| r.trust.as_str()));
        out.push_str(&format!("\n{LEGEND}{REPORT_AGE}{notes}"));
    }
    if let Some(line) = total(&workers) {
        out.push_str(&format!("\n{line}\n"));
    }
    show(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// A worker for people.
fn text(worker: &WorkerState, paint: Paint) -> String {
    let index = &worker.index;
    let mut out = format!(
        "{}\nfeed      {}\nindex     {} blocks, {} of {}\nmemory    {}\nrequests  {} under way\n",
        paint.bold(&title(worker.slot, &worker.live_slots)),
        feed(&worker.feed, paint),
        grouped(index.blocks),
        bytes(index.bytes),
        bytes(index.max_bytes),
        memory(worker),
        worker.jobs,
    );
    let Some(first) = worker.replicas.first() else {
        out.push_str("replicas  none known\n");
        return out;
    };
    // Most gateways have one model; its name would make the table too wide.
    let one_model = worker.replicas.iter().all(|r| r.model == first.model);
    if one_model {
        out.push_str(&format!("model     {}\n", harmless(&first.model)));
    }
    let mut headers = vec!["replica", "trust", "blocks", "predicted", "capacity"];
    headers.extend(LOAD);
    headers.push("age");
    let mut rows: Vec<Vec<String>> = worker.replicas.iter().map(row).collect();
    if !one_model {
        headers.insert(1, "model");
        rows.iter_mut().zip(&worker.replicas).for_each(|(row, r)| row.insert(1, harmless(&r.model)));
    }
    out.push_str(&format!("\n{}\n", table(&headers, if one_model { 2 } else { 3 }, rows).trim_fmt()));
    for r in worker.replicas.iter().filter(|r| !r.adapters.is_empty()) {
        let name = |a: &Adapter| format!("{}{}", harmless(&a.name), if a.loaded { "*" } else { "" });
        let names: Vec<String> = r.adapters.iter().map(name).collect();
        out.push_str(&format!("LoRA adapters of {}: {}\n", address(&r.address, r.rank), names.join(", ")));
    }
    if worker.replicas.iter().any(|r| r.adapters.iter().any(|a| a.loaded)) {
        out.push_str("* used last, so that it need not be loaded\n");
    }
    if worker.replicas.iter().any(|r| r.truncated) {
        out.push_str("+ holds more: the index is full, and blocks were given up (limits.index_bytes)\n");
    }
    out
}

/// What the indexes of all workers take, and may take: each has its own.
fn total(workers: &[WorkerState]) -> Option<String> {
    let sum = |of: fn(&WorkerState) -> u64| workers.iter().map(of).sum::<u64>();
    let (blocks, now, most) = (sum(|w| w.index.blocks), sum(|w| w.index.bytes), sum(|w| w.index.max_bytes));
    let each = now.checked_div(blocks).map_or(String::new(), |each| format!(", {each} B a block"));
    let count = workers.len();
    (count > 1).then(|| format!("indexes of {count} workers: {}{each}, at most {}", bytes(now), bytes(most)))
}

/// Which worker, and of how many.
pub fn title(slot: Option<u32>, live_slots: &[u32]) -> String {
    match slot {
        Some(slot) => format!("worker with slot {slot} (live slots: {})", list(live_slots)),
        None => {
            format!("worker without a slot: it takes part from its first request on (live slots: {})", list(live_slots))
        }
    }
}

fn list(slots: &[u32]) -> String {
    let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
    if slots.is_empty() { "none".to_owned() } else { slots.join(", ") }
}

/// Where the feed stands, and what that means where it is not as it should be.
pub fn feed(feed: &FeedState, paint: Paint) -> String {
    let Some(ms) = feed.age_ms else {
        return format!("{}: no batch of a bridge has come", paint.bold("none"));
    };
    let sync = match feed.sync.as_str() {
        "syncing" => paint.bold(&format!("syncing, {:.0} % of the snapshot", feed.progress * 100.0)),
        other => other.to_owned(),
    };
    let age = match feed.quiet {
        false => format!("heard of {ms} ms ago"),
        true => paint
            .bold(&format!("SILENT for {} s, so matches count for less: is the bridge running?", grouped(ms / 1000))),
    };
    let waiting = if feed.backlog > 0 { format!(", {} waiting", grouped(feed.backlog)) } else { String::new() };
    format!(
        "{sync}, {age}; batch {} of {} applied{waiting}; bridge {} term {}",
        grouped(feed.applied_seq),
        grouped(feed.known_seq),
        feed.epoch,
        feed.term
    )
}

fn memory(worker: &WorkerState) -> String {
    let of = |owner: &str| worker.memory.iter().find(|m| m.owner == owner).map(|m| m.bytes);
    let Some(all) = of("vm") else { return "unknown".to_owned() };
    let parts: Vec<_> = worker.memory.iter().filter(|m| m.owner != "vm" && m.owner != "pages").collect();
    let other = all.saturating_sub(parts.iter().map(|m| m.bytes).sum());
    let parts: Vec<String> = parts.iter().map(|m| format!("{} {}", m.owner, bytes(m.bytes))).collect();
    let taken = of("pages").map_or(String::new(), |pages| format!("; {} taken from Envoy", bytes(pages)));
    let bound = bytes(worker.max_memory_bytes);
    format!("{} of {bound}: {}, other {}{taken}", bytes(all), parts.join(", "), bytes(other))
}

fn row(r: &ReplicaState) -> Vec<String> {
    let role = if matches!(r.role.as_str(), "" | "both") { String::new() } else { format!(" ({})", r.role) };
    let mut row = vec![
        address(&r.address, r.rank) + &role,
        trust(&r.trust, &r.trust_reason),
        format!("{}{}", grouped(r.blocks), if r.truncated { "+" } else { "" }),
        grouped(r.predicted_blocks),
        if r.capacity_blocks == 0 { "?".to_owned() } else { grouped(r.capacity_blocks) },
    ];
    row.extend(load(&r.load));
    row.push(r.load.age_ms.map_or("-".to_owned(), |ms| format!("{:.1}", ms as f64 / 1000.0)));
    row
}

/// The replica's address, with its rank where it has several.
pub fn address(address: &str, rank: u32) -> String {
    if rank == 0 { address.to_owned() } else { format!("{address} rank {rank}") }
}

/// Trust, with its reason where it is not exact.
pub fn trust(trust: &str, reason: &str) -> String {
    match (trust, reason) {
        ("exact", _) | (_, "") => trust.to_owned(),
        _ => format!("{trust}: {reason}"),
    }
}

/// What a trust other than exact means, once for each that occurs.
pub fn trust_notes<'a>(trusts: impl Iterator<Item = &'a str>) -> String {
    let occur: BTreeSet<&str> = trusts.collect();
    let note = |trust: &str| match trust {
        "catching_up" => "what it holds is being brought up to date; matches count for less (policy.catching_up)",
        "stale" => "its events have stopped, or do not tell all; matches count for less (policy.stale)",
        "no_events" => "it publishes none; only what was sent there is believed (policy.no_events)",
        _ => "",
    };
    let notes = occur.into_iter().filter(|trust| !note(trust).is_empty());
    notes.map(|trust| format!("{trust}: {}\n", note(trust))).collect()
}

/// Headers of [`load`].
pub const LOAD: [&str; 5] = ["booked", "to prefill", "running", "waiting", "in use"];
/// What stands below them.
pub const LEGEND: &str = "booked, to prefill: requests of this gateway there, and their tokens that are not computed yet\n\
                          running, waiting, in use: requests there by the engine's own report, and the share of its cache\n";
const REPORT_AGE: &str = "age: of that report, in seconds\n";

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
    use crate::look::MemoryUse;

    #[test]
    fn a_feed_that_is_not_as_it_should_be_says_so() {
        let feed = |feed: &FeedState| super::feed(feed, Paint::plain());
        assert_eq!(feed(&FeedState::default()), "none: no batch of a bridge has come");
        let good = FeedState { sync: "synced".into(), epoch: "2a".into(), age_ms: Some(7), ..Default::default() };
        assert_eq!(feed(&good), "synced, heard of 7 ms ago; batch 0 of 0 applied; bridge 2a term 0");
        let quiet = feed(&FeedState { age_ms: Some(12_345), quiet: true, backlog: 3, ..good.clone() });
        assert!(quiet.starts_with("synced, SILENT for 12 s") && quiet.contains(", 3 waiting;"), "{quiet}");
        let syncing = feed(&FeedState { sync: "syncing".into(), progress: 0.424, ..good });
        assert!(syncing.starts_with("syncing, 42 % of the snapshot, heard of 7 ms ago"), "{syncing}");
    }

    #[test]
    fn the_indexes_of_all_workers_are_summed() {
        let index = |blocks, bytes| crate::look::IndexState { blocks, bytes, max_bytes: 1_000_000 };
        let workers = [(0, 0), (1000, 36_000)].map(|(b, n)| WorkerState { index: index(b, n), ..Default::default() });
        let line = total(&workers).unwrap();
        assert_eq!(line, "indexes of 2 workers: 36.0 kB, 36 B a block, at most 2.0 MB");
        assert_eq!(total(&workers[..1]), None);
    }

    #[test]
    fn a_worker_reads_as_an_aligned_table() {
        let replica = |address: &str, blocks| ReplicaState {
            address: address.into(),
            model: "m".into(),
            trust: "exact".into(),
            blocks,
            ..Default::default()
        };
        let used = |owner: &str, bytes| MemoryUse { owner: owner.into(), bytes };
        let mut worker = WorkerState {
            slot: Some(1),
            live_slots: vec![0, 1],
            memory: vec![used("vm", 5_000_000), used("index", 4_000_000), used("pages", 9_000_000)],
            max_memory_bytes: 768_000_000,
            replicas: vec![replica("10.0.0.1:8000", 5), replica("10.0.0.12:8000", 12_345)],
            ..Default::default()
        };
        let text = super::text(&worker, Paint::plain());
        assert!(text.contains("5.0 MB of 768.0 MB: index 4.0 MB, other 1.0 MB; 9.0 MB taken from Envoy\n"), "{text}");
        assert!(text.contains("\nmodel     m\n"), "{text}");
        assert!(text.starts_with("worker with slot 1 (live slots: 0, 1)\n"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|l| l.contains("8000") || l.contains("blocks  ")).collect();
        assert_eq!(lines.len(), 3, "{text}");
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(lines[0], "blocks"), end(lines[2], "12,345"), "{text}");
        assert_eq!(end(lines[1], " 5"), end(lines[2], "12,345"), "{text}");
        assert!(!text.contains('\x1b') && text.lines().all(|l| l == l.trim_end()), "{text:?}");
        let stale =
            ReplicaState { trust: "stale".into(), trust_reason: "silent".into(), ..replica("10.0.0.3:8000", 1) };
        worker.replicas.push(ReplicaState { model: "n".into(), ..stale });
        let text = super::text(&worker, Paint::plain());
        assert!(text.contains("10.0.0.3:8000   n      stale: silent"), "{text}");
        assert!(!text.contains("adapters") && !text.contains("(prefill)"), "{text}");
        worker.replicas[0].role = "prefill".into();
        worker.replicas[1].role = "both".into();
        let apart = super::text(&worker, Paint::plain());
        assert!(apart.contains("10.0.0.1:8000 (prefill)  m") && !apart.contains("(both)"), "{apart}");
        let adapter = |name: &str, loaded| Adapter { name: name.into(), loaded };
        worker.replicas[1].adapters = vec![adapter("a", true), adapter("b", false)];
        let text = super::text(&worker, Paint::plain());
        assert!(text.contains("LoRA adapters of 10.0.0.12:8000: a*, b\n* used last"), "{text}");
        let notes = trust_notes(["exact", "stale", "stale"].into_iter());
        assert!(notes.starts_with("stale: ") && notes.lines().count() == 1, "{notes}");
    }
}
