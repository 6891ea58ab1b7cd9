//! The fields of each API that decide the prompt.

use kvroute::nokey::NoKey;
use kvroute::request::{Api, EngineFlags, Prepared, PromptInput, Truncate, TruncateSide};
use serde_json::{Value, json};

use crate::{ALL, chat, flags, hi, prepare, renderer, text, version};

fn parsers() -> EngineFlags {
    version("0.32.0")
}

fn completion(body: Value) -> Result<Prepared, NoKey> {
    prepare(&renderer("x", &parsers()), Api::Completions, &body).map_err(|reason| reason.kind)
}

#[test]
fn how_the_answer_begins() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }}.{% endfor %}{{ '>' if add_generation_prompt }}";
    let of = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}]});
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        chat(template, &parsers(), &body).map_err(|reason| reason.kind)
    };
    assert_eq!(of(json!({})).unwrap(), "user:a.assistant:b .>");
    assert_eq!(of(json!({"add_generation_prompt": false})).unwrap(), "user:a.assistant:b .");
    assert_eq!(of(json!({"chat_template_kwargs": {"add_generation_prompt": false}})).unwrap(), "user:a.assistant:b .>");
    let continued = json!({"continue_final_message": true, "add_generation_prompt": false});
    assert_eq!(of(continued).unwrap(), "user:a.assistant:b ");
    let both = json!({"continue_final_message": true, "add_generation_prompt": true});
    assert_eq!(of(both), Err(NoKey::BadRequest));
}

