//! Request bodies as Python's `json.loads` sees them.
//!
//! The parser goes straight to the values that templates read: objects keep the client's order of keys (of a
//! key that comes twice, the last value at the first place), integers are exact at any size, floats stay floats.
//! Time and memory are linear in the body. Refused, because no engine could tokenize or parse them: lone
//! surrogates, `NaN` and `Infinity`, control characters in strings, integers of more than 4,300 digits (Python's
//! own limit); nesting beyond [`MAX_DEPTH`], because the values are printed by recursion; and texts whose values would
//! take many times their length ([`budget`]).

pub mod budget;
mod parse;
mod string;
mod value;

pub use parse::{Fault, JsonError, MAX_DEPTH, Parsing, parse, parse_part, parse_within};
pub use string::plain_prefix;
pub use value::{Json, JsonMap, JsonSeq, Text};

/// `json.dumps(value, ensure_ascii=False)`
pub fn to_json_text(value: &Json) -> String {
    crate::template::python::to_json(value)
}

/// `json.dumps(value)`
pub fn to_ascii_json_text(value: &Json) -> String {
    let style = crate::template::python::JsonStyle { ensure_ascii: true, ..Default::default() };
    crate::template::python::dump_json(value, &style)
}

#[cfg(test)]
mod tests;
