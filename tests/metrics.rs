//! The metrics of the code, of README's tables, of the dashboard and of the alerts are the same ones.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

#[path = "common/prometheus.rs"]
mod prometheus;

use prometheus::{promtool, queries, run, text};

/// Words of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Names of families in a text.
fn named(text: &str) -> BTreeSet<String> {
    let all = words(text).filter(|w| w.starts_with("kvroute_"));
    // A family has a unit or says what it counts; these are clusters, filters and the like.
    let others = ["kvroute_bridge", "kvroute_ingest", "kvroute_admin", "kvroute_router", "kvroute_metrics"];
    let all = all.map(|w| w.strip_suffix("_bucket").unwrap_or(w));
    all.filter(|w| !others.contains(w) && !w.ends_with('_')).map(str::to_owned).collect()
}

/// The string literals of the code that makes the metrics, without its tests.
fn of_the_code() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in ["src/filter/metrics.rs", "src/bridge/serve.rs", "src/bridge/scrape.rs"] {
        let source = text(file);
        let source = source.split("#[cfg(test)]").next().unwrap();
        for literal in source.split('"').skip(1).step_by(2) {
            // Labels are a part of a counter's name in Envoy, and stand in braces in the bridge's.
            let name = literal.split(['.', '{']).next().unwrap();
            found.extend(Some(name).filter(|n| n.starts_with("kvroute_") && !n.ends_with('_')).map(str::to_owned));
        }
        // Gauges: `Gauge::Jobs => "jobs"`, with the beginning and the slot added to all.
        for line in source.lines().filter_map(|l| l.trim().strip_prefix("Gauge::")) {
            let (_, name) = line.split_once(" => \"").unwrap();
            found.insert(format!("kvroute_{}", name.trim_end_matches("\",")));
        }
    }
    assert!(found.len() > 30, "{found:?}");
    found
}

#[test]
fn counters_without_a_label_are_shown_from_the_beginning() {
    let source = text("src/filter/metrics.rs");
    let (_, plain) = source.split_once("pub const PLAIN").unwrap();
    let plain = plain.split("];").next().unwrap();
    let named: Vec<&str> =
        source.lines().filter_map(|line| line.trim().split_once(" => \"kvroute_")).map(|(c, _)| c).collect();
    let counters: Vec<&&str> = named.iter().filter(|name| name.starts_with("Counter::")).collect();
    assert!(counters.len() > 20, "{counters:?}");
    for counter in counters {
        assert!(plain.contains(&format!("{counter},")), "PLAIN lacks {counter}");
    }
}

fn of_readme() -> BTreeSet<String> {
    let readme = text("README.md");
    let (_, section) = readme.split_once("\n## Metrics\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    named(&section.lines().filter(|l| l.starts_with("| `")).collect::<Vec<_>>().join("\n"))
}

#[test]
fn readme_lists_the_metrics_of_the_code() {
    let (code, readme) = (of_the_code(), of_readme());
    let missing: Vec<_> = code.difference(&readme).collect();
    let gone: Vec<_> = readme.difference(&code).collect();
    assert!(missing.is_empty() && gone.is_empty(), "README's tables lack {missing:?} and have {gone:?}");
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_exist() {
    let code = of_the_code();
    let queries = queries();
    let asked = named(&queries.iter().map(|(_, q)| q.as_str()).collect::<Vec<_>>().join("\n"));
    let unknown: Vec<_> = asked.difference(&code).collect();
    assert!(unknown.is_empty(), "the dashboard asks for {unknown:?}");
    let unused: Vec<_> = code.difference(&asked).collect();
    eprintln!(
        "{} queries over {} of {} metrics; the dashboard leaves out {unused:?}",
        queries.len(),
        asked.len(),
        code.len()
    );
    let rules = text("envoy/prometheus/rules.yaml");
    let unknown: Vec<String> = named(&rules).difference(&code).cloned().collect();
    assert!(unknown.is_empty(), "the alerts ask for {unknown:?}");
    // The series of the alerts' tests, too: a test over a metric that does not exist proves nothing.
    let unknown: Vec<String> = named(&text("envoy/prometheus/rules_test.yaml")).difference(&code).cloned().collect();
    assert!(unknown.is_empty(), "the alerts' tests have {unknown:?}");
}

#[test]
fn every_alert_says_what_to_do() {
    let rules: Value = serde_norway::from_str(&text("envoy/prometheus/rules.yaml")).unwrap();
    let groups = rules["groups"].as_array().unwrap();
    let rules: Vec<&Value> = groups.iter().flat_map(|g| g["rules"].as_array().unwrap()).collect();
    assert!(!rules.is_empty());
    for rule in rules {
        let text = |field: &str| rule["annotations"][field].as_str().unwrap_or_default();
        assert!(!text("summary").is_empty() && !text("runbook").is_empty(), "{rule}");
        assert!(!text("runbook").contains('\n'), "a runbook line is one line: {rule}");
    }
}

#[test]
fn prometheus_takes_the_alerts_and_each_of_them_fires() {
    let Some(promtool) = promtool() else { return };
    run(&promtool, &["check", "rules", "rules.yaml"]);
    run(&promtool, &["test", "rules", "rules_test.yaml"]);
}

#[test]
fn prometheus_takes_the_queries_of_the_dashboard() {
    let Some(promtool) = promtool() else { return };
    let rule = |(i, (_, query)): (usize, &(String, String))| {
        let query = query.replace("$__rate_interval", "5m");
        serde_json::json!({"record": format!("panel:{i}"), "expr": query})
    };
    let rules: Vec<Value> = queries().iter().enumerate().map(rule).collect();
    assert!(rules.len() > 20);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard-queries.yaml");
    std::fs::write(&file, serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).unwrap();
    run(&promtool, &["check", "rules", file.to_str().unwrap()]);
}
