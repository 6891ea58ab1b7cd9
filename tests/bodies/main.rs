//! Request bodies of every kind: none panics, none takes more memory than its size allows, and none costs more than
//! in proportion to its size.
//!
//! Memory and work are counted by the allocator of this binary, for the thread that asks. Templates: two of this
//! file, and those of `KVROUTE_DATA` (default `../shared/data`) where it is there.

mod arbitrary;
mod counting;
mod shapes;

use std::path::{Path, PathBuf};

use kvroute::nokey::NoKeyReason;
use kvroute::request::{Api, Body, EngineFlags, Prepared, PromptInput, Renderer};
use kvroute::template::{ChatTemplates, TemplateSource};

pub(crate) const APIS: [Api; 4] = [Api::ChatCompletions, Api::Completions, Api::Messages, Api::Responses];

/// Messages and tools in frames.
pub(crate) const FRAMES: &str = "{%- if tools %}{{- '<|system|>\\n' }}{%- for tool in tools %}{{- tool | tojson }}\n\
    {%- endfor %}{%- endif %}{%- for message in messages %}{{- '<|' + message.role + '|>\\n' }}\
    {%- if message.content is string %}{{- message.content | trim }}{%- else %}{{- message.content }}{%- endif %}\
    {%- for call in message.tool_calls or [] %}{{- call.function.name }}{{- call.function.arguments | tojson }}\
    {%- endfor %}{{- '<|end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}";
/// Parts in a loop, so that the content is a list.
pub(crate) const PARTS: &str = "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}]\
    {% if message['content'] is string %}{{ message['content'].strip() }}\
    {% else %}{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}\
    {% else %}<{{ part['type'] }}>{% endif %}{% endfor %}{% endif %}{{ eos_token }}{% endfor %}";

pub(crate) fn renderer(template: &str, model_type: Option<&str>) -> Result<Renderer, String> {
    let flags = EngineFlags {
        enable_auto_tool_choice: true,
        tool_call_parser: Some("any".to_owned()),
        ..EngineFlags::default()
    };
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let source = TemplateSource {
        chat_template: Some(ChatTemplates::Single(template.to_owned())),
        special_tokens: tokens.iter().map(|(name, token)| (name.to_string(), token.to_string())).collect(),
        model_type: model_type.map(str::to_owned),
        ..TemplateSource::default()
    };
    Renderer::new(source, &flags)
}

/// How many of the renderers need no data.
pub(crate) const OWN: usize = 3;

/// Some renderers: those of this file, gpt-oss's, and some of the real templates.
pub(crate) fn renderers(real: usize) -> Vec<(String, Renderer)> {
    let mut out = vec![
        ("frames".to_owned(), renderer(FRAMES, None).unwrap()),
        ("parts".to_owned(), renderer(PARTS, None).unwrap()),
        ("harmony".to_owned(), renderer(FRAMES, Some("gpt_oss")).unwrap()),
    ];
    let root = std::env::var_os("KVROUTE_DATA").map(PathBuf::from);
    let dir = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data")).join("templates");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        eprintln!("SKIPPED: no templates in {}; set KVROUTE_DATA", dir.display());
        return out;
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    paths.sort();
    let every = (paths.len() / real.max(1)).max(1);
    for path in paths.into_iter().step_by(every) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // Those that cannot be rendered exactly are refused.
        if let Ok(renderer) = renderer(&std::fs::read_to_string(path).unwrap(), None) {
            out.push((name, renderer));
        }
    }
    out
}

/// Body to text, as the filter does it: the body is given back once it is parsed.
pub(crate) fn run(renderer: &Renderer, api: Api, body: Vec<u8>) -> Result<usize, NoKeyReason> {
    let parsed = Body::parse(&body)?;
    drop(body);
    let Prepared { input, .. } = renderer.prepare(api, &parsed, 1_796_040_000)?;
    Ok(match input {
        PromptInput::Text(text) => text.len(),
        PromptInput::Pieces(pieces) => pieces.iter().map(String::len).sum(),
        PromptInput::Ids(ids) => ids.len(),
    })
}
