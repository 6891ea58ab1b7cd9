//! What an engine's socket brings: bytes of any kind as the payload of a message.
//!
//! Nothing panics; the memory of a decoded batch is bounded by its bytes; and a stream that took it in takes in the
//! next sound message, while the stream beside it does not change.

#![no_main]

use kvroute::bridge::cache::CacheConfig;
use kvroute::bridge::stream::{Changes, Stream};
use kvroute::bridge::trust::TrustMachine;
use kvroute::bridge::wire::{self, Event};
use kvroute::feed::FeedReplicaId;
use libfuzzer_sys::fuzz_target;

/// `[1.0, [["AllBlocksCleared"]], 0]`
const CLEARED: &[u8] = b"\x93\xcb\x3f\xf0\0\0\0\0\0\0\x91\x91\xb0AllBlocksCleared\x00";

fn stream(id: u32) -> Stream {
    let config = CacheConfig { model: "m".into(), ..CacheConfig::default() };
    Stream::new(FeedReplicaId(id), config, TrustMachine::new(true, 0))
}

fuzz_target!(|data: &[u8]| {
    let batch = wire::decode(data);
    let hashes: usize = batch
        .events
        .iter()
        .map(|event| match event {
            Event::Stored(stored) => stored.hashes.len() + stored.tokens.len(),
            Event::Removed(removed) => removed.hashes.len(),
            Event::Cleared => 1,
        })
        .sum();
    assert!(hashes + batch.skipped.len() <= data.len() + 1);

    let (mut one, mut other) = (stream(1), stream(2));
    let mut changes = Changes::default();
    other.live(0, CLEARED, false, &mut changes);
    let before = format!("{:?}", other.cache().held());
    // The input is several messages, if it says so by a byte that MessagePack never uses.
    for (seq, part) in data.split(|byte| *byte == 0xc1).enumerate() {
        one.live(seq as u64, part, false, &mut changes);
    }
    assert_eq!(format!("{:?}", other.cache().held()), before);
    let next = data.split(|byte| *byte == 0xc1).count() as u64;
    let messages = one.counts.messages;
    one.live(next, CLEARED, false, &mut changes);
    assert_eq!(one.counts.messages, messages + 1);
    assert!(one.cache().held().iter().all(|held| *held == 0));
});
