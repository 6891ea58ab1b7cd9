//! Body to text.

use kvroute::pack::Pack;
use kvroute::request::{Api, Body, EngineFlags, Renderer};
use kvroute::template::{Way, render_by};

use super::clock::{Clock, Rows, timed};
use super::spec::Spec;

/// A sentence with an escape and characters of more than one byte, so near the worst that people write.
const SENTENCE: &str = "The quick \\\"brown\\\" fox jumps \\u00fcber the lazy dog \u{2013} again and again.\\n";

fn message(role: &str, bytes: usize) -> String {
    let text = SENTENCE.repeat(bytes / SENTENCE.len() + 1);
    format!(r#"{{"role":"{role}","content":"{text}"}}"#)
}

fn tools(count: usize) -> String {
    let tool = |n: usize| {
        format!(
            r#"{{"type":"function","function":{{"name":"tool_{n}","description":"Looks up thing {n} by its name and place.","parameters":{{"type":"object","properties":{{"name":{{"type":"string","description":"its name"}},"limit":{{"type":"integer","default":10}},"places":{{"type":"array","items":{{"type":"string"}}}}}},"required":["name"]}}}}}}"#
        )
    };
    (0..count).map(tool).collect::<Vec<String>>().join(",")
}

fn body(messages: &[String], tools: &str) -> String {
    let tools = if tools.is_empty() { String::new() } else { format!(r#","tools":[{tools}]"#) };
    format!(r#"{{"model":"m","stream":true,"messages":[{}]{tools}}}"#, messages.join(","))
}

fn agent(turns: usize) -> Vec<String> {
    let mut messages = vec![message("system", 2000)];
    for turn in 0..turns {
        messages.push(match turn % 3 {
            0 => message("user", 900),
            1 => format!(
                r#"{{"role":"assistant","content":"","tool_calls":[{{"id":"call_{turn}","type":"function","function":{{"name":"tool_1","arguments":"{{\"name\": \"a thing of turn {turn}\", \"limit\": 5}}"}}}}]}}"#
            ),
            _ => format!(r#"{{"role":"tool","tool_call_id":"call_{}","content":"{}"}}"#, turn - 1, SENTENCE.repeat(18)),
        });
    }
    messages
}

/// The bodies: name, text, how often.
pub fn bodies() -> Vec<(&'static str, String, usize)> {
    let small = [message("system", 300), message("user", 300)];
    let chat: Vec<String> = (0..120).map(|turn| message(["user", "assistant"][turn & 1], 850)).collect();
    vec![
        ("2 KB with 3 tools", body(&small, &tools(3)), 2001),
        ("60 turns, 112 KB", body(&chat, ""), 501),
        ("1 MB of text", body(&[message("user", 1_000_000)], ""), 101),
        ("600 messages, 30 tools", body(&agent(600), &tools(30)), 101),
    ]
}

/// Measures the template of the spec's pack.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    let pack = Pack::parse(spec.bytes("pack")?.to_vec()).map_err(|error| error.0)?;
    let source = pack.first().ok_or("no pack")?.template_source().clone();
    let flags = EngineFlags {
        enable_auto_tool_choice: true,
        tool_call_parser: Some("any".to_owned()),
        ..EngineFlags::default()
    };
    let mut rows = Rows::new();
    let mut compiled = f64::INFINITY;
    (0..21).for_each(|_| compiled = compiled.min(timed(clock, || drop(Renderer::new(source.clone(), &flags)))));
    rows.insert("compile".into(), compiled);
    let renderer = Renderer::new(source, &flags)?;
    for (name, body, runs) in bodies() {
        let bytes = body.as_bytes();
        let text = || {
            let parsed = Body::parse(bytes).map_err(|reason| reason.to_string())?;
            renderer.prepare(Api::ChatCompletions, &parsed, 0).map_err(|reason| reason.to_string())
        };
        text()?;
        // In turns, so that what else runs on the machine is in all of them.
        let mut least = [f64::INFINITY; 4];
        for _ in 0..runs {
            let mut keep = |at: usize, time: f64| least[at] = least[at].min(time);
            keep(0, timed(clock, || drop(text())));
            render_by(Way::Engine);
            keep(1, timed(clock, || drop(text())));
            render_by(Way::Quick);
            keep(2, timed(clock, || drop(Body::parse(bytes))));
            keep(3, timed(clock, || drop(serde_json::from_slice::<serde_json::Value>(bytes))));
        }
        let names = ["body to text", "template engine", "parse", "serde_json parse"];
        names.iter().zip(least).for_each(|(what, time)| _ = rows.insert(format!("{name}: {what}"), time));
        rows.insert(format!("{name}: bytes"), bytes.len() as f64);
    }
    Ok(rows)
}
