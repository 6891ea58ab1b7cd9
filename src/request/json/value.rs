//! The values of a request.

use std::collections::HashMap;
use std::sync::Arc;

use minijinja::value::Value;

/// A string: short ones are inline, long ones shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text(Value);

impl Text {
    /// The string.
    pub fn as_str(&self) -> &str {
        self.0.as_str().unwrap_or_default()
    }

    /// The string as a template value, without a copy.
    pub fn to_value(&self) -> Value {
        self.0.clone()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text(Value::from(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text(Value::from(text))
    }
}

/// A JSON value. Clones share strings and containers.
#[derive(Clone, Debug)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// Any other integer, as Python prints it.
    BigInt(Arc<str>),
    /// A number with a fraction or an exponent; infinite beyond the range of a double, as in Python.
    Float(f64),
    /// A string.
    Str(Text),
    /// An array.
    Seq(Arc<JsonSeq>),
    /// An object.
    Map(Arc<JsonMap>),
}

impl Json {
    /// A string value.
    pub fn str(text: impl Into<Text>) -> Json {
        Json::Str(text.into())
    }

    /// An array.
    pub fn seq(items: Vec<Json>) -> Json {
        Json::Seq(Arc::new(JsonSeq(items)))
    }

    /// An object of entries with distinct keys.
    pub fn map(entries: Vec<(Text, Json)>) -> Json {
        Json::Map(Arc::new(JsonMap::from_entries(entries)))
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::Str(text) => Some(text.as_str()),
            _ => None,
        }
    }

    /// The object, if it is one.
    pub fn as_map(&self) -> Option<&JsonMap> {
        match self {
            Json::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The items, if it is an array.
    pub fn as_seq(&self) -> Option<&[Json]> {
        match self {
            Json::Seq(seq) => Some(&seq.0),
            _ => None,
        }
    }

    /// True for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self, Json::Null)
    }

    /// What Python takes for true in a condition.
    pub fn is_truthy(&self) -> bool {
        match self {
            Json::Null => false,
            Json::Bool(value) => *value,
            Json::Int(value) => *value != 0,
            Json::BigInt(_) => true,
            Json::Float(value) => *value != 0.0,
            Json::Str(text) => !text.as_str().is_empty(),
            Json::Seq(seq) => !seq.0.is_empty(),
            Json::Map(map) => !map.is_empty(),
        }
    }

    /// The type's name in error texts.
    pub fn type_name(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Int(_) | Json::BigInt(_) => "an integer",
            Json::Float(_) => "a float",
            Json::Str(_) => "a string",
            Json::Seq(_) => "an array",
            Json::Map(_) => "an object",
        }
    }
}

/// The items of an array.
#[derive(Debug, Default)]
pub struct JsonSeq(pub Vec<Json>);

/// The entries of an object, in order.
#[derive(Debug, Default)]
pub struct JsonMap {
    entries: Vec<(Text, Json)>,
    /// Place of each key; only for maps that are too large to be searched.
    index: Option<HashMap<Text, usize>>,
}

/// Up to here, a search over all keys is faster than a hash.
const SEARCHED_KEYS: usize = 16;

impl JsonMap {
    /// The map without entries.
    pub const EMPTY: JsonMap = JsonMap { entries: Vec::new(), index: None };

    /// A map of entries with distinct keys.
    pub fn from_entries(entries: Vec<(Text, Json)>) -> JsonMap {
        let index = (entries.len() > SEARCHED_KEYS)
            .then(|| entries.iter().enumerate().map(|(at, (key, _))| (key.clone(), at)).collect());
        JsonMap { entries, index }
    }

    /// Adds an entry; a key that is there already keeps its place and gets the new value.
    pub fn insert(&mut self, key: Text, value: Json) {
        match self.place(key.as_str()) {
            Some(at) => {
                if let Some(entry) = self.entries.get_mut(at) {
                    entry.1 = value;
                }
            }
            None => {
                let at = self.entries.len();
                if let Some(index) = &mut self.index {
                    index.insert(key.clone(), at);
                    self.entries.push((key, value));
                } else {
                    self.entries.push((key, value));
                    if self.entries.len() > SEARCHED_KEYS {
                        let places = self.entries.iter().enumerate().map(|(at, (key, _))| (key.clone(), at));
                        self.index = Some(places.collect());
                    }
                }
            }
        }
    }

    fn place(&self, key: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&Text::from(key)).copied(),
            None => self.entries.iter().position(|(name, _)| name.as_str() == key),
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.entries.get(self.place(key)?).map(|(_, value)| value)
    }

    /// The value of `key`, unless it is absent or `null`.
    pub fn get_some(&self, key: &str) -> Option<&Json> {
        self.get(key).filter(|value| !value.is_null())
    }

    /// Whether there is such a key.
    pub fn contains(&self, key: &str) -> bool {
        self.place(key).is_some()
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Json)> {
        self.entries.iter().map(|(key, value)| (key, value))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
