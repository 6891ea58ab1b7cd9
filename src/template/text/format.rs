//! `str.format` for what templates use of it: positions, names, `!r` and `!s`, and plain format specifications.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::Named;
use crate::template::python::{write_value_repr, write_value_str};

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// `text.format(*args, **kwargs)`
pub fn format(text: &str, args: &[Value], kwargs: &Named) -> Result<String, Error> {
    let (mut out, mut next) = (String::new(), 0usize);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' if chars.next_if_eq(&'{').is_some() => out.push('{'),
            '}' if chars.next_if_eq(&'}').is_some() => out.push('}'),
            '}' => return Err(invalid("single '}' in a format")),
            '{' => {
                let field: String = chars.by_ref().take_while(|c| *c != '}').collect();
                out.push_str(&one(&field, args, kwargs, &mut next)?);
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

fn one(field: &str, args: &[Value], kwargs: &Named, next: &mut usize) -> Result<String, Error> {
    let (head, spec) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = head.split_once('!').unwrap_or((head, ""));
    let value = if name.is_empty() {
        *next += 1;
        args.get(*next - 1).cloned()
    } else if let Ok(at) = name.parse::<usize>() {
        args.get(at).cloned()
    } else if name.chars().all(|c| c.is_alphanumeric() || c == '_') {
        kwargs.get(name)?
    } else {
        return Err(invalid("a format field that looks into its value"));
    };
    let value = value.ok_or_else(|| invalid("a format field without a value"))?;
    let mut text = String::new();
    match conversion {
        "" if value.is_undefined() => {}
        "" | "s" => write_value_str(&mut text, &value),
        "r" => write_value_repr(&mut text, &value, 0),
        _ => return Err(invalid("an unknown conversion in a format")),
    }
    if spec.is_empty() {
        return Ok(text);
    }
    let number = conversion.is_empty() && value.kind() == ValueKind::Number;
    pad(&value, text, spec, number)
}

/// `[[fill]align][0][width][.precision][type]`
fn pad(value: &Value, text: String, spec: &str, number: bool) -> Result<String, Error> {
    let mut rest: Vec<char> = spec.chars().collect();
    let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^'));
    let (mut fill, mut align) = (' ', None);
    if is_align(rest.get(1)) {
        fill = rest.remove(0);
        align = Some(rest.remove(0));
    } else if is_align(rest.first()) {
        align = Some(rest.remove(0));
    }
    if number && align.is_none() && rest.first() == Some(&'0') {
        return Err(invalid("a format specification that is not known here"));
    }
    let rest: String = rest.into_iter().collect();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (width, rest) = rest.split_at_checked(digits).unwrap_or(("", ""));
    let (precision, kind) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (precision, kind) = rest.split_at_checked(digits).unwrap_or(("", ""));
            (precision.parse::<usize>().ok().filter(|precision| *precision <= 100), kind)
        }
        None => (None, rest),
    };
    let text = match (kind, precision) {
        ("", None) => text,
        ("s", None) if !number => text,
        ("d", None) if value.is_integer() => text,
        ("f", precision) if number => {
            let value = f64::try_from(value.clone())?;
            format!("{value:.*}", precision.unwrap_or(6))
        }
        ("" | "s", Some(precision)) if !number => text.chars().take(precision).collect(),
        _ => return Err(invalid("a format specification that is not known here")),
    };
    let width = if width.is_empty() { Some(0) } else { width.parse::<usize>().ok() };
    let width = width.filter(|width| *width <= 10_000).ok_or_else(|| invalid("a format width that is too large"))?;
    let missing = width.saturating_sub(text.chars().count());
    let run = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(match align.unwrap_or(if number { '>' } else { '<' }) {
        '<' => format!("{text}{}", run(missing)),
        '>' => format!("{}{text}", run(missing)),
        _ => format!("{}{text}{}", run(missing >> 1), run(missing - (missing >> 1))),
    })
}
