//! gpt-oss: vLLM renders its prompts in the harmony format, without a chat template.
//!
//! The rules are those of vLLM's entrypoints/openai/parser/harmony_utils.py and of the harmony library. The
//! text of messages is never special: where it spells a special token, the prompt is cut into pieces that are
//! tokenized on their own (see [`Pieces`]).

mod typescript;

use super::PromptInput;
use super::field::{bad, unsupported};
use super::json::{Json, JsonMap};
use crate::nokey::NoKeyReason;
use typescript::type_of;

/// One message of the format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Message {
    /// Role, or a tool's name.
    author: String,
    recipient: Option<String>,
    channel: Option<&'static str>,
    content_type: Option<&'static str>,
    text: String,
}

impl Message {
    fn new(author: &str, text: impl Into<String>) -> Message {
        Message { author: author.to_owned(), text: text.into(), ..Message::default() }
    }

    fn on(mut self, channel: &'static str) -> Message {
        self.channel = Some(channel);
        self
    }

    fn call(name: &str, arguments: &str) -> Message {
        let message = Message::new("assistant", arguments).on("commentary");
        Message { recipient: Some(format!("functions.{name}")), content_type: Some("json"), ..message }
    }

    fn result(name: &str, text: String) -> Message {
        let message = Message::new(&format!("functions.{name}"), text).on("commentary");
        Message { recipient: Some("assistant".to_owned()), ..message }
    }

    fn instructions(text: &str) -> Message {
        Message::new("developer", format!("# Instructions\n\n{text}"))
    }
}

/// A function that the model may call.
#[derive(Clone, Debug)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: Option<&'a Json>,
}

/// What precedes the conversation.
struct Preamble<'a> {
    date: &'a str,
    effort: Option<&'a str>,
    instructions: Option<String>,
    functions: Vec<Function<'a>>,
}

/// The prompt of a chat, in the shape of chat completions.
pub fn chat(
    messages: &[Json],
    tools: Option<&[Json]>,
    effort: Option<&str>,
    date: &str,
) -> Result<PromptInput, NoKeyReason> {
    let messages = maps(messages, "messages")?;
    let (instructions, rest) = peel_instructions(&messages);
    let functions = tools.unwrap_or_default().iter().filter_map(|tool| tool.as_map()?.get("function")?.as_map());
    let functions = functions.map(function).collect::<Result<Vec<_>, _>>()?;
    let mut out = Preamble { date, effort, instructions, functions }.messages()?;
    let names = call_names(&messages);
    for message in rest {
        chat_message(message, &names, &mut out)?;
    }
    Ok(render(out))
}

/// The prompt of a responses request.
pub fn responses(body: &JsonMap, effort: Option<&str>, date: &str) -> Result<PromptInput, NoKeyReason> {
    if body.get_some("previous_input_messages").is_some() {
        return Err(unsupported("previous_input_messages"));
    }
    let items = match body.get("input") {
        Some(Json::Seq(items)) => maps(&items.0, "input")?,
        Some(Json::Str(_)) => Vec::new(),
        _ => return Err(bad("input: neither a string nor an array")),
    };
    let given = super::field::optional_str(body, "instructions")?.map(str::to_owned);
    let (instructions, rest) = match given {
        Some(text) => (Some(text), items.as_slice()),
        None => peel_instructions(&items),
    };
    let mut functions = Vec::new();
    for tool in body.get_some("tools").and_then(Json::as_seq).unwrap_or_default() {
        match tool.as_map() {
            Some(tool) if tool.get("type").and_then(Json::as_str) == Some("function") => {
                functions.push(function(tool)?)
            }
            _ => return Err(unsupported("tools: others than functions, with harmony")),
        }
    }
    let mut out = Preamble { date, effort, instructions, functions }.messages()?;
    if let Some(Json::Str(text)) = body.get("input") {
        out.push(Message::new("user", text.as_str()));
    }
    let mut calls: Vec<(&str, &str)> = Vec::new();
    for item in rest {
        out.extend(response_item(item, &mut calls)?);
    }
    Ok(render(out))
}

