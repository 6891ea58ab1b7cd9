//! Every shape by hand, then arbitrary bytes.

use proptest::prelude::*;
use rmpv::Value;

use super::*;

fn bytes(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    rmpv::encode::write_value(&mut out, value).unwrap();
    out
}

fn text(s: &str) -> Value {
    s.into()
}

fn array(items: Vec<Value>) -> Value {
    Value::Array(items)
}

fn map(pairs: Vec<(&str, Value)>) -> Value {
    Value::Map(pairs.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn ints(range: std::ops::Range<u64>) -> Value {
    array(range.map(Value::from).collect())
}

fn batch(events: Vec<Value>) -> EngineBatch {
    decode(&bytes(&array(vec![1.5.into(), array(events), 0.into()])))
}

/// The one event of a batch of one, nothing skipped.
fn one(event: Value) -> Event {
    let batch = batch(vec![event]);
    assert_eq!(batch.skipped, []);
    assert_eq!(batch.events.len(), 1);
    batch.events.into_iter().next().unwrap()
}

fn stored(event: Value) -> Stored {
    match one(event) {
        Event::Stored(stored) => stored,
        other => panic!("{other:?}"),
    }
}

fn plain() -> Stored {
    Stored {
        hashes: vec![EngineHash(7), EngineHash(u64::MAX)],
        parent: Some(EngineHash(6)),
        tokens: (0..8).collect(),
        block_size: 4,
        ..Stored::default()
    }
}

/// The first five fields, in the order of arrays.
fn core() -> Vec<Value> {
    vec![text("BlockStored"), array(vec![7.into(), u64::MAX.into()]), 6.into(), ints(0..8), 4.into()]
}

fn with(more: Vec<Value>) -> Value {
    array(core().into_iter().chain(more).collect())
}

fn core_map(more: Vec<(&str, Value)>) -> Value {
    let names = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size"];
    map(names.into_iter().zip(core()).chain(more).collect())
}

const NIL: Value = Value::Nil;

#[test]
fn arrays_from_vllm_0_10_to_0_23() {
    assert_eq!(stored(with(vec![])), plain());
    assert_eq!(stored(with(vec![NIL])), plain(), "0.10");
    let gpu = Stored { tier: Some(Tier::Gpu), ..plain() };
    assert_eq!(stored(with(vec![NIL, text("GPU")])), gpu, "0.11");
    assert_eq!(stored(with(vec![NIL, text("GPU"), NIL])), gpu, "0.16");
    let lora = Stored { lora: Some("a".into()), ..gpu.clone() };
    assert_eq!(stored(with(vec![1.into(), text("GPU"), text("a")])), lora);
    let keys = array(vec![array(vec![text("a")]), array(vec![text("a")])]);
    assert_eq!(stored(with(vec![1.into(), text("GPU"), text("a"), keys])), lora, "0.19");
    let window = Stored { group: 3, kind: GroupKind::Sliding(128), ..gpu.clone() };
    let tail = vec![NIL, text("GPU"), NIL, NIL, 3.into(), text("sliding_window"), 128.into()];
    assert_eq!(stored(with(tail.clone())), window, "0.22");
    let longer: Vec<Value> = tail.into_iter().chain([map(vec![("new", 1.into())]), text("newer")]).collect();
    assert_eq!(stored(with(longer)), window, "longer than known");
    let full = Stored { kind: GroupKind::Full, ..gpu };
    assert_eq!(stored(with(vec![NIL, text("GPU"), NIL, NIL, 0.into(), text("full_attention"), NIL])), full);
    assert_eq!(one(array(vec![text("AllBlocksCleared")])), Event::Cleared);
    let removed = |tier, group| Event::Removed(Removed { hashes: vec![EngineHash(7)], tier, group });
    let gone = |more: Vec<Value>| array([vec![text("BlockRemoved"), array(vec![7.into()])], more].concat());
    assert_eq!(one(gone(vec![])), removed(Tier::Gpu, 0));
    assert_eq!(one(gone(vec![text("CPU")])), removed(Tier::Cpu, 0));
    assert_eq!(one(gone(vec![text("GPU"), 2.into()])), removed(Tier::Gpu, 2));
}

#[test]
fn maps_from_vllm_0_24() {
    assert_eq!(stored(core_map(vec![])), plain());
    let event = core_map(vec![
        ("lora_id", NIL),
        ("medium", text("GPU")),
        ("lora_name", NIL),
        ("group_idx", 5.into()),
        ("kv_cache_spec_kind", text("full_attention")),
        ("locality", text("LOCAL")),
        ("ownership", text("x")),
        ("session_id", text("s")),
        ("event_version", 1.into()),
        ("lookahead_token_ids", ints(0..3)),
        ("something_new", map(vec![("a", array(vec![NIL, true.into(), Value::Ext(1, vec![2; 9])]))])),
    ]);
    assert_eq!(stored(event), Stored { tier: Some(Tier::Gpu), group: 5, kind: GroupKind::Full, ..plain() });
    let remote = core_map(vec![("locality", text("REMOTE")), ("medium", text("GPU"))]);
    assert_eq!(stored(remote).tier, Some(Tier::Disk));
    assert_eq!(one(map(vec![("type", text("AllBlocksCleared")), ("ownership", text("x"))])), Event::Cleared);
    // The order of fields does not matter, and a map may have more than 15.
    let Value::Map(mut pairs) = core_map((0..20).map(|_| ("more", NIL)).collect()) else { unreachable!() };
    pairs.reverse();
    assert_eq!(stored(Value::Map(pairs)), plain());
}

#[test]
fn kinds_of_attention() {
    let kind = |kind: Value, window: Value| {
        stored(core_map(vec![("kv_cache_spec_kind", kind), ("kv_cache_spec_sliding_window", window)])).kind
    };
    assert_eq!(kind(NIL, NIL), GroupKind::Unknown);
    assert_eq!(kind(text("mla_attention"), NIL), GroupKind::Full);
    assert_eq!(kind(text("sliding_window_mla"), 64.into()), GroupKind::Sliding(64));
    assert_eq!(kind(text("sliding_window"), NIL), GroupKind::Unproven);
    for unproven in ["mamba", "chunked_local_attention", "of_tomorrow"] {
        assert_eq!(kind(text(unproven), NIL), GroupKind::Unproven);
    }
    assert_eq!(kind(text("cross_attention"), NIL), GroupKind::NotCached);
}

#[test]
fn hashes_of_every_form() {
    let hash = |v: Value| stored(core_map(vec![("parent_block_hash", v)])).parent.unwrap().0;
    assert_eq!(hash((-1i64).into()), u64::MAX);
    assert_eq!(hash(i64::MIN.into()), 1 << 63);
    let digest: Vec<u8> = (0..32).collect();
    // vLLM's integer form is the end of its bytes form.
    assert_eq!(hash(Value::Binary(digest.clone())), 0x18191a1b1c1d1e1f);
    assert_ne!(hash(Value::Binary(vec![1, 2])), hash(Value::Binary(vec![2, 1])));
    assert_eq!(hash(text("0123456789abcdef0123456789abcdef")), u64::from_be_bytes(*b"89abcdef"));
}

#[test]
fn salt_in_all_forms() {
    let first = |keys: Value, more: Vec<(&str, Value)>| {
        stored(core_map([vec![("parent_block_hash", NIL), ("extra_keys", keys)], more].concat()))
    };
    let per_block = |keys: Value| array(vec![keys, NIL]);
    for keys in [
        array(vec![text("s")]),
        text("s"),
        array(vec![array(vec![text("cache_salt"), text("s")])]),
        array(vec![map(vec![("salt", text("s"))])]),
        array(vec![map(vec![("type", text("CacheSaltKey")), ("salt", text("s"))])]),
    ] {
        let event = first(per_block(keys), vec![]);
        assert_eq!((event.salt.as_deref(), event.unkeyed_from, event.salt_mask), (Some("s"), None, 0));
    }
    let lora_and_salt = array(vec![text("a"), text("s")]);
    let event = first(array(vec![lora_and_salt, array(vec![text("a")])]), vec![("lora_name", text("a"))]);
    assert_eq!((event.lora.as_deref(), event.salt.as_deref(), event.unkeyed_from), (Some("a"), Some("s"), None));
    let tagged =
        array(vec![array(vec![text("lora"), text("a"), text("/path")]), array(vec![text("cache_salt"), text("s")])]);
    let event = first(per_block(tagged), vec![]);
    assert_eq!((event.lora.as_deref(), event.salt.as_deref(), event.unkeyed_from), (Some("a"), Some("s"), None));
    // A number names no adapter, a first key does.
    let event = first(per_block(array(vec![text("a")])), vec![("lora_id", 3.into())]);
    assert_eq!((event.lora.as_deref(), event.salt), (Some("a"), None));
    let unnamed = batch(vec![core_map(vec![("lora_id", 3.into())])]);
    assert_eq!((unnamed.events.len(), unnamed.skipped), (0, vec![Skip::LoraWithoutName]));
}

#[test]
fn content_that_tokens_do_not_tell_ends_the_key() {
    let from = |second: Value, parent: Value| {
        let event = core_map(vec![("parent_block_hash", parent), ("extra_keys", array(vec![NIL, second]))]);
        stored(event).unkeyed_from
    };
    for keys in [
        array(vec![text("image")]),
        text("image"),
        array(vec![array(vec![text("image"), 17.into()])]),
        array(vec![array(vec![text("mm"), text("image"), 17.into()])]),
        array(vec![array(vec![text("prompt_embeds"), Value::Binary(vec![1; 32])])]),
        array(vec![Value::Binary(vec![1; 32])]),
        array(vec![map(vec![("modality", text("image")), ("hash", text("h")), ("block_offset", 0.into())])]),
        array(vec![map(vec![("unheard_of", text("h"))])]),
    ] {
        assert_eq!(from(keys.clone(), NIL), Some(1), "{keys}");
        assert_eq!(from(keys, 6.into()), Some(1));
    }
    assert_eq!(from(NIL, NIL), None);
    // Two strings in a first block: a salt and an image cannot be told apart.
    let both = array(vec![array(vec![text("image"), text("s")]), NIL]);
    let event = stored(core_map(vec![("parent_block_hash", NIL), ("extra_keys", both)]));
    assert_eq!((event.salt, event.unkeyed_from), (None, Some(0)));
}

#[test]
fn sglang() {
    let salted = |salt: &str| {
        stored(with(vec![NIL, text("GPU"), map(vec![("cache_salt", text(salt)), ("session_id", text("x"))])]))
    };
    let (a, b) = (salted("a"), salted("b"));
    assert_eq!(a.salt.as_deref(), Some("a"));
    // Its hashes do not contain the salt, so it is mixed in.
    assert_ne!(a.hashes, b.hashes);
    assert_eq!(a.hashes[0].0 ^ a.salt_mask, 7);
    assert_eq!(a.parent.unwrap().0 ^ a.salt_mask, 6);
    let named = stored(core_map(vec![("cache_salt", text("a")), ("medium", text("GPU"))]));
    assert_eq!(named, a);
    let removed = one(map(vec![
        ("type", text("BlockRemoved")),
        ("block_hashes", array(vec![7.into()])),
        ("cache_salt", text("a")),
    ]));
    let Event::Removed(removed) = removed else { panic!() };
    assert_eq!(removed.hashes, a.hashes[..1]);
    assert_eq!(stored(with(vec![NIL, text("GPU"), map(vec![])])), Stored { tier: Some(Tier::Gpu), ..plain() });
    // EAGLE: pairs of a token and its successor.
    let pairs = array((0..8u64).map(|t| array(vec![t.into(), (t + 1).into()])).collect());
    assert_eq!(stored(core_map(vec![("token_ids", pairs)])), plain());
    let tiers = ["GPU", "CPU", "CPU_PINNED", "CPU_TIER1", "STORAGE", "DISK", "FS", "OBJ", "EXTERNAL"];
    let tiers = tiers.map(|m| stored(core_map(vec![("medium", text(m))])).tier());
    assert_eq!(tiers[..4], [Tier::Gpu, Tier::Cpu, Tier::Cpu, Tier::Cpu]);
    assert_eq!(tiers[4..], [Tier::Disk; 5]);
}

#[test]
fn batches_of_every_form() {
    let event = || array(vec![array(vec![text("AllBlocksCleared")])]);
    let expected = |rank| EngineBatch { ts: 2.0, rank, events: vec![Event::Cleared], read: 1, skipped: vec![] };
    assert_eq!(decode(&bytes(&array(vec![2.0.into(), event()]))), expected(None));
    assert_eq!(decode(&bytes(&array(vec![2.into(), event(), NIL]))), expected(None));
    assert_eq!(decode(&bytes(&array(vec![2.0.into(), event(), 3.into(), NIL]))), expected(Some(3)));
    for name in ["data_parallel_rank", "attn_dp_rank", "dp_rank"] {
        let map = map(vec![("ts", 2.0.into()), ("new", NIL), ("events", event()), (name, 3.into())]);
        assert_eq!(decode(&bytes(&map)), expected(Some(3)));
    }
    for bad in [NIL, array(vec![]), array(vec![1.into()]), map(vec![("ts", 1.into())]), text("x"), 3.into()] {
        let batch = decode(&bytes(&bad));
        assert_eq!((batch.events.len(), batch.skipped), (0, vec![Skip::NotABatch]));
    }
    assert_eq!(decode(&[]).skipped, [Skip::NotMsgpack]);
    assert_eq!(decode(&[0xc1]).skipped, [Skip::NotMsgpack]);
}

#[test]
fn a_bad_event_is_left_out_alone() {
    let bad = [
        (with(vec![NIL, 3.into()]), Skip::BadField),
        (core_map(vec![("token_ids", array(vec![(-1).into()]))]), Skip::BadField),
        (core_map(vec![("token_ids", array(vec![(1u64 << 32).into()]))]), Skip::BadField),
        (core_map(vec![("token_ids", array(vec![array(vec![])]))]), Skip::BadField),
        (core_map(vec![("block_hashes", array(vec![array(vec![])]))]), Skip::BadField),
        (core_map(vec![("block_hashes", NIL)]), Skip::MissingField),
        (core_map(vec![("block_size", 0.into())]), Skip::MissingField),
        (array(vec![text("BlockStored")]), Skip::MissingField),
        (array(vec![text("BlockMoved"), NIL]), Skip::UnknownType),
        (array(vec![]), Skip::UnknownType),
        (array(vec![1.into()]), Skip::BadField),
        (map(vec![("block_hashes", NIL)]), Skip::MissingField),
        (text("BlockStored"), Skip::BadField),
        (NIL, Skip::BadField),
    ];
    for (event, reason) in bad {
        let batch = batch(vec![with(vec![]), event.clone(), array(vec![text("AllBlocksCleared")])]);
        assert_eq!(batch.events, [Event::Stored(plain()), Event::Cleared], "{event}");
        assert_eq!(batch.skipped, [reason], "{event}");
    }
}

#[test]
fn what_comes_before_the_bytes_end_counts() {
    let whole = bytes(&array(vec![1.into(), array(vec![with(vec![]), with(vec![])])]));
    for cut in 0..whole.len() {
        let batch = decode(&whole[..cut]);
        assert_eq!(batch.skipped, [Skip::NotMsgpack], "{cut}");
        assert!(batch.events.iter().all(|e| *e == Event::Stored(plain())));
    }
    assert_eq!(decode(&whole[..whole.len() - 1]).events.len(), 1);
}

#[test]
fn claimed_lengths_are_not_believed() {
    let huge = [0xff; 4];
    for head in [&[0x92, 0x01, 0xdd][..], &[0xdd], &[0xdf], &[0x81, 0xdb], &[0x92, 0x01, 0x91, 0xdf]] {
        assert_eq!(decode(&[head, &huge].concat()).skipped, [Skip::NotMsgpack]);
    }
    // A million nested arrays, where an integer is expected.
    let mut deep = vec![0x92, 0x01, 0x91, 0x92, 0xab];
    deep.extend_from_slice(b"BlockStored");
    deep.resize(1_000_000, 0x91);
    assert_eq!(decode(&deep).skipped.len(), 1);
}

proptest! {
    #[test]
    fn any_bytes(payload in proptest::collection::vec(any::<u8>(), 0..300)) {
        decode(&payload);
    }

    #[test]
    fn any_damage(at in 0usize..200, byte: u8, cut in 0usize..200) {
        let mut payload = bytes(&array(vec![1.into(), array(vec![
            core_map(vec![("extra_keys", array(vec![array(vec![text("s")]), NIL])), ("medium", text("GPU"))]),
            with(vec![NIL, text("GPU"), map(vec![("cache_salt", text("x"))])]),
        ])]));
        if let Some(b) = payload.get_mut(at) {
            *b = byte;
        }
        decode(&payload);
        payload.truncate(cut);
        decode(&payload);
    }
}
