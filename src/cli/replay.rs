//! `kvroute replay`: what a bridge came to believe, from what it noted of its engines.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde_json::{Value, json};

use super::table::{grouped, say, table};
use crate::bridge::cache::CacheConfig;
use crate::bridge::config::ReplicaSpec;
use crate::bridge::recording::{self, Line, Noted};
use crate::bridge::stream::{Changes, Stream};
use crate::bridge::trust::TrustMachine;
use crate::bridge::wire::{self, Event};
use crate::feed::FeedReplicaId;

/// Follows a recording of `kvroute bridge --record` to its end, or to a point in it, and shows what is believed of
/// each replica, with every change of trust on the way.
///
/// kvroute replay engines.jsonl --until-ms 60000
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The recording
    file: PathBuf,
    /// Stop at this time, in milliseconds since its start
    #[arg(long, value_name = "MS")]
    until_ms: Option<u64>,
    /// Only this replica
    #[arg(long, value_name = "NAME")]
    replica: Option<String>,
    /// Print every event as a JSON line on the way
    #[arg(long)]
    events: bool,
    /// The blocks held at the end too (with --json)
    #[arg(long, requires = "json")]
    blocks: bool,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
}

struct Followed {
    spec: ReplicaSpec,
    rank: u32,
    stream: Stream,
    shown: Option<(&'static str, &'static str)>,
    /// When trust became what, and why.
    trust: Vec<(u64, &'static str, &'static str)>,
    last: u64,
}

impl Followed {
    fn new(spec: ReplicaSpec, rank: u32, number: usize, hash_seed: &str) -> Followed {
        let cache = CacheConfig {
            hash_seed: hash_seed.into(),
            model: spec.model.clone(),
            block_size: spec.block_size,
            ..CacheConfig::default()
        };
        let trust = TrustMachine::new(spec.kv.is_some() || spec.kv_bind.is_some(), 0);
        let stream = Stream::new(FeedReplicaId(number as u32), cache, trust);
        Followed { spec, rank, stream, shown: None, trust: Vec::new(), last: 0 }
    }

    fn look(&mut self, t: u64) {
        let (trust, reason) = self.stream.state(t);
        if self.shown.replace((trust.label(), reason)) != Some((trust.label(), reason)) {
            self.trust.push((t, trust.label(), reason));
        }
        self.last = t;
    }

    fn json(&self, blocks: bool) -> Value {
        let (stream, cache) = (&self.stream, self.stream.cache());
        let [gpu, cpu, disk, unconfirmed] = cache.held();
        let (trust, reason) = stream.state(self.last);
        let skipped: BTreeMap<_, _> = cache.skips().iter().map(|(s, n)| (s.label(), n)).collect();
        let counts = &stream.counts;
        let mut out = json!({
            "name": self.spec.name, "rank": self.rank, "model": self.spec.model, "block_size": cache.block_size(),
            "trust": trust.label(), "reason": reason,
            "seq": stream.cursor().next().and_then(|n| n.checked_sub(1)),
            "blocks": {"gpu": gpu, "cpu": cpu, "disk": disk}, "unconfirmed_blocks": unconfirmed,
            "orphan_runs": cache.orphans(), "capacity_blocks": stream.capacity,
            "messages": counts.messages, "events": counts.events, "gaps": counts.gaps,
            "gaps_lost": counts.gaps_lost, "restarts": counts.restarts, "duplicates": counts.duplicates,
            "replays": counts.replays, "skipped": skipped,
            "transitions": self.trust.iter().map(|(t, trust, reason)| json!([t, trust, reason])).collect::<Vec<_>>(),
        });
        if blocks {
            let mut held: Vec<_> = cache.blocks().map(|(hash, p)| (format!("{:016x}", hash.0), p.end)).collect();
            held.sort_unstable();
            out["held"] = json!(held);
        }
        out
    }
}

