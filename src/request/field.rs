//! Typed fields of a body, converted as pydantic's lax mode does.

use super::json::{Json, JsonMap};
use crate::nokey::{NoKey, NoKeyReason};

/// The engine answers this with a 4xx.
pub fn bad(detail: impl Into<String>) -> NoKeyReason {
    NoKeyReason::new(NoKey::BadRequest, detail)
}

/// The engine may serve this; its tokens cannot be known here.
pub fn unsupported(detail: impl Into<String>) -> NoKeyReason {
    NoKeyReason::new(NoKey::Unsupported, detail)
}

/// A boolean that may not be null.
pub fn bool_field(body: &JsonMap, name: &str, default: bool) -> Result<bool, NoKeyReason> {
    match body.get(name) {
        None => Ok(default),
        Some(value) => as_bool(value).ok_or_else(|| bad(format!("{name}: not a boolean but {}", value.type_name()))),
    }
}

/// A boolean that may be null.
pub fn optional_bool(body: &JsonMap, name: &str) -> Result<Option<bool>, NoKeyReason> {
    match body.get_some(name) {
        None => Ok(None),
        Some(_) => bool_field(body, name, false).map(Some),
    }
}

/// An integer that may be null.
pub fn optional_int(body: &JsonMap, name: &str) -> Result<Option<i64>, NoKeyReason> {
    match body.get_some(name) {
        None => Ok(None),
        Some(value) => {
            as_int(value).map(Some).ok_or_else(|| bad(format!("{name}: not an integer but {}", value.type_name())))
        }
    }
}

/// A string that may be null.
pub fn optional_str<'a>(body: &'a JsonMap, name: &str) -> Result<Option<&'a str>, NoKeyReason> {
    match body.get_some(name) {
        None => Ok(None),
        Some(value) => {
            value.as_str().map(Some).ok_or_else(|| bad(format!("{name}: not a string but {}", value.type_name())))
        }
    }
}

/// An object that may be null.
pub fn optional_map<'a>(body: &'a JsonMap, name: &str) -> Result<Option<&'a JsonMap>, NoKeyReason> {
    match body.get_some(name) {
        None => Ok(None),
        Some(value) => {
            value.as_map().map(Some).ok_or_else(|| bad(format!("{name}: not an object but {}", value.type_name())))
        }
    }
}

fn as_bool(value: &Json) -> Option<bool> {
    match value {
        Json::Bool(value) => Some(*value),
        Json::Int(0) => Some(false),
        Json::Int(1) => Some(true),
        Json::Float(0.0) => Some(false),
        Json::Float(1.0) => Some(true),
        Json::Str(text) => match text.as_str().to_ascii_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => None,
        },
        _ => None,
    }
}

/// An integer in pydantic's lax mode.
pub fn as_int(value: &Json) -> Option<i64> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9.0e18).then_some(number as i64);
    match value {
        Json::Bool(value) => Some(i64::from(*value)),
        Json::Int(value) => Some(*value),
        Json::Float(value) => whole(*value),
        Json::Str(text) => {
            let text = text.as_str().trim();
            text.parse().ok().or_else(|| text.strip_suffix(".0").and_then(|text| text.parse().ok()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::json::parse;

    #[test]
    fn converts_as_pydantic_does() {
        let body = parse(
            br#"{"a":"false","b":"off","c":0,"d":0.0,"e":2,"f":null,"g":"Yes","h":"4","i":4.0,"j":true,"k":4.5}"#,
        );
        let body = body.unwrap();
        let body = body.as_map().unwrap();
        for name in ["a", "b", "c", "d"] {
            assert_eq!(bool_field(body, name, true), Ok(false), "{name}");
        }
        assert!(bool_field(body, "e", true).is_err());
        assert!(bool_field(body, "f", true).is_err());
        assert_eq!(bool_field(body, "g", false), Ok(true));
        assert_eq!(bool_field(body, "absent", true), Ok(true));
        assert_eq!(optional_int(body, "h"), Ok(Some(4)));
        assert_eq!(optional_int(body, "i"), Ok(Some(4)));
        assert_eq!(optional_int(body, "j"), Ok(Some(1)));
        assert_eq!(optional_int(body, "f"), Ok(None));
        assert!(optional_int(body, "k").is_err());
    }
}
