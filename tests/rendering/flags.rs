//! Every server flag that changes prompts.

use kvroute::nokey::NoKey;
use kvroute::request::{Api, PromptInput, Renderer};
use kvroute::template::{ChatTemplates, TemplateSource};
use serde_json::{Value, json};

use crate::{chat, flags, hi, prepare, renderer, source, text};

fn with(fields: Value, body: &Value, template: &str) -> Result<String, NoKey> {
    chat(template, &flags(fields), body).map_err(|reason| reason.kind)
}

fn refused(fields: Value) -> String {
    Renderer::new(source("x"), &flags(fields)).expect_err("refused")
}

#[test]
fn chat_template_is_a_text_or_the_name_of_one() {
    let named = [("default", "D"), ("tool_use", "T"), ("rag", "R")];
    let named = TemplateSource {
        chat_template: Some(ChatTemplates::Named(named.map(|(n, t)| (n.to_owned(), t.to_owned())).into())),
        ..TemplateSource::default()
    };
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let with_tools = json!({"messages": [{"role": "user", "content": "x"}], "tools": tool, "tool_choice": "none"});
    let of = |fields: Value, body: &Value| {
        let renderer = Renderer::new(named.clone(), &flags(fields)).unwrap();
        text(prepare(&renderer, Api::ChatCompletions, body).unwrap())
    };
    assert_eq!((of(json!({}), &hi()), of(json!({}), &with_tools)), ("D".into(), "T".into()));
    let rag = json!({"chat_template": "rag"});
    assert_eq!((of(rag.clone(), &hi()), of(rag, &with_tools)), ("R".into(), "R".into()));
    assert_eq!(of(json!({"chat_template": "{{ 'own' }}"}), &with_tools), "own");
    let error = Renderer::new(named.clone(), &flags(json!({"chat_template": "other"}))).unwrap_err();
    assert!(error.contains("chat_template") && error.contains("other"), "{error}");
}

