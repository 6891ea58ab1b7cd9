//! What a configuration may hold: the fields, as the parser itself takes them.
//!
//! [`fields`] lets the parser read an example that has every part, and writes down what it asks for: name, type, bounds
//! and default. So the JSON Schema and the reference cannot say other than the parser does. Only what no parser knows is
//! written here: unit and meaning, one line for each field (`MEANINGS`); a test holds the two lists against each other.

use std::cell::RefCell;

use serde_json::{Value, json};

use super::Config;
use super::read::Kind;
use crate::routing::Policy;

/// A field of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Where it stands: `models[].block_size`.
    pub path: String,
    /// What it takes.
    pub kind: Kind,
    /// Without it there is no configuration, or no such part of one.
    pub required: bool,
    /// Null stands for an absent one.
    pub nullable: bool,
    /// What holds where it is absent, if that is a value.
    pub default: Option<Value>,
    /// Of a number.
    pub unit: &'static str,
    /// What it does.
    pub meaning: &'static str,
}

thread_local! {
    static SEEN: RefCell<Option<Vec<Field>>> = const { RefCell::new(None) };
}

/// The parser takes a field.
pub(super) fn note(path: &str, kind: Kind, default: Option<Value>, required: bool, nullable: bool) {
    SEEN.with_borrow_mut(|seen| {
        let Some(seen) = seen else { return };
        let path = path.replace("[0]", "[]");
        let (unit, meaning) = MEANINGS.iter().find(|m| m.0 == path).map_or(("", ""), |m| (m.1, m.2));
        let field = Field { path, kind, required, nullable, default, unit, meaning };
        match seen.iter_mut().find(|known| known.path == field.path) {
            // What is said of it later is more exact: a list of texts, say, after a list.
            Some(known) => *known = field,
            None => seen.push(field),
        }
    });
}

/// All fields, in the order in which they are read.
pub fn fields() -> Vec<Field> {
    let example = json!({
        "role": "router", "secret": "s", "models": [{"name": "m"}], "bridge": {"cluster": "b"},
        "replicas": [{"address": "127.0.0.1:1", "model": "m"}], "selection": {}, "limits": {}, "tenant_salt": {},
        "receipts": {}, "test": {},
    });
    SEEN.set(Some(Vec::new()));
    let read = Config::from_value(&example);
    let mut fields = SEEN.take().unwrap_or_default();
    debug_assert!(read.is_ok(), "{read:?}");
    let (weights, shares) = (Policy::default().weights(), Policy::default().shares());
    for field in &mut fields {
        let of_policy = field.path.strip_prefix("policy.");
        let among = |list: &[(&str, f64)]| of_policy.is_some_and(|name| list.iter().any(|(known, _)| *known == name));
        match &mut field.kind {
            Kind::Number(min, max) if among(&weights) || of_policy == Some("bound") => {
                (*min, *max) = (0.0, Policy::MOST);
            }
            Kind::Number(min, max) if among(&shares) => (*min, *max) = (0.0, 1.0),
            Kind::Whole(_, max) if of_policy == Some("candidates") => *max = Policy::MOST_CANDIDATES as u64,
            _ => {}
        }
    }
    fields
}

impl Kind {
    /// In words.
    pub fn text(&self) -> String {
        let range = |min: String, max: Option<String>| match max {
            Some(max) => format!("{min} to {max}"),
            None => format!("{min} or more"),
        };
        match self {
            Kind::Text => "text".into(),
            Kind::Header => "header name".into(),
            Kind::Flag => "true or false".into(),
            Kind::Whole(min, u64::MAX) => format!("whole number, {}", range(min.to_string(), None)),
            Kind::Whole(min, max) => format!("whole number, {}", range(min.to_string(), Some(max.to_string()))),
            Kind::Integer(..) => "whole number".into(),
            Kind::Number(min, max) if min.is_finite() => {
                format!("number, {}", range(min.to_string(), Some(max.to_string())))
            }
            Kind::Number(..) => "number".into(),
            Kind::Choice(labels) => format!("one of {}", labels.join(", ")),
            Kind::Texts => "list of texts".into(),
            Kind::TextMap => "object of texts".into(),
            Kind::Object => "object".into(),
            Kind::Objects => "list of objects".into(),
            Kind::Any => "object, or its JSON as text".into(),
        }
    }