fn maps<'a>(list: &'a [Json], field: &str) -> Result<Vec<&'a JsonMap>, NoKeyReason> {
    list.iter().map(|entry| entry.as_map().ok_or_else(|| bad(format!("{field}: an entry is no object")))).collect()
}

fn text_field<'a>(map: &'a JsonMap, name: &str) -> Option<&'a str> {
    map.get(name).and_then(Json::as_str)
}

fn function(map: &JsonMap) -> Result<Function<'_>, NoKeyReason> {
    Ok(Function {
        name: text_field(map, "name").ok_or_else(|| bad("tools: a function without a name"))?,
        description: text_field(map, "description").unwrap_or_default(),
        parameters: map.get_some("parameters"),
    })
}

/// A leading system or developer message is the instructions.
fn peel_instructions<'a, 'b>(messages: &'b [&'a JsonMap]) -> (Option<String>, &'b [&'a JsonMap]) {
    match messages.split_first() {
        Some((first, rest)) if matches!(text_field(first, "role"), Some("system" | "developer")) => {
            (flatten(first.get("content")), rest)
        }
        _ => (None, messages),
    }
}

/// The texts of a content in a row; `None` where it has none.
fn flatten(content: Option<&Json>) -> Option<String> {
    match content? {
        Json::Str(text) => Some(text.as_str().to_owned()),
        Json::Seq(parts) => {
            let text = |part: &Json| match part {
                Json::Str(text) => Some(text.as_str().to_owned()),
                Json::Map(part) => text_field(part, "text").map(str::to_owned),
                _ => None,
            };
            let texts: Vec<String> = parts.0.iter().filter_map(text).collect();
            (!texts.is_empty()).then(|| texts.concat())
        }
        _ => None,
    }
}

impl Preamble<'_> {
    fn messages(self) -> Result<Vec<Message>, NoKeyReason> {
        let effort = match self.effort {
            None => "medium",
            Some(effort @ ("low" | "medium" | "high")) => effort,
            Some(other) => return Err(bad(format!("reasoning_effort: harmony knows no {other}"))),
        };
        let mut system = format!(
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\
             Current date: {}\n\nReasoning: {effort}\n\n\
             # Valid channels: analysis, commentary, final. Channel must be included for every message.",
            self.date
        );
        if !self.functions.is_empty() {
            system.push_str("\nCalls to these tools must go to the commentary channel: 'functions'.");
        }
        let mut out = vec![Message::new("system", system)];
        let instructed = self.instructions.as_deref().is_some_and(|text| !text.is_empty());
        if instructed || !self.functions.is_empty() {
            let mut sections = Vec::new();
            if let Some(text) = self.instructions {
                sections.push(format!("# Instructions\n\n{text}"));
            }
            if !self.functions.is_empty() {
                sections.push(tools_section(&self.functions)?);
            }
            out.push(Message::new("developer", sections.join("\n\n")));
        }
        Ok(out)
    }
}

fn tools_section(functions: &[Function<'_>]) -> Result<String, NoKeyReason> {
    let mut out = "# Tools\n\n## functions\n\nnamespace functions {\n\n".to_owned();
    for function in functions {
        for line in function.description.lines() {
            out.push_str(&format!("// {line}\n"));
        }
        match function.parameters {
            Some(parameters) => {
                out.push_str(&format!("type {} = (_: {}) => any;\n\n", function.name, type_of(parameters)?))
            }
            None => out.push_str(&format!("type {} = () => any;\n\n", function.name)),
        }
    }
    out.push_str("} // namespace functions");
    Ok(out)
}

/// The functions' names by the ids of their calls.
fn call_names<'a>(messages: &[&'a JsonMap]) -> std::collections::HashMap<&'a str, &'a str> {
    let calls = messages.iter().filter_map(|message| message.get("tool_calls")?.as_seq()).flatten();
    let calls = calls.filter_map(Json::as_map);
    calls
        .filter_map(|call| Some((text_field(call, "id")?, text_field(call.get("function")?.as_map()?, "name")?)))
        .collect()
}

