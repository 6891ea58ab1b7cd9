use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::fake::Memory;
use super::ingest::{janitor, take_batch};
use super::*;
use crate::clock::{MS, Time};
use crate::feed::Epoch;
use crate::feed::batch::{Batch, BatchHeader};

fn batch(term: u64, id: u64, seq: u64) -> Vec<u8> {
    Batch { header: BatchHeader { epoch: Epoch { term, id }, seq }, records: vec![] }.encode()
}

fn nobody() -> (Epoch, u64) {
    (Epoch::default(), 0)
}

fn post(shared: &Memory, frame: &[u8], now: u64) -> Answer {
    take_batch(shared, frame, IngestLimits::default(), Time(now))
}

const T0: u64 = 100 * SECOND;

#[test]
fn every_vm_gets_every_batch_in_order() {
    let shared = Memory::default();
    let mut vms: Vec<_> = (1..=3).map(SlotLease::new).collect();
    vms.iter_mut().for_each(|vm| assert!(vm.lease(&shared, Time(T0))));
    assert_eq!(vms.iter().map(|vm| vm.number().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    for seq in 1..=3 {
        let Answer::Taken(slots) = post(&shared, &batch(1, 9, seq), T0) else { panic!() };
        assert_eq!(slots.len(), 3);
    }
    for vm in &mut vms {
        let got: Vec<_> = std::iter::from_fn(|| vm.take(&shared)).collect();
        assert_eq!(got, [batch(1, 9, 1), batch(1, 9, 2), batch(1, 9, 3)]);
        vm.tick(&shared, (Epoch { term: 1, id: 9 }, 3), Time(T0 + SECOND));
    }
    let Answer::Taken(slots) = post(&shared, &batch(1, 9, 4), T0 + SECOND) else { panic!() };
    assert!(slots.iter().all(|s| (s.applied, s.backlog) == (3, 0)));
    assert_eq!(vms[0].leader(&shared), Some(Epoch { term: 1, id: 9 }));
}

#[test]
fn two_takers_of_a_new_slot_do_not_share_it() {
    // Another VM leases in the very moment between this one's look and its first write, which cannot compare.
    let shared = Memory::default();
    shared.race(|shared, _| assert!(SlotLease::new(77).lease(shared, Time(T0))));
    let mut late = SlotLease::new(5);
    assert!(late.lease(&shared, Time(T0)));
    // Whoever wrote last has it; the other one's next heartbeat finds out.
    let mut early = SlotLease::new(77);
    assert!(early.lease(&shared, Time(T0)));
    assert_ne!(early.number(), late.number());
    assert!(!late.tick(&shared, nobody(), Time(T0 + SECOND)).lost);
}

#[test]
fn the_loser_of_a_race_finds_out_and_leases_another_slot() {
    let shared = Memory::default();
    let mut first = SlotLease::new(1);
    assert!(first.lease(&shared, Time(T0)));
    // It stops for longer than a slot lives; somebody takes the slot; it goes on.
    let mut second = SlotLease::new(3);
    assert!(second.lease(&shared, Time(T0 + SLOT_STALE + 1)));
    assert_eq!(second.number(), Some(0));
    let ticked = first.tick(&shared, nobody(), Time(T0 + SLOT_STALE + 2));
    assert!(ticked.lost);
    assert_eq!(first.number(), Some(1));
    assert!(!second.tick(&shared, nobody(), Time(T0 + SLOT_STALE + SECOND)).lost);
    assert!(!first.tick(&shared, nobody(), Time(T0 + SLOT_STALE + SECOND)).lost);
}

#[test]
fn a_new_owner_does_not_get_what_was_meant_for_the_former_one() {
    let shared = Memory::default();
    let mut dead = SlotLease::new(1);
    dead.lease(&shared, Time(T0));
    (1..=5).for_each(|seq| {
        _ = post(&shared, &batch(1, 9, seq), T0);
    });
    let mut heir = SlotLease::new(3);
    assert!(heir.lease(&shared, Time(T0 + SLOT_STALE + 1)));
    assert_eq!(heir.number(), Some(0));
    assert_eq!(heir.take(&shared), None);
    post(&shared, &batch(1, 9, 6), T0 + SLOT_STALE + 2);
    assert_eq!(heir.take(&shared), Some(batch(1, 9, 6)));
}

#[test]
fn the_queues_of_the_dead_are_emptied() {
    let shared = Memory::default();
    let (mut dead, mut live) = (SlotLease::new(1), SlotLease::new(3));
    dead.lease(&shared, Time(T0));
    live.lease(&shared, Time(T0));
    for seq in 1..=1000 {
        post(&shared, &batch(1, 9, seq), T0);
        while live.take(&shared).is_some() {}
    }
    assert_eq!(shared.waiting(0), 1000);
    let late = T0 + SLOT_STALE + 1;
    let ticked = live.tick(&shared, nobody(), Time(late));
    assert_eq!(ticked, Ticked { lost: false, gone: vec![] }, "it was never seen alive");
    for _ in 0..4 {
        janitor(&shared, Time(late));
    }
    assert_eq!(shared.waiting(0), 0);
    let Answer::Taken(slots) = post(&shared, &batch(1, 9, 1001), late) else { panic!() };
    assert_eq!(slots.iter().map(|s| s.slot).collect::<Vec<_>>(), [1]);
    assert_eq!(shared.waiting(0), 0);
}

#[test]
fn a_vm_that_died_is_told_of_once() {
    let shared = Memory::default();
    let (mut dead, mut live) = (SlotLease::new(1), SlotLease::new(3));
    dead.lease(&shared, Time(T0));
    live.lease(&shared, Time(T0));
    live.tick(&shared, nobody(), Time(T0 + SECOND));
    live.tell(&shared, b"hello");
    assert_eq!(dead.take(&shared), Some(b"hello".to_vec()));
    assert_eq!(live.take(&shared), None, "nobody talks to himself");
    let late = T0 + SECOND + SLOT_STALE;
    assert_eq!(live.tick(&shared, nobody(), Time(late)).gone, [0]);
    assert_eq!(live.tick(&shared, nobody(), Time(late + SECOND)).gone, [0; 0]);
}

#[test]
fn a_backlog_has_a_bound_and_the_reader_sees_a_gap() {
    let shared = Memory::default();
    let mut vm = SlotLease::new(1);
    vm.lease(&shared, Time(T0));
    let limits = IngestLimits { batches: 10, bytes: 1 << 20 };
    for seq in 1..=1000 {
        take_batch(&shared, &batch(1, 9, seq), limits, Time(T0));
        assert!(shared.waiting(0) <= 10);
    }
    let mut taken = 0;
    while vm.take(&shared).is_some() {
        taken += 1;
    }
    assert!((1..=10).contains(&taken));
    // The account is right again once it has been read.
    vm.tick(&shared, nobody(), Time(T0 + SECOND));
    let Answer::Taken(slots) = take_batch(&shared, &batch(1, 9, 1001), limits, Time(T0 + SECOND)) else { panic!() };
    assert_eq!(slots[0].backlog, 0);

    let limits = IngestLimits { batches: 1000, bytes: 10 * batch(1, 9, 1).len() as u64 };
    for seq in 1002..2000 {
        take_batch(&shared, &batch(1, 9, seq), limits, Time(T0 + SECOND));
        assert!(shared.waiting(0) <= 10);
    }
}

#[test]
fn one_bridge_leads_at_a_time() {
    let shared = Memory::default();
    let held = |answer| match answer {
        Answer::Held { holder, age_ms } => Some((holder.term, holder.id, age_ms)),
        _ => None,
    };
    assert!(matches!(post(&shared, &batch(1, 7, 1), T0), Answer::Taken(_)));
    assert_eq!(held(post(&shared, &batch(1, 8, 1), T0 + MS)), Some((1, 7, 1)), "foreign");
    assert_eq!(held(post(&shared, &batch(5, 8, 1), T0 + MS)), Some((1, 7, 1)), "however high its term");
    assert!(matches!(post(&shared, &batch(1, 7, 2), T0 + SECOND), Answer::Taken(_)));
    // Silence: the term has to be higher.
    let late = T0 + SECOND + LEAD_STALE;
    assert_eq!(held(post(&shared, &batch(1, 8, 1), late)), Some((1, 7, 2000)));
    assert!(matches!(post(&shared, &batch(2, 8, 1), late), Answer::Taken(_)));
    // The old one was only stopped.
    assert_eq!(held(post(&shared, &batch(1, 7, 3), late)), Some((2, 8, 0)));
    assert_eq!(held(post(&shared, &batch(3, 7, 1), late + SECOND)), Some((2, 8, 1000)));
    assert!(matches!(post(&shared, &batch(3, 8, 1), late + SECOND), Answer::Taken(_)), "its own next term");
    assert_eq!(held(post(&shared, &batch(2, 8, 9), late + SECOND)), Some((3, 8, 0)), "its own former term");
}

#[test]
fn two_bridges_that_come_first_at_once_do_not_both_lead() {
    let shared = Memory::default();
    shared.race(|shared, _| assert!(matches!(post(shared, &batch(1, 8, 1), T0), Answer::Taken(_))));
    // Its first write goes over the other one's; then it looks and finds itself.
    assert!(matches!(post(&shared, &batch(1, 7, 1), T0), Answer::Taken(_)));
    assert!(matches!(post(&shared, &batch(1, 8, 2), T0), Answer::Held { .. }));
    // And when both compare, one loses.
    shared.race(|shared, _| assert!(matches!(post(shared, &batch(2, 8, 1), T0 + LEAD_STALE), Answer::Taken(_))));
    assert!(matches!(post(&shared, &batch(2, 6, 1), T0 + LEAD_STALE), Answer::Held { .. }));
}

#[test]
fn what_is_not_a_batch_is_refused_whole() {
    let shared = Memory::default();
    SlotLease::new(1).lease(&shared, Time(T0));
    let mut bad = batch(1, 7, 1);
    bad[10] ^= 1;
    assert!(matches!(post(&shared, &bad, T0), Answer::Bad(_)));
    assert!(matches!(post(&shared, b"", T0), Answer::Bad(_)));
    assert!(matches!(post(&shared, &batch(1, 0, 1), T0), Answer::Bad(_)));
    assert_eq!(shared.waiting(0), 0);
    assert_eq!(Lead::read(&shared), None);
}

#[test]
fn the_boot_id_is_the_first_one_given() {
    let shared = Memory::default();
    assert_eq!(boot_id(&shared, 5), Some(5));
    assert_eq!(boot_id(&shared, 6), Some(5));
}

#[derive(Clone, Debug)]
enum Event {
    /// Milliseconds go by.
    Pass(u64),
    /// A VM ticks (and leases at first).
    Tick(usize),
    /// A VM reads its queue.
    Read(usize),
    /// A VM loses its memory and comes back.
    Trap(usize),
    /// A bridge posts; when it is held and the holder is silent, it raises its term.
    Post(usize),
    /// Writes fail from now on, every so many.
    Fail(u32),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => prop_oneof![1..60u64, 500..4000u64].prop_map(Event::Pass),
        6 => (0..5usize).prop_map(Event::Tick),
        6 => (0..5usize).prop_map(Event::Read),
        1 => (0..5usize).prop_map(Event::Trap),
        8 => (0..2usize).prop_map(Event::Post),
        1 => prop_oneof![Just(0u32), 2..5u32].prop_map(Event::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever happens, in the end every VM has a slot of its own and gets every batch of one bridge.
    #[test]
    fn ends_well(events in prop::collection::vec(event(), 0..200)) {
        let shared = Memory::default();
        let mut vms: Vec<_> = (0..5u64).map(|n| SlotLease::new(n * 2 + 1)).collect();
        let mut bridges: Vec<(Epoch, u64)> = (0..2).map(|n| (Epoch { term: 1, id: n + 1 }, 0)).collect();
        let (mut now, mut nonce) = (T0, 1000);
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let post = |bridge: &mut (Epoch, u64), now: u64, shared: &Memory, last: &mut BTreeMap<u64, u64>| {
            let answer = take_batch(shared, &batch(bridge.0.term, bridge.0.id, bridge.1 + 1), IngestLimits::default(), Time(now));
            match answer {
                Answer::Taken(_) => {
                    bridge.1 += 1;
                    // One bridge a term.
                    assert_eq!(*last.entry(bridge.0.term).or_insert(bridge.0.id), bridge.0.id);
                }
                Answer::Held { holder, age_ms } if age_ms >= 2000 && bridge.0.term <= holder.term => {
                    *bridge = (Epoch { term: holder.term + 1, ..bridge.0 }, 0);
                }
                _ => {}
            }
        };
        for event in events {
            match event {
                Event::Pass(ms) => now += ms * MS,
                Event::Tick(vm) => {
                    vms[vm].lease(&shared, Time(now));
                    vms[vm].tick(&shared, nobody(), Time(now));
                }
                Event::Read(vm) => { _ = vms[vm].take(&shared); },
                Event::Trap(vm) => {
                    nonce += 2;
                    vms[vm] = SlotLease::new(nonce + 1);
                }
                Event::Post(bridge) => post(&mut bridges[bridge], now, &shared, &mut last),
                Event::Fail(every) => shared.fail_every(every),
            }
        }
        // Quiet: everybody ticks, one bridge posts.
        shared.fail_every(0);
        for round in 0..120 {
            now += 100 * MS;
            for vm in &mut vms {
                vm.lease(&shared, Time(now));
                vm.tick(&shared, nobody(), Time(now));
                if round < 100 {
                    while vm.take(&shared).is_some() {}
                }
            }
            post(&mut bridges[0], now, &shared, &mut last);
        }
        let numbers: BTreeSet<_> = vms.iter().map(|vm| vm.number().unwrap()).collect();
        prop_assert_eq!(numbers.len(), 5);
        for vm in &mut vms {
            let got: Vec<_> = std::iter::from_fn(|| vm.take(&shared)).collect();
            let (epoch, seq) = bridges[0];
            // Posted after the last reading: from round 99 on.
            let want: Vec<_> = (seq - 20..=seq).map(|seq| batch(epoch.term, epoch.id, seq)).collect();
            prop_assert_eq!(got, want);
        }
    }
}
