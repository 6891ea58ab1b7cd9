//! Tools: as SGLang's classes print them, and which of them the template gets.

use super::Rules;
use super::numbers::as_orjson;
use super::schema::standard_types;
use crate::nokey::NoKeyReason;
use crate::request::field::{bad, bool_field, optional_bool, optional_str};
use crate::request::json::{Json, JsonMap, Text};

/// Roles whose messages may bring tools that count.
const TOOL_ROLES: [&str; 3] = ["root", "system", "developer"];

/// `Tool.model_dump()`: the keys of the function in the client's order, the absent ones after them (or in that of the
/// class), and `defer_loading` in any case. `counts`: the types of its schema are made standard ones.
fn dump(tool: &Json, counts: bool, rules: Rules) -> Result<Json, NoKeyReason> {
    let tool = tool.as_map().ok_or_else(|| bad("tools: an entry is no object"))?;
    let function = tool.get("function").and_then(Json::as_map).ok_or_else(|| bad("tools: an entry has no function"))?;
    let kind = match tool.get("type") {
        None => "function",
        Some(kind) => kind.as_str().ok_or_else(|| bad("tools: a type that is no string"))?,
    };
    let defer = optional_bool(tool, "defer_loading")?;
    let function = dump_function(function, defer, counts, rules)?;
    Ok(Json::map(vec![
        (Text::from("type"), Json::str(kind)),
        (Text::from("function"), function),
        (Text::from("defer_loading"), defer.map_or(Json::Null, Json::Bool)),
    ]))
}

fn dump_function(
    function: &JsonMap,
    outer_defer: Option<bool>,
    counts: bool,
    rules: Rules,
) -> Result<Json, NoKeyReason> {
    let name = function.get("name").and_then(Json::as_str).ok_or_else(|| bad("tools: a function without a name"))?;
    let description = optional_str(function, "description")?.map_or(Json::Null, Json::str);
    let mut parameters = as_orjson(function.get("parameters").unwrap_or(&Json::Null));
    if counts {
        parameters = standard_types(&parameters).unwrap_or(parameters);
    }
    let strict = match rules.tools_as_sent {
        true => optional_bool(function, "strict")?,
        false => Some(bool_field(function, "strict", false)?),
    };
    let strict = strict.map(Json::Bool);
    let defer = optional_bool(function, "defer_loading")?.or(outer_defer).map(Json::Bool);
    // In the order of the class.
    let mut fields = vec![("description", description), ("name", Json::str(name)), ("parameters", parameters)];
    fields.extend(strict.map(|strict| ("strict", strict)));
    fields.extend(defer.map(|defer| ("defer_loading", defer)));
    let mut out = Vec::with_capacity(fields.len());
    for (key, _) in function.iter().filter(|_| rules.tools_as_sent) {
        if let Some(at) = fields.iter().position(|(name, _)| *name == key.as_str()) {
            let (name, value) = fields.remove(at);
            out.push((Text::from(name), value));
        }
    }
    out.extend(fields.into_iter().map(|(name, value)| (Text::from(name), value)));
    Ok(Json::map(out))
}

/// A list of tools, dumped; `None` where there is none.
pub fn list(value: Option<&Json>, counts: bool, rules: Rules) -> Result<Option<Vec<Json>>, NoKeyReason> {
    match value {
        None | Some(Json::Null) => Ok(None),
        Some(Json::Seq(tools)) => {
            tools.0.iter().map(|tool| dump(tool, counts, rules)).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err(bad("tools: not an array")),
    }
}

/// Whether tools of a message of this role count among the request's.
pub fn count_in(role: &str) -> bool {
    TOOL_ROLES.contains(&role)
}

fn name(tool: &Json) -> Option<&str> {
    tool.as_map()?.get("function")?.as_map()?.get("name")?.as_str()
}

/// The tools that the template gets: of the request's, not those of its messages. `messages`: as the engine has them.
pub fn chosen(body: &JsonMap, messages: &[Json], rules: Rules) -> Result<Option<Vec<Json>>, NoKeyReason> {
    let own = list(body.get("tools"), true, rules)?.unwrap_or_default();
    let in_messages = messages.iter().filter_map(|message| {
        let message = message.as_map()?;
        count_in(message.get("role")?.as_str()?).then(|| message.get("tools")?.as_seq())?
    });
    let in_messages: Vec<&Json> = in_messages.flatten().collect();
    let names = || own.iter().chain(in_messages.iter().copied()).filter_map(name);
    if !in_messages.is_empty() {
        let mut sorted: Vec<&str> = names().collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| matches!(pair, [a, b] if a == b)) {
            return Err(bad("tools: a name comes twice"));
        }
    }
    let named = match body.get_some("tool_choice") {
        None => None,
        Some(Json::Str(choice)) => match choice.as_str() {
            "none" => return Ok(None),
            "auto" => None,
            "required" if own.is_empty() && in_messages.is_empty() => {
                return Err(bad("tool_choice: required without tools"));
            }
            "required" => None,
            _ => return Err(bad("tool_choice: none of auto, required, none, or a function")),
        },
        Some(Json::Map(choice)) => {
            let wanted = choice.get("function").and_then(Json::as_map).and_then(|map| map.get("name")?.as_str());
            let wanted = wanted.filter(|wanted| names().any(|name| name == *wanted));
            let is_function = choice.get("type").is_none_or(|kind| kind.as_str() == Some("function"));
            Some(wanted.filter(|_| is_function).ok_or_else(|| bad("tool_choice: no such function"))?)
        }
        Some(_) => return Err(bad("tool_choice: neither a string nor an object")),
    };
    let chosen: Vec<Json> = own.iter().filter(|tool| named.is_none() || name(tool) == named).cloned().collect();
    Ok(Some(chosen).filter(|chosen| !chosen.is_empty()))
}

/// Tools without their wrapper: what the template gets when it failed on the others.
pub fn flat(tools: &[Json]) -> Vec<Json> {
    let function = |tool: &Json| tool.as_map().and_then(|tool| tool.get("function")).cloned();
    tools.iter().filter_map(function).collect()
}
