//! Things that die: replicas, bridges, VMs, configurations.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use kvroute::look::{WAKE_PATH, WorkerState};

use crate::harness::{Answer, BLOCK, Conversation, Gateway, MODEL, Setup, client, eventually, words};

/// Waits until no worker believes that this replica holds anything of the conversation.
async fn forgotten(gateway: &Gateway, conversation: &Conversation, replica: &str) {
    eventually("no worker believes that it holds anything of the conversation", async || {
        let matched = gateway.matched(conversation).await;
        matched.values().all(|m| m[replica] == 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_the_best_replica_between_turns_costs_no_error() {
    let mut gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    gateway.kill(gateway.index_of(&first.replica)).await;
    let answer = gateway.turn(&mut conversation, "two").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_ne!(answer.replica, first.replica);
}

#[tokio::test(flavor = "multi_thread")]
async fn routing_goes_on_without_the_bridge_and_its_return_corrects_it() {
    let mut gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    gateway.kill_bridge();
    for turn in 0..5 {
        let answer = gateway.turn(&mut conversation, &words(turn, 20)).await;
        assert_eq!((answer.status, &answer.replica), (200, &first.replica), "turn {turn}: {}", answer.outcome);
    }
    // Meanwhile its cache goes.
    eventually("the cache is reset", async || gateway.replica(home).reset_cache().await.then_some(())).await;
    gateway.nudge(home).await;
    gateway.start_bridge();
    gateway.settled().await;
    forgotten(&gateway, &conversation, &first.replica).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_replica_is_seen_as_empty() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let home = gateway.index_of(&first.replica);
    gateway.replica(home).restart();
    // The restart shows with the first event after it.
    gateway.nudge(home).await;
    gateway.settled().await;
    forgotten(&gateway, &conversation, &first.replica).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_traps_reloads_and_learns_everything_again() {
    let mut setup = Setup { concurrency: 1, ..Setup::default() };
    setup.bootstrap.router["test"] = serde_json::json!({"trap_header": "x-trap"});
    let gateway = Gateway::start(setup).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let trapped = client().post(gateway.url("/v1/chat/completions")).header("x-trap", "1").body("{}").send().await;
    assert!(trapped.is_err() || trapped.unwrap().status() == 503);
    eventually("the VM is back", async || {
        let answer = client().post(gateway.url(WAKE_PATH)).send().await;
        (answer.is_ok_and(|a| a.status() != 503) && gateway.reloads() >= 1).then_some(())
    })
    .await;
    gateway.settled().await;
    for (slot, matched) in gateway.matched(&conversation).await {
        assert!(matched[&first.replica] > 0, "slot {slot}: {matched:?}");
    }
    let answer = gateway.turn(&mut conversation, "two").await;
    assert_eq!(answer.replica, first.replica);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_bridges_one_leads() {
    let gateway = Gateway::start(Setup::default()).await;
    let second = gateway.another_bridge(crate::harness::free_address());
    let leaders = async || {
        let states = gateway.states().await;
        states.into_values().map(|s| (s.feed.term, s.feed.epoch)).collect::<BTreeSet<_>>()
    };
    let leader = leaders().await;
    assert_eq!(leader.len(), 1);
    // Both at work for a minute: workers never change sides.
    let seconds = std::env::var("KVROUTE_TWO_BRIDGES_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut conversation = Conversation::with_system(&words(1, 100));
    let mut turns = 0;
    while Instant::now() < until {
        let answer = gateway.turn(&mut conversation, &words(turns, 5)).await;
        assert_eq!(answer.status, 200);
        if conversation.messages.len() > 60 {
            conversation = Conversation::with_system(&words(turns, 100));
        }
        assert_eq!(leaders().await, leader, "the workers changed sides");
        turns += 1;
    }
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_survive_updates_of_the_configuration() {
    let mut setup = Setup::default();
    setup.bootstrap.dynamic = true;
    setup.bootstrap.public = vec![setup.bootstrap.public[0]; 2];
    let mut gateway = Gateway::start(setup).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first: Answer = gateway.turn(&mut conversation, "one").await;
    for update in 0..2 {
        // Events flow while the update happens.
        let running: Vec<_> = (0..8)
            .map(|i| {
                let url = format!("{}/v1/completions", gateway.replica(i % 3).url());
                let body =
                    serde_json::json!({"model": crate::harness::MODEL, "prompt": words(update * 100 + i as u64, 200)});
                tokio::spawn(client().post(url).body(body.to_string()).send())
            })
            .collect();
        gateway.envoy.update(|b| b.router["policy"] = serde_json::json!({"request": 10 + update})).unwrap();
        for request in running {
            assert_eq!(request.await.unwrap().unwrap().status(), 200);
        }
        gateway.settled().await;
        gateway.batches_are_announced().await;
    }
    gateway.envoy.update(|b| b.public.truncate(1)).unwrap();
    gateway.batches_are_announced().await;
    let fresh = Conversation::with_system(&words(77, 300));
    gateway.behind(1, "/v1/chat/completions", fresh.body()).await;
    gateway.settled().await;
    for (slot, matched) in gateway.matched(&fresh).await {
        assert!(matched["r1"] > 0, "events no longer reach slot {slot}: {matched:?}");
    }
    let answer = gateway.turn(&mut conversation, "two").await;
    assert_eq!(answer.replica, first.replica);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_goes_leaves_the_queue_to_the_others() {
    let mut setup = Setup::default();
    setup.bootstrap.dynamic = true;
    setup.bootstrap.drain_time_s = 1;
    setup.bootstrap.public = vec![setup.bootstrap.public[0]; 2];
    // Its own root context, by which every worker gets its slot: the queues are announced to it.
    setup.bootstrap.others = vec![setup.bootstrap.router.clone()];
    setup.bootstrap.others[0]["policy"] = json!({"candidates": 0});
    setup.bootstrap.others[0]["models"][0]["name"] = "second".into();
    setup.bridge = false;
    let mut gateway = Gateway::start(setup).await;
    let second = gateway.envoy.public_at(1);
    eventually("all workers have a slot", async || {
        let _ = client().post(format!("http://{second}{WAKE_PATH}")).send().await;
        (gateway.envoy.stats(".kvroute_synced.slot.").unwrap().len() >= 2).then_some(())
    })
    .await;
    gateway.start_bridge();
    gateway.settled().await;
    gateway.batches_are_announced().await;
    // Each listener knows its own model only.
    let body = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": words(1, 100)}]});
    let ask = async |at: std::net::SocketAddr, model: &str| {
        let request = client().post(format!("http://{at}/v1/chat/completions")).body(body(model).to_string());
        Answer::read(request.send().await.unwrap()).await.outcome
    };
    assert!(ask(gateway.envoy.public(), MODEL).await.starts_with("routed"));
    assert_eq!(ask(gateway.envoy.public(), "second").await, "unknown_model");
    assert_eq!(ask(second, MODEL).await, "unknown_model");
    gateway.envoy.update(|b| b.public.truncate(1)).unwrap();
    eventually("the listener is gone", async || {
        (gateway.envoy.stat("listener_manager.total_listeners_draining").unwrap() == 0).then_some(())
    })
    .await;
    gateway.batches_are_announced().await;
    assert!(ask(gateway.envoy.public(), MODEL).await.starts_with("routed"));
}

/// Blocks that each worker calls unconfirmed of a replica, by slot.
async fn unconfirmed(gateway: &Gateway, replica: usize) -> Vec<u64> {
    let address = gateway.replica(replica).http_addr().to_string();
    let states = gateway.states().await;
    let of = |state: &WorkerState| state.replicas.iter().find(|r| r.address == address).map(|r| r.unconfirmed_blocks);
    states.values().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_from_before_a_gap_count_less_until_a_request_finds_them() {
    let gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let first = gateway.turn(&mut conversation, "one").await;
    let home = gateway.index_of(&first.replica);
    let prompt = |seed| json!({"model": MODEL, "prompt": words(seed, 100), "max_tokens": 1}).to_string().into_bytes();
    gateway.behind(home, "/v1/completions", prompt(5)).await;
    gateway.settled().await;
    // A batch is lost for good; the next one shows it.
    gateway.replica(home).drop_events(1, true);
    gateway.behind(home, "/v1/completions", prompt(6)).await;
    gateway.behind(home, "/v1/completions", prompt(7)).await;
    gateway.settled().await;
    let address = gateway.replica(home).http_addr().to_string();
    for state in gateway.states().await.values() {
        let replica = state.replicas.iter().find(|r| r.address == address).unwrap();
        assert_eq!((replica.trust.as_str(), replica.trust_reason.as_str()), ("catching_up", "gap"));
    }
    let before = unconfirmed(&gateway, home).await;
    let text = kvroute_state(&gateway);
    assert!(text.contains("catching_up: gap"), "{text}");
    // They still draw the conversation, whose blocks are confirmed by that. Those of the other prompt are not.
    let second = gateway.turn(&mut conversation, "two").await;
    assert_eq!(second.replica, first.replica, "{}", second.outcome);
    let found = second.cached_tokens() / u64::from(BLOCK);
    assert!(found > 0, "{second:?}");
    eventually("what was found is confirmed", async || {
        let now = unconfirmed(&gateway, home).await;
        now.iter().zip(&before).all(|(now, before)| *now > 0 && now + found <= *before).then_some(())
    })
    .await;
}

fn kvroute_state(gateway: &Gateway) -> String {
    let url = format!("http://{}", gateway.envoy.ingest());
    crate::harness::kvroute(&["state", "--gateway", &url, "--secret", &gateway.envoy.bootstrap().secret])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_came_too_late_learns_from_requests() {
    let mut setup = Setup { replicas: 1, bridge: false, ..Setup::default() };
    setup.mock.replay_batches = 1;
    let mut gateway = Gateway::start(setup).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    conversation.messages.push(json!({"role": "user", "content": "one"}));
    gateway.behind(0, "/v1/chat/completions", conversation.body()).await;
    gateway.nudge(0).await;
    gateway.start_bridge();
    gateway.settled().await;
    assert!(gateway.matched(&conversation).await.values().all(|m| m["r0"] == 0), "nobody told of it");
    conversation.messages.push(json!({"role": "assistant", "content": "two"}));
    let answer = gateway.turn(&mut conversation, "three").await;
    let found = answer.cached_tokens() / u64::from(BLOCK);
    assert!(found > 0, "{answer:?}");
    let full = answer.prompt_tokens() / u64::from(BLOCK);
    assert!(full > found, "the last turn fills a block of its own");
    // The blocks that the engine found, and behind them those that its events told without their beginning.
    eventually("every worker knows of them", async || {
        gateway.matched(&conversation).await.values().all(|m| m["r0"] >= full).then_some(())
    })
    .await;
}
