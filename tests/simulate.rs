//! What must hold of the choice, in the simulator: small sizes, fixed seeds. `kvroute simulate` shows the same at
//! full size.

use kvroute::clock::{MS, SECOND};
use kvroute::simulate::traffic::Shape;
use kvroute::simulate::{Outcome, PolicyName, Scenario, Traffic, Watch, burst, run};

fn scenario() -> Scenario {
    Scenario::default()
}

fn outcome(scenario: &Scenario, traffic: &Traffic, policy: PolicyName) -> Outcome {
    run(scenario, traffic, policy, Watch::default())
}

/// Every baseline, the oracle and kvroute on a shape.
struct Compared {
    oracle: Outcome,
    kvroute: Outcome,
    baselines: Vec<Outcome>,
}

fn compare(shape: Shape, seconds: f64, load: f64) -> Compared {
    let (scenario, traffic) = (scenario(), shape.traffic(seconds, load, 16, 1));
    let baselines = PolicyName::ALL.into_iter().filter(|p| p.is_baseline());
    let compared = Compared {
        oracle: outcome(&scenario, &traffic, PolicyName::Oracle),
        kvroute: outcome(&scenario, &traffic, PolicyName::Kvroute),
        baselines: baselines.map(|p| outcome(&scenario, &traffic, p)).collect(),
    };
    for o in [&compared.oracle, &compared.kvroute].into_iter().chain(&compared.baselines) {
        assert_eq!(o.requests, traffic.requests(), "{} {}: all are answered", o.traffic, o.policy);
        println!(
            "{:15} {:14} hit {:.3} p90 {:7.1} ms, {:.2} req/s",
            o.traffic, o.policy, o.hit_rate, o.ttft_ms.p90, o.throughput
        );
    }
    compared
}

impl Compared {
    fn near_the_oracle(&self) {
        let (own, oracle) = (&self.kvroute, &self.oracle);
        assert!(own.hit_rate > oracle.hit_rate - 0.02, "{}: hit {} of {}", own.traffic, own.hit_rate, oracle.hit_rate);
        let (p90, bound) = (own.ttft_ms.p90, oracle.ttft_ms.p90 * 1.05);
        assert!(p90 < bound, "{}: p90 {p90} over {bound}", own.traffic);
    }

    /// By at most `over` (1.01: one per cent) worse than any.
    fn within(&self, over: f64) {
        for other in &self.baselines {
            let (p90, bound) = (self.kvroute.ttft_ms.p90, other.ttft_ms.p90 * over);
            assert!(p90 < bound, "{}: p90 {p90}, {} has {}", other.traffic, other.policy, other.ttft_ms.p90);
        }
        // Nothing is saturated here, so all bear the same. Counted are answers until the last session begins: of a
        // minute's some ten more or less by chance, by when the turns fall; `saturated` compares what they can bear.
        self.answers(0.97);
    }

    /// At least this share of what any answers a second.
    fn answers(&self, share: f64) {
        for other in &self.baselines {
            let (own, least) = (self.kvroute.throughput, other.throughput * share);
            assert!(own > least, "{}: {own} requests/s, {} has {}", other.traffic, other.policy, other.throughput);
        }
    }

    fn best(&self) {
        self.near_the_oracle();
        self.within(1.0);
        for other in &self.baselines {
            assert!(self.kvroute.hit_rate >= other.hit_rate - 0.005, "{}: {} hits more", other.traffic, other.policy);
        }
    }
}

#[test]
fn shared_prefixes() {
    compare(Shape::SharedPrefix, 60.0, 1.0).best();
}

#[test]
fn chats() {
    compare(Shape::MultiTurn, 60.0, 1.0).best();
}

#[test]
fn agents() {
    compare(Shape::Agents, 40.0, 1.0).best();
}

#[test]
fn long_documents() {
    compare(Shape::LongDocuments, 120.0, 1.0).best();
}

#[test]
fn adapters() {
    let compared = compare(Shape::Lora, 60.0, 1.0);
    compared.near_the_oracle();
    compared.within(1.01);
}

#[test]
fn a_flash_crowd() {
    let compared = compare(Shape::FlashCrowd, 60.0, 1.0);
    compared.near_the_oracle();
    compared.within(1.01);
}

#[test]
fn unique_prompts() {
    let compared = compare(Shape::Unique, 60.0, 1.0);
    compared.near_the_oracle();
    compared.within(1.01);
    let least = compared.baselines.iter().find(|o| o.policy == "least-request").unwrap();
    assert!(compared.kvroute.ttft_ms.p90 <= least.ttft_ms.p90 && compared.kvroute.ttft_ms.mean <= least.ttft_ms.mean);
}

