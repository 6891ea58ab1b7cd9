//! Values in Python's spelling: `repr`, `str` and `json.dumps`.

mod float;
mod json;
mod printable;

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};

pub use float::{float_text, needs_python};
pub use json::{Dumped, JsonStyle, append_json, dump_json, dump_value, to_json};
pub use printable::is_printable;

use super::object::Number;
use crate::request::json::{Json, JsonMap, JsonSeq};

/// `repr(value)`
pub fn repr(value: &Json) -> String {
    let mut out = String::new();
    write_repr(&mut out, value);
    out
}

/// Appends `repr(value)`. Recursion is bounded by the parser's depth.
pub fn write_repr(out: &mut String, value: &Json) {
    match value {
        Json::Null => out.push_str("None"),
        Json::Bool(true) => out.push_str("True"),
        Json::Bool(false) => out.push_str("False"),
        Json::Int(value) => push_display(out, value),
        Json::BigInt(digits) => out.push_str(digits),
        Json::Float(value) => out.push_str(&float_text(*value)),
        Json::Str(text) => write_str_repr(out, text.as_str()),
        Json::Seq(seq) => write_seq_repr(out, seq),
        Json::Map(map) => write_map_repr(out, map),
    }
}

/// Appends the representation of a list.
pub fn write_seq_repr(out: &mut String, seq: &JsonSeq) {
    out.push('[');
    for (at, item) in seq.0.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_repr(out, item);
    }
    out.push(']');
}

/// Appends the representation of a dictionary.
pub fn write_map_repr(out: &mut String, map: &JsonMap) {
    out.push('{');
    for (at, (key, item)) in map.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_str_repr(out, key.as_str());
        out.push_str(": ");
        write_repr(out, item);
    }
    out.push('}');
}

/// Appends the representation of a string: quotes chosen and characters escaped as Python does.
pub fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                // Writing to a String cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Appends `str(value)` of a template value.
pub fn write_value_str(out: &mut String, value: &Value) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_value_repr(out, value, 0),
    }
}

/// Values made inside a template nest by its own doing; beyond this they print as an ellipsis, which then
/// equals no engine's text, so the render fails elsewhere: see [`super::fuel`].
const MAX_REPR_DEPTH: usize = 160;

/// Appends `repr(value)` of a template value.
pub fn write_value_repr(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_REPR_DEPTH {
        super::fuel::exhaust();
        return;
    }
    if let Some(map) = value.downcast_object_ref::<JsonMap>() {
        return write_map_repr(out, map);
    }
    if let Some(seq) = value.downcast_object_ref::<JsonSeq>() {
        return write_seq_repr(out, seq);
    }
    if let Some(number) = value.downcast_object_ref::<Number>() {
        return out.push_str(&number.text());
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if value.is_integer() => push_display(out, value),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float_text(number)),
            Err(_) => push_display(out, value),
        },
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                if count > 0 {
                    out.push_str(", ");
                }
                count += 1;
                write_value_repr(out, &item, depth + 1);
            }
            if tuple && count == 1 {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        ValueKind::Map if !value.is_kwargs() => {
            out.push('{');
            for (at, key) in value.try_iter().into_iter().flatten().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                write_value_repr(out, &key, depth + 1);
                out.push_str(": ");
                write_value_repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        _ => push_display(out, value),
    }
}

fn push_display(out: &mut String, value: &impl std::fmt::Display) {
    // Writing to a String cannot fail.
    let _ = write!(out, "{value}");
}
