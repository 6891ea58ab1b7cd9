//! Prefill and decode on replicas of their own.

use super::*;
use crate::feed::role::Role;

/// Replica `n` is there for this.
fn is_for(n: u32, role: Role) -> Record {
    let address = format!("10.0.0.{n}:80");
    Record::Replica(ReplicaInfo { id: FeedReplicaId(n), address, model: "m".into(), role, ..info() })
}

/// 10.0.0.0 and 10.0.0.1 decode, 10.0.0.2 and 10.0.0.3 prefill.
fn apart() -> Worker {
    let mut worker = Worker::new(4, Trust::Exact, 1);
    let roles = [Role::Decode, Role::Both, Role::Prefill, Role::Prefill];
    worker.feed(roles.into_iter().zip(0..).map(|(role, n)| is_for(n, role)).collect());
    worker
}

fn prompt(seed: TokenId) -> Vec<TokenId> {
    (0..3200).map(|n| n + 10_000 * seed).collect()
}

fn decodes(address: &str) -> bool {
    ["10.0.0.0:80", "10.0.0.1:80"].contains(&address)
}

/// Booked requests and tokens to prefill of a replica.
fn booked(worker: &Worker, address: &str) -> (u32, f64) {
    let stats = worker.fleet.stats(Time(worker.now));
    let replica = stats.replicas.iter().find(|r| r.address == address).unwrap();
    (replica.own.requests, replica.own.prefill)
}

#[test]
fn each_is_chosen_among_its_own_and_both_are_booked() {
    let mut worker = apart();
    let pick = worker.pick(&prompt(1));
    let prefill = pick.prefill.clone().unwrap();
    assert!(decodes(&pick.best.address) && !decodes(&prefill.target.address), "{pick:?}");
    assert!(pick.next.iter().all(|next| decodes(&next.address)), "{pick:?}");
    assert_eq!(booked(&worker, &pick.best.address), (1, 0.0));
    assert_eq!(booked(&worker, &prefill.target.address), (1, 3200.0));
    // What is queued there counts: the next one goes to the other.
    let next = worker.pick(&prompt(2)).prefill.unwrap();
    assert_ne!(next.target.address, prefill.target.address);
    // The whole prompt is known later, and the prefill ends with the first data; the answer goes on.
    worker.fleet.complete(pick.booking, &[], 3300);
    worker.fleet.complete(prefill.booking, &[], 3300);
    assert_eq!((booked(&worker, &pick.best.address).1, booked(&worker, &prefill.target.address).1), (0.0, 3300.0));
    worker.now += 100 * MS;
    worker.fleet.first_data(pick.booking, Time(worker.now));
    worker.fleet.prefilled(prefill.booking, true, Time(worker.now));
    assert_eq!(booked(&worker, &prefill.target.address), (0, 0.0));
    assert!(booked(&worker, &pick.best.address).0 >= 1);
    // What the engine that decodes says of its cache is what was brought there.
    assert_eq!(worker.fleet.found(pick.booking, 3300, 3296), None);
    worker.fleet.finish(pick.booking, true, Time(worker.now));
    assert_eq!(worker.fleet.stats(Time(worker.now)).bookings, 2);
}

#[test]
fn the_prefill_goes_where_the_prompt_is_cached_and_the_decode_where_its_own_is() {
    let mut worker = apart();
    for seed in 1..9 {
        let (decode, prefill) = ([0, 1][seed as usize % 2], [2, 3][seed as usize / 2 % 2]);
        let (decode, prefill) = (format!("10.0.0.{decode}:80"), format!("10.0.0.{prefill}:80"));
        let hashes = chain(&prompt(seed));
        worker.stored(&prefill, &hashes);
        worker.stored(&decode, &hashes[..100]);
        let pick = worker.pick(&prompt(seed));
        let chosen = pick.prefill.unwrap();
        assert_eq!((&*pick.best.address, &*chosen.target.address), (&*decode, &*prefill));
        assert_eq!((pick.matched, chosen.matched), (1600, 3184));
        worker.fleet.prefilled(chosen.booking, false, Time(worker.now));
        worker.fleet.finish(pick.booking, false, Time(worker.now));
    }
}

#[test]
fn a_short_rest_is_prefilled_where_it_is_decoded() {
    let mut worker = apart();
    let hashes = chain(&prompt(1));
    worker.stored("10.0.0.0:80", &hashes);
    let mut with = |from: f64| {
        let mut matching = worker.fleet.begin("m", BLOCK).unwrap();
        worker.fleet.push_all(&mut matching, &hashes);
        let policy = crate::routing::Policy { remote_prefill: from, ..Default::default() };
        let now = Time(worker.now);
        let ask = Ask { tokens: 3200, policy: Some(&policy), explain: true, now, ..Ask::default() };
        let preview = worker.fleet.preview(&matching, &ask).unwrap();
        let pick = worker.fleet.choose(&matching, &ask).unwrap();
        assert_eq!(&*pick.best.address, "10.0.0.0:80");
        let receipt = pick.receipt.unwrap().prefill.unwrap();
        assert_eq!(preview.prefill.unwrap().pick, receipt.pick);
        assert_eq!((receipt.uncached, receipt.from), (16, from as u64));
        assert_eq!(receipt.pick, pick.prefill.as_ref().map(|p| p.target.address.to_string()));
        pick.prefill.is_some()
    };
    // All of it is cached but the last block, which is always computed.
    assert_eq!((with(16.0), with(17.0), with(0.0)), (true, false, false));
}

#[test]
fn without_a_replica_to_prefill_the_one_that_decodes_does_it_and_without_one_to_decode_nobody_is_picked() {
    let mut worker = apart();
    worker.feed(vec![Record::Gone(FeedReplicaId(2)), Record::Gone(FeedReplicaId(3))]);
    let pick = worker.pick(&prompt(1));
    assert!(pick.prefill.is_none() && pick.receipt.unwrap().prefill.is_none());
    assert_eq!(booked(&worker, &pick.best.address), (1, 3200.0));
    worker.feed(vec![is_for(0, Role::Prefill), is_for(1, Role::Prefill)]);
    let matching = worker.fleet.begin("m", BLOCK).unwrap();
    let ask = Ask { tokens: 3200, now: Time(worker.now), ..Ask::default() };
    assert!(matches!(worker.fleet.choose(&matching, &ask), Err(crate::nokey::NoKey::NoReplica)));
    // A replica may be given another role.
    worker.feed(vec![is_for(1, Role::Decode)]);
    let pick = worker.pick(&prompt(3));
    assert_eq!((&*pick.best.address, &*pick.prefill.unwrap().target.address), ("10.0.0.1:80", "10.0.0.0:80"));
}
