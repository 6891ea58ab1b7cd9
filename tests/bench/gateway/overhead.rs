//! What a request that is not routed costs Envoy.

use std::time::{Duration, Instant};

use kvroute::gateway::Balancing;
use serde_json::json;

use super::harness::{Gateway, Setup};
use super::wire::{Wire, cpu, post};
use super::{Measured, median, noop, plain};

/// Short and many: what else the machine does then meets all three alike.
const ROUNDS: usize = 120;
const CONNECTIONS: u32 = 8;
const REQUESTS: u32 = 100;
const IDLE: Duration = Duration::from_secs(4);

/// A gateway and the CPU it takes without requests, as a share of one.
struct Idling {
    gateway: Gateway,
    idle: f64,
}

impl Idling {
    fn spent(&self, start: Duration, begin: Instant) -> f64 {
        (cpu(self.gateway.envoy.pid()) - start).as_secs_f64() - self.idle * begin.elapsed().as_secs_f64()
    }

    /// CPU of each of the requests of a round, in us.
    async fn round(&self, request: &'static [u8]) -> f64 {
        let (start, begin) = (cpu(self.gateway.envoy.pid()), Instant::now());
        let mut running = tokio::task::JoinSet::new();
        // Several at once: a worker that sleeps between any two requests mostly wakes up.
        for _ in 0..CONNECTIONS {
            let mut wire = Wire::connect(self.gateway.envoy.public()).await;
            running.spawn(async move {
                for _ in 0..REQUESTS {
                    wire.answer(request).await;
                }
            });
        }
        running.join_all().await;
        self.spent(start, begin) / f64::from(CONNECTIONS * REQUESTS) * 1e6
    }
}

/// Without a filter, with one that does nothing, with kvroute; rounds taken in turn.
pub async fn overhead() -> Vec<Measured> {
    let without = Setup { concurrency: 1, ..plain(Balancing::WithoutFilter) };
    let mut nothing = Setup { concurrency: 1, ..plain(Balancing::WithoutFilter) };
    nothing.bootstrap.in_place = Some(noop::file(false));
    let kvroute = Setup { concurrency: 1, ..plain(Balancing::Kvroute) };
    let gateways = [Gateway::start(without).await, Gateway::start(nothing).await, Gateway::start(kvroute).await];
    let get = b"GET /v1/models HTTP/1.1\r\nhost: bench\r\n\r\n";
    let other = post("/v1/chat/completions", b"").leak();
    // A worker takes part from its first POST on. What the feed and its ticks cost from then on does not depend on
    // requests: taken off.
    for gateway in &gateways {
        Wire::connect(gateway.envoy.public()).await.ask(get).await;
    }
    gateways[2].all_have_slots().await;
    let starts: Vec<Duration> = gateways.iter().map(|gateway| cpu(gateway.envoy.pid())).collect();
    let begin = Instant::now();
    tokio::time::sleep(IDLE).await;
    let gateways: Vec<Idling> = gateways
        .into_iter()
        .zip(starts)
        .map(|(gateway, start)| {
            let mut idling = Idling { gateway, idle: 0.0 };
            idling.idle = idling.spent(start, begin) / begin.elapsed().as_secs_f64();
            idling
        })
        .collect();
    vec![
        measure(
            "overhead_us",
            "Envoy's CPU that kvroute adds to a request that is not routed, in us: one of another path, which its route keeps out of the filter",
            get,
            &gateways,
        )
        .await,
        measure(
            "overhead_in_filter_us",
            "the same for one that enters the filter: by a prompt's path, but without a body",
            other,
            &gateways,
        )
        .await,
    ]
}

async fn measure(name: &'static str, what: &'static str, request: &'static [u8], gateways: &[Idling]) -> Measured {
    let mut costs = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (costs, gateway) in costs.iter_mut().zip(gateways) {
            costs.push(gateway.round(request).await);
        }
    }
    // Of the rounds next to each other, not of medians apart: the machine's speed changes while it measures.
    let more = |with: &[f64], without: &[f64]| median(with.iter().zip(without).map(|(a, b)| a - b).collect());
    let [without, nothing, kvroute] = &costs;
    let (nothing_more, kvroute_more, own) = (more(nothing, without), more(kvroute, without), more(kvroute, nothing));
    let [without, nothing, kvroute] = costs.map(median);
    let idle: Vec<f64> = gateways.iter().map(|gateway| gateway.idle * 1e3).collect();
    Measured {
        name,
        value: kvroute_more,
        goal: 10.0,
        what,
        detail: vec![
            format!("{without:6.1} us  Envoy without a filter"),
            format!("{nothing:6.1} us  with one that does nothing, for every request: {nothing_more:+.1}"),
            format!("{kvroute:6.1} us  with kvroute: {kvroute_more:+.1}, over the one that does nothing {own:+.1}"),
            format!("What they take without requests is taken off: {idle:.1?} ms a second."),
        ],
        numbers: json!({
            "without_filter_us": without,
            "noop_filter_us": nothing,
            "kvroute_us": kvroute,
            "noop_filter_more_us": nothing_more,
            "own_share_us": own,
            "idle_ms_per_s": idle,
        }),
    }
}