#[test]
fn bursts_and_one_hot_prefix() {
    // Who leaves some replicas idle starts a burst there without the step of the others' answers: 20 of some 870 ms.
    // Once everybody has the hot prefix, nothing is left to choose by; one after the other keeps two from beginning in
    // the same step more evenly than any cost: 2 of some 105 ms.
    for shape in [Shape::Bursts, Shape::HotPrefix] {
        let compared = compare(shape, 60.0, 1.0);
        compared.near_the_oracle();
        compared.within(1.03);
    }
}

#[test]
fn saturated() {
    for shape in [Shape::SharedPrefix, Shape::Unique, Shape::HotPrefix] {
        compare(shape, 40.0, 3.0).answers(0.99);
    }
}

/// Tokens beyond its own end that each of a burst has to compute.
const TAIL: u64 = 16;

#[test]
fn a_burst_of_one_cold_prompt_is_computed_once_a_replica_and_on_no_more_than_pay() {
    let scenario = scenario();
    let one = Shape::burst(16, 1);
    assert_eq!(one.requests(), 64);
    let (own, oracle) = (outcome(&scenario, &one, PolicyName::Kvroute), outcome(&scenario, &one, PolicyName::Oracle));
    let pays = burst::break_even(&scenario, 64, 8192);
    let computing = own.prefilled.iter().filter(|tokens| **tokens > 0).count();
    println!(
        "{computing} replicas compute it, break-even {pays}; {} tokens prefilled, the oracle {}",
        own.prefilled_tokens, oracle.prefilled_tokens
    );
    assert!(computing <= pays, "{computing} replicas, where {pays} pay");
    for tokens in own.prefilled.iter().filter(|tokens| **tokens > 0) {
        assert!(*tokens <= 8192 + 63 * TAIL, "{tokens}: computed twice");
    }
    assert_eq!(own.prefilled_tokens, computing as u64 * 8192 + (64 - computing as u64) * TAIL);
}

#[test]
fn an_hour_of_one_hot_prefix_does_not_swing() {
    let scenario = Scenario { replicas: 2, block_size: 64, blocks: 5000, ..scenario() };
    let traffic = Shape::HotPrefix.traffic(3600.0, 0.25, 64, 1);
    let (own, even) =
        (outcome(&scenario, &traffic, PolicyName::Kvroute), outcome(&scenario, &traffic, PolicyName::LeastRequest));
    println!(
        "swing {:.3} and {:.3}, uneven {:.3} and {:.3}",
        own.swing(),
        even.swing(),
        own.unevenness(),
        even.unevenness()
    );
    // Chance alone makes least request swing as much.
    assert!(own.swing() < even.swing() * 1.02, "{} against {}", own.swing(), even.swing());
    assert!(own.unevenness() < even.unevenness(), "{} against {}", own.unevenness(), even.unevenness());
    assert!(own.ttft_ms.p90 < even.ttft_ms.p90 && own.hit_rate > 0.9);
}

#[test]
fn gateways_that_do_not_see_each_other_do_not_herd_when_events_are_late() {
    let traffic = Shape::MultiTurn.traffic(60.0, 1.0, 16, 1);
    let with = |gateways, delay| Scenario { gateways, event_delay: delay * MS, ..scenario() };
    let alone = outcome(&with(1, 0), &traffic, PolicyName::Kvroute);
    let even = outcome(&with(4, 0), &traffic, PolicyName::LeastRequest);
    for delay in [0, 50, 200, 500] {
        let own = outcome(&with(4, delay), &traffic, PolicyName::Kvroute);
        println!(
            "{delay:3} ms: hit {:.3}, p90 {:.0} ms, uneven {:.3} (one gateway {:.3}, p90 {:.0} ms, uneven {:.3})",
            own.hit_rate,
            own.ttft_ms.p90,
            own.unevenness(),
            alone.hit_rate,
            alone.ttft_ms.p90,
            alone.unevenness()
        );
        assert!(own.hit_rate > alone.hit_rate - 0.03, "{delay} ms: hit {} of {}", own.hit_rate, alone.hit_rate);
        assert!(own.ttft_ms.p90 < even.ttft_ms.p90 * 0.6, "{delay} ms: p90 {}", own.ttft_ms.p90);
        // Late and alone they are less even, by up to a quarter here. A herd is more: those who go by what engines
        // report run to the same replica until the next report.
        assert!(own.unevenness() < alone.unevenness() * 1.35, "{delay} ms: uneven {}", own.unevenness());
        let herd = outcome(&with(4, delay), &traffic, PolicyName::LlmD);
        assert!(own.unevenness() < herd.unevenness(), "{delay} ms: as uneven as a herd, {}", herd.unevenness());
    }
}

