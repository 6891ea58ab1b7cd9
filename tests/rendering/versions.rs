//! Every rule that changed between vLLM 0.22 and 0.33, and with transformers from 5.20 to 5.24, on both sides of the
//! release that changed it.

use kvroute::nokey::NoKey;
use kvroute::request::{Api, PromptInput, Truncate, TruncateSide};
use kvroute::template::TemplateSource;
use serde_json::{Value, json};

use crate::{ALL, chat, flags, hi, prepare, prepare_text, renderer, text, version};

/// The prompts of a chat with two versions.
fn both(template: &str, old: &str, new: &str, body: &Value) -> (String, String) {
    let of = |v: &str| chat(template, &version(v), body).unwrap_or_else(|reason| format!("no key: {:?}", reason.kind));
    (of(old), of(new))
}

#[test]
fn tools_keep_their_unknown_keys_until_0_27_and_strict_has_its_place_from_0_24() {
    let body = r#"{"messages": [{"role": "user", "content": "x"}], "tool_choice": "none", "tools": [{"extra": 1,
        "type": "function", "function": {"strict": true, "z": 2, "parameters": {"b": 1, "a": 2}, "name": "f"}}]}"#;
    let of = |v: &str| {
        let prepared = prepare_text(&renderer("{{ tools|tojson }}", &version(v)), Api::ChatCompletions, body);
        text(prepared.unwrap())
    };
    let common =
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"b": 1, "a": 2}, "#;
    assert_eq!(of("0.23.0"), format!(r#"{common}"strict": true, "z": 2}}, "extra": 1}}]"#));
    assert_eq!(of("0.26.0"), format!(r#"{common}"strict": true, "z": 2}}, "extra": 1}}]"#));
    assert_eq!(of("0.27.0"), format!(r#"{common}"strict": true}}}}]"#));
    assert_eq!(of("0.33.0"), of("0.27.0"));

    // Before 0.24 an unknown key came in the client's order, even when null; and defer_loading before it.
    let body = body.replace("\"strict\": true, \"z\": 2", "\"z\": 2, \"strict\": null, \"defer_loading\": true");
    let of = |v: &str| {
        text(prepare_text(&renderer("{{ tools|tojson }}", &version(v)), Api::ChatCompletions, &body).unwrap())
    };
    assert_eq!(of("0.23.0"), format!(r#"{common}"defer_loading": true, "z": 2, "strict": null}}, "extra": 1}}]"#));
    assert_eq!(of("0.24.0"), format!(r#"{common}"defer_loading": true, "z": 2}}, "extra": 1}}]"#));
    assert_eq!(of("0.27.0"), format!(r#"{common}"defer_loading": true}}}}]"#));
}

#[test]
fn parts_keep_their_unknown_keys_from_0_26() {
    let template = "{% for m in messages %}{% for p in m.content %}{{ p|tojson }}{% endfor %}{% endfor %}";
    let part = json!({"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}});
    let body = json!({"messages": [{"role": "user", "content": [part]}]});
    let (old, new) = both(template, "0.25.1", "0.26.0", &body);
    assert_eq!(old, r#"{"type": "text", "text": "x"}"#);
    assert_eq!(new, r#"{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}"#);
}

#[test]
fn arguments_that_are_no_object() {
    let of = |v: &str, arguments: &str| {
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let body = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]});
        let template = "{{ messages[1].tool_calls[0].function.arguments|tojson }}";
        chat(template, &version(v), &body).map_err(|reason| reason.kind)
    };
    let refused = Err(NoKey::BadRequest);
    for (arguments, v22, v23, v28, v29) in [
        (r#"{"a": 1.0}"#, Ok(r#"{"a": 1.0}"#), Ok(r#"{"a": 1.0}"#), Ok(r#"{"a": 1.0}"#), Ok(r#"{"a": 1.0}"#)),
        ("", Ok("{}"), Ok("{}"), Ok("{}"), Ok("{}")),
        ("null", Ok("null"), Ok("{}"), Ok("{}"), Ok("{}")),
        ("[1, 2]", Ok("[1, 2]"), Ok("[1, 2]"), Ok("[1, 2]"), Ok("{}")),
        ("\"s\"", Ok("\"s\""), Ok("\"s\""), Ok("\"s\""), Ok("{}")),
        ("5", Ok("5"), Ok("5"), Ok("5"), Ok("{}")),
        ("{bad", refused, refused, refused, Ok("{}")),
        (" ", refused, refused, refused, Ok("{}")),
        ("\u{feff}{}", refused, refused, refused, Ok("{}")),
    ] {
        for (version, expected) in [("0.22.1", v22), ("0.23.0", v23), ("0.28.0", v28), ("0.29.0", v29), ("0.33.0", v29)]
        {
            assert_eq!(of(version, arguments), expected.map(str::to_owned), "{version} {arguments:?}");
        }
    }
}

#[test]
fn developer_messages_are_converted_from_0_23() {
    let body = json!({"messages": [{"role": "system", "content": "S"}, {"role": "developer", "content": "D"}, {"role": "user", "content": "u"}]});
    let template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}";
    let (old, new) = both(template, "0.22.1", "0.23.0", &body);
    assert_eq!((old.as_str(), new.as_str()), ("system=S;developer=D;user=u;", "system=S\n\nD;user=u;"));
    // A template that knows the role gets it.
    let template = "{% for m in messages %}{{ m.role if m.role != 'developer' else 'DEV' }};{% endfor %}";
    assert_eq!(both(template, "0.32.0", "0.33.0", &body).0, "system;DEV;user;");
}

#[test]
fn the_billing_line_goes_over_chat_from_0_32() {
    let line = "x-anthropic-billing-header: v=1\nBe kind.";
    let body = json!({"messages": [{"role": "system", "content": line}, {"role": "user", "content": line}]});
    let template = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let (old, new) = both(template, "0.31.0", "0.32.0", &body);
    assert_eq!(old, format!("[{line}][{line}]"));
    assert_eq!(new, format!("[Be kind.][{line}]"));
}

#[test]
fn salts_are_checked_from_0_30() {
    let with = |salt: &str| json!({"messages": [{"role": "user", "content": "x"}], "cache_salt": salt});
    let of = |v: &str, salt: &str| chat("x", &version(v), &with(salt)).is_ok();
    let long = |n: usize| "s".repeat(n);
    assert!(!of("0.22.1", ""));
    assert!(of("0.22.1", "a@b/c") && of("0.29.0", "a@b/c") && !of("0.30.0", "a@b/c"));
    assert!(of("0.28.0", &long(2000)) && of("0.29.0", &long(1024)) && !of("0.29.0", &long(1025)));
    assert!(of("0.30.0", &long(128)) && !of("0.30.0", &long(129)) && !of("0.32.0", "nul\0"));
}

#[test]
fn ids_of_a_prefill_stage_replace_the_prompt_from_0_27() {
    let mut body = hi();
    body["kv_transfer_params"] = json!({"prompt_token_ids": [5, 6]});
    let of = |v: &str, body: &Value| prepare(&renderer("text", &version(v)), Api::ChatCompletions, body).unwrap().input;
    let (text, ids) = (PromptInput::Text("text".into()), PromptInput::Ids(vec![5, 6]));
    assert_eq!(
        (of("0.26.0", &body), of("0.27.0", &body), of("0.32.0", &body)),
        (text.clone(), ids.clone(), ids.clone())
    );
    body["echo"] = true.into();
    assert_eq!((of("0.31.0", &body), of("0.32.0", &body)), (ids, text.clone()));
    body["kv_transfer_params"] = json!({"prompt_token_ids": []});
    body["echo"] = false.into();
    assert_eq!(of("0.31.0", &body), text);
    let refused = prepare(&renderer("text", &version("0.32.0")), Api::ChatCompletions, &body);
    assert_eq!(refused.unwrap_err().kind, NoKey::BadRequest);
}

#[test]
fn the_argument_tokenize_is_refused_from_0_33() {
    let mut body = hi();
    body["chat_template_kwargs"] = json!({"tokenize": true});
    assert_eq!(both("text", "0.32.0", "0.33.0", &body), ("text".into(), "no key: BadRequest".into()));
}

#[test]
fn the_content_format_is_found_through_macros_from_0_30() {
    // The parameter is not called content: only a look at the calls tells that it is one.
    let template = "{% macro show(c) %}{% for p in c %}({{ p.text }}){% endfor %}{% endmacro %}\
                    {% for m in messages %}{{ show(m.content) if m.content is not string else m.content }}{% endfor %}";
    assert_eq!(both(template, "0.29.0", "0.30.0", &hi()), ("hi".into(), "(hi)".into()));
    // And one that is called so counts only when it gets a content.
    let template = "{% macro show(content) %}{% for p in content %}({{ p }}){% endfor %}{% endmacro %}\
                    {% for m in messages %}{{ 'list' if m.content is not string else m.content }}{% endfor %}";
    assert_eq!(both(template, "0.29.0", "0.30.0", &hi()), ("list".into(), "hi".into()));
}

#[test]
fn truncation_to_the_models_length() {
    let of = |v: &str, fields: Value| {
        let mut body = json!({"prompt": "x"});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let prepared = prepare(&renderer("x", &version(v)), Api::Completions, &body);
        prepared.map(|p| (p.truncate, p.max_prompt_tokens)).map_err(|reason| reason.kind)
    };
    let cut = |tokens| Ok((Some(Truncate { tokens, side: TruncateSide::Default }), None));
    for (v, all, with_limit) in [("0.31.0", 1000, 900), ("0.32.0", 1000, 999)] {
        assert_eq!(of(v, json!({"truncate_prompt_tokens": -1})), cut(all), "{v}");
        assert_eq!(of(v, json!({"truncate_prompt_tokens": -1, "max_tokens": 100})), cut(with_limit), "{v}");
    }
    // And a prompt may be as long as that.
    assert_eq!(of("0.31.0", json!({"max_tokens": 100})), Ok((None, Some(900))));
    assert_eq!(of("0.32.0", json!({"max_tokens": 100})), Ok((None, Some(1000))));
    assert_eq!(of("0.31.0", json!({"max_tokens": 100, "truncate_prompt_tokens": 901})), Err(NoKey::BadRequest));
    assert_eq!(of("0.32.0", json!({"max_tokens": 100, "truncate_prompt_tokens": 901})), cut(901));
}

#[test]
fn messages_between_0_22_and_0_32() {
    let template = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}\
                    {% if enable_thinking is defined %}{{ reasoning_effort }}{% endif %}";
    let of = |v: &str, body: Value| {
        let prepared = prepare(&renderer(template, &version(v)), Api::Messages, &body);
        prepared.map(text).map_err(|reason| reason.kind)
    };
    let user = json!({"role": "user", "content": "u"});
    let billing = json!([{"type": "text", "text": "x-anthropic-billing-header: 1"}]);
    let body = json!({"messages": [user], "system": billing});
    assert_eq!(of("0.22.1", body.clone()), Ok("system=;user=u;".into()));
    assert_eq!(of("0.23.0", body), Ok("user=u;".into()));

    let inline = json!({"messages": [user, {"role": "system", "content": "S"}, user], "system": "A"});
    assert_eq!(of("0.22.1", inline.clone()), Err(NoKey::BadRequest));
    assert_eq!(of("0.23.0", inline.clone()), Ok("system=AS;user=u;user=u;".into()));
    // This template takes system messages anywhere, but until 0.30 only one of --chat-template was asked.
    assert_eq!(of("0.30.0", inline.clone()), Ok("system=AS;user=u;user=u;".into()));
    assert_eq!(of("0.31.0", inline.clone()), Ok("system=A;user=u;system=S;user=u;".into()));
    let mut told = version("0.30.0");
    told.chat_template = Some(template.to_owned());
    let prepared = prepare(&renderer("unused", &told), Api::Messages, &inline).unwrap();
    assert_eq!(text(prepared), "system=A;user=u;system=S;user=u;");

    let effort = json!({"messages": [user], "output_config": {"effort": "high"}});
    assert_eq!(of("0.22.1", effort.clone()), Ok("user=u;".into()));
    assert_eq!(of("0.23.0", effort), Ok("user=u;high".into()));

    let disabled = json!({"messages": [user], "thinking": {"type": "disabled"}});
    assert_eq!(of("0.30.0", disabled.clone()), Ok("user=u;".into()));
    assert_eq!(of("0.31.0", disabled), Ok("user=u;none".into()));
}

#[test]
fn tools_of_messages_have_strict_from_0_24() {
    let tool = json!({"name": "f", "input_schema": {"type": "object"}, "strict": true});
    let body = json!({"messages": [{"role": "user", "content": "u"}], "tools": [tool]});
    let of = |v: &str| text(prepare(&renderer("{{ tools|tojson }}", &version(v)), Api::Messages, &body).unwrap());
    let common =
        r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object"}"#;
    assert_eq!(of("0.23.0"), format!("{common}}}}}]"));
    assert_eq!(of("0.24.0"), format!("{common}, \"strict\": true}}}}]"));
}

#[test]
fn what_of_responses_and_gpt_oss_is_not_followed_in_older_versions_has_no_key() {
    let of = |v: &str, body: Value| {
        prepare(&renderer(ALL, &version(v)), Api::Responses, &body).map(|_| ()).map_err(|reason| reason.kind)
    };
    let tools = json!({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {}}]});
    assert_eq!((of("0.26.0", tools.clone()), of("0.27.0", tools)), (Err(NoKey::Unsupported), Ok(())));
    let history = json!({"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]});
    assert_eq!((of("0.24.0", history.clone()), of("0.25.1", history)), (Err(NoKey::Unsupported), Ok(())));
    let custom = json!({"input": [{"role": "user", "content": "a"}, {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "i"}]});
    assert_eq!((of("0.31.0", custom.clone()), of("0.32.0", custom)), (Err(NoKey::Unsupported), Ok(())));

    let oss = TemplateSource { model_type: Some("gpt_oss".into()), ..TemplateSource::default() };
    let harmony = |v: &str, body: &Value| {
        let renderer = kvroute::request::Renderer::new(oss.clone(), &version(v)).unwrap();
        prepare(&renderer, Api::ChatCompletions, body).map(|_| ()).map_err(|reason| reason.kind)
    };
    assert_eq!((harmony("0.24.0", &hi()), harmony("0.25.1", &hi())), (Err(NoKey::Unsupported), Ok(())));
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calls = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]});
    assert_eq!((harmony("0.30.0", &calls), harmony("0.31.0", &calls)), (Err(NoKey::Unsupported), Ok(())));
}

#[test]
fn what_all_versions_do_alike() {
    // Both names of the reasoning, no empty tool calls, and thinking by the effort.
    let body = json!({"reasoning_effort": "none", "messages": [
        {"role": "user", "content": "q", "refusal": null, "audio": {"id": "a"}},
        {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": []},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]});
    for v in ["0.22.1", "0.27.0", "0.32.0", "0.33.0"] {
        let got =
            chat("{{ messages|tojson }} {{ enable_thinking }} {{ reasoning_effort }}", &version(v), &body).unwrap();
        let expected = concat!(
            r#"[{"role": "user", "content": "q"}, "#,
            r#"{"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r"}, "#,
            r#"{"role": "tool", "content": "a\nb", "tool_call_id": "c"}] False none"#
        );
        assert_eq!(got, expected, "{v}");
    }
}

#[test]
fn transformers_5_21_and_5_24() {
    let body = json!({"messages": [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a", "reasoning": "r"},
    ]});
    let of = |transformers: Value| {
        let template = "{% if 'developer' %}{% endif %}{{ messages|tojson }}";
        chat(template, &flags(json!({"version": "0.32.0", "transformers": transformers})), &body).unwrap()
    };
    let message = |developer: &str, assistant: &str| {
        format!(
            r#"[{{"role": "developer", "content": "d"{developer}}}, {{"role": "user", "content": "u"}}, {assistant}]"#
        )
    };
    let plain = r#"{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}"#;
    let named = r#"{"thinking": "r", "role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}"#;
    let null = r#", "tools": null"#;
    assert_eq!(of(json!(null)), message(null, plain));
    assert_eq!(of(json!("5.20.2")), message(null, plain));
    assert_eq!(of(json!("5.21.0")), message(null, named));
    assert_eq!(of(json!("5.22.2")), message(null, named));
    assert_eq!(of(json!("5.24.0")), message("", named));
}
