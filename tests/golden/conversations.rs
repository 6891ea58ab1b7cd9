//! Conversations put together at random, with values of every kind where templates expect others.

use kvroute::request::json::{Json, JsonMap, Text};

/// Numbers that are the same in every run.
pub struct Random(u64);

impl Random {
    /// Those of one case.
    pub fn of_case(case: usize) -> Random {
        let mut random = Random(case as u64);
        (0..4).for_each(|_| _ = random.below(2));
        random
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const TEXTS: [&str; 18] = [
    "",
    " ",
    "Hi",
    "\n\n  What's \"up\"?\t\u{3000}",
    "<think>\nlong thoughts\n</think>\n\nAn answer.\n",
    "</think>",
    "<think>a</think>b</think>c",
    "<tool_response>x</tool_response>",
    "a<|channel|>final<|message|>b",
    "Grüße 😀\u{1c}",
    "{\"a\": 1}",
    "line one\nline two\n",
    "[TOOL_CALLS]",
    "<|im_end|>",
    "0",
    "/no_think",
    "Cutting Knowledge Date: x",
    "\u{0}\u{7f}\u{2028}",
];
const FIELDS: [&str; 16] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
    "type",
    "text",
    "function",
    "arguments",
    "id",
    "items",
    "prefix",
    "tools",
];

fn pair(name: &str, value: Json) -> (Text, Json) {
    (Text::from(name), value)
}

/// Any value.
fn any(random: &mut Random, depth: usize) -> Json {
    match random.below(if depth == 0 { 9 } else { 12 }) {
        0 => Json::Null,
        1 => Json::Bool(random.one_in(2)),
        2 => Json::Int(random.below(2000) as i64 - 1000),
        3 => Json::Float([0.0, 1.0, 1e22, -2.5e-7, 0.1, -0.0][random.below(6)]),
        4 => Json::BigInt("123456789012345678901234567890123456789012".into()),
        5..=8 => Json::str(random.of(&TEXTS)),
        9 => Json::seq((0..random.below(4)).map(|_| any(random, depth - 1)).collect()),
        _ => {
            let mut map = JsonMap::default();
            for _ in 0..random.below(5) {
                map.insert(Text::from(random.of(&FIELDS)), any(random, depth - 1));
            }
            Json::Map(map.into())
        }
    }
}

/// A value that is nearly always the one that templates expect.
fn or_any(random: &mut Random, odd: bool, expected: Json) -> Json {
    if odd && random.one_in(8) { any(random, 2) } else { expected }
}

fn arguments(random: &mut Random, odd: bool) -> Json {
    let names = ["city", "n", "deep", "on", "nothing", "list"];
    let values = [
        Json::str("Zürich"),
        Json::Int(3),
        Json::map(vec![pair("a", Json::seq(vec![Json::Bool(true), Json::Null]))]),
        Json::Bool(false),
        Json::Null,
        Json::seq(vec![Json::str("x"), Json::Float(1.5)]),
    ];
    let entries = names.into_iter().zip(values).take(random.below(7)).map(|(name, value)| pair(name, value));
    let map = Json::map(entries.collect());
    let text = Json::str("{\"city\": \"Zürich\"}");
    let value = if random.one_in(4) { text } else { map };
    or_any(random, odd, value)
}

fn message(random: &mut Random, role: &str, odd: bool, parts: bool) -> Json {
    let text = |random: &mut Random| Json::str(random.of(&TEXTS));
    let content = match random.below(8) {
        0..=2 if parts => {
            let part = |random: &mut Random| {
                let kind = random.of(&["text", "text", "text", "image", "image_url", "video"]);
                Json::map(vec![pair("type", Json::str(kind)), pair("text", Json::str(random.of(&TEXTS)))])
            };
            Json::seq((0..random.below(4)).map(|_| part(random)).collect())
        }
        3 if odd => Json::Null,
        _ => text(random),
    };
    let content = or_any(random, odd, content);
    let odd_role = odd && random.one_in(4);
    let mut out = vec![pair("role", or_any(random, odd_role, Json::str(role))), pair("content", content)];
    if role == "assistant" && random.one_in(2) {
        let mut calls = Vec::new();
        for number in 0..random.below(3) {
            let arguments = arguments(random, odd);
            let function = Json::map(vec![pair("name", Json::str("get_weather")), pair("arguments", arguments)]);
            let call = vec![
                pair("id", or_any(random, odd, Json::str(format!("call{number:05}")))),
                pair("type", Json::str("function")),
                pair("function", or_any(random, odd, function)),
            ];
            calls.push(Json::map(call));
        }
        out.push(pair("tool_calls", or_any(random, odd, Json::seq(calls))));
    }
    if role == "assistant" && random.one_in(3) {
        let value = text(random);
        out.push(pair(random.of(&["reasoning_content", "reasoning", "thinking"]), or_any(random, odd, value)));
    }
    if role == "tool" {
        out.push(pair("tool_call_id", Json::str("call00000")));
        out.push(pair("name", Json::str("get_weather")));
    }
    if odd && random.one_in(6) {
        let field = random.of(&FIELDS);
        if !out.iter().any(|(name, _)| name.as_str() == field) {
            out.push(pair(field, any(random, 2)));
        }
    }
    Json::map(out)
}

/// The variables of a render: a conversation, tools, and some of the arguments that templates know.
pub fn conversation(random: &mut Random, odd: bool) -> Json {
    let mut messages = Vec::new();
    let parts = random.one_in(3);
    if random.one_in(2) {
        messages.push(message(random, "system", odd, parts));
    }
    let turns = random.below(5);
    for turn in 0..=turns {
        messages.push(message(random, "user", odd, parts));
        if turn == turns && random.one_in(2) {
            break;
        }
        messages.push(message(random, "assistant", odd, parts));
        for _ in 0..random.below(3) {
            messages.push(message(random, "tool", odd, parts));
        }
        if odd && random.one_in(5) {
            let role = random.of(&["system", "developer", "ipython", "model", "observation"]);
            messages.push(message(random, role, odd, parts));
        }
    }
    let tool = |random: &mut Random| {
        let parameters = any(random, 3);
        let object = Json::map(vec![
            pair("type", Json::str("object")),
            pair("properties", Json::map(vec![pair("city", Json::map(vec![pair("type", Json::str("string"))]))])),
            pair("required", Json::seq(vec![Json::str("city")])),
        ]);
        let function = Json::map(vec![
            pair("name", Json::str("get_weather")),
            pair("description", Json::str(random.of(&TEXTS))),
            pair("parameters", if random.one_in(3) { parameters } else { object }),
        ]);
        Json::map(vec![pair("type", Json::str("function")), pair("function", or_any(random, odd, function))])
    };
    let tools = match random.below(3) {
        0 => Json::seq((0..random.below(3) + 1).map(|_| tool(random)).collect()),
        _ => Json::Null,
    };
    let messages = Json::seq(messages);
    let (odd_messages, odd_tools) = (odd && random.one_in(10), odd && random.one_in(4));
    let mut out = vec![
        pair("messages", or_any(random, odd_messages, messages)),
        pair("tools", or_any(random, odd_tools, tools)),
        pair("documents", Json::Null),
        pair("add_generation_prompt", Json::Bool(random.one_in(2))),
        pair("bos_token", Json::str("<s>")),
        pair("eos_token", Json::str("</s>")),
    ];
    let names = [
        "enable_thinking",
        "thinking",
        "reasoning_effort",
        "date_string",
        "tools_in_user_message",
        "builtin_tools",
        "preserve_thinking",
        "clear_thinking",
        "namespace",
        "model_identity",
        "ns",
        "message",
        "loop_messages",
    ];
    for _ in 0..random.below(3) {
        let name = random.of(&names);
        if !out.iter().any(|(known, _)| known.as_str() == name) {
            let value = Json::Bool(random.one_in(2));
            out.push(pair(name, or_any(random, true, value)));
        }
    }
    Json::map(out)
}
