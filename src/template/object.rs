//! JSON values as template objects that behave and print as Python's dict, list and numbers.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, Value};
use minijinja::{Error, ErrorKind, State};

use super::fuel;
use super::python::{float_text, needs_python, write_map_repr, write_seq_repr};
use crate::request::json::{Json, JsonMap, JsonSeq};

/// A number that the template engine would print differently from Python: a float with an exponent, or an
/// integer beyond 128 bits. Arithmetic on it fails, so it can never be printed wrongly.
#[derive(Debug)]
pub enum Number {
    /// A float.
    Float(f64),
    /// An integer, as Python prints it.
    Int(Arc<str>),
}

impl Number {
    /// The number in Python's spelling.
    pub fn text(&self) -> String {
        match self {
            Number::Float(value) => float_text(*value),
            Number::Int(digits) => digits.to_string(),
        }
    }
}

impl Object for Number {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true // zero never needs this
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl Json {
    /// The value as a template sees it. Containers and strings are shared, not copied.
    pub fn to_value(&self) -> Value {
        match self {
            Json::Null => Value::from(()),
            Json::Bool(value) => Value::from(*value),
            Json::Int(value) => Value::from(*value),
            Json::BigInt(digits) => match digits.parse::<i128>() {
                Ok(value) => Value::from(value),
                Err(_) => Value::from_object(Number::Int(digits.clone())),
            },
            Json::Float(value) if needs_python(*value) => Value::from_object(Number::Float(*value)),
            Json::Float(value) => Value::from(*value),
            Json::Str(text) => text.to_value(),
            Json::Seq(seq) => Value::from_dyn_object(DynObject::new(seq.clone())),
            Json::Map(map) => Value::from_dyn_object(DynObject::new(map.clone())),
        }
    }
}

/// A method that is named but not called: true, defined, and of no use. Printing it would print an address.
#[derive(Debug)]
struct BoundMethod;

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        fuel::exhaust();
        Ok(())
    }
}

pub fn is_method(name: &str) -> bool {
    // Asked for each attribute: told by the length first, without calls.
    matches!(
        name.as_bytes(),
        b"items"
            | b"keys"
            | b"values"
            | b"get"
            | b"pop"
            | b"copy"
            | b"update"
            | b"clear"
            | b"popitem"
            | b"setdefault"
            | b"fromkeys"
    )
}

impl Object for JsonMap {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key.as_str()?).map(Json::to_value)
    }

    /// An attribute: in Jinja2, those of Python's dict come before the keys. `d["items"]` is a key.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if is_method(key) {
            return Some(Value::from_object(BoundMethod));
        }
        self.get(key).map(Json::to_value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match fuel::spend(self.len()) {
            Ok(()) => Enumerator::Values(self.iter().map(|(key, _)| key.to_value()).collect()),
            Err(error) => Enumerator::Values(vec![Value::from(error)]),
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.len())
    }

    fn call_method(self: &Arc<Self>, _state: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        let no_args = |values: Vec<Value>| match args {
            [] => Ok(Value::from(values)),
            _ => Err(Error::new(ErrorKind::TooManyArguments, format!("{method}() takes no arguments"))),
        };
        match method {
            "items" | "keys" | "values" => fuel::spend(self.len())?,
            _ => {}
        }
        match method {
            "items" => {
                no_args(self.iter().map(|(key, item)| Tuple::from([key.to_value(), item.to_value()]).into()).collect())
            }
            "keys" => no_args(self.iter().map(|(key, _)| key.to_value()).collect()),
            "values" => no_args(self.iter().map(|(_, item)| item.to_value()).collect()),
            "copy" if args.is_empty() => Ok(Value::from_dyn_object(DynObject::new(self.clone()))),
            "get" => match args {
                [key] => Ok(self.get_value(key).unwrap_or_else(|| Value::from(()))),
                [key, default] => Ok(self.get_value(key).unwrap_or_else(|| default.clone())),
                _ => Err(Error::new(ErrorKind::MissingArgument, "get() takes one or two arguments")),
            },
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_map_repr(&mut out, self);
        f.write_str(&out)
    }
}

impl Object for JsonSeq {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if let Err(error) = fuel::spend(1) {
            return Some(Value::from(error));
        }
        self.0.get(key.as_usize()?).map(Json::to_value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn call_method(self: &Arc<Self>, _state: &mut State<'_, '_>, method: &str, args: &[Value]) -> Result<Value, Error> {
        match (method, args) {
            ("copy", []) => Ok(Value::from_dyn_object(DynObject::new(self.clone()))),
            ("count" | "index", [wanted]) => {
                fuel::spend(self.0.len())?;
                let mut places = self.0.iter().enumerate().filter(|(_, item)| item.to_value() == *wanted);
                match method {
                    "count" => Ok(Value::from(places.count())),
                    _ => places
                        .next()
                        .map(|(at, _)| Value::from(at))
                        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the list has no such item")),
                }
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_seq_repr(&mut out, self);
        f.write_str(&out)
    }
}