#[test]
fn documents_and_template_arguments_reach_the_template() {
    let mut body = hi();
    body["documents"] = json!([{"title": "T", "text": "D"}]);
    body["chat_template_kwargs"] = json!({"style": "short", "bos_token": "<other>"});
    let template = "{{ bos_token }} {{ documents|tojson }} {{ style }}";
    let got = chat(template, &parsers(), &body).unwrap();
    // The order of a JSON object of this test is the library's: by name.
    assert_eq!(got, r#"<other> [{"text": "D", "title": "T"}] short"#);
    body["documents"] = json!([{"title": 5}]);
    assert_eq!(chat(template, &parsers(), &body).unwrap_err().kind, NoKey::BadRequest);
    for (kwargs, kind) in [
        (json!({"messages": []}), NoKey::BadRequest),
        (json!({"chat_template": "x"}), NoKey::BadRequest),
        (json!({"return_assistant_tokens_mask": true}), NoKey::Unsupported),
        (json!({"continue_final_message": "reasoning", "add_generation_prompt": false}), NoKey::Unsupported),
    ] {
        let mut body = hi();
        body["chat_template_kwargs"] = kwargs.clone();
        body["add_generation_prompt"] = false.into();
        let got = chat("x", &parsers(), &body).map_err(|reason| reason.kind);
        // What the request's own fields say wins over its template arguments.
        let wins = kwargs.get("continue_final_message").is_some();
        assert_eq!(got, if wins { Ok("x".into()) } else { Err(kind) }, "{kwargs}");
    }
}

#[test]
fn the_four_forms_of_a_completions_prompt() {
    let input = |prompt: Value| completion(json!({"prompt": prompt})).map(|prepared| prepared.input);
    assert_eq!(input(json!("one")), Ok(PromptInput::Text("one".into())));
    assert_eq!(input(json!(["a", "longest", "b"])), Ok(PromptInput::Text("longest".into())));
    assert_eq!(input(json!([1, 2.0, true])), Ok(PromptInput::Ids(vec![1, 2, 1])));
    assert_eq!(input(json!([[1], [2, 3, 4], [5, 6]])), Ok(PromptInput::Ids(vec![2, 3, 4])));
    assert_eq!(input(json!(["1", "2"])), Ok(PromptInput::Text("1".into())));
    for wrong in
        [json!(""), json!([]), json!([[]]), json!(["a", [1]]), json!([1, "a"]), json!([-1]), json!({}), json!(null)]
    {
        assert_eq!(input(wrong.clone()), Err(NoKey::BadRequest), "{wrong}");
    }
    assert_eq!(completion(json!({"prompt": "x", "prompt_embeds": "AA=="})).unwrap_err(), NoKey::Unsupported);
    assert_eq!(completion(json!({"prompt": "x", "suffix": "y"})).unwrap_err(), NoKey::BadRequest);
}

#[test]
fn special_tokens_truncation_and_salt() {
    let prepared = completion(json!({"prompt": "x", "cache_salt": "s", "max_tokens": 7, "stream": true})).unwrap();
    assert!(prepared.add_special_tokens && prepared.stream);
    assert_eq!((prepared.cache_salt.as_deref(), prepared.max_output_tokens), (Some("s"), Some(7)));
    assert!(!completion(json!({"prompt": "x", "add_special_tokens": "off"})).unwrap().add_special_tokens);
    let chat = |body: Value| prepare(&renderer("x", &parsers()), Api::ChatCompletions, &body).unwrap();
    assert!(!chat(hi()).add_special_tokens);
    let mut body = hi();
    body["add_special_tokens"] = 1.into();
    body["truncate_prompt_tokens"] = "4".into();
    assert!(chat(body.clone()).add_special_tokens);
    for (side, expected) in [
        (Value::Null, TruncateSide::Default),
        (json!("left"), TruncateSide::Left),
        (json!("right"), TruncateSide::Right),
    ] {
        body["truncation_side"] = side;
        assert_eq!(chat(body.clone()).truncate, Some(Truncate { tokens: 4, side: expected }));
    }
    for wrong in [json!(0), json!(-2), json!(4.5), json!(2000), json!("x")] {
        assert_eq!(
            completion(json!({"prompt": "x", "truncate_prompt_tokens": wrong})).unwrap_err(),
            NoKey::BadRequest,
            "{wrong}"
        );
    }
    // Without the model's length, -1 has no meaning here.
    let unknown = renderer("x", &EngineFlags::default());
    let body = json!({"prompt": "x", "truncate_prompt_tokens": -1});
    assert_eq!(prepare(&unknown, Api::Completions, &body).unwrap_err().kind, NoKey::Unsupported);
}

#[test]
fn messages_become_a_chat() {
    let body = json!({
        "system": [{"type": "text", "text": "You are "}, {"type": "text", "text": "terse."}],
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"x": "é"}}]},
            {"role": "user", "content": [
                {"type": "text", "text": "c"}, {"type": "tool_result", "tool_use_id": "t", "content": [
                    {"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}]},
        ],
    });
    let got = text(prepare(&renderer(ALL, &parsers()), Api::Messages, &body).unwrap());
    let expected = concat!(
        r#"[{"role": "system", "content": "You are terse."}, {"role": "user", "content": "a"}, "#,
        r#"{"role": "assistant", "content": "b", "tool_calls": [{"id": "t", "function": {"arguments": {"x": "é"}, "#,
        r#""name": "f"}, "type": "function"}], "reasoning": "hm", "reasoning_content": "hm"}, "#,
        r#"{"role": "tool", "content": "1\n2", "tool_call_id": "t"}, {"role": "user", "content": "c"}]"#
    );
    assert_eq!(got, expected);
    let changes = json!({"messages": [{"role": "user", "content": [{"type": "tool_removal", "tool": {"name": "f"}}]}]});
    assert_eq!(prepare(&renderer(ALL, &parsers()), Api::Messages, &changes).unwrap_err().kind, NoKey::BadRequest);
}

#[test]
fn responses_are_stateless_and_get_special_tokens() {
    let of = |body: Value| prepare(&renderer(ALL, &parsers()), Api::Responses, &body).map_err(|reason| reason.kind);
    let prepared =
        of(json!({"instructions": "I", "input": "hi", "truncation": "auto", "max_output_tokens": 5})).unwrap();
    assert!(prepared.add_special_tokens);
    assert_eq!(prepared.truncate, Some(Truncate { tokens: 999, side: TruncateSide::Default }));
    let expected = r#"[{"role": "system", "content": "I"}, {"role": "user", "content": "hi"}]"#;
    assert_eq!(text(prepared), expected);
    assert_eq!(of(json!({"input": "x", "previous_response_id": "r"})).unwrap_err(), NoKey::Unsupported);
    assert_eq!(of(json!({"input": 5})).unwrap_err(), NoKey::BadRequest);
    let partial = json!({"input": [{"role": "user", "content": "a"},
        {"type": "message", "role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "b"}]}]});
    let template = "{% for m in messages %}{{ m.content }}.{% endfor %}{{ '>' if add_generation_prompt }}";
    let prepared = prepare(&renderer(template, &parsers()), Api::Responses, &partial).unwrap();
    assert_eq!(text(prepared), "a.b");
}

#[test]
fn tool_calls_of_responses_have_the_order_in_which_the_engine_builds_them() {
    let body = json!({"input": [{"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "r"}]});
    let template = "{{ messages[1].tool_calls|tojson }}";
    let got = text(prepare(&renderer(template, &parsers()), Api::Responses, &body).unwrap());
    assert_eq!(got, r#"[{"id": "c", "function": {"name": "f", "arguments": {}}, "type": "function"}]"#);
}

#[test]
fn tools_of_a_developer_message_are_reordered() {
    let template = "{{ 'developer' }}{{ messages[0].tools|tojson }}";
    let of = |tools: &str| {
        let body = format!(r#"{{"messages": [{{"role": "developer", "content": "d", "tools": {tools}}}]}}"#);
        crate::prepare_text(&renderer(template, &parsers()), Api::ChatCompletions, &body).map(text)
    };
    let tool = r#"[{"x": 1, "type": "function", "function": {"z": 2, "parameters": {}, "name": "f"}}]"#;
    let expected = r#"developer[{"function": {"name": "f", "parameters": {}, "z": 2}, "type": "function", "x": 1}]"#;
    assert_eq!(of(tool).unwrap(), expected);
    assert_eq!(of("null").unwrap(), "developernull");
    assert_eq!(of("[5]").unwrap_err().kind, NoKey::Unsupported);
}

#[test]
fn bodies_of_tokenize() {
    let of = |body: Value| {
        let renderer = renderer(ALL, &EngineFlags::default());
        prepare(&renderer, Api::Tokenize, &body).map(|p| (p.add_special_tokens, text(p))).map_err(|r| r.kind)
    };
    assert_eq!(of(json!({"prompt": "x"})), Ok((true, "x".into())));
    assert_eq!(of(json!({"prompt": "x", "add_special_tokens": false})), Ok((false, "x".into())));
    assert_eq!(of(json!({"prompt": ["x"]})), Err(NoKey::BadRequest));
    assert_eq!(of(hi()), Ok((false, r#"[{"role": "user", "content": "hi"}]"#.into())));
    // No parser is asked for, and what /tokenize does not know is not looked at.
    let mut body = hi();
    body["tools"] = json!([{"type": "function", "function": {"name": "f"}}]);
    body["reasoning_effort"] = "none".into();
    body["truncate_prompt_tokens"] = 1.into();
    let tools = r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}]"#;
    assert_eq!(of(body), Ok((false, format!(r#"[{{"role": "user", "content": "hi"}}] {tools}"#))));
}

#[test]
fn ids_of_a_prefill_stage_by_api() {
    let ids = json!({"prompt_token_ids": [5, 6]});
    let of = |api: Api, mut body: Value| {
        body["kv_transfer_params"] = ids.clone();
        prepare(&renderer("x", &parsers()), api, &body).map(|p| p.input).map_err(|reason| reason.kind)
    };
    let replaced = Ok(PromptInput::Ids(vec![5, 6]));
    assert_eq!(of(Api::ChatCompletions, hi()), replaced);
    assert_eq!(of(Api::Messages, hi()), replaced);
    assert_eq!(of(Api::Responses, json!({"input": "x"})), replaced);
    assert_eq!(of(Api::Completions, json!({"prompt": "p"})), Ok(PromptInput::Text("p".into())));
    let image = json!([{"type": "image_url", "image_url": {"url": "u"}}]);
    let media = json!({"messages": [{"role": "user", "content": image}]});
    // Rendered instead; this template drops the part.
    assert_eq!(of(Api::ChatCompletions, media), Err(NoKey::Unsupported));
    let oss = flags(json!({"hf_overrides": {"model_type": "gpt_oss"}}));
    let mut body = hi();
    body["kv_transfer_params"] = ids.clone();
    let prepared = prepare(&renderer("x", &oss), Api::ChatCompletions, &body).unwrap();
    assert_eq!(prepared.input, PromptInput::Ids(vec![5, 6]));
}

#[test]
fn an_adapters_name_is_its_models_with_blocks_of_its_own() {
    let config = |extra: Value| {
        let mut model = json!({"name": "base", "aliases": ["b"], "adapters": ["tuned"]});
        for (name, value) in extra.as_object().unwrap() {
            model[name] = value.clone();
        }
        let config = json!({"role": "router", "secret": "s", "bridge": {"cluster": "c"}, "models": [model]});
        kvroute::config::Config::from_value(&config)
    };
    let known = config(json!({})).unwrap();
    let of = |name: Option<&str>| known.asked(name).map(|(at, model, lora)| (at, model.name.clone(), lora));
    assert_eq!(of(Some("base")), Ok((0, "base".into(), None)));
    assert_eq!(of(Some("b")), Ok((0, "base".into(), None)));
    assert_eq!(of(Some("tuned")), Ok((0, "base".into(), Some("tuned"))));
    assert_eq!(of(None), Ok((0, "base".into(), None)));
    assert_eq!(of(Some("other")).unwrap_err().kind, NoKey::UnknownModel);
    let error = config(json!({"adapters": ["b"]})).unwrap_err().to_string();
    assert!(error.contains("\"b\" names two models"), "{error}");
    let error = config(json!({"adapters": [""]})).unwrap_err().to_string();
    assert!(error.contains("models[0].adapters[0]"), "{error}");
}
