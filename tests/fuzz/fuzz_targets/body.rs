//! HTTP body to prompt text, for every API and a few templates.
//!
//! The first byte chooses API and template, the rest is the body. Besides not to panic: the parser takes what
//! serde_json takes and gives the same values; printed and parsed again they print the same; the prompt is no
//! larger than its bound; where the quick way to render gives a text, it is the template engine's.

#![no_main]

use std::sync::OnceLock;

use kvroute::request::json::{self, Json};
use kvroute::request::{Api, Body, EngineFlags, PromptInput, Renderer};
use kvroute::template::{ChatTemplates, Fallback, RenderError, TemplateSource, Way, render_by};
use libfuzzer_sys::fuzz_target;

const APIS: [Api; 4] = [Api::ChatCompletions, Api::Completions, Api::Messages, Api::Responses];
/// What a template of this file adds to a byte of the body at most: a message of few bytes gets its frame.
const GROWTH: usize = 64;

const CHAT: &str = "{%- if tools %}{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- '\\n' }}\
    {{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}\
    {%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}\
    {%- if message.content is string %}{{- message.content | trim }}{%- else %}{{- message.content }}{%- endif %}\
    {%- for call in message.tool_calls or [] %}{{- call.function.name }}{{- call.function.arguments | tojson }}\
    {%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}\
    {%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";
const PARTS: &str = "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]\
    {% if message['content'] is string %}{{ message['content'].strip() }}\
    {% elif message['content'] is iterable %}{% for part in message['content'] %}\
    {% if part['type'] == 'text' %}{{ part['text'].split('</think>')[-1].lstrip('\\n') }}{% else %}<{{ part['type'] }}>\
    {% endif %}{% endfor %}{% endif %}\
    {% for name, value in (message.tool_calls[0].function.arguments.items() if message.tool_calls else []) %}\
    {{ name }}={{ value }};{% endfor %}{{ eos_token }}{% endfor %}{{ documents | string }}{{ enable_thinking }}";

fn renderers() -> &'static [Renderer] {
    static RENDERERS: OnceLock<Vec<Renderer>> = OnceLock::new();
    RENDERERS.get_or_init(|| {
        let flags = EngineFlags {
            enable_auto_tool_choice: true,
            tool_call_parser: Some("any".to_owned()),
            max_model_len: Some(40_960),
            ..EngineFlags::default()
        };
        let source = |template: &str, model_type: Option<&str>| TemplateSource {
            chat_template: Some(ChatTemplates::Single(template.to_owned())),
            special_tokens: vec![
                ("bos_token".to_owned(), "<s>".to_owned()),
                ("eos_token".to_owned(), "</s>".to_owned()),
            ]
            .into_iter()
            .collect(),
            model_type: model_type.map(str::to_owned),
            ..TemplateSource::default()
        };
        let mut sources = vec![source(CHAT, None), source(PARTS, None), source(CHAT, Some("gpt_oss"))];
        // More of them, where they lie: a folder of *.jinja.
        if let Some(dir) = std::env::var_os("KVROUTE_FUZZ_TEMPLATES") {
            let mut paths: Vec<_> = std::fs::read_dir(dir).expect("a folder").flatten().map(|e| e.path()).collect();
            paths.sort();
            let jinja = paths.iter().filter(|path| path.extension().is_some_and(|ext| ext == "jinja"));
            sources.extend(jinja.map(|path| source(&std::fs::read_to_string(path).expect("text"), None)));
        }
        sources.into_iter().filter_map(|source| Renderer::new(source, &flags).ok()).collect()
    })
}

/// Where the quick way gives a text, it is the template engine's.
fn same_text(quick: &Result<String, Fallback>, full: &Result<String, RenderError>) {
    match (quick, full) {
        (Ok(quick), Ok(full)) => assert!(quick == full, "{quick:?} is not {full:?}"),
        (Ok(quick), Err(error)) => panic!("{quick:?} where there is none: {error}"),
        (Err(_), _) => {}
    }
}

fuzz_target!(|data: &[u8]| {
    render_by(Way::Both(same_text));
    let Some((choice, body)) = data.split_first() else { return };
    let parsed = json::parse(body);
    check_parser(body, &parsed);
    let Ok(root) = Body::parse(body) else { return };
    let choice = usize::from(*choice);
    let all = renderers();
    let (Some(renderer), Some(api)) = (all.get((choice >> 2) % all.len()), APIS.get(choice & 3)) else { return };
    if let Ok(prepared) = renderer.prepare(*api, &root, 1_796_040_000) {
        let bytes = match prepared.input {
            PromptInput::Text(text) => text.len(),
            PromptInput::Pieces(pieces) => pieces.iter().map(String::len).sum(),
            PromptInput::Ids(ids) => ids.len(),
        };
        assert!(bytes <= 65_536 + GROWTH * body.len(), "{bytes} bytes of text from {} of body", body.len());
    }
});

fn check_parser(body: &[u8], parsed: &Result<Json, json::JsonError>) {
    let reference = serde_json::from_slice::<serde_json::Value>(body);
    match (parsed, &reference) {
        (Err(error), Ok(value)) => assert!(error.fault != json::Fault::Syntax, "refused {value} with: {error}"),
        (Ok(value), reference) => {
            let text = json::to_json_text(value);
            let again = json::parse(text.as_bytes());
            match again {
                Ok(again) => assert_eq!(json::to_json_text(&again), text),
                // Python prints an infinite float as a word that it refuses in a request.
                Err(error) => assert!(text.contains("Infinity"), "{text} does not parse: {error}"),
            }
            // `-0` is an integer to Python, a float to serde_json.
            let signed_zero = body.windows(2).any(|two| two == b"-0");
            if let (Ok(reference), false, Ok(printed)) =
                (reference, signed_zero, serde_json::from_str::<serde_json::Value>(&text))
            {
                assert!(same(&printed, reference), "{printed} from {reference}");
            }
        }
        (Err(_), Err(_)) => {}
    }
}

/// Equal, but for the last digit of a float: serde_json rounds it wrongly now and then.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::*;
    match (a, b) {
        (Number(a), Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(1.0));
            (a - b).abs() <= a.abs() * 1e-14 + f64::MIN_POSITIVE
        }
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Object(a), Object(b)) => a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b))),
        _ => a == b,
    }
}
