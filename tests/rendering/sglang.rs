//! SGLang: what is followed, what is refused by name, and the rules that recorded requests cannot show one by one.

use kvroute::nokey::NoKey;
use kvroute::request::{Api, PromptInput, Renderer};
use kvroute::template::{ChatTemplates, TemplateSource};
use serde_json::{Value, json};

use crate::{ALL, hi, prepare, source};

fn flags(fields: Value) -> kvroute::request::EngineFlags {
    let mut all = json!({"engine": "sglang", "version": "0.5.23"});
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    crate::flags(all)
}

fn renderer(template: &str) -> Renderer {
    Renderer::new(source(template), &flags(json!({}))).unwrap()
}

fn chat(template: &str, body: &Value) -> Result<PromptInput, (NoKey, String)> {
    let prepared = prepare(&renderer(template), Api::ChatCompletions, body);
    prepared.map(|prepared| prepared.input).map_err(|reason| (reason.kind, reason.detail))
}

fn text(text: &str) -> Result<PromptInput, (NoKey, String)> {
    Ok(PromptInput::Text(text.to_owned()))
}

fn refused(source: TemplateSource, fields: Value) -> String {
    Renderer::new(source, &flags(fields)).expect_err("refused")
}

#[test]
fn versions_that_render_otherwise_are_refused() {
    assert_eq!(renderer("x").warnings(), [""; 0]);
    for version in ["0.5.10", "0.5.19", "0.6.0", "0.32.0"] {
        let error = refused(source("x"), json!({"version": version}));
        assert!(error.contains("version") && error.contains("0.5.20"), "{error}");
    }
    for version in ["0.5.21", "0.5.24"] {
        let other = Renderer::new(source("x"), &flags(json!({"version": version}))).unwrap();
        assert!(other.warnings()[0].contains(version), "{:?}", other.warnings());
    }
}

#[test]
fn flags_that_it_has_not_are_refused() {
    for (field, value) in [
        ("exclude_tools_when_tool_choice_none", json!(true)),
        ("enable_auto_tool_choice", json!(true)),
        ("reasoning_effort", json!({"low": "high"})),
        ("anthropic_disabled_thinking_effort", json!("low")),
        ("chat_template_content_format", json!("openai")),
        ("tokenizer_mode", json!("mistral")),
        ("tokenizer", json!("another/one")),
        ("tool_call_parser", json!("kimi_k3")),
        ("reasoning_parser", json!("hunyuan")),
        ("chat_template", json!("vicuna_v1.1")),
        ("default_chat_template_kwargs", json!({"chat_template": "x"})),
        ("utc_offset_minutes", json!(900)),
    ] {
        let error = refused(source("x"), json!({field: value}));
        assert!(error.contains(field), "{field}: {error}");
    }
    for (field, value) in [("tool_call_parser", "qwen25"), ("reasoning_parser", "qwen3")] {
        assert!(Renderer::new(source("x"), &flags(json!({field: value}))).is_ok(), "{field}");
    }
}

#[test]
fn models_that_were_not_compared_are_refused() {
    let with = |architecture: &str, template: Option<&str>| TemplateSource {
        architectures: vec![architecture.to_owned()],
        chat_template: template.map(|text| ChatTemplates::Single(text.to_owned())),
        ..TemplateSource::default()
    };
    for architecture in
        ["Qwen2_5_VLForConditionalGeneration", "DeepseekV4ForCausalLM", "KimiK3ForCausalLM", "LlavaQwenForCausalLM"]
    {
        let error = refused(with(architecture, Some("x")), json!({}));
        assert!(error.contains(architecture), "{error}");
    }
    for architecture in ["Qwen3ForCausalLM", "LlamaForCausalLM", "DeepseekV3ForCausalLM"] {
        assert!(Renderer::new(with(architecture, Some("x")), &flags(json!({}))).is_ok(), "{architecture}");
    }
    // Without a template by code of its own.
    assert!(refused(with("DeepseekV3ForCausalLM", None), json!({})).contains("DeepseekV3"));
    let glm = "[gMASK]<sop> Reasoning Effort: <tool_call> <arg_key> <arg_value>";
    assert!(refused(with("GlmMoeDsaForCausalLM", Some(glm)), json!({})).contains("GLM-5.3"));
    let named = [("default", "D"), ("tool_use", "T")].map(|(n, t)| (n.to_owned(), t.to_owned())).into();
    let named = TemplateSource { chat_template: Some(ChatTemplates::Named(named)), ..TemplateSource::default() };
    assert!(refused(named.clone(), json!({})).contains("default, tool_use"));
    let chosen = Renderer::new(named, &flags(json!({"chat_template": "tool_use"}))).unwrap();
    assert_eq!(prepare(&chosen, Api::ChatCompletions, &hi()).unwrap().input, PromptInput::Text("T".into()));
}

