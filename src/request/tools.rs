//! The tools of a request as the engine hands them to the template.

use super::field::bad;
use super::flags::EngineFlags;
use super::json::{Json, JsonMap, Text};
use super::profile::Profile;
use crate::nokey::NoKeyReason;

/// vLLM refuses tool calls of any kind without a parser for them.
pub fn require_parser(choice: &str, flags: &EngineFlags) -> Result<(), NoKeyReason> {
    let auto = choice == "auto" && flags.enable_auto_tool_choice;
    if choice == "none" || auto || flags.tool_call_parser.is_some() {
        return Ok(());
    }
    Err(bad("tool_choice: the engine has no tool call parser (--enable-auto-tool-choice, --tool-call-parser)"))
}

/// vLLM's `tool.model_dump()`: keys in the order of its classes, absent `description` and `parameters` as null,
/// `strict` and `defer_loading` only when set.
pub fn dump_tools(tools: &[Json], profile: &Profile) -> Result<Vec<Json>, NoKeyReason> {
    tools.iter().map(|tool| dump_tool(tool, profile)).collect()
}

fn dump_tool(tool: &Json, profile: &Profile) -> Result<Json, NoKeyReason> {
    let tool = tool.as_map().ok_or_else(|| bad("tools: an entry is no object"))?;
    let function = tool.get("function").and_then(Json::as_map).ok_or_else(|| bad("tools: an entry has no function"))?;
    if tool.get("type").is_some_and(|kind| kind.as_str() != Some("function")) {
        return Err(bad("tools: a type other than function"));
    }
    let mut out = vec![(Text::from("type"), Json::str("function"))];
    let outer_defer = tool.get_some("defer_loading");
    out.push((Text::from("function"), dump_function(function, outer_defer, profile)?));
    if let Some(defer) = outer_defer {
        out.push((Text::from("defer_loading"), boolean(defer, "defer_loading")?));
    }
    if profile.keeps_tool_extras {
        extras(tool, &["type", "function", "defer_loading"], &mut out);
    }
    Ok(Json::map(out))
}

fn dump_function(function: &JsonMap, defer: Option<&Json>, profile: &Profile) -> Result<Json, NoKeyReason> {
    let name = function.get("name").and_then(Json::as_str).ok_or_else(|| bad("tools: a function without a name"))?;
    let mut out = vec![(Text::from("name"), Json::str(name))];
    let field = |name: &str| function.get(name).cloned().unwrap_or(Json::Null);
    let (description, parameters) = (field("description"), field("parameters"));
    if !matches!(description, Json::Null | Json::Str(_)) {
        return Err(bad("tools: a description that is no string"));
    }
    if !matches!(parameters, Json::Null | Json::Map(_)) {
        return Err(bad("tools: parameters that are no object"));
    }
    out.push((Text::from("description"), description));
    out.push((Text::from("parameters"), parameters));
    if let Some(strict) = function.get_some("strict").filter(|_| profile.knows_strict) {
        out.push((Text::from("strict"), boolean(strict, "strict")?));
    }
    if let Some(defer) = function.get_some("defer_loading").or(defer) {
        out.push((Text::from("defer_loading"), boolean(defer, "defer_loading")?));
    }
    if profile.keeps_tool_extras {
        let known = ["name", "description", "parameters", "defer_loading", "strict"];
        let known = if profile.knows_strict { known.as_slice() } else { known.get(..4).unwrap_or_default() };
        extras(function, known, &mut out);
    }
    Ok(Json::map(out))
}

fn boolean(value: &Json, name: &str) -> Result<Json, NoKeyReason> {
    match value {
        Json::Bool(_) => Ok(value.clone()),
        // Printed as the converted value; rare enough to leave to the engine.
        _ => Err(super::field::unsupported(format!("tools: {name} is no boolean"))),
    }
}

fn extras(from: &JsonMap, known: &[&str], out: &mut Vec<(Text, Json)>) {
    for (key, value) in from.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        out.push((key.clone(), value.clone()));
    }
}
