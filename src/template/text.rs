//! Python's string methods that templates call.

mod format;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// What Python takes for white space: Unicode's, and the four separators U+001C to U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `str.strip()`
pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// `str.rstrip()`
pub fn rstrip(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Keyword arguments, if there are any: most calls have none, and pay for none.
pub struct Named(Option<Kwargs>);

impl Named {
    /// The argument of this name.
    pub fn get(&self, name: &str) -> Result<Option<Value>, Error> {
        self.0.as_ref().map_or(Ok(None), |kwargs| kwargs.get::<Option<Value>>(name))
    }

    /// An error when there is one that nobody asked for.
    pub fn assert_all_used(&self) -> Result<(), Error> {
        self.0.as_ref().map_or(Ok(()), Kwargs::assert_all_used)
    }
}

/// Splits keyword arguments off.
pub fn split_kwargs(args: &[Value]) -> Result<(&[Value], Named), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, Named(Some(Kwargs::try_from(last.clone())?)))),
        _ => Ok((args, Named(None))),
    }
}

fn unknown() -> Error {
    Error::from(ErrorKind::UnknownMethod)
}

fn invalid(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Arguments of a method, as Python would take them.
struct Args<'a> {
    positional: &'a [Value],
    kwargs: Named,
}

impl Args<'_> {
    fn get(&self, at: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.positional.get(at) {
            Some(value) => Ok(Some(value.clone())),
            None if name.is_empty() => Ok(None),
            None => self.kwargs.get(name),
        }
    }

    fn text(&self, at: usize) -> Result<Value, Error> {
        self.get(at, "")?.filter(|value| value.kind() == ValueKind::String).ok_or_else(|| invalid("expected a string"))
    }

    fn integer(&self, at: usize, name: &str) -> Result<Option<i64>, Error> {
        match self.get(at, name)? {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| invalid("expected an integer")),
        }
    }

    /// A string or none.
    fn chars(&self, at: usize, name: &str) -> Result<Option<Value>, Error> {
        match self.get(at, name)? {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(value) if value.kind() == ValueKind::String => Ok(Some(value)),
            Some(_) => Err(invalid("expected a string or none")),
        }
    }

    fn end(&self, at_most: usize) -> Result<(), Error> {
        if self.positional.len() > at_most {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.kwargs.assert_all_used()
    }
}

