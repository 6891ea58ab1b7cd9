use super::*;
use crate::feed::record::{Adapter, Adapters};
use crate::routing::Policy;

/// What the bridge says of the adapters of replica `n`.
fn serves(n: u32, complete: bool, list: &[(&str, bool)]) -> Record {
    let adapter = |(name, loaded): &(&str, bool)| Adapter { name: (*name).into(), loaded: *loaded };
    let adapters = Adapters { complete, list: list.iter().map(adapter).collect() };
    let address = format!("10.0.0.{n}:80");
    Record::Replica(ReplicaInfo { id: FeedReplicaId(n), address, model: "m".into(), adapters, ..info() })
}

impl Worker {
    /// Where a prompt of `seed`s goes that asks for an adapter; it ends at once.
    fn of_adapter(&mut self, seed: TokenId, adapter: &str) -> Pick {
        let prompt: Vec<TokenId> = (0..320).map(|n| n + 10_000 * seed).collect();
        let mut matching = self.fleet.begin("m", BLOCK).unwrap();
        self.fleet.push_all(&mut matching, &chain(&prompt));
        let ask = Ask { tokens: 320, adapter: Some(adapter), explain: true, now: Time(self.now), ..Ask::default() };
        let pick = self.fleet.choose(&matching, &ask).unwrap();
        self.fleet.finish(pick.booking, false, Time(self.now));
        pick
    }
}

#[test]
fn requests_go_where_their_adapter_is_ready() {
    for seed in 0..20 {
        let mut worker = Worker::new(4, Trust::Exact, u64::from(seed));
        worker.feed(vec![
            serves(0, true, &[("a", false), ("b", false)]),
            serves(1, true, &[("b", true)]),
            serves(2, true, &[("a", true), ("b", false)]),
            // 10.0.0.3 has not said yet what it serves.
        ]);
        let pick = worker.of_adapter(seed, "a");
        assert_eq!(&*pick.best.address, "10.0.0.2:80");
        let receipt = pick.receipt.unwrap();
        assert_eq!(receipt.lora.as_deref(), Some("a"));
        let found = |address: &str| {
            let found = receipt.candidates.iter().find(|c| c.address == address);
            found.map(|c| (c.adapter.unwrap(), c.loading))
        };
        assert_eq!(found("10.0.0.2:80"), Some(("loaded", 0.0)));
        assert_eq!(found("10.0.0.0:80"), Some(("served", Policy::default().adapter)));
        assert_eq!(found("10.0.0.3:80"), Some(("unknown", Policy::default().adapter)));
        // It would answer that there is no such model.
        assert_eq!(found("10.0.0.1:80"), None);
    }
}

#[test]
fn a_replica_without_the_adapter_is_only_left_out_where_another_serves_it() {
    let mut worker = Worker::new(2, Trust::Exact, 1);
    worker.feed(vec![serves(0, true, &[]), serves(1, true, &[])]);
    // Engines may know adapters that they do not list: somebody has to be asked.
    let compared = |pick: &Pick| pick.receipt.as_ref().unwrap().compared;
    let pick = worker.of_adapter(1, "a");
    assert_eq!((compared(&pick), pick.cost), (2, 320.0));
    worker.feed(vec![serves(1, true, &[("a", false)])]);
    let pick = worker.of_adapter(2, "a");
    assert_eq!((compared(&pick), &*pick.best.address), (1, "10.0.0.1:80"));
}

#[test]
fn what_was_sent_makes_ready_before_the_engine_says_so() {
    let mut worker = Worker::new(8, Trust::Exact, 1);
    worker.feed((0..8).map(|n| serves(n, true, &[("a", false)])).collect());
    let first = worker.of_adapter(1, "a").best.address;
    // Until so many conversations live there that others are worth it.
    for seed in 2..4 {
        assert_eq!(worker.of_adapter(seed, "a").best.address, first);
    }
    // Not for long, without a word of the engine.
    worker.now += 60 * SECOND;
    let receipt = worker.of_adapter(30, "a").receipt.unwrap();
    assert!(receipt.candidates.iter().all(|c| c.adapter == Some("served")), "{receipt:?}");
}
