//! The values of a request.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use minijinja::value::Value;

use super::budget;

/// A string: short ones are inline, long ones shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Text(Value);

impl Text {
    /// The string.
    pub fn as_str(&self) -> &str {
        self.0.as_str().unwrap_or_default()
    }

    /// Whether it is `other`. For keys: they are short, and a call to compare them would cost more than comparing.
    #[inline]
    pub fn is(&self, other: &str) -> bool {
        let text = self.as_str();
        text.len() == other.len() && text.bytes().zip(other.bytes()).all(|(a, b)| a == b)
    }

    /// What such a text takes besides its bytes and its place; short ones have room in it.
    #[inline]
    pub fn overhead_of(text: &str) -> usize {
        if text.len() > 22 { budget::STRING } else { 0 }
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

    /// An array, made for the request under way.
    pub fn seq(items: Vec<Json>) -> Json {
        budget::note(budget::SEQ + items.len().saturating_mul(budget::ITEM));
        Json::Seq(Arc::new(JsonSeq(items)))
    }

    /// An array without items; they all share one.
    pub fn empty_seq() -> Json {
        thread_local! {
            static EMPTY: Arc<JsonSeq> = Arc::default();
        }
        Json::Seq(EMPTY.with(Arc::clone))
    }

    /// An object without entries; they all share one.
    pub fn empty_map() -> Json {
        thread_local! {
            static EMPTY: Arc<JsonMap> = Arc::default();
        }
        Json::Map(EMPTY.with(Arc::clone))
    }

    /// An object of entries with distinct keys, made for the request under way.
    pub fn map(entries: Vec<(Text, Json)>) -> Json {
        budget::note(budget::MAP + entries.len().saturating_mul(budget::ENTRY));
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
    /// Only for maps that are too large to be searched.
    index: Option<Box<Index>>,
}

/// Where each key stands.
#[derive(Debug, Default)]
struct Index {
    places: HashTable<u32>,
    hasher: RandomState,
}

impl Index {
    fn find(&self, entries: &[(Text, Json)], key: &str) -> Option<usize> {
        let known = |at: &u32| entries.get(*at as usize).is_some_and(|(name, _)| name.as_str() == key);
        self.places.find(self.hasher.hash_one(key), known).map(|at| *at as usize)
    }

    /// Adds the last entry, whose key is new.
    fn add_last(&mut self, entries: &[(Text, Json)]) {
        let Some((key, _)) = entries.last() else { return };
        let hash = |at: &u32| match entries.get(*at as usize) {
            Some((name, _)) => self.hasher.hash_one(name.as_str()),
            None => 0,
        };
        self.places.insert_unique(self.hasher.hash_one(key.as_str()), entries.len() as u32 - 1, hash);
    }
}

impl JsonMap {
    /// The map without entries.
    pub const EMPTY: JsonMap = JsonMap { entries: Vec::new(), index: None };
    /// Up to here, a search over all keys is faster than a hash.
    pub const SEARCHED_KEYS: usize = 16;

    /// A map of entries with distinct keys.
    pub fn from_entries(entries: Vec<(Text, Json)>) -> JsonMap {
        if entries.len() <= Self::SEARCHED_KEYS {
            return JsonMap { entries, index: None };
        }
        let mut map = JsonMap { entries: Vec::with_capacity(entries.len()), index: None };
        entries.into_iter().for_each(|(key, value)| map.push(key, value));
        map
    }

    /// Adds an entry; a key that is there already keeps its place and gets the new value.
    pub fn insert(&mut self, key: Text, value: Json) {
        match self.place(key.as_str()).and_then(|at| self.entries.get_mut(at)) {
            Some((_, old)) => *old = value,
            None => self.push(key, value),
        }
    }

    /// Adds an entry whose key is new.
    fn push(&mut self, key: Text, value: Json) {
        self.entries.push((key, value));
        match &mut self.index {
            Some(index) => index.add_last(&self.entries),
            None if self.entries.len() > Self::SEARCHED_KEYS => {
                let mut index = Index::default();
                for last in 1..=self.entries.len() {
                    index.add_last(self.entries.get(..last).unwrap_or_default());
                }
                self.index = Some(Box::new(index));
            }
            None => {}
        }
    }

    /// Gives back the memory that growing set aside.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    fn place(&self, key: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.find(&self.entries, key),
            None => self.entries.iter().position(|(name, _)| name.is(key)),
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

    /// The entry at a place.
    pub fn entry(&self, at: usize) -> Option<(&Text, &Json)> {
        self.entries.get(at).map(|(key, value)| (key, value))
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