#[test]
fn lost_events_are_made_up_for() {
    let traffic = Shape::Agents.traffic(30.0, 0.7, 16, 1);
    let all = outcome(&scenario(), &traffic, PolicyName::Kvroute);
    let lossy = outcome(&Scenario { event_loss: 0.02, ..scenario() }, &traffic, PolicyName::Kvroute);
    println!(
        "hit {:.3} and {:.3}, p90 {:.0} and {:.0} ms",
        all.hit_rate, lossy.hit_rate, all.ttft_ms.p90, lossy.ttft_ms.p90
    );
    assert!(lossy.hit_rate > all.hit_rate - 0.02);
}

#[test]
fn slower_and_newer_replicas_get_what_they_can_bear() {
    let speeds = vec![1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.4, 0.4];
    let traffic = Shape::Unique.traffic(60.0, 0.8, 16, 1);
    let uneven = Scenario { speeds, ..scenario() };
    let (own, even) =
        (outcome(&uneven, &traffic, PolicyName::Kvroute), outcome(&uneven, &traffic, PolicyName::LeastRequest));
    println!("of several speeds: p90 {:.0}, least request {:.0} ms", own.ttft_ms.p90, even.ttft_ms.p90);
    assert!(own.ttft_ms.p90 < even.ttft_ms.p90);

    let traffic = Shape::MultiTurn.traffic(80.0, 1.0, 16, 1);
    let few = Scenario { replicas: 4, ..scenario() };
    let more = Scenario { scale_out: vec![(20 * SECOND, 4)], ..few.clone() };
    let (few, more) = (outcome(&few, &traffic, PolicyName::Kvroute), outcome(&more, &traffic, PolicyName::Kvroute));
    println!(
        "scale-out: p90 {:.0} ms, without {:.0} ms; prefilled {:?}",
        more.ttft_ms.p90, few.ttft_ms.p90, more.prefilled
    );
    assert!(more.ttft_ms.p90 < few.ttft_ms.p90);
    assert!(more.prefilled[4..].iter().all(|tokens| *tokens > 0), "{:?}", more.prefilled);
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let traffic = Shape::FlashCrowd.traffic(20.0, 1.0, 16, 3);
    let scenario = Scenario { gateways: 2, event_loss: 0.01, ..scenario() };
    for policy in PolicyName::ALL {
        assert_eq!(outcome(&scenario, &traffic, policy), outcome(&scenario, &traffic, policy), "{}", policy.label());
    }
}

mod command {
    use std::process::{Command, Output};

    fn simulate(arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kvroute")).arg("simulate").args(arguments).output().unwrap()
    }

    #[test]
    fn a_table_a_page_and_json() {
        let page = std::env::temp_dir().join(format!("kvroute-simulate-{}.html", std::process::id()));
        let some =
            ["multi-turn", "--seconds", "10", "--policies", "kvroute,random", "--report", page.to_str().unwrap()];
        let out = simulate(&some);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(text.contains("multi-turn") && text.contains("kvroute") && text.contains("random"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let html = std::fs::read_to_string(&page).unwrap();
        std::fs::remove_file(&page).unwrap();
        assert!(html.contains("<svg") && html.contains("</html>"));
        for outside in ["http:", "https:", "src=", "@import", "url(", "<script"] {
            assert!(!html.contains(outside), "{outside}");
        }
        let out = simulate(&["bursts", "--seconds", "5", "--policies", "oracle", "--json", "--ttft-bound-ms", "5000"]);
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(json["outcomes"].as_array().unwrap().len(), 1);
        assert!(json["outcomes"][0]["bound_throughput"].as_f64().unwrap() > 0.0);
        assert!(json["scenario"]["burst_break_even"].as_u64().unwrap() >= 1);
    }

    #[test]
    fn mistakes_are_named() {
        let cases: [(&[&str], &str); 4] = [
            (&["--weights", r#"{"que": 1}"#], "unknown field `que`"),
            (&["--scale-out", "20"], "SECONDS:N"),
            (&["--trace", "/nowhere/trace.jsonl"], "/nowhere/trace.jsonl"),
            (&["--seconds=-1"], "more than 0"),
        ];
        for (arguments, part) in cases {
            let out = simulate(arguments);
            let error = String::from_utf8_lossy(&out.stderr).into_owned();
            assert_eq!(out.status.code(), Some(2), "{error}");
            assert!(error.contains(part), "{error}");
        }
    }
}