fn chat_message(
    message: &JsonMap,
    names: &std::collections::HashMap<&str, &str>,
    out: &mut Vec<Message>,
) -> Result<(), NoKeyReason> {
    let role = text_field(message, "role").ok_or_else(|| bad("messages: an entry has no role"))?;
    let reasoning = text_field(message, "reasoning").or_else(|| text_field(message, "reasoning_content"));
    let reasoning = reasoning.filter(|text| role == "assistant" && !text.is_empty());
    let analysis = reasoning.map(|text| Message::new("assistant", text).on("analysis"));
    let calls = message.get("tool_calls").and_then(Json::as_seq).unwrap_or_default();
    match role {
        "assistant" if !calls.is_empty() => {
            let text = flatten(message.get("content")).filter(|text| !text.is_empty());
            out.extend(text.map(|text| Message::new("assistant", text).on("commentary")));
            out.extend(analysis);
            for call in maps(calls, "tool_calls")? {
                let function = call.get("function").and_then(Json::as_map);
                let function = function.ok_or_else(|| bad("messages: a tool call without function"))?;
                let arguments = text_field(function, "arguments");
                let arguments = arguments.ok_or_else(|| bad("messages: the arguments of a tool call are no string"))?;
                out.push(Message::call(text_field(function, "name").unwrap_or_default(), arguments));
            }
        }
        "tool" => {
            let name = text_field(message, "tool_call_id").and_then(|id| names.get(id)).copied().unwrap_or_default();
            out.push(Message::result(name, flatten(message.get("content")).unwrap_or_default()));
        }
        "assistant" => {
            out.extend(analysis);
            let texts = part_texts(message.get("content"))?;
            // Of several parts, the first decides whether there is anything.
            if texts.first().is_some_and(|text| !text.is_empty()) {
                out.push(Message::new("assistant", texts.concat()).on("final"));
            }
        }
        "system" | "developer" => {
            out.extend(flatten(message.get("content")).map(|text| Message::instructions(&text)));
        }
        "user" => out.push(Message::new("user", part_texts(message.get("content"))?.concat())),
        _ => return Err(bad(format!("messages: harmony knows no role {role}"))),
    }
    Ok(())
}

/// The text of each part; parts of other kinds are empty texts.
fn part_texts(content: Option<&Json>) -> Result<Vec<&str>, NoKeyReason> {
    match content {
        None | Some(Json::Null) => Ok(vec![""]),
        Some(Json::Str(text)) => Ok(vec![text.as_str()]),
        Some(Json::Seq(parts)) => {
            let parts = maps(&parts.0, "content")?;
            Ok(parts.into_iter().map(|part| text_field(part, "text").unwrap_or_default()).collect())
        }
        Some(_) => Err(bad("messages: content is neither a string nor an array")),
    }
}

