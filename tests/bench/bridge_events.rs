//! How fast the bridge takes events: decoded, hashed, encoded, on one core.
//!
//! `cargo bench --profile native --bench bridge_events [-- BLOCKS]`

use std::time::{Duration, Instant};

use kvroute::bridge::cache::CacheConfig;
use kvroute::bridge::hub::{Hub, Next, Place};
use kvroute::bridge::stream::{Changes, Step, Stream};
use kvroute::bridge::trust::TrustMachine;
use kvroute::bridge::wire;
use kvroute::feed::record::{ReplicaInfo, Trust};
use rmpv::Value;

/// Blocks in one prompt, and prompts held until the oldest is removed.
const PROMPT: u64 = 128;
const BATCH: u64 = 4;

fn payload(n: u64, block_size: u32, held: u64) -> Vec<u8> {
    let mut events = Vec::new();
    for prompt in n * BATCH..(n + 1) * BATCH {
        if prompt >= held {
            for block in 0..PROMPT {
                events.push(map(vec![
                    ("type", "BlockRemoved".into()),
                    ("block_hashes", Value::Array(vec![hash(prompt - held, block)])),
                    ("medium", "GPU".into()),
                    ("group_idx", 0.into()),
                ]));
            }
        }
        let tokens = (0..PROMPT * u64::from(block_size)).map(|t| ((prompt * 7919 + t * 31) % 150_000).into());
        events.push(map(vec![
            ("type", "BlockStored".into()),
            ("block_hashes", Value::Array((0..PROMPT).map(|b| hash(prompt, b)).collect())),
            ("parent_block_hash", Value::Nil),
            ("token_ids", Value::Array(tokens.collect())),
            ("block_size", block_size.into()),
            ("lora_id", Value::Nil),
            ("medium", "GPU".into()),
            ("lora_name", Value::Nil),
            ("group_idx", 0.into()),
            ("kv_cache_spec_kind", "full_attention".into()),
        ]));
    }
    let mut out = Vec::new();
    let batch = Value::Array(vec![1.5.into(), Value::Array(events), 0.into()]);
    rmpv::encode::write_value(&mut out, &batch).unwrap();
    out
}

fn map(pairs: Vec<(&str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn hash(prompt: u64, block: u64) -> Value {
    (prompt * PROMPT + block).wrapping_mul(0x9E37_79B9_7F4A_7C15).into()
}

fn main() {
    let blocks: u64 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(2_000_000);
    for block_size in [16, 32] {
        run(blocks, block_size);
    }
}

fn run(blocks: u64, block_size: u32) {
    let batches = blocks / PROMPT / BATCH;
    // Half of all is held in the end, so that the other half is removed.
    let held = blocks / PROMPT / 2;
    let hub = Hub::new(64 << 20);
    let id = hub.reserve();
    let (address, model) = ("10.0.0.1:8000".to_owned(), "m".to_owned());
    hub.replica(ReplicaInfo {
        id,
        address,
        model,
        block_size,
        rank: 0,
        capacity_blocks: 0,
        trust: Trust::Exact,
        ..ReplicaInfo::default()
    });
    let config = CacheConfig { model: "m".into(), ..CacheConfig::default() };
    let mut stream = Stream::new(id, config, TrustMachine::new(true, 0));
    let mut place = Place::default();
    let [mut decode, mut index, mut encode] = [Duration::ZERO; 3];
    let mut sent = 0usize;
    for n in 0..batches {
        let payload = payload(n, block_size, held);
        let begun = Instant::now();
        std::hint::black_box(wire::decode(&payload));
        decode += begun.elapsed();
        let begun = Instant::now();
        let mut changes = Changes::default();
        assert_eq!(stream.live(n, &payload, false, &mut changes), Step::Done);
        index += begun.elapsed();
        let begun = Instant::now();
        hub.publish(changes.records, &changes.wiped);
        while let Next::Send(frame) = hub.next(&mut place) {
            sent += frame.bytes.len();
            place.advance();
        }
        encode += begun.elapsed();
    }
    assert!(stream.cache().skips().iter().next().is_none());
    assert_eq!(stream.cache().held()[0], held * PROMPT);
    let rate = |time: Duration| blocks as f64 / time.as_secs_f64() / 1e6;
    println!(
        "block size {block_size}: {blocks} blocks stored, {} removed; million stored blocks a second: decode alone \
         {:.2}; decode, hash and count {:.2}; snapshot state and frames {:.2}; all {:.2}; {:.1} MB of frames",
        blocks - held * PROMPT,
        rate(decode),
        rate(index),
        rate(encode),
        rate(index + encode),
        sent as f64 / 1e6
    );
}
