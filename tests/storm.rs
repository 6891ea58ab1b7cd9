//! A whole deployment under faults, with everything real but the sockets: engines with caches that evict, their events
//! as bytes, the bridge's streams and hub, the workers' fleets. Messages are lost and come twice, some for good;
//! engines restart and clear their caches; bridges die, with and without a checkpoint; VMs die; workers are busy.
//!
//! After every quiet period each worker must believe of an exact replica what it holds, and of any other nothing
//! confirmed that it does not hold. Reported is how often a pick was not the best one there was, with and without
//! trust, in storm and calm.
//!
//! `KVROUTE_STORM_EVENTS` (default 40,000), `KVROUTE_STORM_REPLICAS` (16), `KVROUTE_STORM_WORKERS` (3) and
//! `KVROUTE_STORM_SEED` scale it; 64 replicas and 10,000,000 events take some minutes with `--profile native`.

#[path = "storm/engine.rs"]
mod engine;
#[path = "storm/world.rs"]
mod world;

use world::{Tally, World};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn after_every_storm_all_workers_know_what_there_is() {
    let events = env("KVROUTE_STORM_EVENTS", 40_000);
    let replicas = env("KVROUTE_STORM_REPLICAS", 16) as usize;
    let workers = env("KVROUTE_STORM_WORKERS", 3) as usize;
    let mut world = World::new(replicas, workers, env("KVROUTE_STORM_SEED", 1));
    let periods = 12;
    let (mut storm, mut calm) = (Tally::default(), Tally::default());
    for period in 1..=periods {
        let until = events * period / periods;
        while world.events() < until {
            world.turn(true, &mut storm);
        }
        world.quiet();
        world.check();
        // The same traffic without faults, for comparison.
        let until = world.events() + events / periods / 20;
        while world.events() < until {
            world.turn(false, &mut calm);
        }
        world.quiet();
        world.check();
    }
    println!("storm: {}", world.summary());
    println!("  {:5}  {:>9}  {:>22}  {:>22}", "", "picks", "not the best, trust on", "trust off");
    for (name, tally) in [("storm", &storm), ("calm", &calm)] {
        let share = |n: u64| format!("{n} ({:.2} %)", 100.0 * n as f64 / tally.picks.max(1) as f64);
        println!("  {name:5}  {:>9}  {:>22}  {:>22}", tally.picks, share(tally.wrong_on), share(tally.wrong_off));
    }
    assert!(storm.picks > 0 && calm.picks > 0);
}
