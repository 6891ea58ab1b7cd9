//! What a request that is not routed costs Envoy.

use std::time::{Duration, Instant};

use kvroute::gateway::Balancing;
use serde_json::json;

use super::harness::{Gateway, Setup};
use super::wire::{Wire, cpu};
use super::{Measured, median, noop, plain};

/// Short and many: what else the machine does then meets all three alike.
const ROUNDS: usize = 120;
const CONNECTIONS: u32 = 8;
const REQUESTS: u32 = 100;

/// Without a filter, with one that does nothing, with kvroute; rounds taken in turn.
pub async fn overhead() -> Measured {
    let without = Setup { concurrency: 1, ..plain(Balancing::WithoutFilter) };
    let mut nothing = Setup { concurrency: 1, ..plain(Balancing::WithoutFilter) };
    nothing.bootstrap.in_place = Some(noop::file());
    let kvroute = Setup { concurrency: 1, ..plain(Balancing::Kvroute) };
    let gateways = [Gateway::start(without).await, Gateway::start(nothing).await, Gateway::start(kvroute).await];
    let request = b"GET /v1/models HTTP/1.1\r\nhost: bench\r\n\r\n";
    // A worker takes part from its first request on. What the feed and its ticks cost from then on does not depend on
    // requests: taken off.
    for gateway in &gateways {
        Wire::connect(gateway.envoy.public()).await.ask(request).await;
    }
    gateways[2].all_have_slots().await;
    let (start, begin) = (cpu(gateways[2].envoy.pid()), Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let idle = (cpu(gateways[2].envoy.pid()) - start).as_secs_f64() / begin.elapsed().as_secs_f64();
    let mut costs = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (costs, (gateway, idle)) in costs.iter_mut().zip(gateways.iter().zip([0.0, 0.0, idle])) {
            let (start, begin) = (cpu(gateway.envoy.pid()), Instant::now());
            let mut running = tokio::task::JoinSet::new();
            // Several at once: a worker that sleeps between any two requests mostly wakes up.
            for _ in 0..CONNECTIONS {
                let mut wire = Wire::connect(gateway.envoy.public()).await;
                running.spawn(async move {
                    for _ in 0..REQUESTS {
                        wire.ask(request).await;
                    }
                });
            }
            running.join_all().await;
            let spent = (cpu(gateway.envoy.pid()) - start).as_secs_f64() - idle * begin.elapsed().as_secs_f64();
            costs.push(spent / f64::from(CONNECTIONS * REQUESTS) * 1e6);
        }
    }
    // Of the rounds next to each other, not of medians apart: the machine's speed changes while it measures.
    let more = |with: &[f64], without: &[f64]| median(with.iter().zip(without).map(|(a, b)| a - b).collect());
    let [without, nothing, kvroute] = &costs;
    let (nothing_more, kvroute_more, own) = (more(nothing, without), more(kvroute, without), more(kvroute, nothing));
    let [without, nothing, kvroute] = costs.map(median);
    Measured {
        name: "overhead_us",
        value: kvroute_more,
        goal: 10.0,
        what: "Envoy's CPU that the filter adds to a request it does not route, in us",
        detail: vec![
            format!("{without:6.1} us  Envoy without a filter"),
            format!("{nothing:6.1} us  with one that does nothing: {nothing_more:+.1}"),
            format!("{kvroute:6.1} us  with kvroute: {kvroute_more:+.1}, its own share {own:+.1}"),
            format!("The feed takes {:.1} ms a second, which is taken off.", idle * 1e3),
        ],
        numbers: json!({
            "without_filter_us": without,
            "noop_filter_us": nothing,
            "kvroute_us": kvroute,
            "noop_filter_more_us": nothing_more,
            "own_share_us": own,
            "feed_ms_per_s": idle * 1e3,
        }),
    }
}