/// Calls method `name` of `text`.
pub fn call(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (positional, kwargs) = split_kwargs(args)?;
    if name == "format" {
        return format::format(text, positional, &kwargs).map(Value::from);
    }
    let args = Args { positional, kwargs };
    let value = match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.chars(0, "")?;
            args.end(1)?;
            Value::from(trim(text, chars.as_ref().and_then(Value::as_str), name != "rstrip", name != "lstrip"))
        }
        "split" | "rsplit" => {
            let (separator, limit) = (args.chars(0, "sep")?, args.integer(1, "maxsplit")?);
            args.end(2)?;
            let limit = limit.and_then(|limit| usize::try_from(limit).ok());
            Value::from(split(text, separator.as_ref().and_then(Value::as_str), limit, name == "rsplit")?)
        }
        "startswith" | "endswith" => {
            let start = args.integer(1, "")?.and_then(|start| usize::try_from(start).ok());
            args.end(2)?;
            let affixes = args.get(0, "")?.ok_or_else(|| invalid("expected a string"))?;
            let skipped = start.map_or(Some(0), |start| text.char_indices().map(|(at, _)| at).nth(start));
            let text = skipped.and_then(|at| text.get(at..)).unwrap_or_default();
            let test = |affix: &Value| match affix.as_str() {
                Some(affix) if name == "startswith" => Ok(text.starts_with(affix)),
                Some(affix) => Ok(text.ends_with(affix)),
                None => Err(invalid("expected a string or a tuple of strings")),
            };
            let mut found = false;
            if affixes.is_tuple() {
                for affix in affixes.try_iter()? {
                    found |= test(&affix)?;
                }
            } else {
                found = test(&affixes)?;
            }
            Value::from(found)
        }
        "replace" => {
            let (old, new) = (args.text(0)?, args.text(1)?);
            let count = args.integer(2, "count")?.and_then(|count| usize::try_from(count).ok());
            args.end(3)?;
            let (old, new) = (old.as_str().unwrap_or_default(), new.as_str().unwrap_or_default());
            Value::from(match count {
                Some(count) => text.replacen(old, new, count),
                None => text.replace(old, new),
            })
        }
        "join" => {
            let list = args.get(0, "")?.ok_or_else(|| invalid("expected a list"))?;
            args.end(1)?;
            let mut out = String::new();
            for (at, item) in list.try_iter()?.enumerate() {
                if at > 0 {
                    out.push_str(text);
                }
                let item = Some(item).filter(|item| item.kind() == ValueKind::String);
                out.push_str(item.as_ref().and_then(Value::as_str).ok_or_else(|| invalid("expected strings"))?);
            }
            Value::from(out)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let needle = args.text(0)?;
            args.end(1)?;
            search(text, name, needle.as_str().unwrap_or_default())?
        }
        "removeprefix" | "removesuffix" => {
            let affix = args.text(0)?;
            args.end(1)?;
            let affix = affix.as_str().unwrap_or_default();
            let cut = if name == "removeprefix" { text.strip_prefix(affix) } else { text.strip_suffix(affix) };
            Value::from(cut.unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let separator = args.text(0)?;
            args.end(1)?;
            partition(text, separator.as_str().unwrap_or_default(), name == "rpartition")?
        }
        "splitlines" => {
            let keep = args.get(0, "keepends")?.is_some_and(|keep| keep.is_true());
            args.end(1)?;
            Value::from(split_lines(text, keep))
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let width = args.integer(0, "")?.ok_or_else(|| invalid("expected a width"))?;
            let fill = args.chars(1, "")?;
            args.end(2)?;
            Value::from(pad(text, name, width, fill.as_ref().and_then(Value::as_str).unwrap_or(" "))?)
        }
        "lower" | "upper" | "title" | "capitalize" | "swapcase" | "casefold" => {
            args.end(0)?;
            Value::from(case(text, name)?)
        }
        name if name.starts_with("is") => {
            args.end(0)?;
            Value::from(class(text, name)?)
        }
        _ => return Err(unknown()),
    };
    Ok(value)
}

fn trim<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(drop) } else { text };
    if end { text.trim_end_matches(drop) } else { text }
}

fn split(text: &str, separator: Option<&str>, limit: Option<usize>, right: bool) -> Result<Vec<Value>, Error> {
    let parts = limit.map(|limit| limit.saturating_add(1)).unwrap_or(usize::MAX);
    let mut out: Vec<Value> = Vec::new();
    match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) if right => {
            out.extend(text.rsplitn(parts, separator).map(Value::from));
            out.reverse();
        }
        Some(separator) => out.extend(text.splitn(parts, separator).map(Value::from)),
        None => {
            let mut rest = if right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
            while !rest.is_empty() {
                if out.len() + 1 == parts {
                    out.push(Value::from(rest));
                    break;
                }
                let (word, left) = if right {
                    let at = rest.char_indices().rev().find(|(_, c)| is_space(*c)).map(|(at, c)| at + c.len_utf8());
                    let (left, word) = rest.split_at_checked(at.unwrap_or(0)).unwrap_or(("", rest));
                    (word, left.trim_end_matches(is_space))
                } else {
                    let (word, left) =
                        rest.split_at_checked(rest.find(is_space).unwrap_or(rest.len())).unwrap_or((rest, ""));
                    (word, left.trim_start_matches(is_space))
                };
                out.push(Value::from(word));
                rest = left;
            }
            if right {
                out.reverse();
            }
        }
    }
    Ok(out)
}

