//! Bodies of one kind of part each, repeated until they are large.

use std::time::Instant;

use kvroute::nokey::NoKey;
use kvroute::request::{Api, memory_bound};

use crate::counting::counted;
use crate::{OWN, renderers, run};

/// A shape: its name, the API, and the body with so many parts.
type Shape = (&'static str, Api, fn(usize) -> String);

fn list(n: usize, part: impl Fn(usize) -> String) -> String {
    (0..n).map(part).collect::<Vec<String>>().join(",")
}

fn chat(messages: &str) -> String {
    format!(r#"{{"model":"m","messages":[{messages}]}}"#)
}

fn user(content: &str) -> String {
    chat(&format!(r#"{{"role":"user","content":{content}}}"#))
}

const TEXT: &str = "The quick brown fox, said \u{e9}mile, jumps; ";

const SHAPES: &[Shape] = &[
    ("one string", Api::ChatCompletions, |n| user(&format!("\"{}\"", TEXT.repeat(n)))),
    ("one string of escapes", Api::ChatCompletions, |n| user(&format!("\"{}\"", "\\n\\u00e9\\\"".repeat(4 * n)))),
    ("one prompt", Api::Completions, |n| format!(r#"{{"model":"m","prompt":"{}"}}"#, TEXT.repeat(n))),
    ("ids", Api::Completions, |n| {
        format!(r#"{{"model":"m","prompt":[{}]}}"#, list(8 * n, |i| (10_000 + i % 90_000).to_string()))
    }),
    ("small ids", Api::Completions, |n| format!(r#"{{"model":"m","prompt":[{}]}}"#, list(20 * n, |_| "1".into()))),
    ("lists of ids", Api::Completions, |n| {
        format!(r#"{{"model":"m","prompt":[{}]}}"#, list(n, |i| format!("[{},{},{}]", i, 2 * i, 3 * i)))
    }),
    ("prompts", Api::Completions, |n| format!(r#"{{"model":"m","prompt":[{}]}}"#, list(n, |i| format!("\"p{i}\"")))),
    ("empty messages", Api::ChatCompletions, |n| chat(&list(n, |_| r#"{"role":"user","content":""}"#.into()))),
    ("messages", Api::ChatCompletions, |n| {
        chat(&list(n, |_| format!(r#"{{"role":"user","content":"{}"}}"#, TEXT.repeat(6))))
    }),
    ("short messages of Anthropic", Api::Messages, |n| {
        format!(
            r#"{{"model":"m","max_tokens":9,"messages":[{}]}}"#,
            list(n, |_| format!(r#"{{"role":"user","content":"{TEXT}"}}"#))
        )
    }),
    ("blocks", Api::Messages, |n| {
        let blocks = list(n, |_| format!(r#"{{"type":"text","text":"{TEXT}"}}"#));
        format!(r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":[{blocks}]}}]}}"#)
    }),
    ("tool uses", Api::Messages, |n| {
        let uses = list(n, |i| format!(r#"{{"type":"tool_use","id":"a{i}","name":"f","input":{{"a":"{TEXT}"}}}}"#));
        let results = list(n, |i| format!(r#"{{"type":"tool_result","tool_use_id":"a{i}","content":"{TEXT}"}}"#));
        format!(
            r#"{{"model":"m","max_tokens":9,"messages":[{{"role":"assistant","content":[{uses}]}},{{"role":"user","content":[{results}]}}]}}"#
        )
    }),
    ("parts", Api::ChatCompletions, |n| {
        user(&format!("[{}]", list(n, |_| format!(r#"{{"type":"text","text":"{TEXT}"}}"#))))
    }),
    ("parts of images", Api::ChatCompletions, |n| {
        user(&format!("[{}]", list(n, |_| r#"{"type":"image_url","image_url":{"url":"data:"}}"#.into())))
    }),
    ("systems", Api::ChatCompletions, |n| {
        chat(&list(n, |i| format!(r#"{{"role":"{}","content":"{TEXT}"}}"#, ["system", "developer"][i % 2])))
    }),
    ("calls of one message", Api::ChatCompletions, |n| {
        let call = r#"{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\":{\"b\":[1,2,{}]}}"}}"#;
        chat(&format!(r#"{{"role":"assistant","content":null,"tool_calls":[{}]}}"#, list(n, |_| call.into())))
    }),
    ("dense arguments", Api::ChatCompletions, |n| {
        let call = format!(
            r#"{{"id":"a","type":"function","function":{{"name":"f","arguments":"{{\"a\":[{}]}}"}}}}"#,
            list(n, |_| "[0]".into())
        );
        chat(&format!(r#"{{"role":"assistant","content":null,"tool_calls":[{call}]}}"#))
    }),
    ("tools", Api::ChatCompletions, |n| {
        let tool = |i| {
            format!(
                r#"{{"type":"function","function":{{"name":"f{i}","description":"{TEXT}","parameters":{{"type":"object","properties":{{"path":{{"type":"string","description":"{TEXT}"}}}},"required":["path"]}}}}}}"#
            )
        };
        format!(r#"{{"model":"m","tools":[{}],"messages":[{{"role":"user","content":"hi"}}]}}"#, list(n, tool))
    }),
    ("template arguments", Api::ChatCompletions, |n| {
        let kwargs = list(n, |i| format!(r#""k{i}":"{TEXT}""#));
        format!(r#"{{"model":"m","chat_template_kwargs":{{{kwargs}}},"messages":[{{"role":"user","content":"hi"}}]}}"#)
    }),
    ("documents", Api::ChatCompletions, |n| {
        let documents = list(n, |i| format!(r#"{{"title":"d{i}","text":"{TEXT}"}}"#));
        format!(r#"{{"model":"m","documents":[{documents}],"messages":[{{"role":"user","content":"hi"}}]}}"#)
    }),
    ("unknown fields", Api::ChatCompletions, |n| {
        format!(
            r#"{{"model":"m",{},"messages":[{{"role":"user","content":"hi"}}]}}"#,
            list(n, |i| format!(r#""k{i}":"{TEXT}""#))
        )
    }),
    ("fields of a message", Api::ChatCompletions, |n| {
        chat(&format!(r#"{{"role":"user","content":"hi",{}}}"#, list(n, |i| format!(r#""k{i}":"{TEXT}""#))))
    }),
    ("the same key", Api::ChatCompletions, |n| {
        format!(
            r#"{{"model":"m",{},"messages":[{{"role":"user","content":"hi"}}]}}"#,
            list(n, |_| format!(r#""k":"{TEXT}""#))
        )
    }),
    ("calls of responses", Api::Responses, |n| {
        let items = list(n, |i| {
            format!(r#"{{"type":"function_call","call_id":"a{i}","name":"f","arguments":"{{}}","note":"{TEXT}"}}"#)
        });
        format!(r#"{{"model":"m","input":[{items}]}}"#)
    }),
    ("calls after a message of many fields", Api::Responses, |n| {
        let fields = list(n, |i| format!(r#""k{i}":1"#));
        let items = list(n, |i| {
            format!(r#"{{"type":"function_call","call_id":"a{i}","name":"f","arguments":"{{}}","note":"{TEXT}"}}"#)
        });
        format!(r#"{{"model":"m","input":[{{"role":"assistant","content":null,{fields}}},{items}]}}"#)
    }),
    ("items of responses", Api::Responses, |n| {
        format!(
            r#"{{"model":"m","input":[{}]}}"#,
            list(n, |i| { format!(r#"{{"role":"{}","content":"{TEXT}"}}"#, ["user", "assistant"][i % 2]) })
        )
    }),
    ("empty arrays", Api::ChatCompletions, |n| user(&format!("[{}]", list(20 * n, |_| "[]".into())))),
    ("arrays of one", Api::ChatCompletions, |n| user(&format!("[{}]", list(20 * n, |_| "[0]".into())))),
    ("objects of one", Api::ChatCompletions, |n| user(&format!("[{}]", list(10 * n, |_| r#"{"a":1}"#.into())))),
    ("wide objects", Api::ChatCompletions, |n| {
        user(&format!("[{}]", list(n, |_| format!("{{{}}}", list(17, |i| format!("\"{i}\":0"))))))
    }),
    ("deep arrays", Api::ChatCompletions, |n| {
        user(&format!("[{}]", list(n / 4, |_| format!("{}{}", "[".repeat(120), "]".repeat(120)))))
    }),
    ("numbers", Api::ChatCompletions, |n| user(&format!("[{}]", list(n, |i| format!("{i}.5e3,1{}", "0".repeat(30)))))),
];

/// From some tens of kilobytes to a megabyte or two.
const PARTS: [usize; 3] = [1_000, 4_000, 32_000];

#[test]
fn every_shape_stays_within_its_bound_and_grows_in_proportion() {
    // Templates of others may join text to text in a loop, which no engine does in proportion; fuel bounds them.
    let renderers: Vec<_> = renderers(0).into_iter().take(OWN).collect();
    for (shape, api, body) in SHAPES {
        for (template, renderer) in &renderers {
            let mut before: Option<(usize, f64)> = None;
            let mut lines = Vec::new();
            for parts in PARTS {
                let body = body(parts);
                let bytes = body.len();
                let begun = Instant::now();
                let body = body.into_bytes();
                let (result, taken) = counted(|| run(renderer, *api, body));
                let told = match &result {
                    Ok(text) => format!("{text} of text or ids"),
                    Err(reason) => format!("{:.80}", reason.to_string()),
                };
                let per_byte = taken.total as f64 / bytes as f64;
                lines.push(format!(
                    "{shape}, {template}: {bytes} bytes, peak {:.1} times, taken {per_byte:.1} times, {} us: {told}",
                    taken.peak as f64 / bytes as f64,
                    begun.elapsed().as_micros()
                ));
                assert!(
                    taken.peak <= memory_bound(bytes),
                    "{}: {} bytes at once are over {}",
                    lines.join("\n"),
                    taken.peak,
                    memory_bound(bytes)
                );
                // What is refused for its density ends early: there is nothing to compare.
                let refused = matches!(&result, Err(reason) if reason.kind == NoKey::BodyTooLarge);
                if let (Some((smaller, before)), false) = (before, refused) {
                    assert!(per_byte <= 1.25 * before + 1.0, "{}: more than from {smaller} bytes", lines.join("\n"));
                }
                before = Some((bytes, per_byte));
            }
            println!("{}", lines.join("\n"));
        }
    }
}

#[test]
fn a_string_of_ten_megabytes_is_served() {
    let (_, renderer) = &renderers(0)[0];
    let body = user(&format!("\"{}\"", "x\\n".repeat(5 << 20)));
    assert!(run(renderer, Api::ChatCompletions, body.into_bytes()).unwrap() > 10 << 20);
}

#[test]
fn a_hundred_thousand_messages_are_served() {
    let (_, renderer) = &renderers(0)[0];
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, TEXT.repeat(2));
    let text = run(renderer, Api::ChatCompletions, chat(&list(100_000, |_| message.clone())).into_bytes()).unwrap();
    assert!(text > 100_000 * 2 * (TEXT.len() - 1), "{text}");
}
