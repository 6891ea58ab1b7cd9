//! `json.dumps(value, ensure_ascii=False)` as transformers registers it under the name `tojson`.

use std::borrow::Cow;
use std::fmt::Write;

use minijinja::value::{Value, ValueKind};

use super::super::object::Number;
use super::float_text;
use crate::request::json::{Json, JsonMap, JsonSeq, plain_prefix};

/// The arguments of `json.dumps`.
#[derive(Clone, Debug)]
pub struct JsonStyle {
    /// Escape everything outside ASCII.
    pub ensure_ascii: bool,
    /// What one level of indentation adds; `None` puts everything into one line.
    pub indent: Option<String>,
    /// Between items. With an indent the line break follows it.
    pub item_separator: Cow<'static, str>,
    /// Between key and value.
    pub key_separator: Cow<'static, str>,
    /// Keys in order of their code points.
    pub sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        JsonStyle {
            ensure_ascii: false,
            indent: None,
            item_separator: Cow::Borrowed(", "),
            key_separator: Cow::Borrowed(": "),
            sort_keys: false,
        }
    }
}

/// `json.dumps(value, ensure_ascii=False)`
pub fn to_json(value: &Json) -> String {
    let mut writer = Writer { out: String::new(), style: &JsonStyle::default() };
    writer.json(value, 0);
    writer.out
}

/// `json.dumps(value)` with arguments.
pub fn dump_json(value: &Json, style: &JsonStyle) -> String {
    let mut writer = Writer { out: String::new(), style };
    writer.json(value, 0);
    writer.out
}

