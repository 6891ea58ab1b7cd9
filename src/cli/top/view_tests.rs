use super::*;
use crate::cli::top::seen::{Overview, Sender};
use crate::look::FeedState;

fn followed(address: &str) -> Followed {
    Followed {
        name: "r".into(),
        address: address.into(),
        model: "m".into(),
        trust: "exact".into(),
        reason: "complete".into(),
        blocks: [("gpu".to_owned(), 7), ("cpu".to_owned(), 1)].into(),
        ..Followed::default()
    }
}

fn believed(address: &str) -> ReplicaState {
    ReplicaState { address: address.into(), model: "m".into(), trust: "exact".into(), ..ReplicaState::default() }
}

/// A gateway in which all is well.
fn healthy() -> Seen {
    let feed = FeedState { sync: "synced".into(), age_ms: Some(3), ..FeedState::default() };
    let replicas = vec![believed("a:1"), believed("b:1")];
    let worker =
        |slot| WorkerState { slot: Some(slot), feed: feed.clone(), replicas: replicas.clone(), ..Default::default() };
    Seen {
        at_ms: 10_000,
        envoy: Some("1.40.0".into()),
        stats: BTreeMap::new(),
        healthy: [("a:1".to_owned(), true), ("b:1".to_owned(), true)].into(),
        workers: vec![worker(0), worker(1)],
        bridge: Some(Overview { replicas: vec![followed("a:1"), followed("b:1")], ..Overview::default() }),
        silent: Vec::new(),
    }
}

fn what(view: &View) -> Vec<String> {
    view.problems.iter().map(|problem| format!("{}: {}", problem.place, problem.what)).collect()
}

#[test]
fn a_healthy_gateway_has_no_problem() {
    let view = View::of(&healthy(), None);
    assert_eq!(what(&view), Vec::<String>::new());
    let addresses: Vec<&str> = view.replicas.iter().map(|replica| replica.address.as_str()).collect();
    assert_eq!((addresses, view.replicas[0].blocks), (vec!["a:1", "b:1"], 8));
    assert!(view.replicas.iter().all(|replica| replica.health == Health::Good));
}

#[test]
fn the_worst_that_anybody_says_of_a_replica_counts() {
    let mut now = healthy();
    let bridge = now.bridge.as_mut().unwrap();
    (bridge.replicas[0].trust, bridge.replicas[0].reason) = ("stale".into(), "disconnected".into());
    let worker = &mut now.workers[1].replicas[1];
    (worker.trust, worker.trust_reason) = ("catching_up".into(), "gap".into());
    let view = View::of(&now, None);
    assert_eq!(what(&view), ["a:1: stale: disconnected", "b:1: catching_up: gap"]);
    assert_eq!(view.replicas.iter().map(|r| r.health).collect::<Vec<_>>(), [Health::Bad, Health::Fair]);
}

#[test]
fn a_replica_that_does_not_answer_is_bad_whatever_its_events_say() {
    let mut now = healthy();
    let replica = &mut now.bridge.as_mut().unwrap().replicas[0];
    (replica.api, replica.api_error) = ("silent".into(), "GET /metrics: no answer for 1 s".into());
    let view = View::of(&now, None);
    assert_eq!(what(&view), ["a:1: its API does not answer: GET /metrics: no answer for 1 s"]);
    assert_eq!(view.replicas.iter().map(|r| r.health).collect::<Vec<_>>(), [Health::Bad, Health::Good]);
    now.bridge.as_mut().unwrap().replicas[0].api = "no_metrics".into();
    assert_eq!(what(&View::of(&now, None)), Vec::<String>::new());
}

#[test]
fn envoy_and_feed_must_speak_of_the_same_replicas() {
    let mut now = healthy();
    now.healthy = [("a:1".to_owned(), false), ("c:1".to_owned(), true)].into();
    let view = View::of(&now, None);
    let all = what(&view);
    assert!(all[0].starts_with("a:1: Envoy finds it unhealthy"), "{all:?}");
    assert!(all[1].starts_with("b:1: Envoy's clusters do not have it"), "{all:?}");
    assert!(all[2].starts_with("c:1: no feed has it"), "{all:?}");
    assert_eq!(view.replicas[2].trust, "unknown");
    now.healthy.clear();
    assert!(View::of(&now, None).problems.is_empty(), "Envoy was not asked");
}

#[test]
fn a_bridge_that_is_gone_shows_at_every_worker() {
    let mut now = healthy();
    now.bridge = None;
    now.silent.push(("bridge", "does not answer".into()));
    now.workers[0].feed.quiet = true;
    now.workers[0].feed.age_ms = Some(9_000);
    let view = View::of(&now, None);
    assert_eq!(what(&view)[0], "bridge: does not answer");
    assert!(what(&view)[1].starts_with("worker 0: feed synced, SILENT for 9 s"), "{:?}", what(&view));
    assert_eq!(view.workers.iter().map(|w| w.health).collect::<Vec<_>>(), [Health::Bad, Health::Good]);
}

#[test]
fn a_restart_shows_while_it_is_recent() {
    let (mut now, before) = (healthy(), Seen { at_ms: 1, ..healthy() });
    now.bridge.as_mut().unwrap().replicas[1].restarts = 2;
    assert_eq!(what(&View::of(&now, Some(&before))), ["b:1: began anew: its cache was lost (2 of late)"]);
    assert!(View::of(&now, Some(&now)).problems.is_empty());
}

#[test]
fn a_bridge_that_cannot_send_says_so() {
    let mut now = healthy();
    let sender = Sender { url: "http://e".into(), leading: false, error: "401".into() };
    now.bridge.as_mut().unwrap().envoys.push(sender);
    assert_eq!(what(&View::of(&now, None)), ["bridge: cannot send to http://e: 401"]);
}

fn stats(all: &[(&str, u64)]) -> BTreeMap<String, u64> {
    all.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
}

#[test]
fn rates_are_of_the_time_between_two_looks() {
    let routed = "requests_total.outcome.routed";
    let before = Seen {
        at_ms: 5_000,
        stats: stats(&[(routed, 100), ("prompt_tokens_total", 1000), ("matched_tokens_total", 0)]),
        ..healthy()
    };
    let now = Seen {
        stats: stats(&[
            (routed, 150),
            ("requests_total.outcome.too_short", 10),
            ("requests_total.outcome.not_our_path", 999),
            ("picks_total.reason.cache", 140),
            ("prompt_tokens_total", 2000),
            ("matched_tokens_total", 900),
        ]),
        ..healthy()
    };
    let requests = View::of(&now, Some(&before)).requests;
    assert_eq!((requests.all.total, requests.all.per_second), (160, Some(12.0)));
    let outcomes: Vec<_> = requests.outcomes.iter().map(|c| (c.label.as_str(), c.total, c.per_second)).collect();
    assert_eq!(outcomes, [("routed", 150, Some(10.0)), ("too_short", 10, Some(2.0))]);
    assert_eq!((requests.hit_share, requests.recent_hit_share), (Some(0.45), Some(0.9)));
    assert_eq!(requests.picks[0].label, "cache");

    let first = View::of(&now, None).requests;
    assert_eq!((first.all.per_second, first.recent_hit_share, first.window_seconds), (None, None, None));
    // Envoy began anew: its counters count from nothing.
    let anew = Seen { stats: stats(&[(routed, 20)]), ..healthy() };
    let requests = View::of(&anew, Some(&before)).requests;
    assert_eq!((requests.all.per_second, requests.recent_hit_share), (Some(4.0), None));
}
