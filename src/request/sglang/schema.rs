//! Types in the schemas of tools: SGLang turns those of databases and programming languages into JSON Schema's
//! before the template sees them (function_call/utils.py).

use crate::request::json::{Json, JsonMap, Text};

const STANDARD: [&str; 7] = ["null", "boolean", "object", "array", "number", "string", "integer"];

const ALIASES: [(&str, &[&str]); 6] = [
    (
        "string",
        &[
            "str",
            "text",
            "varchar",
            "char",
            "enum",
            "uuid",
            "date",
            "datetime",
            "time",
            "timestamp",
            "binary",
            "blob",
            "bytea",
            "bytes",
            "varbinary",
        ],
    ),
    ("boolean", &["bool"]),
    ("integer", &["bigint", "smallint", "tinyint"]),
    ("number", &["double", "decimal", "real", "numeric"]),
    ("array", &["arr", "tuple", "set"]),
    ("object", &["map"]),
];

/// These also with a size or a parameter behind them: `int32`, `list[str]`.
const PREFIXES: [(&str, &[&str]); 4] = [
    ("integer", &["int", "uint", "long", "short", "unsigned"]),
    ("number", &["num", "float"]),
    ("array", &["list"]),
    ("object", &["dict"]),
];

/// Keywords whose value maps names to schemas.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords whose value is a schema, or a list of some.
const SINGLE: [&str; 10] = [
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// The schema with standard types; `None`: it stays as it is.
pub fn standard_types(schema: &Json) -> Option<Json> {
    match schema {
        Json::Seq(list) => changed_list(&list.0),
        Json::Map(map) => {
            let entry = |key: &Text, value: &Json| match key.as_str() {
                "type" => standard_type(value),
                key if NAMED.contains(&key) => value.as_map().and_then(changed_map),
                key if LISTS.contains(&key) => value.as_seq().and_then(changed_list),
                key if SINGLE.contains(&key) => standard_types(value),
                _ => None,
            };
            replaced(map, entry)
        }
        _ => None,
    }
}

fn changed_map(map: &JsonMap) -> Option<Json> {
    replaced(map, |_, value| standard_types(value))
}

fn changed_list(list: &[Json]) -> Option<Json> {
    let new: Vec<Option<Json>> = list.iter().map(standard_types).collect();
    if new.iter().all(Option::is_none) {
        return None;
    }
    Some(Json::seq(new.into_iter().zip(list).map(|(new, old)| new.unwrap_or_else(|| old.clone())).collect()))
}

fn replaced(map: &JsonMap, new: impl Fn(&Text, &Json) -> Option<Json>) -> Option<Json> {
    let values: Vec<Option<Json>> = map.iter().map(|(key, value)| new(key, value)).collect();
    if values.iter().all(Option::is_none) {
        return None;
    }
    let entry = |((key, old), new): ((&Text, &Json), Option<Json>)| (key.clone(), new.unwrap_or_else(|| old.clone()));
    Some(Json::map(map.iter().zip(values).map(entry).collect()))
}

fn standard_type(value: &Json) -> Option<Json> {
    match value {
        Json::Str(name) => standard_name(name.as_str()).map(Json::str),
        Json::Seq(list) => {
            let mut out: Vec<Json> = Vec::new();
            let same = |a: &Json, b: &Json| a.as_str().is_some() && a.as_str() == b.as_str();
            for item in &list.0 {
                let item = item.as_str().and_then(standard_name).map_or_else(|| item.clone(), Json::str);
                if !out.iter().any(|known| same(known, &item)) {
                    out.push(item);
                }
            }
            Some(Json::seq(out))
        }
        _ => None,
    }
}

/// The standard name of a type; `None`: it keeps its own.
fn standard_name(name: &str) -> Option<&'static str> {
    if STANDARD.contains(&name) {
        return None;
    }
    let base = name.split('(').next().unwrap_or_default();
    let base = crate::template::text::strip(base).to_lowercase();
    let is = |known: &&str| *known == base;
    let spans = |prefix: &&str| {
        let rest = base.strip_prefix(*prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(|c: char| "0123456789[<( \t".contains(c)))
    };
    let standard = STANDARD.iter().find(|known| is(known)).copied();
    let alias = || ALIASES.iter().find(|(_, names)| names.iter().any(is)).map(|(to, _)| *to);
    let prefix = || PREFIXES.iter().find(|(_, names)| names.iter().any(spans)).map(|(to, _)| *to);
    standard.or_else(alias).or_else(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types() {
        for (name, standard) in [
            ("VARCHAR(255)", Some("string")),
            ("int32", Some("integer")),
            ("dict[str, int]", Some("object")),
            (" String ", Some("string")),
            ("string", None),
            ("internal", None),
            ("list_price", None),
        ] {
            assert_eq!(standard_name(name), standard, "{name}");
        }
    }
}