#[test]
fn a_template_of_the_command_line_is_changed_as_the_engine_does() {
    let fields = json!({"chat_template": "\n\n{{ messages[0].content }}\\n.\n"});
    let renderer = Renderer::new(source("x"), &flags(fields)).unwrap();
    assert_eq!(prepare(&renderer, Api::ChatCompletions, &hi()).unwrap().input, PromptInput::Text("hi\n.".into()));
}

#[test]
fn the_format_goes_by_words_and_loops() {
    let body = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]});
    let parts = r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#;
    let print = "{{ messages[0].content|tojson }}";
    for (template, expected) in [
        (print.to_owned(), r#""a b""#),
        (format!("{{# vision #}}{print}"), parts),
        (format!("{print}{{% for msg in messages %}}{{% for c in msg.content %}}{{% endfor %}}{{% endfor %}}"), parts),
        // vLLM sees this one.
        (format!("{print}{{% for x in messages %}}{{% for c in x.content %}}{{% endfor %}}{{% endfor %}}"), r#""a b""#),
    ] {
        assert_eq!(chat(&template, &body), text(expected), "{template}");
    }
}

#[test]
fn a_template_that_raises_on_tools_gets_the_functions_alone() {
    let template = "{% for t in tools %}{{ raise_exception('flat') if t.function }}{{ t.name }}{% endfor %}";
    let mut body = hi();
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(chat(template, &body), text("f"));
    // What may be a fault of the rendering here is no reason to render something else.
    let (kind, detail) = chat("{{ tools[0].function.name.encode() }}", &body).unwrap_err();
    assert_eq!(kind, NoKey::Unsupported);
    assert!(detail.starts_with("tools: the template fails"), "{detail}");
    assert_eq!(chat("{{ raise_exception('no') }}", &body).unwrap_err().0, NoKey::TemplateError);
    assert_eq!(chat("{{ raise_exception('no') }}", &hi()).unwrap_err().0, NoKey::TemplateError);
}

#[test]
fn the_last_message_of_the_assistant() {
    let messages = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "name": "n"}]);
    let mut body = json!({"messages": messages});
    let user = r#"[{"role": "user", "content": "q"}, {"role": "user", "content": "a"}]"#;
    assert_eq!(chat(ALL, &body), text(user));
    body["continue_final_message"] = json!(true);
    let continued = PromptInput::Pieces(vec![r#"[{"role": "user", "content": "q"}]"#.into(), "a".into()]);
    assert_eq!(chat(ALL, &body), Ok(continued));
    body["messages"][1]["content"] = json!("<s>a");
    assert_eq!(chat(ALL, &body).unwrap_err().0, NoKey::Unsupported);
}

#[test]
fn prompts_end_where_the_context_does() {
    let renderer = Renderer::new(source("x"), &flags(json!({"max_model_len": 100}))).unwrap();
    let longest = |fields: Value| {
        let mut body = hi();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        prepare(&renderer, Api::ChatCompletions, &body).unwrap().max_prompt_tokens
    };
    assert_eq!(longest(json!({})), Some(99));
    assert_eq!(longest(json!({"max_tokens": 30})), Some(70));
    assert_eq!(longest(json!({"max_tokens": 30, "max_completion_tokens": 40})), Some(60));
}
