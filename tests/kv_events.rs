//! The bridge against recordings of real engines: what it tells the workers equals an oracle that keeps every
//! event, after every prefix of the frames and with any frame lost and replayed; and the match that follows for the
//! next request equals the `cached_tokens` that the engine reported.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use base64::Engine;
use kvroute::blocks::{BlockHash, Chain, namespace};
use kvroute::bridge::cache::CacheConfig;
use kvroute::bridge::stream::{Changes, Step, Stream};
use kvroute::bridge::trust::TrustMachine;
use kvroute::feed::FeedReplicaId;
use kvroute::feed::record::{Record, Tier, Trust};
use rmpv::Value as Msgpack;
use serde_json::Value;

const ID: FeedReplicaId = FeedReplicaId(3);
const MODEL: &str = "m";

/// Blocks and whether a hit may end there.
type Held = BTreeMap<BlockHash, bool>;

struct Frame {
    seq: u64,
    payload: Vec<u8>,
}

struct Scenario {
    name: String,
    calls: Vec<Value>,
    frames: Vec<Frame>,
}

fn data() -> Option<PathBuf> {
    let root = std::env::var("KVROUTE_DATA").unwrap_or_else(|_| "../shared/data".into());
    let path = Path::new(&root).join("kv-events");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("SKIPPED: no recordings at {}: set KVROUTE_DATA", path.display());
    None
}

fn scenarios(config: &Path) -> Vec<Scenario> {
    let mut files: Vec<_> = std::fs::read_dir(config).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.file_name().unwrap().to_str().unwrap().starts_with(|c: char| c.is_ascii_digit()));
    files.sort();
    let read = |file: &PathBuf| {
        let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let frames = json["frames"].as_array().unwrap().iter().map(|f| Frame {
            seq: u64::from_str_radix(f["seq_hex"].as_str().unwrap(), 16).unwrap(),
            payload: base64::prelude::BASE64_STANDARD.decode(f["payload_b64"].as_str().unwrap()).unwrap(),
        });
        Scenario {
            name: json["scenario"].as_str().unwrap().to_owned(),
            frames: frames.collect(),
            calls: json["calls"].as_array_mut().unwrap().drain(..).collect(),
        }
    };
    files.iter().map(read).collect()
}

/// What a worker knows after applying the records.
#[derive(Default)]
struct Worker {
    held: Held,
    /// From before a gap, and not confirmed since.
    perhaps: BTreeSet<BlockHash>,
}