    fn schema(&self) -> Value {
        match self {
            Kind::Text => json!({"type": "string"}),
            Kind::Header => json!({"type": "string", "pattern": "^[a-z0-9_-]+$"}),
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Whole(min, u64::MAX) => json!({"type": "integer", "minimum": min}),
            Kind::Whole(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
            Kind::Integer(min, max) => json!({"type": "integer", "minimum": min, "maximum": max}),
            Kind::Number(min, max) if min.is_finite() => json!({"type": "number", "minimum": min, "maximum": max}),
            Kind::Number(..) => json!({"type": "number"}),
            Kind::Choice(labels) => json!({"type": "string", "enum": labels}),
            Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
            Kind::TextMap => json!({"type": "object", "additionalProperties": {"type": "string"}}),
            Kind::Object | Kind::Objects => json!({"type": "object"}),
            Kind::Any => json!({}),
        }
    }
}

/// The JSON Schema (draft 2020-12).
pub fn schema() -> Value {
    let fields = fields();
    let mut schema = object(&fields, "");
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Configuration of the kvroute filter".into();
    schema
}

/// The object whose fields have `prefix` in front of their names.
fn object(fields: &[Field], prefix: &str) -> Value {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    for field in fields {
        let Some(name) = field.path.strip_prefix(prefix).filter(|name| !name.contains(['.', '['])) else { continue };
        let mut one = match &field.kind {
            Kind::Object => object(fields, &format!("{}.", field.path)),
            Kind::Objects => json!({"type": "array", "items": object(fields, &format!("{}[].", field.path))}),
            kind => kind.schema(),
        };
        if field.required {
            required.push(name);
        }
        if field.nullable
            && let Some(kind) = one.get("type").cloned()
        {
            one["type"] = json!([kind, "null"]);
            if let Some(Value::Array(labels)) = one.get_mut("enum") {
                labels.push(Value::Null);
            }
        }
        one["description"] = match field.unit {
            "" => field.meaning.into(),
            unit => format!("{} ({unit})", field.meaning).into(),
        };
        if let Some(default) = &field.default {
            one["default"] = default.clone();
        }
        properties.insert(name.to_owned(), one);
    }
    let mut object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

/// Path, unit and meaning of every field.
const MEANINGS: &[(&str, &str, &str)] = &[
    ("role", "", "what this instance of the filter is there for"),
    ("secret", "", "shared by router, ingest, admin and bridge"),
    ("secret_env", "", "instead of secret: the environment variable of Envoy that holds it"),
    ("hash_seed", "", "goes into every block hash; the bridge must have the same"),
    ("models", "", "the models that this listener routes"),
    ("models[].name", "", "as the bridge's replicas carry it and clients ask for it"),
    ("models[].aliases", "", "other names"),
    ("models[].adapters", "", "LoRA adapters that the replicas serve, by the names in requests"),
    ("models[].pack", "", "name of the pack; by default the model's"),
    ("models[].block_size", "tokens", "of a block of the engine"),
    ("models[].enabled", "", "false: its requests get no key"),
    ("models[].shadow", "", "true: decided and counted, not steered"),
    ("models[].rollout_percent", "%", "of its conversations that are routed"),
    ("models[].engine", "", "the engine's flags that change the prompt, by its own names"),
    ("models[].engine.engine", "", "vllm or sglang"),
    ("models[].engine.version", "", "of the engine"),
    ("models[].engine.chat_template", "", "--chat-template: the text of a template, or the name of one of the model's"),
    ("models[].engine.chat_template_content_format", "", "--chat-template-content-format: auto, string or openai"),
    ("models[].engine.default_chat_template_kwargs", "", "--default-chat-template-kwargs"),
    ("models[].engine.exclude_tools_when_tool_choice_none", "", "--exclude-tools-when-tool-choice-none"),
    ("models[].engine.trust_request_chat_template", "", "--trust-request-chat-template"),
    ("models[].engine.enable_auto_tool_choice", "", "--enable-auto-tool-choice"),
    ("models[].engine.tool_call_parser", "", "--tool-call-parser"),
    ("models[].engine.reasoning_parser", "", "--reasoning-parser"),
    ("models[].engine.tokenizer_mode", "", "--tokenizer-mode"),
    ("models[].engine.tokenizer", "", "--tokenizer: the pack must be of that tokenizer"),
    ("models[].engine.hf_overrides", "", "--hf-overrides"),
    ("models[].engine.transformers", "", "version of transformers beside the engine"),
    ("models[].engine.add_bos_token", "", "whether BOS goes in front of a text, where tokenizer.json says otherwise"),
    ("models[].engine.max_model_len", "tokens", "--max-model-len; by default what config.json says"),
    ("models[].engine.reasoning_effort", "", "--reasoning-effort: what the efforts of requests are mapped to"),
    ("models[].engine.anthropic_disabled_thinking_effort", "", "--anthropic-disabled-thinking-effort"),
    ("models[].engine.utc_offset_minutes", "min", "of the engine's local time, for templates that print the date"),
    ("bridge", "", "where snapshots of the feed are pulled from"),
    ("bridge.cluster", "", "Envoy's name for the cluster of the bridge"),
    ("bridge.timeout_ms", "ms", "for one snapshot answer"),
    ("replicas", "", "a static list instead of a bridge"),
    ("replicas[].address", "", "ip:port as Envoy's cluster resolves it"),
    ("replicas[].model", "", "name of the model that it serves"),
    ("replicas[].rank", "", "data-parallel rank"),
    ("replicas[].role", "", "what it is for, where prefill and decode are apart"),
    ("replicas[].capacity_blocks", "blocks", "that its cache holds; 0: unknown"),
    ("selection", "", "how Envoy is told the pick"),
    ("selection.mode", "", "by a stateful_session filter, or by the override_host policy alone, which ignores health"),
    ("selection.header", "", "with the pick; x-gateway-destination-endpoint in mode override_host"),
    ("selection.fallback_header", "", "with the next candidates, for retries"),
    ("selection.outcome_header", "", "response header that says what became of the request; by default none"),
    ("selection.session_header", "", "request header whose value is a session, a weak preference; by default none"),
    ("limits", "", "bounds"),
    ("limits.max_inspect_bytes", "bytes", "larger bodies are let go without a key"),
    ("limits.buffer_limit_bytes", "bytes", "Envoy's buffer limit for this listener or route"),
    ("limits.max_job_bytes", "bytes", "of all requests under way in one VM"),
    ("limits.max_jobs", "", "requests under way in one VM"),
    ("limits.time_budget_ms", "ms", "that a request may be held; then the prefix so far decides"),
    ("limits.finish_budget_ms", "ms", "of work on a request after it was let go"),
    ("limits.slice_ms", "ms", "of work at a stretch"),
    ("limits.index_bytes", "bytes", "of the index of one worker"),
    ("limits.prompt_memory_bytes", "bytes", "of what earlier prompts began with; 0: off"),
    ("limits.memory_bytes", "bytes", "of the VM; Envoy ends one at 1 GiB"),
    ("limits.max_backlog", "batches", "of the feed that a worker may lag behind"),
    ("tenant_salt", "", "what keeps the caches of tenants apart"),
    ("tenant_salt.header", "", "whose value takes the place of the body's cache_salt; by default none"),
    ("tenant_salt.write", "", "it is written into the body, too; a body that cannot be changed is refused"),
    ("receipts", "", "who is told why a request went where it went"),
    ("receipts.explain", "", "x-kvroute-explain: 1 with the secret gets a receipt in a response header"),
    ("receipts.allow", "", "networks from which explain may be asked for, by source.address; empty: from everywhere"),
    ("receipts.header", "", "that header"),
    ("receipts.sample", "", "share of the requests whose receipt goes into the filter state"),
    ("receipts.filter_state", "", "what was decided on each request goes into the filter state"),
    ("paths", "", "ends of the paths of each API"),
    ("paths.chat_completions", "", "of chat completions"),
    ("paths.completions", "", "of completions"),
    ("paths.messages", "", "of messages"),
    ("paths.responses", "", "of responses"),
    ("policy", "", "weights of the choice"),
    ("policy.queue", "tokens", "cost of each prompt token booked on the replica and not prefilled yet"),
    ("policy.context", "tokens", "cost of each token in the context of the requests that run there"),
    ("policy.request", "tokens", "cost of each request that runs there"),
    ("policy.waiting", "tokens", "cost of each request that waits there and was sent by nobody known"),
    ("policy.bound", "", "more requests than so many times the mean make a replica the last choice; 0: no bound"),
    ("policy.crowding", "tokens", "cost of being home to more conversations than the others"),
    ("policy.crowding_max", "tokens", "the most that crowding may cost"),
    ("policy.home_seconds", "s", "that a conversation counts as living where it was sent last"),
    (
        "policy.copy",
        "",
        "of what requests would have saved on a less loaded replica, what is taken off the cost of computing their prefix there",
    ),
    (
        "policy.alike",
        "tokens",
        "by which a cost may be above the least and count as alike, a sixteenth of the prompt at most: those are taken in turn",
    ),
    ("policy.cpu_tier", "", "what a block in host memory is worth"),
    ("policy.disk_tier", "", "what a block on disk or remote storage is worth"),
    ("policy.predicted", "", "what a block is worth that is only predicted to be there"),
    ("policy.unconfirmed", "", "what a block is worth from before a gap in the events"),
    ("policy.catching_up", "", "what a match is worth on a replica whose events are being caught up with"),
    ("policy.stale", "", "what a match is worth on a replica whose events have stopped"),
    ("policy.no_events", "", "what a match is worth on a replica without events"),
    ("policy.load_max_age_ms", "ms", "past which a load that an engine reported is not used"),
    ("policy.session", "tokens", "cost taken off the replica that the session header points at"),
    ("policy.adapter", "tokens", "cost of loading the request's LoRA adapter, on a replica that has it not ready"),
    (
        "policy.remote_prefill",
        "tokens",
        "that the replica which answers would have to prefill, from which on another one prefills for it; 0: never",
    ),
    ("policy.temperature", "tokens", "randomness: a replica that costs so much more is e times less likely"),
    ("policy.candidates", "", "replicas named for retries after the best one"),
    ("test", "", "for tests only"),
    ("test.trap_header", "", "a request with this header traps the VM; by default none"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_field_has_a_meaning_and_every_meaning_a_field() {
        let read: BTreeSet<String> = fields().into_iter().map(|field| field.path).collect();
        let meant: BTreeSet<String> = MEANINGS.iter().map(|m| m.0.to_owned()).collect();
        assert_eq!(meant.len(), MEANINGS.len(), "one twice");
        assert_eq!(read, meant);
        assert!(MEANINGS.iter().all(|m| !m.2.is_empty()));
    }

    #[test]
    fn the_parser_says_type_bounds_and_default() {
        let all = fields();
        let of = |path: &str| all.iter().find(|f| f.path == path).unwrap();
        assert_eq!(of("limits.max_jobs").kind, Kind::Whole(1, 10_000));
        assert_eq!((of("limits.max_jobs").default.clone(), of("role").required), (Some(json!(64)), true));
        assert_eq!(of("limits.slice_ms").kind, Kind::Number(0.05, 100.0));
        assert_eq!(of("models[].aliases").kind, Kind::Texts);
        assert_eq!(of("models[].engine.add_bos_token").kind, Kind::Flag);
        assert_eq!(of("models[].engine.max_model_len").kind, Kind::Whole(0, u64::MAX));
        assert!(matches!(of("models[].engine.utc_offset_minutes").kind, Kind::Integer(..)));
        assert_eq!(of("models[].engine.reasoning_effort").kind, Kind::TextMap);
        assert_eq!(of("models[].engine.hf_overrides").kind, Kind::Any);
        assert_eq!(of("models[].engine.tokenizer").kind, Kind::Text);
        assert_eq!(of("policy.stale").kind, Kind::Number(0.0, 1.0));
        assert_eq!(of("policy.candidates").kind, Kind::Whole(0, 16));
        assert_eq!(of("selection.mode").kind, Kind::Choice(vec!["stateful_session", "override_host"]));
        assert_eq!(of("selection.mode").default, Some(json!("stateful_session")));
        assert_eq!(of("paths.messages").default, Some(json!(["/v1/messages"])));
        // Reading a configuration in earnest leaves nothing behind.
        assert!(SEEN.with_borrow(Option::is_none));
    }
}
