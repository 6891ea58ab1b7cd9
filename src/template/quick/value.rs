//! The values of a render: those of the request in place, and what the template makes of them.

use std::rc::Rc;

use memchr::memmem;
use minijinja::value::{Value, ValueKind};

use super::Fallback;
use crate::request::json::{Json, JsonMap, JsonSeq};
use crate::template::python::{float_text, write_map_repr, write_seq_repr};

/// A value.
#[derive(Clone, Debug)]
pub enum Val<'a> {
    /// A slot that nothing was put into.
    Unset,
    /// What is not there.
    Undefined,
    /// `none`
    None,
    /// `true`, `false`
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A text of the request or of the template, or a part of one.
    Str(&'a str),
    /// A text that the template made.
    Made(Rc<str>),
    /// Any other number of the request.
    Number(&'a Json),
    /// An array of the request.
    Seq(&'a JsonSeq),
    /// An object of the request.
    Map(&'a JsonMap),
    /// A slice of an array, and whether it goes backwards.
    Part(&'a [Json], bool),
    /// Keys and values of an object; true: as the method gives them, a list.
    Items(&'a JsonMap, bool),
    /// A list that the template made.
    List(Rc<Vec<Val<'a>>>),
    /// A namespace.
    Space(usize),
    /// A function or a macro: it is there.
    Function,
}

/// A value, or the engine's turn.
pub type Got<T> = Result<T, Fallback>;

impl<'a> Val<'a> {
    /// A value of the request.
    pub fn of(json: &'a Json) -> Val<'a> {
        match json {
            Json::Null => Val::None,
            Json::Bool(value) => Val::Bool(*value),
            Json::Int(value) => Val::Int(*value),
            Json::BigInt(_) | Json::Float(_) => Val::Number(json),
            Json::Str(text) => Val::Str(text.as_str()),
            Json::Seq(seq) => Val::Seq(seq),
            Json::Map(map) => Val::Map(map),
        }
    }

    /// A variable of the request. `None`: of a kind that is not known here.
    pub fn of_variable(value: &'a Value) -> Option<Val<'a>> {
        match value.kind() {
            ValueKind::None => Some(Val::None),
            ValueKind::Bool => Some(Val::Bool(value.is_true())),
            ValueKind::Number if value.is_integer() => value.as_i64().map(Val::Int),
            ValueKind::String => value.as_str().map(Val::Str),
            ValueKind::Seq => value.downcast_object_ref::<JsonSeq>().map(Val::Seq),
            ValueKind::Map => value.downcast_object_ref::<JsonMap>().map(Val::Map),
            _ => None,
        }
    }

    /// A made text.
    pub fn made(text: &str) -> Val<'a> {
        Val::Made(text.into())
    }

    /// A made list.
    pub fn list(items: Vec<Val<'a>>) -> Val<'a> {
        Val::List(Rc::new(items))
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Val::Str(text) => Some(text),
            Val::Made(text) => Some(text),
            _ => None,
        }
    }

    /// A part of the text.
    pub fn part(&self, cut: impl for<'x> Fn(&'x str) -> &'x str) -> Got<Val<'a>> {
        match self {
            Val::Str(text) => Ok(Val::Str(cut(text))),
            Val::Made(text) => Ok(Val::made(cut(text))),
            _ => Err(Fallback("a text was expected")),
        }
    }

    /// What a condition takes for true.
    pub fn is_true(&self) -> Got<bool> {
        Ok(match self {
            Val::Undefined | Val::None => false,
            Val::Bool(value) => *value,
            Val::Int(value) => *value != 0,
            Val::Str(text) => !text.is_empty(),
            Val::Made(text) => !text.is_empty(),
            Val::Seq(seq) => !seq.0.is_empty(),
            Val::Map(map) => !map.is_empty(),
            Val::List(list) => !list.is_empty(),
            Val::Items(map, true) => !map.is_empty(),
            Val::Number(Json::Float(value)) => *value != 0.0,
            _ => return Err(Fallback("truth of a value that is not plain")),
        })
    }

    /// `==`
    pub fn equals(&self, other: &Val<'a>) -> Got<bool> {
        if let (Some(a), Some(b)) = (self.as_str(), other.as_str()) {
            return Ok(a == b);
        }
        let is_none = |value: &Val<'a>| matches!(value, Val::None | Val::Undefined);
        // What is equal to nothing of another kind.
        let is_plain = |value: &Val<'a>| {
            matches!(
                value,
                Val::None
                    | Val::Undefined
                    | Val::Bool(_)
                    | Val::Int(_)
                    | Val::Str(_)
                    | Val::Made(_)
                    | Val::Seq(_)
                    | Val::Map(_)
            )
        };
        let is_text = |value: &Val<'a>| value.as_str().is_some();
        let is_box = |value: &Val<'a>| matches!(value, Val::Seq(_) | Val::Map(_));
        Ok(match (self, other) {
            (Val::None, Val::None) | (Val::Undefined, Val::Undefined) => true,
            (Val::Bool(a), Val::Bool(b)) => a == b,
            (Val::Int(a), Val::Int(b)) => a == b,
            (a, b) if is_plain(a) && is_plain(b) && (is_none(a) || is_none(b) || is_text(a) || is_text(b)) => false,
            (a, b) if is_plain(a) && is_plain(b) && is_box(a) != is_box(b) => false,
            _ => return Err(Fallback("a comparison of values that are not plain")),
        })
    }

    /// Appends what printing the value gives.
    pub fn print(&self, out: &mut String) -> Got<()> {
        match self {
            Val::Undefined => {}
            Val::None => out.push_str("None"),
            Val::Bool(true) => out.push_str("True"),
            Val::Bool(false) => out.push_str("False"),
            Val::Int(value) => push_int(out, *value),
            Val::Str(text) => out.push_str(text),
            Val::Made(text) => out.push_str(text),
            Val::Number(Json::Float(value)) => out.push_str(&float_text(*value)),
            Val::Seq(seq) => write_seq_repr(out, seq),
            Val::Map(map) => write_map_repr(out, map),
            _ => return Err(Fallback("a value that is not printed")),
        }
        Ok(())
    }

    /// How many items it has.
    pub fn len(&self) -> Got<usize> {
        Ok(match self {
            Val::Undefined => 0,
            Val::Str(text) => text.chars().count(),
            Val::Made(text) => text.chars().count(),
            Val::Seq(seq) => seq.0.len(),
            Val::Map(map) => map.len(),
            Val::Part(part, _) => part.len(),
            Val::Items(map, true) => map.len(),
            Val::List(list) => list.len(),
            _ => return Err(Fallback("the length of a value that has none")),
        })
    }

    /// The item at a place of what has places.
    pub fn at(&self, at: usize) -> Val<'a> {
        let item = |list: &'a [Json], at: usize| list.get(at).map_or(Val::Undefined, Val::of);
        match self {
            Val::Seq(seq) => item(&seq.0, at),
            Val::Part(part, false) => item(part, at),
            Val::Part(part, true) => part.len().checked_sub(at + 1).map_or(Val::Undefined, |at| item(part, at)),
            Val::List(list) => list.get(at).cloned().unwrap_or(Val::Undefined),
            // A loop over an object goes over its keys.
            Val::Map(map) => map.entry(at).map_or(Val::Undefined, |(key, _)| Val::Str(key.as_str())),
            _ => Val::Undefined,
        }
    }

    /// `self[index]`
    pub fn item(&self, key: &Val<'a>) -> Got<Val<'a>> {
        match (self, key) {
            (Val::Map(map), key) => match key.as_str() {
                Some(key) => Ok(map.get(key).map_or(Val::Undefined, Val::of)),
                None => Err(Fallback("a key that is no text")),
            },
            (Val::Seq(_) | Val::Part(..) | Val::List(_), Val::Int(index)) => {
                let len = self.len()?;
                let at = match usize::try_from(*index) {
                    Ok(at) => Some(at),
                    Err(_) => usize::try_from(index.unsigned_abs()).ok().and_then(|back| len.checked_sub(back)),
                };
                Ok(at.map_or(Val::Undefined, |at| self.at(at)))
            }
            (Val::Seq(_), Val::Str(_)) => Ok(Val::Undefined),
            _ => Err(Fallback("an item of a value that is not plain")),
        }
    }

    /// Whether `needle` is in it.
    pub fn contains(&self, needle: &Val<'a>) -> Got<bool> {
        match (self, needle.as_str()) {
            (Val::Undefined, _) => Ok(false),
            (Val::Str(text), Some(needle)) => Ok(holds(text, needle)),
            (Val::Made(text), Some(needle)) => Ok(holds(text, needle)),
            (Val::Map(map), Some(needle)) => Ok(map.contains(needle)),
            (Val::Seq(_) | Val::Part(..) | Val::List(_), _) => {
                for at in 0..self.len()? {
                    if self.at(at).equals(needle)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            _ => Err(Fallback("'in' a value that is not plain")),
        }
    }
}

/// `str::contains`, many bytes at a time.
fn holds(text: &str, needle: &str) -> bool {
    memmem::find(text.as_bytes(), needle.as_bytes()).is_some()
}

/// Appends an integer.
pub fn push_int(out: &mut String, value: i64) {
    use std::fmt::Write;
    // Writing to a String cannot fail.
    let _ = write!(out, "{value}");
}