impl Worker {
    fn apply(&mut self, records: &[Record]) {
        for record in records {
            match record {
                Record::Stored { tier: Tier::Gpu, ends, hashes, .. } => {
                    for (i, hash) in hashes.iter().enumerate() {
                        let end = ends.is_empty() || ends[i / 8] >> (i % 8) & 1 == 1;
                        self.held.insert(*hash, end);
                    }
                }
                Record::Removed { tier: Tier::Gpu, hashes, .. } => {
                    hashes.iter().for_each(|h| assert!(self.held.remove(h).is_some(), "removed without need"));
                }
                Record::Stored { tier: Tier::Unconfirmed, hashes, .. } => self.perhaps.extend(hashes),
                Record::Removed { tier: Tier::Unconfirmed, hashes, .. } => {
                    hashes.iter().for_each(|h| assert!(self.perhaps.remove(h), "removed without need"));
                }
                Record::Cleared(_) => {
                    self.held.clear();
                    self.perhaps.clear();
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Tokens that a prompt finds here.
    fn matched(&self, prompt: &[u32], salt: Option<&str>, block_size: usize) -> usize {
        let mut hashes = Vec::new();
        Chain::new(namespace("", MODEL, None, salt), block_size as u32).extend(prompt, &mut hashes);
        let cap = prompt.len().saturating_sub(1) / block_size;
        let held = hashes.iter().take(cap).map_while(|h| self.held.get(h));
        held.enumerate().filter(|(_, end)| **end).map(|(i, _)| (i + 1) * block_size).last().unwrap_or(0)
    }
}

/// Keeps every event in the plainest form: per group and engine hash a count, per engine hash all its tokens.
#[derive(Default)]
struct Oracle {
    counts: HashMap<(u64, Vec<u8>), i64>,
    /// Salt and all tokens from the start.
    prefixes: HashMap<Vec<u8>, (Option<String>, Vec<u32>)>,
    windows: BTreeMap<u64, Option<u64>>,
    block_size: usize,
}

impl Oracle {
    fn apply(&mut self, payload: &[u8]) {
        let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
        // Groups announce the tokens of a range one after another, the one that names every block not always first.
        let events: Vec<_> = batch[1].as_array().unwrap().iter().map(fields).collect();
        for event in &events {
            match event["type"].as_str().unwrap() {
                "AllBlocksCleared" => {
                    self.counts.clear();
                    self.prefixes.clear();
                }
                "BlockStored" => self.stored(event),
                "BlockRemoved" => {
                    for hash in event["block_hashes"].as_array().unwrap() {
                        *self.counts.get_mut(&(number(event, "group_idx").unwrap_or(0), name(hash))).unwrap() -= 1;
                    }
                }
                other => panic!("{other}"),
            }
        }
    }

    fn stored(&mut self, event: &HashMap<String, Msgpack>) {
        let group = number(event, "group_idx").unwrap_or(0);
        self.windows.insert(group, number(event, "kv_cache_spec_sliding_window"));
        let hashes: Vec<_> = event["block_hashes"].as_array().unwrap().iter().map(name).collect();
        let tokens: Vec<u32> =
            event["token_ids"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        self.block_size = number(event, "block_size").unwrap() as usize;
        if tokens.len() == hashes.len() * self.block_size {
            let (salt, mut prefix) = match event.get("parent_block_hash").filter(|p| !p.is_nil()) {
                Some(parent) => self.prefixes[&name(parent)].clone(),
                None => {
                    let keys = event.get("extra_keys").and_then(|k| k.as_array()).and_then(|k| k[0].as_array());
                    (keys.map(|k| k[0].as_str().unwrap().to_owned()), Vec::new())
                }
            };
            for (hash, block) in hashes.iter().zip(tokens.chunks(self.block_size)) {
                prefix.extend(block);
                self.prefixes.insert(hash.clone(), (salt.clone(), prefix.clone()));
            }
        }
        for hash in hashes {
            *self.counts.entry((group, hash)).or_default() += 1;
        }
    }

    fn held(&self) -> Held {
        let by_prefix: HashMap<_, _> = self.prefixes.iter().map(|(hash, prefix)| (prefix, hash)).collect();
        let holds = |group: u64, hash: &Vec<u8>| self.counts.get(&(group, hash.clone())).is_some_and(|c| *c > 0);
        let mut out = Held::new();
        for (hash, (salt, prefix)) in &self.prefixes {
            let full: Vec<_> = self.windows.iter().filter(|(_, w)| w.is_none()).map(|(g, _)| *g).collect();
            if full.is_empty() || !full.iter().all(|g| holds(*g, hash)) {
                continue;
            }
            let blocks = prefix.len() / self.block_size;
            let end = self.windows.iter().filter_map(|(g, w)| Some((g, (*w)?))).all(|(group, window)| {
                let need = blocks.min((window as usize - 1).div_ceil(self.block_size));
                (0..need).all(|back| {
                    let shorter = prefix[..prefix.len() - back * self.block_size].to_vec();
                    by_prefix.get(&(salt.clone(), shorter)).is_some_and(|hash| holds(*group, hash))
                })
            });
            let mut hashes = Vec::new();
            let root = namespace("", MODEL, None, salt.as_deref());
            Chain::new(root, self.block_size as u32).extend(prefix, &mut hashes);
            out.insert(*hashes.last().unwrap(), end);
        }
        out
    }
}

/// An event's fields by name, whichever form it has.
fn fields(event: &Msgpack) -> HashMap<String, Msgpack> {
    if let Some(map) = event.as_map() {
        return map.iter().map(|(k, v)| (k.as_str().unwrap().to_owned(), v.clone())).collect();
    }
    let names: &[&str] = match event[0].as_str().unwrap() {
        "BlockStored" => &[
            "type",
            "block_hashes",
            "parent_block_hash",
            "token_ids",
            "block_size",
            "lora_id",
            "medium",
            "lora_name",
            "extra_keys",
            "group_idx",
            "kv_cache_spec_kind",
            "kv_cache_spec_sliding_window",
        ],
        "BlockRemoved" => &["type", "block_hashes", "medium", "group_idx"],
        _ => &["type"],
    };
    names.iter().map(|n| (*n).to_owned()).zip(event.as_array().unwrap().iter().cloned()).collect()
}

fn number(event: &HashMap<String, Msgpack>, name: &str) -> Option<u64> {
    event.get(name).and_then(Msgpack::as_u64)
}

fn name(hash: &Msgpack) -> Vec<u8> {
    match hash.as_slice() {
        Some(bytes) => bytes.to_vec(),
        None => hash.as_u64().unwrap().to_be_bytes().to_vec(),
    }
}

fn stream() -> Stream {
    let config = CacheConfig { model: MODEL.into(), ..CacheConfig::default() };
    Stream::new(ID, config, TrustMachine::new(true, 0))
}

fn feed(stream: &mut Stream, worker: &mut Worker, frame: &Frame) {
    let mut changes = Changes::default();
    assert_eq!(stream.live(frame.seq, &frame.payload, false, &mut changes), Step::Done);
    worker.apply(&changes.records);
}

struct Checks<'a> {
    config: &'a str,
    done: usize,
    failed: Vec<String>,
}

impl Checks<'_> {
    fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        self.done += 1;
        if !ok {
            self.failed.push(what());
        }
    }

    fn report(self) {
        println!("kv-events {}: {} checks, {} failed", self.config, self.done, self.failed.len());
        self.failed.iter().take(20).for_each(|f| println!("  {f}"));
        assert!(self.failed.is_empty());
    }
}

/// Prompt, salt and cached tokens of a call for which they must agree.
fn comparable(call: &Value) -> Option<(Vec<u32>, Option<String>, usize)> {
    let (request, usage) = (&call["request"], &call["response"]["usage"]);
    if call["status"] != 200 || request["n"].as_u64().is_some_and(|n| n > 1) || !usage.is_object() {
        return None;
    }
    let tokens = call["render_token_ids"].as_array()?;
    let tokens = match tokens.as_slice() {
        [one] if one.is_array() => one.as_array()?.clone(),
        [first, ..] if first.is_array() => return None,
        _ => tokens.clone(),
    };
    let prompt: Vec<u32> = tokens.iter().map(|t| t.as_u64().unwrap() as u32).collect();
    let details = ["prompt_tokens_details", "input_tokens_details"].iter().find_map(|d| usage.get(*d));
    let cached = match details {
        // vLLM 0.22 leaves the details out on a miss.
        Some(details) => details["cached_tokens"].as_u64().unwrap_or(0),
        None => usage["cache_read_input_tokens"].as_u64()?,
    };
    Some((prompt, request["cache_salt"].as_str().map(str::to_owned), cached as usize))
}

fn run(config: &str) {
    let Some(root) = data() else { return };
    let mut checks = Checks { config, done: 0, failed: Vec::new() };
    let scenarios = scenarios(&root.join(config));
    let (mut stream, mut worker, mut oracle) = (stream(), Worker::default(), Oracle::default());
    let mut after_reset = false;
    let mut compared = 0;
    for scenario in &scenarios {
        let sequential = scenario.calls.len() == 1;
        let call = &scenario.calls[0];
        if call["path"] == "/reset_prefix_cache" {
            after_reset = true;
        } else if let Some((prompt, salt, cached)) = comparable(call).filter(|_| sequential) {
            // After a reset the engine says so with its next event, which this request brings.
            if !std::mem::take(&mut after_reset) && oracle.block_size > 0 {
                let matched = worker.matched(&prompt, salt.as_deref(), oracle.block_size);
                compared += 1;
                checks.check(matched == cached, || format!("{}: matched {matched}, cached {cached}", scenario.name));
            }
        } else {
            after_reset = false;
        }
        for frame in &scenario.frames {
            feed(&mut stream, &mut worker, frame);
            oracle.apply(&frame.payload);
            let expected = oracle.held();
            checks.check(worker.held == expected, || {
                difference(&format!("{} frame {}", scenario.name, frame.seq), &worker.held, &expected)
            });
            let mut known: BTreeSet<_> = stream.cache().blocks().map(|(h, p)| (h, p.end)).collect();
            known.retain(|(hash, end)| expected.get(hash) != Some(end));
            checks.check(known.is_empty(), || format!("{}: {} more in the cache", scenario.name, known.len()));
        }
    }
    println!("kv-events {config}: cached_tokens compared for {compared} calls");
    let skipped: Vec<_> = stream.cache().skips().iter().map(|(s, n)| (s.label(), n)).collect();
    checks.check(skipped.is_empty(), || format!("skipped: {skipped:?}"));
    lost_and_replayed(&mut checks, &scenarios, &worker.held);
    lost_for_good(&mut checks, &scenarios);
    checks.report();
}

fn difference(what: &str, got: &Held, expected: &Held) -> String {
    let more = got.keys().filter(|h| !expected.contains_key(h)).count();
    let less = expected.keys().filter(|h| !got.contains_key(h)).count();
    let ends = got.iter().filter(|(h, e)| expected.get(h).is_some_and(|x| x != *e)).count();
    format!("{what}: {more} too many, {less} missing, {ends} other ends")
}

/// Each frame lost alone, then asked for again; the end must be the same, and exact.
fn lost_and_replayed(checks: &mut Checks<'_>, scenarios: &[Scenario], expected: &Held) {
    let frames: Vec<&Frame> = scenarios.iter().flat_map(|s| &s.frames).collect();
    for lost in 1..frames.len().saturating_sub(1) {
        let (mut stream, mut worker) = (stream(), Worker::default());
        for (i, frame) in frames.iter().enumerate().filter(|(i, _)| *i != lost) {
            let mut changes = Changes::default();
            let step = stream.live(frame.seq, &frame.payload, i > 0, &mut changes);
            if let Step::Replay(from) = step {
                checks.check(i == lost + 1, || format!("asks for a replay at {i}"));
                stream.replay_begins();
                for again in frames.iter().filter(|f| f.seq >= from) {
                    assert_eq!(stream.replayed(again.seq, &again.payload, &mut changes), Step::Done);
                }
                assert_eq!(stream.replay_ends(true, &mut changes), Step::Done);
                stream.live(frame.seq, &frame.payload, false, &mut changes);
            }
            worker.apply(&changes.records);
        }
        checks.check(worker.held == *expected, || difference(&format!("frame {lost} lost"), &worker.held, expected));
        if frames[0].seq == 0 {
            checks.check(stream.state(0).0 == Trust::Exact, || format!("frame {lost} lost: {:?}", stream.state(0)));
        }
    }
}

/// Each frame lost and not to be had again: nothing is called confirmed that the engine does not hold, and after the
/// engine cleared its cache both agree again.
fn lost_for_good(checks: &mut Checks<'_>, scenarios: &[Scenario]) {
    let frames: Vec<&Frame> = scenarios.iter().flat_map(|s| &s.frames).collect();
    for lost in 1..frames.len().saturating_sub(1) {
        let (mut stream, mut worker, mut oracle) = (stream(), Worker::default(), Oracle::default());
        let mut cleared_since = false;
        for (i, frame) in frames.iter().enumerate() {
            let batch = rmpv::decode::read_value(&mut &frame.payload[..]).unwrap();
            let clears =
                batch[1].as_array().unwrap().iter().any(|e| fields(e)["type"].as_str() == Some("AllBlocksCleared"));
            oracle.apply(&frame.payload);
            if i == lost {
                continue;
            }
            feed(&mut stream, &mut worker, frame);
            cleared_since |= i > lost && clears;
            if cleared_since {
                let expected = oracle.held();
                checks.check(worker.held == expected, || {
                    difference(&format!("frame {lost} lost for good, at {i}"), &worker.held, &expected)
                });
            } else if i > lost {
                let expected = oracle.held();
                let wrong = worker.held.keys().filter(|h| !expected.contains_key(h)).count();
                checks.check(wrong == 0, || format!("frame {lost} lost for good, at {i}: {wrong} confirmed, not held"));
                checks.check(stream.state(0).0 != Trust::Exact, || format!("frame {lost} lost, yet exact"));
            }
        }
    }
}

macro_rules! configs {
    ($($test:ident = $config:literal,)*) => { $(#[test] fn $test() { run($config); })* };
}

configs! {
    qwen3_int = "qwen3-bs32-int",
    qwen3_bytes_evict = "qwen3-bs32-bytes-cbor-evict",
    qwen3_array = "qwen3-bs16-int-cbor-vllm0.22.1-array",
    qwen3_array_evict = "qwen3-bs16-int-cbor-vllm0.22.1-array-evict",
    gemma3_hybrid = "gemma3-hybrid-bs32-int",
    gemma3_hybrid_branch = "gemma3-hybrid-branch-bs32",
    deepseek_mla = "deepseek-mla-bs16-int",
}
