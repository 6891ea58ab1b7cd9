//! Reads JSON objects field by field and says where and how a value is wrong.
//!
//! Every field that is taken is remembered; [`Fields::finish`] refuses the ones that nobody asked for and names
//! the nearest known one.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::ConfigError;

/// What a field takes, as far as type and bounds say it.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(target_family = "wasm", allow(dead_code))]
pub enum Kind {
    /// A string.
    Text,
    /// The name of a header.
    Header,
    /// True or false.
    Flag,
    /// A whole number from one to the other; without an upper bound up to the largest there is.
    Whole(u64, u64),
    /// A whole number from one to the other, negative or not.
    Integer(i64, i64),
    /// A number from one to the other; not finite: any.
    Number(f64, f64),
    /// One of these.
    Choice(Vec<&'static str>),
    /// A list of strings.
    Texts,
    /// An object with strings.
    TextMap,
    /// An object with fields of its own.
    Object,
    /// A list of such.
    Objects,
    /// Anything that one check of its own takes.
    Any,
}

/// The fields of one JSON object that are still to be read.
pub struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// The fields of `value`, which stands at `path` ("" for the whole document).
    pub fn new(path: impl Into<String>, value: &'a Value) -> Result<Self, ConfigError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Fields { path, map, known: Vec::new() }),
            other => Err(ConfigError::new(&path, format!("must be an object, not {}", kind(other)))),
        }
    }

    /// The path of a field of this object.
    pub fn at(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// An error at a field of this object.
    pub fn error(&self, name: &str, what: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.at(name), what)
    }

    /// Writes down for [`super::describe`] that the field is taken: what it is, and its default.
    #[cfg(not(target_family = "wasm"))]
    pub fn note(&self, name: &str, what: impl FnOnce() -> (Kind, Option<Value>), required: bool) {
        let (kind, default) = what();
        super::describe::note(&self.at(name), kind, default, required, !required);
    }

    /// In Envoy nobody asks.
    #[cfg(target_family = "wasm")]
    pub fn note(&self, _name: &str, _what: impl FnOnce() -> (Kind, Option<Value>), _required: bool) {}

    /// The raw value; `None` where it is absent or null.
    pub fn take(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|v| !v.is_null())
    }

    /// An object, or `None` where it is absent.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, ConfigError> {
        let path = self.at(name);
        self.note(name, || (Kind::Object, None), false);
        self.take(name).map(|v| Fields::new(path, v)).transpose()
    }

    /// The elements of a list with their paths; an absent list is empty.
    pub fn list(&mut self, name: &'static str) -> Result<Vec<(String, &'a Value)>, ConfigError> {
        let path = self.at(name);
        self.note(name, || (Kind::Objects, Some(Vec::<Value>::new().into())), false);
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                Ok(items.iter().enumerate().map(|(i, item)| (format!("{path}[{i}]"), item)).collect())
            }
            Some(other) => Err(ConfigError::new(&path, format!("must be a list, not {}", kind(other)))),
        }
    }

    /// A string, or `None` where it is absent.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>, ConfigError> {
        self.note(name, || (Kind::Text, None), false);
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s.clone())),
            Some(other) => Err(self.error(name, format!("must be a string, not {}", kind(other)))),
        }
    }

    /// A string that must be there and not empty.
    pub fn required_text(&mut self, name: &'static str) -> Result<String, ConfigError> {
        let text = self.text(name);
        self.note(name, || (Kind::Text, None), true);
        match text? {
            Some(s) if !s.trim().is_empty() => Ok(s),
            Some(_) => Err(self.error(name, "must not be empty")),
            None => Err(self.error(name, "is missing: add it")),
        }
    }

    /// True or false.
    pub fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, ConfigError> {
        self.note(name, || (Kind::Flag, Some(default.into())), false);
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(other) => Err(self.error(name, format!("must be true or false, not {}", kind(other)))),
        }
    }

    /// A whole number between `min` and `max`, both allowed.
    pub fn whole(&mut self, name: &'static str, default: u64, min: u64, max: u64) -> Result<u64, ConfigError> {
        self.note(name, || (Kind::Whole(min, max), Some(default.into())), false);
        match self.take(name) {
            None => Ok(default),
            Some(v) => match v.as_u64() {
                Some(n) if (min..=max).contains(&n) => Ok(n),
                _ => Err(self.error(name, format!("must be a whole number from {min} to {max}, not {}", kind(v)))),
            },
        }
    }

    /// A number between `min` and `max`, both allowed.
    pub fn number(&mut self, name: &'static str, default: f64, min: f64, max: f64) -> Result<f64, ConfigError> {
        self.note(name, || (Kind::Number(min, max), Some(default.into())), false);
        match self.take(name) {
            None => Ok(default),
            Some(v) => match v.as_f64() {
                Some(n) if (min..=max).contains(&n) => Ok(n),
                _ => Err(self.error(name, format!("must be a number from {min} to {max}, not {}", kind(v)))),
            },
        }
    }

    /// One of `options` by its name; the first where it is absent.
    pub fn choice<T: Copy>(&mut self, name: &'static str, options: &[(&'static str, T)]) -> Result<T, ConfigError> {
        let given = self.among(name, options);
        let first = options.first();
        let default = || first.map(|(label, _)| Value::from(*label));
        self.note(name, || (Kind::Choice(labels(options)), default()), false);
        given?.or(first.map(|(_, v)| *v)).ok_or_else(|| self.error(name, "has no options"))
    }

    /// One of `options` by its name.
    pub fn required_choice<T: Copy>(
        &mut self,
        name: &'static str,
        options: &[(&'static str, T)],
    ) -> Result<T, ConfigError> {
        let given = self.among(name, options);
        self.note(name, || (Kind::Choice(labels(options)), None), true);
        given?.ok_or_else(|| self.error(name, format!("is missing: one of {}", labels(options).join(", "))))
    }

    fn among<T: Copy>(&mut self, name: &'static str, options: &[(&'static str, T)]) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let found = options.iter().find(|(label, _)| *label == text).map(|(_, v)| *v);
        let what = || format!("must be one of {}, not \"{text}\"", labels(options).join(", "));
        found.map(Some).ok_or_else(|| self.error(name, what()))
    }

    /// The name of a header: lower case, no pseudo header.
    pub fn header(&mut self, name: &'static str, default: &str) -> Result<String, ConfigError> {
        let given = self.text(name);
        self.note(name, || (Kind::Header, Some(default).filter(|d| !d.is_empty()).map(Value::from)), false);
        let text = given?.unwrap_or_else(|| default.to_owned());
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if ["host", "connection", "content-length", "transfer-encoding", "te", "upgrade"].contains(&text.as_str()) {
            return Err(self.error(name, format!("\"{text}\" has a meaning of its own in HTTP: take another name")));
        }
        if !text.is_empty() && text.bytes().all(fits) {
            return Ok(text);
        }
        Err(self.error(name, format!("\"{text}\" is not a header name: use lower-case letters, digits and '-'")))
    }

    /// The name of a header, or `None` where it is absent.
    pub fn optional_header(&mut self, name: &'static str) -> Result<Option<String>, ConfigError> {
        self.note(name, || (Kind::Header, None), false);
        match self.take(name) {
            None => Ok(None),
            Some(_) => self.header(name, "").map(Some),
        }
    }

    /// Refuses every field that was not read.
    pub fn finish(self) -> Result<(), ConfigError> {
        let Some(name) = self.map.keys().find(|k| !self.known.contains(&k.as_str())) else { return Ok(()) };
        Err(unknown(&self.at(name), name, &self.known))
    }
}

