//! The mock's scheduler against recordings of real engines: the same requests, with the tokens that the engine
//! generated, must store, evict and reuse the same blocks.
//!
//! Blocks are compared by what they stand for (the chain of tokens and extra keys), not by their hashes. Requests
//! that were in flight together are submitted together; there the real batches depend on when each arrived, so
//! only totals are compared, and the differences are printed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use kvroute::mock::FreeOrder;
use kvroute::mock::events::{Encoder, Event, EventHash, ExtraKeys, HashForm, Wire};
use kvroute::mock::scheduler::{Limits, NewRequest, RequestId, Scheduler};
use serde_json::Value;

/// What an event did, engine-independent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fact {
    Cleared,
    Removed(u64),
    Stored(Vec<u64>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    stored: usize,
    removed: usize,
    cleared: usize,
    cached_tokens: u64,
}

impl Totals {
    fn count(&mut self, facts: &[Fact]) {
        for fact in facts {
            match fact {
                Fact::Cleared => self.cleared += 1,
                Fact::Removed(_) => self.removed += 1,
                Fact::Stored(blocks) => self.stored += blocks.len(),
            }
        }
    }
}

fn data() -> Option<PathBuf> {
    let root = std::env::var_os("KVROUTE_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from);
    let dir = root.join("kv-events");
    if !dir.is_dir() {
        eprintln!("SKIPPED: no recordings of engines at {} (set KVROUTE_DATA)", dir.display());
        return None;
    }
    Some(dir)
}

/// The identity of a block: everything that its content depends on.
fn identity(parent: Option<u64>, tokens: &[u64], keys: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(format!("{parent:?} {tokens:?} {keys}").as_bytes())
}

/// Follows the events of one engine and names its blocks by [`identity`].
#[derive(Default)]
struct Names(HashMap<String, u64>);

impl Names {
    fn stored(&mut self, hashes: Vec<String>, parent: Option<String>, tokens: &[u64], keys: &[String]) -> Fact {
        let mut parent = parent.map(|hash| self.0[&hash]);
        let size = tokens.len() / hashes.len();
        let mut names = Vec::new();
        for ((hash, block), keys) in hashes.into_iter().zip(tokens.chunks(size)).zip(keys) {
            let name = identity(parent, block, keys);
            self.0.insert(hash, name);
            names.push(name);
            parent = Some(name);
        }
        Fact::Stored(names)
    }

    fn real(&mut self, event: &Value) -> Fact {
        // An array event becomes a map first.
        let fields = ["type", "block_hashes", "parent_block_hash", "token_ids", "", "", "", "", "extra_keys"];
        let get = |name: &str| match event {
            Value::Array(parts) => &parts[fields.iter().position(|field| *field == name).unwrap()],
            map => &map[name],
        };
        let hashes = || get("block_hashes").as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
        match get("type").as_str().unwrap() {
            "AllBlocksCleared" => Fact::Cleared,
            "BlockRemoved" => {
                assert_eq!(hashes().len(), 1);
                Fact::Removed(self.0[&hashes()[0]])
            }
            "BlockStored" => {
                let parent = Some(get("parent_block_hash")).filter(|parent| !parent.is_null());
                let tokens: Vec<u64> = get("token_ids").as_array().unwrap().iter().flat_map(Value::as_u64).collect();
                let keys: Vec<String> = get("extra_keys").as_array().unwrap().iter().map(Value::to_string).collect();
                self.stored(hashes(), parent.map(Value::to_string), &tokens, &keys)
            }
            other => panic!("unknown event {other}"),
        }
    }

    fn mock(&mut self, event: &Event) -> Fact {
        let text = |hash: &EventHash| hash.0.to_string();
        match event {
            Event::Cleared => Fact::Cleared,
            Event::Removed { hash } => Fact::Removed(self.0[&text(hash)]),
            Event::Stored { hashes, parent, first_block, tokens, extra, .. } => {
                let tokens: Vec<u64> = tokens.iter().map(|token| u64::from(*token)).collect();
                let keys = |index: usize| match extra.of_block(*first_block + index) {
                    keys if keys.is_empty() => "null".to_owned(),
                    keys => Value::from(keys).to_string(),
                };
                let keys: Vec<String> = (0..hashes.len()).map(keys).collect();
                self.stored(hashes.iter().map(text).collect(), parent.as_ref().map(text), &tokens, &keys)
            }
        }
    }
}

struct Scenario {
    name: String,
    json: Value,
}

fn scenarios(dir: &Path) -> Vec<Scenario> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(|c: char| c.is_ascii_digit()));
    files.sort();
    files
        .into_iter()
        .map(|path| Scenario {
            name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
            json: serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(),
        })
        .collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The engine requests of one call: a list of prompts and `n` both make several.
