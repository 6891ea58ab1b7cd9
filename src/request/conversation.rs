//! What stays the same in all turns of a conversation, as one number: for a roll-out that takes each conversation
//! whole.
//!
//! | API | what counts |
//! |---|---|
//! | chat completions | the messages up to the first one of the user |
//! | messages | `system`, and the same |
//! | responses | `instructions`, and the items up to the first one of the user; an `input` that is a text is that item |
//! | completions | the first 256 bytes of the prompt, or its first 64 ids |
//!
//! Of a message the role and the text count: a text and a list of one text part are the same, and marks that clients
//! move from turn to turn (`cache_control`) are not looked at. All workers and all gateways come to the same number.

use xxhash_rust::xxh3::Xxh3;

use super::Api;
use super::json::{Json, JsonMap};
use super::renderer::Body;

/// Of a completion, what is looked at.
const BYTES: usize = 256;
const IDS: usize = 64;
/// Values inside of a content: parts hold texts, not trees.
const DEPTH: usize = 6;

impl Body {
    /// The number of the conversation that this request belongs to, from 0 to below 1, spread evenly.
    pub fn conversation(&self, api: Api, model: &str) -> f64 {
        let mut hash = Xxh3::new();
        text(&mut hash, model);
        if let Some(body) = self.root().as_map() {
            feed(&mut hash, api, body);
        }
        (hash.digest() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn feed(hash: &mut Xxh3, api: Api, body: &JsonMap) {
    let messages = match api {
        Api::Completions => return prompt(hash, body.get("prompt")),
        Api::ChatCompletions | Api::Tokenize => body.get("messages"),
        Api::Messages => {
            content(hash, body.get("system"), DEPTH);
            body.get("messages")
        }
        Api::Responses => {
            content(hash, body.get("instructions"), DEPTH);
            body.get("input")
        }
    };
    match messages {
        Some(Json::Seq(_)) => {}
        // The next turn has it as a message of the user.
        alone => {
            text(hash, "user");
            return content(hash, alone, DEPTH);
        }
    }
    for message in messages.and_then(Json::as_seq).unwrap_or_default() {
        let Some(message) = message.as_map() else { continue };
        let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
        text(hash, role);
        content(hash, message.get("content"), DEPTH);
        if role == "user" {
            return;
        }
    }
}

fn prompt(hash: &mut Xxh3, prompt: Option<&Json>) {
    match prompt {
        Some(Json::Str(all)) => {
            let all = all.as_str().as_bytes();
            hash.update(all.get(..BYTES).unwrap_or(all));
        }
        Some(Json::Seq(_)) => {
            for item in prompt.and_then(Json::as_seq).unwrap_or_default().iter().take(IDS) {
                match item {
                    Json::Int(id) => hash.update(&id.to_le_bytes()),
                    // A list of prompts.
                    other => return self::prompt_of_list(hash, other),
                }
            }
        }
        _ => {}
    }
}

/// The first of several prompts.
fn prompt_of_list(hash: &mut Xxh3, first: &Json) {
    match first {
        Json::Str(_) => prompt(hash, Some(first)),
        Json::Seq(_) => {
            for id in first.as_seq().unwrap_or_default().iter().take(IDS) {
                if let Json::Int(id) = id {
                    hash.update(&id.to_le_bytes());
                }
            }
        }
        _ => {}
    }
}

/// The texts of a content, in order.
fn content(hash: &mut Xxh3, value: Option<&Json>, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Some(Json::Str(part)) => text(hash, part.as_str()),
        Some(Json::Seq(_)) => {
            for part in value.and_then(Json::as_seq).unwrap_or_default() {
                content(hash, Some(part), depth);
            }
        }
        Some(Json::Map(part)) => match part.get("text") {
            Some(inner) => content(hash, Some(inner), depth),
            None => part.iter().for_each(|(_, inner)| content(hash, Some(inner), depth)),
        },
        _ => {}
    }
}

/// With its length, so that two texts are not one.
fn text(hash: &mut Xxh3, text: &str) {
    hash.update(&(text.len() as u64).to_le_bytes());
    hash.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn number(api: Api, body: &Value) -> f64 {
        Body::parse(body.to_string().as_bytes()).unwrap().conversation(api, "m")
    }

    #[test]
    fn all_turns_of_a_conversation_have_one_number() {
        let system = json!({"role": "system", "content": "Be kind."});
        let user = |text: Value| json!({"role": "user", "content": text});
        let answer = json!({"role": "assistant", "content": "Hello."});
        let chat = |messages: Value| number(Api::ChatCompletions, &json!({"messages": messages}));
        let first = chat(json!([system, user("Hi".into())]));
        for turn in [
            json!([system, user("Hi".into()), answer, user("And now?".into())]),
            json!([
                system,
                user(json!([{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}])),
                answer
            ]),
            json!([{"content": "Be kind.", "role": "system", "name": "x"}, user("Hi".into())]),
        ] {
            assert_eq!(chat(turn.clone()), first, "{turn}");
        }
        for other in [
            json!([system, user("Ho".into())]),
            json!([user("Hi".into())]),
            json!([{"role": "system", "content": "Be kind.H"}, user("i".into())]),
            json!([]),
        ] {
            assert_ne!(chat(other.clone()), first, "{other}");
        }

        let responses = |input: Value| number(Api::Responses, &json!({"instructions": "i", "input": input}));
        let first = responses("Hi".into());
        assert_eq!(responses(json!([user("Hi".into()), answer, user("More".into())])), first);
        let part = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]);
        assert_eq!(responses(part), first);
        assert_ne!(responses("Ho".into()), first);

        let messages = |system: Value, text: &str| {
            number(Api::Messages, &json!({"system": system, "messages": [user(text.into()), answer]}))
        };
        assert_eq!(messages("s".into(), "Hi"), messages(json!([{"type": "text", "text": "s"}]), "Hi"));
        assert_ne!(messages("s".into(), "Hi"), messages("t".into(), "Hi"));

        let long = "word ".repeat(100);
        let completion = |prompt: Value| number(Api::Completions, &json!({"prompt": prompt}));
        assert_eq!(completion(long.clone().into()), completion(format!("{long} and more").into()));
        assert_ne!(completion(long.clone().into()), completion(format!("a{long}").into()));
        let ids: Vec<i64> = (0..100).collect();
        assert_eq!(completion(json!(ids[..64])), completion(json!(ids)));
        assert_eq!(completion(json!([ids])), completion(json!(ids)));
        assert_eq!(completion(json!([long])), completion(json!(long)));
        assert_ne!(completion(json!(ids[1..])), completion(json!(ids)));
    }

    #[test]
    fn numbers_are_spread_evenly_and_differ_by_model() {
        let of = |i: u32, model: &str| {
            let body = json!({"messages": [{"role": "user", "content": format!("question {i}")}]});
            Body::parse(body.to_string().as_bytes()).unwrap().conversation(Api::ChatCompletions, model)
        };
        let mut tenths = [0; 10];
        for i in 0..2_000 {
            tenths[(of(i, "m") * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|n| (140..=260).contains(n)), "{tenths:?}");
        assert_ne!(of(1, "m"), of(1, "n"));
    }
}