fn labels<T>(options: &[(&'static str, T)]) -> Vec<&'static str> {
    options.iter().map(|(label, _)| *label).collect()
}

/// What a value is, for people; long ones are not quoted.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) if s.len() <= 40 => format!("\"{s}\""),
        Value::String(_) => "a long string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// Edits between two short names.
fn distance(a: &str, b: &str) -> usize {
    if a.len().max(b.len()) > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (j, y) in b.bytes().enumerate() {
            let Some(cell) = row.get_mut(j + 1) else { break };
            let next = (*cell + 1).min(left + 1).min(diagonal + usize::from(x != y));
            (diagonal, left, *cell) = (*cell, next, next);
        }
    }
    row.last().copied().unwrap_or(usize::MAX)
}

impl Fields<'_> {
    /// A part that another module reads by serde. The error names the field at fault: each field of the object
    /// is tried alone, so every type read here has a default for each field, and shows its fields when serialised.
    pub fn part<T: DeserializeOwned + Serialize + Default>(&mut self, name: &'static str) -> Result<T, ConfigError> {
        let path = self.at(name);
        #[cfg(not(target_family = "wasm"))]
        self.note_part::<T>(name);
        let Some(value) = self.take(name) else { return Ok(T::default()) };
        let Value::Object(map) = value else {
            return Err(ConfigError::new(&path, format!("must be an object, not {}", kind(value))));
        };
        let error = match T::deserialize(value) {
            Ok(part) => return Ok(part),
            Err(error) => error,
        };
        let default = serde_json::to_value(T::default()).unwrap_or_default();
        let known: Vec<&str> = default.as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
        for (key, field) in map {
            if !known.contains(&key.as_str()) {
                return Err(unknown(&format!("{path}.{key}"), key, &known));
            }
            let alone = Value::Object(Map::from_iter([(key.clone(), field.clone())]));
            if let Err(error) = T::deserialize(&alone) {
                return Err(ConfigError::new(&format!("{path}.{key}"), serde_mistake(&error.to_string())));
            }
        }
        Err(ConfigError::new(&path, error.to_string()))
    }
}

#[cfg(not(target_family = "wasm"))]
impl Fields<'_> {
    /// Writes down the fields of a part: what each of them takes is tried.
    fn note_part<T: DeserializeOwned + Serialize + Default>(&self, name: &'static str) {
        self.note(name, || (Kind::Object, None), false);
        let default = serde_json::to_value(T::default()).unwrap_or_default();
        for (key, value) in default.as_object().into_iter().flatten() {
            let takes = |value: Value| T::deserialize(Value::Object(Map::from_iter([(key.clone(), value)]))).is_ok();
            let path = format!("{}.{key}", self.at(name));
            let default = Some(value.clone()).filter(|value| !value.is_null());
            super::describe::note(&path, kind_of(takes), default, false, takes(Value::Null));
        }
    }
}