fn requests(call: &Value) -> Vec<NewRequest> {
    let (request, response) = (&call["request"], &call["response"]);
    let prompts = match &call["render_token_ids"] {
        Value::Array(list) if list.first().is_some_and(Value::is_array) => list.iter().map(ids).collect(),
        list => vec![ids(list)],
    };
    let mut outputs: Vec<Vec<u32>> = Vec::new();
    for choice in response["choices"].as_array().into_iter().flatten() {
        // Recorded for chats; elsewhere the number has to do, and the tail block then has other tokens.
        match &choice["token_ids"] {
            Value::Array(_) => outputs.push(ids(&choice["token_ids"])),
            _ => outputs.push(vec![0; request["max_tokens"].as_u64().unwrap() as usize]),
        }
    }
    if outputs.is_empty() {
        let count = response["usage"]["output_tokens"].as_u64().unwrap();
        outputs.push(vec![0; count as usize]);
    }
    let per_prompt = outputs.len() / prompts.len();
    outputs
        .into_iter()
        .enumerate()
        .map(|(i, output)| NewRequest {
            prompt: prompts[i / per_prompt].clone(),
            output,
            extra: ExtraKeys { lora: None, cache_salt: request["cache_salt"].as_str().map(str::to_owned) },
            hashes: Vec::new(),
            session_id: None,
            report_reused: request["vllm_xargs"]["kv_cache_report_mode"] == "full",
        })
        .collect()
}

/// Cached prompt tokens as the call reported them.
fn reported_cached(call: &Value) -> u64 {
    let usage = &call["response"]["usage"];
    [
        &usage["prompt_tokens_details"]["cached_tokens"],
        &usage["input_tokens_details"]["cached_tokens"],
        &usage["cache_read_input_tokens"],
    ]
    .into_iter()
    .find_map(Value::as_u64)
    .unwrap_or(0)
}

/// Replays the recordings of one engine process, directory after directory; the names of scenarios that differ.
fn replay(dirs: &[&str], limits: Limits) -> Option<Vec<String>> {
    let data = data()?;
    let mut scheduler = Scheduler::new(limits);
    let (mut real_names, mut mock_names) = (Names::default(), Names::default());
    let (mut real_sum, mut mock_sum) = (Totals::default(), Totals::default());
    let mut different = Vec::new();
    for scenario in dirs.iter().flat_map(|dir| scenarios(&data.join(dir))) {
        let mut real = Totals::default();
        let mut real_batches = Vec::new();
        for frame in scenario.json["frames"].as_array().unwrap() {
            let events = frame["decoded"][1].as_array().unwrap();
            let facts: Vec<Fact> = events.iter().map(|event| real_names.real(event)).collect();
            real.count(&facts);
            real_batches.push(facts);
        }

        let mut mock = Totals::default();
        let mut mock_batches: Vec<Vec<Fact>> = Vec::new();
        let calls: Vec<&Value> = scenario.json["calls"].as_array().unwrap().iter().collect();
        let mut last_of_call: Vec<RequestId> = Vec::new();
        for call in &calls {
            if call["path"] == "/reset_prefix_cache" {
                assert!(scheduler.reset_cache());
            } else if call["status"] == 200 {
                real.cached_tokens += reported_cached(call);
                let submitted = requests(call).into_iter().map(|new| scheduler.submit(new).unwrap());
                // A call reports the cached tokens of its last request.
                last_of_call.extend(submitted.last());
            }
        }
        let mut steps = 0;
        while let Some(step) = scheduler.schedule() {
            steps += 1;
            for sampled in scheduler.finish(step).into_iter().filter(|sampled| sampled.last) {
                if last_of_call.contains(&sampled.id) {
                    mock.cached_tokens += sampled.cached_tokens as u64;
                }
            }
            let facts: Vec<Fact> = scheduler.take_events().iter().map(|event| mock_names.mock(event)).collect();
            mock.count(&facts);
            if !facts.is_empty() {
                mock_batches.push(facts);
            }
        }

        let flat = |batches: &[Vec<Fact>]| batches.iter().flatten().cloned().collect::<Vec<_>>();
        let verdict = if real != mock {
            "DIFFERENT"
        } else if real_batches == mock_batches {
            "same batches"
        } else if flat(&real_batches) == flat(&mock_batches) {
            "same events, other batches"
        } else {
            "same totals"
        };
        let (calls, batches) = (calls.len(), (real_batches.len(), mock_batches.len()));
        eprintln!("{:<48} {verdict}; calls {calls}, steps {steps}, batches {batches:?}", scenario.name);
        if verdict == "DIFFERENT" {
            eprintln!("    engine {real:?}\n    mock   {mock:?}");
            different.push(scenario.name);
        } else if calls == 1 && verdict == "same totals" {
            different.push(format!("{} (order)", scenario.name));
        }
        for (sum, part) in [(&mut real_sum, real), (&mut mock_sum, mock)] {
            sum.stored += part.stored;
            sum.removed += part.removed;
            sum.cleared += part.cleared;
            sum.cached_tokens += part.cached_tokens;
        }
    }
    eprintln!("total engine {real_sum:?}\ntotal mock   {mock_sum:?}");
    Some(different)
}

