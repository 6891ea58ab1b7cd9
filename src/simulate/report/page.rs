//! The page: for each traffic a table, the times to the first token, and the load of the replicas.

use std::fmt::Write;

use super::plot::{Line, Plot, escape};
use crate::simulate::suite::Suite;
use crate::simulate::{Outcome, PolicyName};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2430;--dim:#68727f;--line:#d9dee5;--ground:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--dim:#98a3b1;--line:#333c48;--ground:#12161c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);max-width:1280px;margin:2em auto;
padding:0 1em}
h2{margin:2em 0 .2em}p{margin:.3em 0;color:var(--dim)}
table{border-collapse:collapse;margin:.8em 0;font-variant-numeric:tabular-nums}
th,td{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--dim);font-weight:600}tr.own td{font-weight:600}
.plots{display:flex;flex-wrap:wrap;gap:1em}figure{margin:0;flex:1 1 480px}figcaption{color:var(--dim)}
svg{width:100%;height:auto}svg text{fill:var(--dim);font-size:11px}.end{text-anchor:end}.mid{text-anchor:middle}
.grid{stroke:var(--line);fill:none}.line{fill:none;stroke-width:1.6}
.key{display:inline-block;width:.9em;height:.9em;border-radius:2px;margin-right:.4em;vertical-align:-.1em}
";

/// One colour a policy, told apart on light and dark ground.
const COLOURS: [&str; 10] =
    ["#888f99", "#d6336c", "#c9a227", "#8d6e63", "#2f7fd1", "#7a5cd0", "#e8702a", "#2f9e5f", "#11a5b5", "#b04aa0"];

fn class(policy: &str) -> String {
    let at = PolicyName::ALL.iter().position(|p| p.label() == policy).unwrap_or(0);
    format!("p{at}")
}

/// A page that needs nothing else: no script, no font, no address.
pub fn page(suite: &Suite, outcomes: &[Outcome]) -> String {
    let mut colours = String::new();
    for (at, colour) in COLOURS.iter().enumerate() {
        let _ = write!(colours, ".p{at}{{stroke:{colour};background:{colour}}}");
    }
    // Of one policy, the replicas.
    for at in 0..16 {
        let _ = write!(colours, ".r{at}{{stroke:hsl({} 60% 50%)}}", at * 137 % 360);
    }
    let s = &suite.scenario;
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>kvroute simulate</title><style>{STYLE}{colours}</style>\
         <h1>kvroute simulate</h1><p>{} replicas of {} blocks of {} tokens; a prompt token takes {} us, a step of \
         decoding {} ms; {} gateways; seed {}.</p>",
        s.replicas, s.blocks, s.block_size, s.prefill_us, s.decode_ms, s.gateways, s.seed
    );
    for traffic in &suite.traffics {
        let of: Vec<&Outcome> = outcomes.iter().filter(|o| o.traffic == traffic.name).collect();
        let _ = write!(out, "<h2>{}</h2><p>{}</p>", escape(&traffic.name), escape(&traffic.about));
        out += &rows(suite, &of);
        out += "<div class=\"plots\">";
        out += &first_tokens(suite, &of);
        out += &load(&of);
        if suite.delays.len() > 1 {
            out += &delays(&of);
        }
        out += "</div>";
    }
    out + "</html>\n"
}

fn name(suite: &Suite, outcome: &Outcome) -> String {
    match suite.delays.len() {
        0 | 1 => outcome.policy.clone(),
        _ => format!("{}, {} ms", outcome.policy, outcome.event_delay_ms),
    }
}

fn rows(suite: &Suite, of: &[&Outcome]) -> String {
    let mut out = "<table><tr><th>policy<th>hit rate<th>TTFT p50<th>p90<th>p99 ms<th>requests/s".to_owned();
    if let Some(bound) = suite.bound_ms {
        let _ = write!(out, "<th>requests/s at p90 of {bound} ms");
    }
    out += "<th>uneven (busy)<th>uneven (prefill)<th>wrong picks<th>prefilled</tr>";
    for o in of {
        let own = if o.policy == PolicyName::Kvroute.label() { " class=\"own\"" } else { "" };
        let _ = write!(
            out,
            "<tr{own}><td><span class=\"key {}\"></span>{}<td>{:.1} %<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.2}",
            class(&o.policy),
            escape(&name(suite, o)),
            o.hit_rate * 100.0,
            o.ttft_ms.p50,
            o.ttft_ms.p90,
            o.ttft_ms.p99,
            o.throughput
        );
        if suite.bound_ms.is_some() {
            let _ = write!(out, "<td>{:.2}", o.bound_throughput.unwrap_or(0.0));
        }
        let wrong = o.wrong_picks.map_or("-".to_owned(), |w| format!("{:.1} %", w * 100.0));
        let _ = write!(
            out,
            "<td>{:.2}<td>{:.2}<td>{wrong}<td>{:.2} M</tr>",
            o.busy_imbalance,
            o.prefill_imbalance,
            o.prefilled_tokens as f64 / 1e6
        );
    }
    out + "</table>"
}

fn figure(plot: Plot, caption: &str) -> String {
    format!("<figure>{}<figcaption>{caption}</figcaption></figure>", plot.svg())
}

fn first_tokens(suite: &Suite, of: &[&Outcome]) -> String {
    let line = |o: &&Outcome| Line {
        name: name(suite, o),
        class: class(&o.policy),
        points: o.ttft_curve.iter().enumerate().map(|(at, ms)| (at as f64, *ms)).collect(),
    };
    let lines = of.iter().rev().map(line).collect();
    let plot = Plot { x: "share of requests, %".into(), y: "time to the first token, ms".into(), log: true, lines };
    figure(plot, "Time to the first token: so many requests wait at most so long.")
}

fn load(of: &[&Outcome]) -> String {
    let Some(shown) = of.iter().find(|o| o.policy == PolicyName::Kvroute.label()).or(of.first()) else {
        return String::new();
    };
    let line = |(at, series): (usize, &Vec<u32>)| {
        // One that came later starts later.
        let longest = shown.load.iter().map(Vec::len).max().unwrap_or(0);
        let from = longest - series.len();
        let point = |(n, requests): (usize, &u32)| ((from + n) as f64 * shown.load_every, f64::from(*requests));
        Line {
            name: format!("replica {at}"),
            class: format!("r{}", at % 16),
            points: series.iter().enumerate().map(point).collect(),
        }
    };
    let lines = shown.load.iter().enumerate().map(line).collect();
    let plot = Plot { x: "seconds".into(), y: "requests on a replica".into(), log: false, lines };
    figure(plot, &format!("Requests on each replica over time, by {}.", escape(&shown.policy)))
}

fn delays(of: &[&Outcome]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for o in of {
        let at = match lines.iter().position(|l| l.name == o.policy) {
            Some(at) => at,
            None => {
                lines.push(Line { name: o.policy.clone(), class: class(&o.policy), points: Vec::new() });
                lines.len() - 1
            }
        };
        lines[at].points.push((o.event_delay_ms, o.ttft_ms.p90));
    }
    let plot = Plot { x: "delay of events, ms".into(), y: "p90 of TTFT, ms".into(), log: false, lines };
    figure(plot, "What late events cost.")
}