fn response_item<'a>(item: &'a JsonMap, calls: &mut Vec<(&'a str, &'a str)>) -> Result<Option<Message>, NoKeyReason> {
    let required = |name: &str| text_field(item, name).ok_or_else(|| bad(format!("input: an item without {name}")));
    Ok(match text_field(item, "type") {
        None | Some("message") => {
            let role = required("role")?;
            match role {
                "system" | "developer" => {
                    let text = flatten(item.get("content")).filter(|text| !text.is_empty());
                    text.map(|text| Message::instructions(&text))
                }
                "assistant" => Some(Message::new(role, part_texts(item.get("content"))?.concat()).on("final")),
                "user" => Some(Message::new(role, part_texts(item.get("content"))?.concat())),
                _ => return Err(bad(format!("input: harmony knows no role {role}"))),
            }
        }
        Some("function_call") => {
            let name = required("name")?;
            calls.push((required("call_id")?, name));
            Some(Message::call(name, required("arguments")?))
        }
        Some("function_call_output") => {
            let id = required("call_id")?;
            let name = calls.iter().rev().find(|(call, _)| *call == id).map(|(_, name)| *name);
            let name = name.ok_or_else(|| bad("input: a function_call_output without its call"))?;
            Some(Message::result(name, required("output")?.to_owned()))
        }
        Some("reasoning") => {
            let parts = item.get("content").and_then(Json::as_seq).unwrap_or_default();
            let texts: Option<Vec<&str>> = parts.iter().map(|part| text_field(part.as_map()?, "text")).collect();
            let texts = texts.ok_or_else(|| bad("input: a reasoning item whose parts have no text"))?;
            (!texts.is_empty()).then(|| Message::new("assistant", texts.join("\n")).on("analysis"))
        }
        Some(other) => return Err(unsupported(format!("input: an item of type {other}, with harmony"))),
    })
}

fn render(messages: Vec<Message>) -> PromptInput {
    let last_final = messages.iter().rposition(|m| m.author == "assistant" && m.channel == Some("final"));
    let mut pieces = Pieces::default();
    for (at, message) in messages.iter().enumerate() {
        // The thoughts that led to an answer go when the answer is out.
        if message.channel == Some("analysis") && last_final.is_some_and(|last| at < last) {
            continue;
        }
        // Calls have the recipient before the channel, results after it.
        let (before, after) = match &message.recipient {
            Some(recipient) if message.author == "assistant" => (format!(" to={recipient}"), String::new()),
            Some(recipient) => (String::new(), format!(" to={recipient}")),
            None => (String::new(), String::new()),
        };
        pieces.special("<|start|>");
        pieces.text(&message.author);
        pieces.text(&before);
        if let Some(channel) = message.channel {
            pieces.special("<|channel|>");
            pieces.text(channel);
        }
        pieces.text(&after);
        if let Some(content_type) = message.content_type {
            pieces.text(" ");
            pieces.text(content_type);
        }
        pieces.special("<|message|>");
        pieces.text(&message.text);
        pieces.special(if message.author == "assistant" && message.recipient.is_some() {
            "<|call|>"
        } else {
            "<|end|>"
        });
    }
    pieces.special("<|start|>");
    pieces.text("assistant");
    pieces.finish()
}

/// A prompt under construction.
///
/// A text such as `<|end|>` in a message is tokenized as ordinary text. To the tokenizer it would be the
/// special token, so the prompt is cut inside of it, after `<|`: there the tokenizer's own splitting cuts in any
/// case, since a run of punctuation never goes on into letters.
#[derive(Default)]
struct Pieces {
    done: Vec<String>,
    current: String,
}

impl Pieces {
    fn special(&mut self, token: &str) {
        self.current.push_str(token);
    }

    fn text(&mut self, text: &str) {
        let mut rest = text;
        while let Some(at) = spelled_special(rest) {
            let (before, after) = rest.split_at_checked(at + 2).unwrap_or((rest, ""));
            self.current.push_str(before);
            self.done.push(std::mem::take(&mut self.current));
            rest = after;
        }
        self.current.push_str(rest);
    }

    fn finish(mut self) -> PromptInput {
        if self.done.is_empty() {
            return PromptInput::Text(self.current);
        }
        self.done.push(self.current);
        PromptInput::Pieces(self.done)
    }
}

/// Where a text spells something like `<|name|>`.
fn spelled_special(text: &str) -> Option<usize> {
    text.match_indices("<|").map(|(at, _)| at).find(|at| {
        let name = text.get(at + 2..).unwrap_or_default();
        let length = name.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && length <= 64
            && name.get(length..).is_some_and(|rest| rest.starts_with("|>"))
    })
}
