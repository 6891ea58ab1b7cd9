//! Rules of the engine that routing depends on.

use super::*;

fn scheduler(blocks: u32) -> Scheduler {
    Scheduler::new(Limits { block_size: 4, blocks, max_batch: 8, step_tokens: 16, free_order: FreeOrder::EmptyFirst })
}

fn request(prompt: std::ops::Range<u32>, output: usize) -> NewRequest {
    NewRequest { prompt: prompt.collect(), output: vec![9000; output], ..Default::default() }
}

/// Runs until idle: the last token of each request.
fn run(scheduler: &mut Scheduler) -> Vec<Sampled> {
    let mut ended = Vec::new();
    while let Some(step) = scheduler.schedule() {
        ended.extend(scheduler.finish(step).into_iter().filter(|sampled| sampled.last));
    }
    ended
}

fn cached(scheduler: &mut Scheduler, new: NewRequest) -> usize {
    let id = scheduler.submit(new).unwrap();
    run(scheduler).iter().find(|sampled| sampled.id == id).unwrap().cached_tokens
}

#[test]
fn the_last_token_of_a_prompt_never_comes_from_the_cache() {
    let mut s = scheduler(100);
    assert_eq!(cached(&mut s, request(0..8, 1)), 0);
    assert_eq!(cached(&mut s, request(0..8, 1)), 4);
    assert_eq!(cached(&mut s, request(0..9, 1)), 8);
}

#[test]
fn the_last_sampled_token_has_no_kv() {
    let mut s = scheduler(100);
    // 7 + 1: the block would need the KV of the sampled token.
    s.submit(request(0..7, 1));
    run(&mut s);
    assert_eq!(s.cached_blocks(), 1);
    // 7 + 2: now it has it.
    s.submit(request(0..7, 2));
    run(&mut s);
    assert_eq!(s.cached_blocks(), 2);
}

#[test]
fn generated_tokens_serve_the_next_turn() {
    let mut s = scheduler(100);
    s.submit(NewRequest { prompt: (0..6).collect(), output: (6..13).collect(), ..Default::default() });
    run(&mut s);
    assert_eq!(cached(&mut s, request(0..20, 1)), 12);
}

#[test]
fn a_long_prompt_is_computed_in_chunks_and_announced_chunk_by_chunk() {
    let mut s = scheduler(100);
    s.submit(request(0..37, 1));
    let mut chunks = Vec::new();
    while let Some(step) = s.schedule() {
        let prefill = step.prefill_tokens;
        s.finish(step);
        let [Event::Stored { hashes, parent, tokens, .. }] = &s.take_events()[..] else { panic!("one event a chunk") };
        chunks.push((prefill, hashes.len(), parent.is_some(), tokens.len()));
    }
    assert_eq!(chunks, [(16, 4, false, 16), (16, 4, true, 16), (5, 1, true, 4)]);
}

#[test]
fn the_batch_is_bounded_and_the_rest_waits_in_order() {
    let mut s = scheduler(1000);
    let ids: Vec<_> = (0..10).map(|i| s.submit(request(i * 100..i * 100 + 1, 3)).unwrap()).collect();
    let step = s.schedule().unwrap();
    assert_eq!((s.running(), s.waiting()), (8, 2));
    s.finish(step);
    let order: Vec<_> = run(&mut s).iter().map(|sampled| sampled.id).collect();
    assert_eq!(order, ids);
}

#[test]
fn requests_of_one_step_share_a_new_prefix() {
    let mut s = scheduler(100);
    s.submit(request(0..9, 2));
    s.submit(request(0..9, 2));
    let cached: Vec<_> = run(&mut s).iter().map(|sampled| sampled.cached_tokens).collect();
    assert_eq!(cached, [0, 8]);
}

#[test]
fn out_of_blocks_the_youngest_starts_again_and_all_get_their_tokens() {
    // 9 usable blocks; three requests that need 4 each in the end.
    let mut s = scheduler(10);
    for start in [0, 100, 200] {
        s.submit(request(start..start + 8, 8)).unwrap();
    }
    let ended = run(&mut s);
    assert_eq!(ended.len(), 3);
    assert!(ended.iter().all(|sampled| sampled.index == 7));
    assert!(s.totals().preemptions > 0);
    assert_eq!(s.usage(), 0.0);
}

#[test]
fn evictions_come_before_the_blocks_that_caused_them() {
    let mut s = scheduler(5);
    s.submit(request(0..16, 1)).unwrap_or_default();
    s.submit(request(0..12, 1)).unwrap();
    run(&mut s);
    s.take_events();
    s.submit(request(100..112, 1)).unwrap();
    let step = s.schedule().unwrap();
    s.finish(step);
    let events = s.take_events();
    let removed = events.iter().take_while(|event| matches!(event, Event::Removed { .. })).count();
    assert!(removed > 0);
    assert!(matches!(&events[removed..], [Event::Stored { .. }]));
}

#[test]
fn a_reset_is_announced_with_the_next_step_only() {
    let mut s = scheduler(100);
    s.submit(request(0..8, 1));
    run(&mut s);
    s.take_events();
    assert!(s.reset_cache());
    assert_eq!(s.cached_blocks(), 0);
    assert!(s.schedule().is_none());
    s.submit(request(0..8, 1));
    run(&mut s);
    assert!(matches!(&s.take_events()[..], [Event::Cleared, Event::Stored { .. }]));
}

#[test]
fn salt_and_adapter_separate_caches() {
    let mut s = scheduler(100);
    let salted =
        |salt: &str| NewRequest { extra: ExtraKeys { cache_salt: Some(salt.into()), lora: None }, ..request(0..9, 1) };
    let tuned = NewRequest { extra: ExtraKeys { cache_salt: None, lora: Some((1, "l".into())) }, ..request(0..9, 1) };
    assert_eq!(cached(&mut s, request(0..9, 1)), 0);
    assert_eq!(cached(&mut s, salted("a")), 0);
    assert_eq!(cached(&mut s, salted("b")), 0);
    assert_eq!(cached(&mut s, tuned.clone()), 0);
    assert_eq!(cached(&mut s, salted("a")), 8);
    assert_eq!(cached(&mut s, tuned), 8);
}

#[test]
fn what_can_never_run_is_refused_and_an_abort_frees_its_blocks() {
    let mut s = scheduler(5);
    assert_eq!(s.submit(request(0..0, 1)), None);
    assert_eq!(s.submit(request(0..1, 0)), None);
    assert_eq!(s.submit(request(0..16, 1)), None);
    let id = s.submit(request(0..12, 3)).unwrap();
    let step = s.schedule().unwrap();
    s.abort(id);
    assert!(s.finish(step).is_empty());
    assert_eq!((s.usage(), s.running()), (0.0, 0));
}