#[test]
fn chat_template_content_format() {
    let template = "{% for m in messages %}{{ m.content|tojson }}{% endfor %}";
    let body = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]});
    let of = |format: &str| with(json!({"chat_template_content_format": format}), &body, template).unwrap();
    assert_eq!(of("auto"), r#""a\nb""#);
    assert_eq!(of("string"), r#""a\nb""#);
    assert_eq!(of("openai"), r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#);
    assert!(refused(json!({"chat_template_content_format": "both"})).contains("chat_template_content_format"));
}

#[test]
fn default_chat_template_kwargs_are_overridden_by_the_request() {
    let template = "{{ a }} {{ b|tojson }} {{ enable_thinking }}";
    let defaults =
        json!({"default_chat_template_kwargs": "{\"a\": 1, \"b\": {\"z\": 1, \"y\": 2}, \"enable_thinking\": true}"});
    let mut body = hi();
    assert_eq!(with(defaults.clone(), &body, template).unwrap(), r#"1 {"z": 1, "y": 2} True"#);
    // null and "auto" do not override.
    body["chat_template_kwargs"] = json!({"a": null, "b": "auto", "enable_thinking": false});
    assert_eq!(with(defaults, &body, template).unwrap(), r#"1 {"z": 1, "y": 2} False"#);
    let object = json!({"default_chat_template_kwargs": {"a": 5}});
    assert_eq!(with(object, &hi(), "{{ a }}").unwrap(), "5");
    for wrong in [json!({"b": {"z": 1, "y": 2}}), json!("[1]"), json!("{"), json!(5)] {
        let error = refused(json!({"default_chat_template_kwargs": wrong}));
        assert!(error.contains("default_chat_template_kwargs"), "{error}");
    }
}

#[test]
fn tools_depend_on_three_flags() {
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let body = |choice: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "tools": tool});
        if !choice.is_null() {
            body["tool_choice"] = choice;
        }
        body
    };
    let named = json!({"type": "function", "function": {"name": "f"}});
    let of = |fields: Value, choice: Value| with(fields, &body(choice), "{{ tools is none }}");
    let (shown, hidden, bad) = (Ok("False".to_owned()), Ok("True".to_owned()), Err(NoKey::BadRequest));
    for choice in [Value::Null, json!("auto"), json!("required"), named.clone()] {
        assert_eq!(of(json!({}), choice.clone()), bad, "{choice}");
        let parser = json!({"enable_auto_tool_choice": true, "tool_call_parser": "hermes"});
        assert_eq!(of(parser, choice), shown);
    }
    assert_eq!(of(json!({}), json!("none")), shown);
    assert_eq!(of(json!({"exclude_tools_when_tool_choice_none": true}), json!("none")), hidden);
}

#[test]
fn templates_of_requests_are_refused_or_not_followed() {
    let mut body = hi();
    body["chat_template"] = "{{ 1 }}".into();
    assert_eq!(with(json!({}), &body, "x"), Err(NoKey::BadRequest));
    assert_eq!(with(json!({"trust_request_chat_template": true}), &body, "x"), Err(NoKey::Unsupported));
}

#[test]
fn add_bos_token_overrides_the_post_processor() {
    let of = |fields: Value| {
        let prepared = prepare(&renderer("x", &flags(fields)), Api::Completions, &json!({"prompt": "hi"})).unwrap();
        (prepared.input, prepared.add_special_tokens)
    };
    assert_eq!(of(json!({})), (PromptInput::Text("hi".into()), true));
    assert_eq!(of(json!({"add_bos_token": false})), (PromptInput::Text("hi".into()), false));
    let pieces = PromptInput::Pieces(vec!["<s>".into(), "hi".into()]);
    assert_eq!(of(json!({"add_bos_token": true})), (pieces, false));
    // Chats get no special tokens in any case.
    let renderer = renderer("x", &flags(json!({"add_bos_token": true})));
    assert_eq!(text(prepare(&renderer, Api::ChatCompletions, &hi()).unwrap()), "x");
    let cut = json!({"prompt": "hi", "truncate_prompt_tokens": 5});
    assert_eq!(prepare(&renderer, Api::Completions, &cut).unwrap_err().kind, NoKey::Unsupported);
}

#[test]
fn utc_offset_minutes_moves_the_engines_day() {
    let template = "{{ strftime_now('%Y-%m-%d %H:%M') }}";
    let of = |minutes: i32| with(json!({"utc_offset_minutes": minutes}), &hi(), template).unwrap();
    assert_eq!(of(0), "2026-11-30 12:00");
    assert_eq!(of(13 * 60), "2026-12-01 01:00");
    assert_eq!(of(-12 * 60 - 30), "2026-11-29 23:30");
    assert!(refused(json!({"utc_offset_minutes": 900})).contains("utc_offset_minutes"));
    // And gpt-oss prints the date in its first block.
    let oss = TemplateSource { model_type: Some("gpt_oss".into()), ..TemplateSource::default() };
    let renderer = Renderer::new(oss, &flags(json!({"utc_offset_minutes": 780}))).unwrap();
    assert!(text(prepare(&renderer, Api::ChatCompletions, &hi()).unwrap()).contains("Current date: 2026-12-01\n"));
}

#[test]
fn what_selects_another_tokenizer_or_renderer_is_refused_by_name() {
    for mode in ["mistral", "deepseek_v32", "deepseek_v4", "kimi_k3", "cohere", "inkling"] {
        let error = refused(json!({"tokenizer_mode": mode}));
        assert!(error.contains("tokenizer_mode") && error.contains(mode), "{error}");
    }
    for mode in ["auto", "hf", "slow"] {
        assert!(Renderer::new(source("x"), &flags(json!({"tokenizer_mode": mode}))).is_ok());
    }
    for (architecture, name) in [
        ("DeepseekV32ForCausalLM", "DeepSeek V3.2"),
        ("DeepseekV4ForConditionalGeneration", "DeepSeek V4"),
        ("DeepseekV41ForCausalLM", "DeepSeek V4.1"),
        ("KimiK3ForConditionalGeneration", "Kimi K3"),
        ("InklingForCausalLM", "Inkling"),
    ] {
        let error = refused(json!({"hf_overrides": {"architectures": [architecture]}}));
        assert!(error.contains(name), "{error}");
    }
    let error = refused(json!({"tokenizer": "other/model"}));
    assert!(error.contains("--tokenizer") && error.contains("other/model"), "{error}");
    let packed = TemplateSource { tokenizer: Some("/models/other-tokenizer/".into()), ..source("x") };
    assert!(Renderer::new(packed.clone(), &flags(json!({"tokenizer": "org/other-tokenizer"}))).is_ok());
    assert!(Renderer::new(packed, &flags(json!({"tokenizer": "org/third"}))).is_err());
    assert!(refused(json!({"engine": "sglang"})).contains("sglang"));
}

#[test]
fn hf_overrides_select_harmony_and_unset_the_length() {
    let of = |overrides: Value| {
        let source = TemplateSource { max_model_len: Some(500), ..source("x") };
        let renderer = Renderer::new(source, &flags(json!({"hf_overrides": overrides}))).unwrap();
        let prepared = prepare(&renderer, Api::ChatCompletions, &hi()).unwrap();
        (text(prepared.clone()), prepared.max_prompt_tokens)
    };
    assert_eq!(of(json!({})), ("x".into(), Some(500)));
    assert!(of(json!({"model_type": "gpt_oss"})).0.starts_with("<|start|>system<|message|>"));
    assert!(of(json!("{\"model_type\": \"gpt_oss\"}")).0.starts_with("<|start|>system<|message|>"));
    assert_eq!(of(json!({"max_position_embeddings": 100})), ("x".into(), None));
    assert!(refused(json!({"hf_overrides": "no JSON"})).contains("hf_overrides"));
    assert!(refused(json!({"hf_overrides": [1]})).contains("hf_overrides"));
}

#[test]
fn max_model_len_stands_before_that_of_the_directory() {
    let of = |fields: Value| {
        let source = TemplateSource { max_model_len: Some(500), ..source("x") };
        let renderer = Renderer::new(source, &flags(fields)).unwrap();
        prepare(&renderer, Api::ChatCompletions, &hi()).unwrap().max_prompt_tokens
    };
    assert_eq!((of(json!({})), of(json!({"max_model_len": 100}))), (Some(500), Some(100)));
}

#[test]
fn efforts_are_mapped_and_disabled_thinking_is_one() {
    let template = "{{ reasoning_effort }} {{ enable_thinking }}";
    let mut body = hi();
    body["reasoning_effort"] = "high".into();
    assert_eq!(with(json!({}), &body, template).unwrap(), "high True");
    let map = json!({"reasoning_effort": {"high": "max", "low": "none"}});
    assert_eq!(with(map.clone(), &body, template).unwrap(), "max True");
    body["reasoning_effort"] = "low".into();
    assert_eq!(with(map, &body, template).unwrap(), "none False");

    let disabled = json!({"messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}});
    let of = |fields: Value, template: &str| {
        text(prepare(&renderer(template, &flags(fields)), Api::Messages, &disabled).unwrap())
    };
    assert_eq!(of(json!({}), template), "none False");
    assert_eq!(of(json!({"anthropic_disabled_thinking_effort": "low"}), template), "low True");
    // Where "none" prints what another effort prints, or fails, the engine takes low.
    assert_eq!(of(json!({}), "{{ 'x' if reasoning_effort != 'low' else 'low' }}"), "low");
    let fails = "{{ raise_exception('no') if reasoning_effort == 'none' else reasoning_effort }}";
    assert_eq!(of(json!({}), fails), "low");
}

#[test]
fn flags_that_do_not_exist_are_an_error() {
    let error = serde_json::from_value::<kvroute::request::EngineFlags>(json!({"chat_templat": "x"})).unwrap_err();
    assert!(error.to_string().contains("chat_templat"), "{error}");
}

#[test]
fn warnings_name_dates_times_and_versions() {
    let of = |template: &str, fields: Value| renderer(template, &flags(fields)).warnings().join("; ");
    assert_eq!(of("x", json!({})), "");
    assert!(of("{{ strftime_now('%d %b %Y') }}", json!({})).contains("prints the date (%d %b %Y)"));
    assert!(of("{{ strftime_now('%H:%M:%S') }}", json!({})).contains("prints the time (%H:%M:%S)"));
    assert!(of("{{ strftime_now(f) }}", json!({})).contains("prints the date (?)"));
    assert!(of("x", json!({"version": "0.28.1"})).contains("0.28.1 was not compared"));
    assert!(of("x", json!({"transformers": "5.24.0"})).contains("5.24.0 was not compared"));
}