/// What can be appended as JSON.
#[derive(Clone, Copy, Debug)]
pub enum Dumped<'a> {
    /// Any value.
    Json(&'a Json),
    /// A string.
    Text(&'a str),
    /// An array.
    Seq(&'a JsonSeq),
    /// An object.
    Map(&'a JsonMap),
}

/// Appends `json.dumps(value)` with arguments.
pub fn append_json(out: &mut String, value: Dumped<'_>, style: &JsonStyle) {
    let mut writer = Writer { out: std::mem::take(out), style };
    match value {
        Dumped::Json(json) => writer.json(json, 0),
        Dumped::Text(text) => writer.string(text),
        Dumped::Seq(seq) => writer.json_seq(seq, 0),
        Dumped::Map(map) => writer.json_map(map, 0),
    }
    *out = writer.out;
}

/// Dumps a template value; `Err` where Python raises.
pub fn dump_value(value: &Value, style: &JsonStyle) -> Result<String, String> {
    let mut writer = Writer { out: String::new(), style };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct Writer<'a> {
    out: String,
    style: &'a JsonStyle,
}

/// See `MAX_REPR_DEPTH`; here it is an error.
const MAX_DUMP_DEPTH: usize = 160;

impl Writer<'_> {
    fn break_line(&mut self, level: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            for _ in 0..level {
                self.out.push_str(indent);
            }
        }
    }

    fn before_item(&mut self, at: usize, level: usize) {
        if at > 0 {
            self.out.push_str(&self.style.item_separator);
        }
        self.break_line(level + 1);
    }

    fn json(&mut self, value: &Json, level: usize) {
        match value {
            Json::Null => self.out.push_str("null"),
            Json::Bool(true) => self.out.push_str("true"),
            Json::Bool(false) => self.out.push_str("false"),
            // Writing to a String cannot fail.
            Json::Int(value) => drop(write!(self.out, "{value}")),
            Json::BigInt(digits) => self.out.push_str(digits),
            Json::Float(value) => self.float(*value),
            Json::Str(text) => self.string(text.as_str()),
            Json::Seq(seq) => self.json_seq(seq, level),
            Json::Map(map) => self.json_map(map, level),
        }
    }

    fn json_seq(&mut self, seq: &JsonSeq, level: usize) {
        self.out.push('[');
        for (at, item) in seq.0.iter().enumerate() {
            self.before_item(at, level);
            self.json(item, level + 1);
        }
        if !seq.0.is_empty() {
            self.break_line(level);
        }
        self.out.push(']');
    }

    fn json_map(&mut self, map: &JsonMap, level: usize) {
        self.out.push('{');
        let entry = |writer: &mut Self, at: usize, key: &str, item: &Json| {
            writer.before_item(at, level);
            writer.string(key);
            writer.out.push_str(&writer.style.key_separator);
            writer.json(item, level + 1);
        };
        if self.style.sort_keys {
            let mut sorted: Vec<_> = map.iter().collect();
            sorted.sort_by(|a, b| a.0.as_str().cmp(b.0.as_str()));
            for (at, (key, item)) in sorted.into_iter().enumerate() {
                entry(self, at, key.as_str(), item);
            }
        } else {
            for (at, (key, item)) in map.iter().enumerate() {
                entry(self, at, key.as_str(), item);
            }
        }
        if !map.is_empty() {
            self.break_line(level);
        }
        self.out.push('}');
    }

    fn float(&mut self, value: f64) {
        if value.is_nan() {
            self.out.push_str("NaN");
        } else if value.is_infinite() {
            self.out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        } else {
            self.out.push_str(&float_text(value));
        }
    }

    fn value(&mut self, value: &Value, level: usize) -> Result<(), String> {
        if level > MAX_DUMP_DEPTH {
            return Err("nested too deeply".to_owned());
        }
        if let Some(map) = value.downcast_object_ref::<JsonMap>() {
            self.json_map(map, level);
        } else if let Some(seq) = value.downcast_object_ref::<JsonSeq>() {
            self.json_seq(seq, level);
        } else if let Some(number) = value.downcast_object_ref::<Number>() {
            match number {
                Number::Float(value) => self.float(*value),
                Number::Int(digits) => self.out.push_str(digits),
            }
        } else {
            self.other_value(value, level)?;
        }
        Ok(())
    }

    fn other_value(&mut self, value: &Value, level: usize) -> Result<(), String> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Number if value.is_integer() => drop(write!(self.out, "{value}")),
            ValueKind::Number => self.float(f64::try_from(value.clone()).map_err(|error| error.to_string())?),
            ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
                self.out.push('[');
                let mut any = false;
                for (at, item) in value.try_iter().map_err(|error| error.to_string())?.enumerate() {
                    any = true;
                    self.before_item(at, level);
                    self.value(&item, level + 1)?;
                }
                if any {
                    self.break_line(level);
                }
                self.out.push(']');
            }
            ValueKind::Map => self.value_map(value, level)?,
            kind => return Err(format!("{kind} is not JSON serializable")),
        }
        Ok(())
    }

    fn value_map(&mut self, value: &Value, level: usize) -> Result<(), String> {
        self.out.push('{');
        let mut keys: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
        if self.style.sort_keys {
            keys.sort();
        }
        for (at, key) in keys.iter().enumerate() {
            self.before_item(at, level);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    let start = self.out.len();
                    self.other_value(key, level)?;
                    let text = self.out.split_off(start);
                    self.string(&text);
                }
                kind => return Err(format!("keys must be str, int, float, bool or None, not {kind}")),
            }
            self.out.push_str(&self.style.key_separator);
            self.value(&value.get_item(key).map_err(|error| error.to_string())?, level + 1)?;
        }
        if !keys.is_empty() {
            self.break_line(level);
        }
        self.out.push('}');
        Ok(())
    }

    fn string(&mut self, text: &str) {
        if self.style.ensure_ascii {
            return self.ascii_string(text);
        }
        self.out.push('"');
        let mut rest = text;
        loop {
            // What ends a run in JSON text is what is escaped here.
            let (plain, tail) = rest.split_at_checked(plain_prefix(rest.as_bytes())).unwrap_or((rest, ""));
            self.out.push_str(plain);
            let mut chars = tail.chars();
            let Some(c) = chars.next() else { break };
            self.escape(c);
            rest = chars.as_str();
        }
        self.out.push('"');
    }

    fn ascii_string(&mut self, text: &str) {
        self.out.push('"');
        let mut plain = 0;
        for (at, byte) in text.bytes().enumerate() {
            let special = byte < 0x20 || byte == b'"' || byte == b'\\' || byte >= 0x7f;
            if !special || at < plain {
                continue;
            }
            self.out.push_str(text.get(plain..at).unwrap_or_default());
            let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) else { continue };
            self.escape(c);
            plain = at + c.len_utf8();
        }
        self.out.push_str(text.get(plain..).unwrap_or_default());
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        match c {
            '"' => self.out.push_str("\\\""),
            '\\' => self.out.push_str("\\\\"),
            '\n' => self.out.push_str("\\n"),
            '\r' => self.out.push_str("\\r"),
            '\t' => self.out.push_str("\\t"),
            '\u{8}' => self.out.push_str("\\b"),
            '\u{c}' => self.out.push_str("\\f"),
            c => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    // Writing to a String cannot fail.
                    let _ = write!(self.out, "\\u{unit:04x}");
                }
            }
        }
    }
}