fn limits(block_size: u32, blocks: u32, free_order: FreeOrder) -> Limits {
    Limits { block_size, blocks, max_batch: 128, step_tokens: 2048, free_order }
}

#[test]
fn vllm_0_32_with_room() {
    let different = replay(&["qwen3-bs32-int"], limits(32, 10_000, FreeOrder::EmptyFirst));
    assert_eq!(different.unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn vllm_0_32_evicting() {
    let different = replay(&["qwen3-bs32-bytes-cbor-evict"], limits(32, 100, FreeOrder::EmptyFirst));
    assert_eq!(different.unwrap_or_default(), Vec::<String>::new());
}

#[test]
fn vllm_0_22_evicting() {
    let dirs = ["qwen3-bs16-int-cbor-vllm0.22.1-array", "qwen3-bs16-int-cbor-vllm0.22.1-array-evict"];
    let different = replay(&dirs, limits(16, 220, FreeOrder::Append));
    assert_eq!(different.unwrap_or_default(), Vec::<String>::new());
}

/// The mock's event for a recorded one, with the engine's own hashes; `None` for forms that it does not write.
fn rebuilt(event: &Value) -> Option<Event> {
    let fields: [&str; 9] = ["type", "block_hashes", "parent_block_hash", "token_ids", "", "", "", "", "extra_keys"];
    let get = |name: &str| match event {
        Value::Array(parts) => &parts[fields.iter().position(|field| *field == name).unwrap()],
        map => &map[name],
    };
    let hashes = || get("block_hashes").as_array().unwrap().iter().map(|hash| EventHash(hash.as_u64().unwrap()));
    Some(match get("type").as_str()? {
        "AllBlocksCleared" => Event::Cleared,
        "BlockRemoved" => Event::Removed { hash: hashes().next()? },
        _ => {
            let parent = get("parent_block_hash").as_u64().map(EventHash);
            Event::Stored {
                hashes: hashes().collect(),
                parent,
                first_block: usize::from(parent.is_some()),
                tokens: ids(get("token_ids")),
                extra: ExtraKeys { lora: None, cache_salt: get("extra_keys")[0][0].as_str().map(str::to_owned) },
                session_id: event["session_id"].as_str().map(str::to_owned),
            }
        }
    })
}

#[test]
fn events_have_the_bytes_of_the_engine() {
    let Some(data) = data() else { return };
    for (dir, wire, block_size) in
        [("qwen3-bs32-int", Wire::Map, 32), ("qwen3-bs16-int-cbor-vllm0.22.1-array-evict", Wire::Array, 16)]
    {
        let encoder = Encoder { wire, hashes: HashForm::Int, block_size, rank: 0 };
        let mut frames = 0;
        for scenario in scenarios(&data.join(dir)) {
            for frame in scenario.json["frames"].as_array().unwrap() {
                let decoded = &frame["decoded"];
                let events: Option<Vec<Event>> = decoded[1].as_array().unwrap().iter().map(rebuilt).collect();
                let recorded = base64::engine::general_purpose::STANDARD.decode(frame["payload_b64"].as_str().unwrap());
                let recorded = recorded.unwrap();
                // The JSON of the recording may be off by the last bit.
                let time = f64::from_be_bytes(recorded[2..10].try_into().unwrap());
                assert!(encoder.batch(time, &events.unwrap()) == recorded, "{dir} {}: other bytes", scenario.name);
                frames += 1;
            }
        }
        assert!(frames > 20);
        eprintln!("{dir}: {frames} frames byte for byte");
    }
}
