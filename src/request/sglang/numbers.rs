//! Numbers as orjson reads them, which SGLang parses bodies and arguments with: integers of more than 64 bits
//! become floats.

use crate::request::json::{Json, Text};

/// The value with its numbers as orjson has them.
pub fn as_orjson(value: &Json) -> Json {
    if has_large(value) { converted(value) } else { value.clone() }
}

fn is_large(digits: &str) -> bool {
    digits.parse::<u64>().is_err()
}

fn has_large(value: &Json) -> bool {
    match value {
        Json::BigInt(digits) => is_large(digits),
        Json::Seq(items) => items.0.iter().any(has_large),
        Json::Map(map) => map.iter().any(|(_, item)| has_large(item)),
        _ => false,
    }
}

fn converted(value: &Json) -> Json {
    match value {
        Json::BigInt(digits) if is_large(digits) => digits.parse().map_or_else(|_| value.clone(), Json::Float),
        Json::Seq(items) => Json::seq(items.0.iter().map(converted).collect()),
        Json::Map(map) => Json::map(map.iter().map(|(key, item)| (Text::clone(key), converted(item))).collect()),
        other => other.clone(),
    }
}