/// Runs the subcommand.
pub fn run(args: ReplayArgs) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let file = BufReader::new(File::open(&args.file).with_context(|| name.clone())?);
    let (mut seed, mut lost, mut end) = (String::new(), 0, 0);
    let mut streams: Vec<Followed> = Vec::new();
    for line in recording::read(file) {
        match line.map_err(|e| anyhow!("{name}: {e}"))? {
            Line::Recording { hash_seed, .. } => seed = hash_seed,
            Line::Replica { stream, spec, rank } if stream == streams.len() => {
                streams.push(Followed::new(spec, rank, stream, &seed));
            }
            Line::Replica { stream, .. } => bail!("{name}: stream {stream} out of turn"),
            Line::Lost { lines } => lost += lines,
            Line::Input { t, stream, input } => {
                if args.until_ms.is_some_and(|until| t > until) {
                    break;
                }
                end = t;
                let followed = streams.get_mut(stream).ok_or_else(|| anyhow!("{name}: no stream {stream}"))?;
                if args.events && args.replica.as_ref().is_none_or(|r| *r == followed.spec.name) {
                    show(t, followed, &input)?;
                }
                let mut changes = Changes::default();
                let taken = input.with(|input| followed.stream.take(input, t, &mut changes));
                taken.map_err(|e| anyhow!("{name}: {e}"))?;
                followed.look(t);
            }
        }
    }
    let wanted = |f: &&Followed| args.replica.as_ref().is_none_or(|r| *r == f.spec.name);
    let shown: Vec<&Followed> = streams.iter().filter(wanted).collect();
    if args.json {
        let replicas: Vec<Value> = shown.iter().map(|f| f.json(args.blocks)).collect();
        say!("{}", json!({"file": name, "milliseconds": end, "lost_lines": lost, "replicas": replicas}))?;
        return Ok(ExitCode::SUCCESS);
    }
    say!("{name}: {:.1} s of {} streams", end as f64 / 1e3, streams.len())?;
    if lost > 0 {
        say!("{lost} lines are missing: what follows them may differ from what the bridge believed")?;
    }
    let headers = ["replica", "trust", "seq", "messages", "blocks", "unconfirmed", "orphans", "gaps", "restarts"];
    let rows = shown.iter().map(|f| {
        let (stream, cache) = (&f.stream, f.stream.cache());
        let (trust, reason) = stream.state(f.last);
        let seq = stream.cursor().next().and_then(|n| n.checked_sub(1));
        vec![
            format!("{}/{}", f.spec.name, f.rank),
            format!("{} ({reason})", trust.label()),
            seq.map_or("-".into(), grouped),
            grouped(stream.counts.messages),
            grouped(cache.held().iter().sum()),
            grouped(cache.unconfirmed() as u64),
            grouped(cache.orphans() as u64),
            format!("{} ({} lost)", stream.counts.gaps + stream.counts.gaps_lost, stream.counts.gaps_lost),
            grouped(stream.counts.restarts),
        ]
    });
    say!("{}", table(&headers, 2, rows))?;
    for f in &shown {
        say!("\n{}/{}", f.spec.name, f.rank)?;
        for (t, trust, reason) in &f.trust {
            say!("  {:>10.3} s  {trust} ({reason})", *t as f64 / 1e3)?;
        }
        for (reason, n) in f.stream.cache().skips().iter() {
            say!("  left out: {} {}", grouped(n), reason.label())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(t: u64, followed: &Followed, input: &Noted) -> std::io::Result<()> {
    let who = json!({"t": t, "replica": followed.spec.name, "rank": followed.rank});
    let line = |more: Value| {
        let mut line = who.clone();
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more) {
            line.extend(more);
        }
        say!("{line}")
    };
    let message = |what: &str, seq: u64, payload: &[u8]| {
        let batch = wire::decode(payload);
        for event in &batch.events {
            line(match event {
                Event::Stored(s) => json!({
                    "input": what, "seq": seq, "event": "stored", "blocks": s.hashes.len(), "tokens": s.tokens.len(),
                    "parent": s.parent.map(|p| format!("{:016x}", p.0)), "group": s.group, "lora": s.lora,
                    "first": s.hashes.first().map(|h| format!("{:016x}", h.0)), "salted": s.salt.is_some(),
                }),
                Event::Removed(r) => json!({
                    "input": what, "seq": seq, "event": "removed", "group": r.group,
                    "hashes": r.hashes.iter().map(|h| format!("{:016x}", h.0)).collect::<Vec<_>>(),
                }),
                Event::Cleared => json!({"input": what, "seq": seq, "event": "cleared"}),
            })?;
        }
        for skip in &batch.skipped {
            line(json!({"input": what, "seq": seq, "skipped": skip.label()}))?;
        }
        Ok(())
    };
    use crate::bridge::stream::Input;
    let shown = input.with(|input| match input {
        Input::Live { seq, payload, .. } => message("live", seq, payload),
        Input::Replayed { seq, payload } => message("replayed", seq, payload),
        Input::Reading(_) => Ok(()),
        other => line(json!({"input": format!("{other:?}")})),
    });
    shown.unwrap_or_else(|error| line(json!({"error": error})))
}
