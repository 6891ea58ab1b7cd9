//! JSON schemas of functions as harmony writes them: types in the manner of TypeScript.

use std::fmt::Write;

use super::super::field::bad;
use super::super::json::{Json, JsonMap};
use crate::nokey::NoKeyReason;

/// The type of a function's parameters.
pub fn type_of(schema: &Json) -> Result<String, NoKeyReason> {
    let mut out = String::new();
    write_type(&mut out, schema, "")?;
    Ok(out)
}

fn get<'a>(schema: &'a Json, name: &str) -> Option<&'a Json> {
    schema.as_map()?.get(name)
}

fn text<'a>(schema: &'a Json, name: &str) -> Option<&'a str> {
    get(schema, name)?.as_str()
}

fn list<'a>(schema: &'a Json, name: &str) -> Option<&'a [Json]> {
    get(schema, name)?.as_seq()
}

fn write_type(out: &mut String, schema: &Json, indent: &str) -> Result<(), NoKeyReason> {
    if let Some(variants) = list(schema, "oneOf") {
        for variant in variants {
            let _ = write!(out, "\n{indent} | ");
            write_nullable(out, variant, &format!("{indent}   "))?;
            let mut notes: Vec<String> = text(variant, "description").map(str::to_owned).into_iter().collect();
            if let Some(default) = get(variant, "default") {
                // Here an enum's default keeps its quotes.
                notes.push(format!("default: {}", compact(default)?));
            }
            push_notes(out, &notes);
        }
        return Ok(());
    }
    if let Some(types) = list(schema, "type") {
        let names: Vec<&str> = types.iter().filter_map(Json::as_str).map(simple_name).collect();
        if !names.is_empty() {
            out.push_str(&names.join(" | "));
            return Ok(());
        }
    }
    match text(schema, "type") {
        Some("object") => return write_object(out, schema, indent),
        Some("string") => {
            let values = list(schema, "enum").unwrap_or_default();
            let values: Vec<String> =
                values.iter().filter_map(Json::as_str).map(|value| format!("\"{value}\"")).collect();
            out.push_str(if values.is_empty() { "string" } else { "" });
            out.push_str(&values.join(" | "));
        }
        Some("number" | "integer") => out.push_str("number"),
        Some("boolean") => out.push_str("boolean"),
        Some("array") => match get(schema, "items") {
            Some(items) => {
                write_type(out, items, indent)?;
                out.push_str("[]");
            }
            None => out.push_str("Array<any>"),
        },
        _ => out.push_str("any"),
    }
    Ok(())
}

fn simple_name(name: &str) -> &str {
    if name == "integer" { "number" } else { name }
}

/// A type, and `| null` where the schema says so and the type does not.
fn write_nullable(out: &mut String, schema: &Json, indent: &str) -> Result<(), NoKeyReason> {
    let start = out.len();
    write_type(out, schema, indent)?;
    let nullable = matches!(get(schema, "nullable"), Some(Json::Bool(true)));
    if nullable && !out.get(start..).unwrap_or_default().contains("null") {
        out.push_str(" | null");
    }
    Ok(())
}

fn push_notes(out: &mut String, notes: &[String]) {
    if !notes.is_empty() {
        out.push_str(" // ");
        out.push_str(&notes.join(" "));
    }
}

fn write_object(out: &mut String, schema: &Json, indent: &str) -> Result<(), NoKeyReason> {
    if let Some(description) = text(schema, "description") {
        let _ = writeln!(out, "{indent}// {description}");
    }
    out.push_str("{\n");
    let required: std::collections::HashSet<&str> =
        list(schema, "required").unwrap_or_default().iter().filter_map(Json::as_str).collect();
    if let Some(properties) = get(schema, "properties").and_then(Json::as_map) {
        write_properties(out, properties, &required, indent)?;
    }
    out.push_str(indent);
    out.push('}');
    Ok(())
}

