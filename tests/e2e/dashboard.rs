//! The dashboard over what a real Envoy and a real bridge say: Prometheus itself evaluates every query.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Conversation, Gateway, Setup, client, eventually, words};

#[path = "../common/prometheus.rs"]
mod prometheus;

use prometheus::{promtool, queries, run};

/// Panels of what happens only where something is wrong: without it there is nothing to show.
const EMPTY_WHERE_ALL_IS_WELL: [&str; 1] = ["Events that cannot be used"];

/// Series by name and labels, and their value.
type Page = BTreeMap<String, f64>;

/// The samples of a page that the dashboard may ask for, labelled with whose page it is. The times of VMs and the like
/// stay out.
fn samples(text: &str, instance: &str) -> Page {
    let lines = text.lines().filter(|line| line.starts_with("kvroute_") || line.starts_with("envoy_wasm_"));
    let read = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = labels.trim_end_matches('}');
        let comma = if labels.is_empty() { "" } else { "," };
        (format!("{name}{{{labels}{comma}job=\"kvroute\",instance=\"{instance}\"}}"), value.parse().unwrap())
    };
    lines.map(read).collect()
}

/// What the gateway's Envoy and bridge say now.
async fn look(gateway: &Gateway, instance: &str) -> Page {
    let bridge = gateway.bridge.as_ref().unwrap().address;
    let mut page = Page::new();
    for (url, of) in [
        (format!("http://{}/stats/prometheus", gateway.envoy.admin()), "envoy"),
        (format!("http://{bridge}/metrics"), "bridge"),
    ] {
        let text = client().get(url).send().await.unwrap().text().await.unwrap();
        page.extend(samples(&text, &format!("{of}-{instance}")));
    }
    page
}

/// Traffic of six conversations over two turns, and what is said before and after it.
async fn recorded(field: &str, value: Value, treated: &[&str]) -> (Page, Page) {
    let mut setup = Setup::default();
    setup.bootstrap.router["models"][0][field] = value;
    setup.bootstrap.router["tenant_salt"] = json!({"header": "x-tenant", "write": true});
    // Every request is timed.
    setup.bootstrap.router["receipts"] = json!({"sample": 1});
    let gateway = Gateway::start(setup).await;
    let before = look(&gateway, field).await;
    for turn in 0..2 {
        for seed in 0..6 {
            let mut conversation = Conversation::with_system(&words(seed, 200));
            conversation.messages.push(json!({"role": "user", "content": format!("{seed}: and now?")}));
            let body = conversation.body();
            let headers = [("x-tenant", "a")];
            let answer = gateway.post_with(&client(), "/v1/chat/completions", body, &headers).await;
            assert_eq!(answer.status, 200, "turn {turn}: {answer:?}");
        }
        gateway.settled().await;
    }
    eventually("all requests are counted", async || {
        (treated.iter().map(|label| gateway.outcome(label)).sum::<u64>() == 12).then_some(())
    })
    .await;
    (before, look(&gateway, field).await)
}

/// A test for promtool: each series stands for three minutes as it was, then as it is.
fn rules_test(before: &Page, after: &Page, checks: &[Value]) -> Value {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let series = names.into_iter().map(|name| {
        let now = after.get(name).or_else(|| before.get(name)).unwrap();
        // A counter with a new label has come from nothing.
        let then = before.get(name).unwrap_or(&0.0);
        json!({"series": name, "values": format!("{then}x3 {now}x3")})
    });
    let series: Vec<Value> = series.collect();
    json!({"tests": [{"name": "dashboard", "interval": "1m", "input_series": series, "promql_expr_test": checks}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_evaluates_every_query_of_the_dashboard() {
    let Some(promtool) = promtool() else { return };
    let (mut before, mut after) = recorded("rollout_percent", json!(50), &["routed", "held_out"]).await;
    let (then, now) = recorded("shadow", json!(true), &["shadow"]).await;
    before.extend(then);
    after.extend(now.clone());

    let filled = |query: &str| query.replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "5m");
    let mut checks: Vec<Value> = Vec::new();
    for (panel, query) in queries() {
        let expected = u8::from(!EMPTY_WHERE_ALL_IS_WELL.contains(&panel.as_str()));
        // Series that the query comes to: none is no sample at all.
        let expression = format!("(count({}) > bool 0) or vector(0)", filled(&query));
        let samples = json!([{"labels": "{}", "value": expected}]);
        checks.push(json!({"expr": expression, "eval_time": "6m", "exp_samples": samples}));
    }
    assert!(checks.len() > 40, "{}", checks.len());
    // And the share of shadow mode is that of the counters.
    let sum = |name: &str| {
        let of = now.iter().filter(|(series, _)| series.starts_with(&format!("kvroute_shadow_{name}_tokens_total{{")));
        of.map(|(_, value)| value).sum::<f64>()
    };
    let share = sum("matched") / sum("prompt");
    assert!(share > 0.3, "{share}");
    let (_, gain) = queries().into_iter().find(|(panel, _)| panel == "What routing would gain").unwrap();
    let near = format!("abs({} - {share}) < bool 0.000001", filled(&gain));
    checks.push(json!({"expr": near, "eval_time": "6m", "exp_samples": [{"labels": "{}", "value": 1}]}));

    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard-test.yaml");
    std::fs::write(&file, rules_test(&before, &after, &checks).to_string()).unwrap();
    run(&promtool, &["test", "rules", file.to_str().unwrap()]);
    eprintln!("{} queries over {} series of two gateways", queries().len(), after.len());
}
