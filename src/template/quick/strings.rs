//! Methods of texts: those that templates call most here, the others by the engine's own function.

use minijinja::value::{Value, ValueKind};

use super::Fallback;
use super::value::{Got, Val};
use crate::template::text::{self, is_space};

/// Calls method `name` of `text`, which is a text.
pub fn call<'a>(text: &Val<'a>, name: &str, args: &[Val<'a>]) -> Got<Val<'a>> {
    let value = text.as_str().ok_or(Fallback("a method of a value that is no text"))?;
    match (name, args) {
        ("strip", []) => text.part(|text| text.trim_matches(is_space)),
        ("lstrip", []) => text.part(|text| text.trim_start_matches(is_space)),
        ("rstrip", []) => text.part(|text| text.trim_end_matches(is_space)),
        ("strip" | "lstrip" | "rstrip", [chars]) if chars.as_str().is_some() => {
            let chars = chars.as_str().unwrap_or_default();
            let (start, end) = (name != "rstrip", name != "lstrip");
            // One character is what nearly all templates give.
            let mut only = chars.chars();
            match (only.next(), only.next()) {
                (Some(only), None) => text.part(|text| trim(text, |c| c == only, start, end)),
                _ => text.part(|text| trim(text, |c| chars.contains(c), start, end)),
            }
        }
        ("startswith" | "endswith", [affix]) if affix.as_str().is_some() => {
            let affix = affix.as_str().unwrap_or_default();
            Ok(Val::Bool(if name == "startswith" { value.starts_with(affix) } else { value.ends_with(affix) }))
        }
        ("split", [separator]) if separator.as_str().is_some_and(|separator| !separator.is_empty()) => {
            let separator = separator.as_str().unwrap_or_default();
            Ok(Val::list(match text {
                Val::Str(text) => text.split(separator).map(Val::Str).collect(),
                _ => value.split(separator).map(Val::made).collect(),
            }))
        }
        _ => by_engine(value, name, args),
    }
}

fn trim(text: &str, drop: impl Fn(char) -> bool, start: bool, end: bool) -> &str {
    let text = if start { text.trim_start_matches(&drop) } else { text };
    if end { text.trim_end_matches(&drop) } else { text }
}

fn by_engine<'a>(value: &str, name: &str, args: &[Val<'a>]) -> Got<Val<'a>> {
    let mut values = Vec::with_capacity(args.len());
    for arg in args {
        values.push(match arg {
            Val::Str(text) => Value::from(*text),
            Val::Made(text) => Value::from(&**text),
            Val::Int(value) => Value::from(*value),
            Val::Bool(value) => Value::from(*value),
            Val::None => Value::from(()),
            _ => return Err(Fallback("an argument of a method that is not plain")),
        });
    }
    let result = text::call(value, name, &values).map_err(|_| Fallback("a method that fails"))?;
    match result.kind() {
        ValueKind::Seq if !result.is_tuple() => {
            let items = result.try_iter().map_err(|_| Fallback("a method that fails"))?;
            let items: Got<Vec<Val<'a>>> = items.map(|item| plain(&item)).collect();
            Ok(Val::list(items?))
        }
        _ => plain(&result),
    }
}

fn plain<'a>(value: &Value) -> Got<Val<'a>> {
    match value.kind() {
        ValueKind::String => Ok(Val::made(value.as_str().unwrap_or_default())),
        ValueKind::Bool => Ok(Val::Bool(value.is_true())),
        ValueKind::Number if value.is_integer() => value.as_i64().map(Val::Int).ok_or(Fallback("a large number")),
        _ => Err(Fallback("the result of a method is not plain")),
    }
}