fn write_properties(
    out: &mut String,
    properties: &JsonMap,
    required: &std::collections::HashSet<&str>,
    indent: &str,
) -> Result<(), NoKeyReason> {
    for (name, schema) in properties.iter() {
        if let Some(title) = text(schema, "title") {
            let _ = writeln!(out, "{indent}// {title}\n{indent}//");
        }
        let has_variants = get(schema, "oneOf").is_some();
        if let Some(description) = text(schema, "description").filter(|_| !has_variants) {
            let _ = writeln!(out, "{indent}// {description}");
        }
        let examples = list(schema, "examples").unwrap_or_default();
        if !examples.is_empty() {
            let _ = writeln!(out, "{indent}// Examples:");
            for example in examples.iter().filter_map(Json::as_str) {
                let _ = writeln!(out, "{indent}// - \"{example}\"");
            }
        }
        let mark = if required.contains(name.as_str()) { "" } else { "?" };
        if let Some(variants) = list(schema, "oneOf") {
            write_variants(out, name.as_str(), mark, schema, variants, indent)?;
            continue;
        }
        let _ = write!(out, "{indent}{}{mark}: ", name.as_str());
        write_nullable(out, schema, &format!("{indent}    "))?;
        out.push(',');
        if let Some(default) = get(schema, "default").filter(|_| !has_variants) {
            let _ = write!(out, " // default: {}", default_text(schema, default)?);
        }
        out.push('\n');
    }
    Ok(())
}

/// A property that is one of several types: a line for each.
fn write_variants(
    out: &mut String,
    name: &str,
    mark: &str,
    schema: &Json,
    variants: &[Json],
    indent: &str,
) -> Result<(), NoKeyReason> {
    let description = text(schema, "description");
    let first = variants.first().and_then(|variant| text(variant, "description"));
    let above = description.filter(|text| Some(*text) != first);
    if let Some(description) = above {
        let _ = writeln!(out, "{indent}// {description}");
    }
    if let Some(default) = get(schema, "default") {
        let _ = writeln!(out, "{indent}// default: {}", default_text(schema, default)?);
    }
    let _ = writeln!(out, "{indent}{name}{mark}:");
    for (at, variant) in variants.iter().enumerate() {
        let _ = write!(out, "{indent} | ");
        write_nullable(out, variant, &format!("{indent}   "))?;
        let own = text(variant, "description").filter(|text| Some(*text) != description);
        let own = own.filter(|_| at > 0 || above.is_none());
        let mut notes: Vec<String> = own.map(str::to_owned).into_iter().collect();
        if let Some(default) = get(variant, "default") {
            notes.push(format!("default: {}", default_text(variant, default)?));
        }
        push_notes(out, &notes);
        out.push('\n');
    }
    let _ = writeln!(out, "{indent},");
    Ok(())
}

/// A default's text: that of an enum has no quotes.
fn default_text(schema: &Json, default: &Json) -> Result<String, NoKeyReason> {
    let is_enum = list(schema, "enum").is_some_and(|values| !values.is_empty());
    match default.as_str() {
        Some(text) if is_enum => Ok(text.to_owned()),
        Some(text) => Ok(format!("\"{text}\"")),
        None => compact(default),
    }
}

/// JSON without blanks, numbers as the harmony library prints them.
fn compact(value: &Json) -> Result<String, NoKeyReason> {
    let mut out = String::new();
    write_compact(&mut out, value)?;
    Ok(out)
}

fn write_compact(out: &mut String, value: &Json) -> Result<(), NoKeyReason> {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Json::Int(value) => {
            let _ = write!(out, "{value}");
        }
        // It holds integers of 64 bits; longer ones become floats.
        Json::BigInt(digits) => match digits.parse::<u64>() {
            Ok(value) => {
                let _ = write!(out, "{value}");
            }
            Err(_) => write_float(out, digits.parse().unwrap_or(f64::INFINITY))?,
        },
        Json::Float(value) => write_float(out, *value)?,
        Json::Str(text) => write_quoted(out, text.as_str()),
        Json::Seq(items) => {
            out.push('[');
            for (at, item) in items.0.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write_compact(out, item)?;
            }
            out.push(']');
        }
        Json::Map(map) => {
            out.push('{');
            for (at, (key, item)) in map.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write_quoted(out, key.as_str());
                out.push(':');
                write_compact(out, item)?;
            }
            out.push('}');
        }
    }
    Ok(())
}

fn write_float(out: &mut String, value: f64) -> Result<(), NoKeyReason> {
    let number = serde_json::Number::from_f64(value).ok_or_else(|| bad("tools: a number beyond all bounds"))?;
    let _ = write!(out, "{number}");
    Ok(())
}

fn write_quoted(out: &mut String, text: &str) {
    // The same escapes as Python's with ensure_ascii off.
    out.push_str(&crate::template::python::to_json(&Json::str(text)));
}