#[cfg(not(target_family = "wasm"))]
fn kind_of(takes: impl Fn(Value) -> bool) -> Kind {
    let (text, list) = (takes("x".into()), takes(vec!["x"].into()));
    let map = takes(Value::Object(Map::from_iter([("x".to_owned(), "x".into())])));
    let (one, negative, fraction) = (takes(1.into()), takes((-1).into()), takes(1.5.into()));
    match () {
        () if text && list && map => Kind::Any,
        () if list => Kind::Texts,
        () if map => Kind::TextMap,
        () if text => Kind::Text,
        () if fraction => Kind::Number(f64::NEG_INFINITY, f64::INFINITY),
        () if negative && takes((1u64 << 40).into()) => Kind::Integer(i64::MIN, i64::MAX),
        () if negative => Kind::Integer(i32::MIN.into(), i32::MAX.into()),
        () if one => Kind::Whole(0, u64::MAX),
        () if takes(true.into()) => Kind::Flag,
        () => Kind::Any,
    }
}

/// That a field is not known, and the nearest known one.
fn unknown(path: &str, name: &str, known: &[&str]) -> ConfigError {
    let nearest = known.iter().map(|k| (distance(k, name), *k)).min();
    let mend = match nearest {
        Some((d, known)) if d <= 3 => format!("did you mean \"{known}\"?"),
        _ => format!("remove it; known here: {}", known.join(", ")),
    };
    ConfigError::new(path, format!("is no field that kvroute knows: {mend}"))
}

/// serde's "invalid type: string "8k", expected u64" in the words of the other errors.
fn serde_mistake(text: &str) -> String {
    let rest = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    let Some((found, expected)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return text.to_owned();
    };
    let expected = match expected {
        "u32" | "u64" | "usize" => "a whole number that is not negative",
        "i32" | "i64" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other => other,
    };
    let found = match found {
        "map" => "an object",
        "sequence" => "a list",
        other => ["string ", "integer `", "floating point `", "boolean `"]
            .iter()
            .find_map(|kind| other.strip_prefix(kind))
            .map_or(other, |found| found.trim_end_matches('`')),
    };
    format!("must be {expected}, not {found}")
}