fn search(text: &str, name: &str, needle: &str) -> Result<Value, Error> {
    if name == "count" {
        let count = if needle.is_empty() { text.chars().count() + 1 } else { text.matches(needle).count() };
        return Ok(Value::from(count));
    }
    let at = if name.starts_with('r') { text.rfind(needle) } else { text.find(needle) };
    match at {
        Some(at) => Ok(Value::from(text.get(..at).unwrap_or_default().chars().count())),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

fn partition(text: &str, separator: &str, right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let cut = if right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(minijinja::value::Tuple::from(parts.map(Value::from))))
}

fn split_lines(text: &str, keep: bool) -> Vec<Value> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut out, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let at = rest.find(is_end).unwrap_or(rest.len());
        let (line, tail) = rest.split_at_checked(at).unwrap_or((rest, ""));
        let ending = if tail.starts_with("\r\n") { 2 } else { tail.chars().next().map_or(0, char::len_utf8) };
        let whole = rest.get(..at + ending).unwrap_or(rest);
        out.push(Value::from(if keep { whole } else { line }));
        rest = tail.get(ending..).unwrap_or_default();
    }
    out
}

/// Widths that a template may pad to.
const MAX_WIDTH: i64 = 1_000_000;

fn pad(text: &str, name: &str, width: i64, fill: &str) -> Result<String, Error> {
    let mut fills = fill.chars();
    let (Some(fill), None) = (fills.next(), fills.next()) else {
        return Err(invalid("the fill must be one character"));
    };
    if width > MAX_WIDTH {
        return Err(invalid("too wide"));
    }
    let len = text.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(len);
    let run = |count: usize, c: char| std::iter::repeat_n(c, count).collect::<String>();
    Ok(match name {
        "ljust" => format!("{text}{}", run(missing, fill)),
        "rjust" => format!("{}{text}", run(missing, fill)),
        "zfill" => {
            let (sign, digits) = match text.strip_prefix(['+', '-']) {
                Some(digits) => (text.get(..1).unwrap_or_default(), digits),
                None => ("", text),
            };
            format!("{sign}{}{digits}", run(missing, '0'))
        }
        _ => {
            // Of an odd rest, Python puts the larger half in front when the width is odd.
            let left = (missing >> 1) + (missing & usize::try_from(width).unwrap_or(0) & 1);
            format!("{}{text}{}", run(left, fill), run(missing - left, fill))
        }
    })
}

fn case(text: &str, name: &str) -> Result<String, Error> {
    Ok(match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        // The same as lower but for a few letters, which are refused rather than mapped wrongly.
        "casefold" if text.is_ascii() => text.to_lowercase(),
        "casefold" => return Err(unknown()),
        "capitalize" => capitalize(text),
        "swapcase" => {
            let mut out = String::new();
            for c in text.chars() {
                if c.is_uppercase() {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
            }
            out
        }
        _ => {
            let (mut out, mut inside) = (String::new(), false);
            for c in text.chars() {
                if inside {
                    out.extend(c.to_lowercase());
                } else {
                    out.extend(c.to_uppercase());
                }
                inside = c.is_alphabetic();
            }
            out
        }
    })
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    out.push_str(&chars.as_str().to_lowercase());
    out
}

fn class(text: &str, name: &str) -> Result<bool, Error> {
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    Ok(match name {
        "isspace" => all(is_space),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        // Beyond ASCII, Python's classes of digits are not Rust's.
        "isdigit" | "isdecimal" | "isnumeric" if text.is_ascii() => all(|c| c.is_ascii_digit()),
        "isnumeric" if text.chars().all(|c| !c.is_numeric()) => false,
        "isalnum" if text.is_ascii() => all(|c| c.is_ascii_alphanumeric()),
        "isupper" => text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase),
        "islower" => text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase),
        _ => return Err(unknown()),
    })
}
