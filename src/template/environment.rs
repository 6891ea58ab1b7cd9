//! The environment that transformers renders chat templates in, on minijinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

use super::object::Number;
use super::preprocess::{GENERATION, ITER, STRING};
use super::python::{JsonStyle, dump_value, write_value_str};
use super::text::{self, split_kwargs};
use super::{clock::LocalTime, fuel};

/// The variable that holds the local time; no template can name it.
pub const NOW: &str = "\u{0}now";

/// Instructions (and, at 64 a unit, bytes) that one render may take: some seconds at the very most.
const FUEL: u64 = 20_000_000;

/// The syntax of chat templates.
pub fn syntax() -> Result<SyntaxConfig, String> {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false);
    builder.build().map_err(|error| error.to_string())
}

/// An environment without templates.
pub fn environment() -> Result<Environment<'static>, String> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_formatter(format_value);
    env.set_unknown_method_callback(|_, value, name, args| match value.kind() {
        ValueKind::String => text::call(value.as_str().unwrap_or_default(), name, args),
        ValueKind::Map => map_method(value, name, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    });
    add_filters(&mut env);
    add_tests(&mut env);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.to_string()).with_source(Raised))
    });
    env.add_function("strftime_now", strftime_now);
    env.add_function(GENERATION, |state: &mut State, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let args = args.into_values();
        let caller = args.last().and_then(|kwargs| kwargs.get_attr("caller").ok());
        caller.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?.call(state, &[])
    });
    Ok(env)
}

fn format_value(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => {
            let mut text = String::new();
            write_value_str(&mut text, value);
            out.write_str(&text)
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "writing failed"))
}

fn string_of(value: &Value) -> String {
    let mut out = String::new();
    write_value_str(&mut out, value);
    out
}

/// The source of errors that Python raises as well.
#[derive(Debug)]
struct Raised;

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("raised")
    }
}

impl std::error::Error for Raised {}

/// Whether Python raises for certain where this error came up.
pub fn is_raised(error: &Error) -> bool {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(one) = error {
        if one.is::<Raised>() {
            return true;
        }
        error = one.source();
    }
    false
}

fn invalid(detail: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Methods of dictionaries made inside a template; those of the request have their own.
fn map_method(map: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let keys = || map.try_iter().map(|keys| keys.collect::<Vec<Value>>());
    match (name, args) {
        ("items", []) => {
            let pair = |key: Value| {
                let item = map.get_item(&key).unwrap_or_default();
                Value::from(minijinja::value::Tuple::from([key, item]))
            };
            Ok(Value::from(keys()?.into_iter().map(pair).collect::<Vec<Value>>()))
        }
        ("keys", []) => Ok(Value::from(keys()?)),
        ("values", []) => {
            Ok(Value::from(keys()?.iter().map(|key| map.get_item(key)).collect::<Result<Vec<Value>, Error>>()?))
        }
        ("copy", []) => Ok(map.clone()),
        ("get", [key]) => Ok(Some(map.get_item(key)?).filter(|v| !v.is_undefined()).unwrap_or_else(|| Value::from(()))),
        ("get", [key, default]) => {
            Ok(Some(map.get_item(key)?).filter(|v| !v.is_undefined()).unwrap_or_else(|| default.clone()))
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let number = |at: usize| {
        let value = state.lookup(NOW)?.get_item(&Value::from(at)).ok()?;
        value.as_i64()
    };
    let (Some(seconds), Some(offset)) = (number(0), number(1)) else {
        return Err(invalid("no clock"));
    };
    let seconds = u64::try_from(seconds).unwrap_or_default();
    let time = LocalTime::new(seconds, i32::try_from(offset).unwrap_or_default());
    time.format(format).ok_or_else(|| invalid("unknown directive of strftime"))
}

fn add_filters(env: &mut Environment<'static>) {
    env.add_filter("tojson", to_json);
    env.add_filter("string", |value: Value| -> Value {
        if value.kind() == ValueKind::String { value } else { Value::from(string_of(&value)) }
    });
    env.add_filter("trim", |value: Value, args: Rest<ValueOrKwargs>| -> Result<Value, Error> {
        let args = args.into_values();
        let (args, kwargs) = split_kwargs(&args)?;
        let chars = match args {
            [] => kwargs.get("chars")?,
            [chars] => Some(chars.clone()),
            _ => return Err(Error::from(ErrorKind::TooManyArguments)),
        };
        kwargs.assert_all_used()?;
        let chars: Vec<Value> = chars.filter(|chars| !chars.is_none()).into_iter().collect();
        match value.as_str() {
            Some(text) => text::call(text, "strip", &chars),
            None => text::call(&string_of(&value), "strip", &chars),
        }
    });
    env.add_filter("join", join);
    env.add_filter("default", default);
    env.add_filter("d", default);
    for name in ["escape", "e", "forceescape"] {
        env.add_filter(name, |value: Value| escape(&string_of(&value)));
    }
    env.add_filter("safe", |value: Value| string_of(&value));
    env.add_filter(ITER, iterated);
    env.add_filter(STRING, |value: Value| -> Result<Value, Error> {
        if value.kind() == ValueKind::String { Ok(value) } else { Err(invalid("a sum of a string and something else")) }
    });
    // Their text is not Python's.
    env.remove_filter("pprint");
}

/// What the arguments of `tojson` say.
pub fn json_style(args: &[Value]) -> Result<JsonStyle, Error> {
    let mut style = JsonStyle::default();
    let (args, kwargs) = split_kwargs(args)?;
    // transformers' order of the arguments.
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get(name),
    };
    if let Some(flag) = argument(0, "ensure_ascii")? {
        style.ensure_ascii = flag.is_true();
    }
    if let Some(indent) = argument(1, "indent")?.filter(|indent| !indent.is_none()) {
        // json.dumps changes the default separator together with the indent.
        style.item_separator = ",".into();
        style.indent = Some(match (indent.as_str(), indent.kind()) {
            (Some(text), _) => text.to_owned(),
            (None, ValueKind::Bool) => " ".repeat(usize::from(indent.is_true())),
            _ => " "
                .repeat(indent.as_i64().ok_or_else(|| invalid("tojson: indent is no integer"))?.clamp(0, 64) as usize),
        });
    }
    if let Some(separators) = argument(2, "separators")?.filter(|separators| !separators.is_none()) {
        let text = |at: usize| {
            let item = separators.get_item(&Value::from(at))?;
            item.as_str().map(str::to_owned).ok_or_else(|| invalid("tojson: separators are no pair of strings"))
        };
        (style.item_separator, style.key_separator) = (text(0)?.into(), text(1)?.into());
    }
    if let Some(flag) = argument(3, "sort_keys")? {
        style.sort_keys = flag.is_true();
    }
    kwargs.assert_all_used()?;
    Ok(style)
}

fn to_json(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let style = json_style(&args.into_values())?;
    dump_value(&value, &style).map_err(|error| {
        let error = Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"));
        if value.is_undefined() { error.with_source(Raised) } else { error }
    })
}

fn join(value: Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let args = args.into_values();
    let (args, kwargs) = split_kwargs(&args)?;
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get(name),
    };
    let (separator, attribute) = (argument(0, "d")?, argument(1, "attribute")?);
    kwargs.assert_all_used()?;
    let separator = separator.as_ref().map(string_of).unwrap_or_default();
    let mut out = String::new();
    for (at, item) in iterated(value)?.try_iter()?.enumerate() {
        fuel::spend(1)?;
        if at > 0 {
            out.push_str(&separator);
        }
        match &attribute {
            Some(attribute) => write_value_str(&mut out, &item.get_item(attribute)?),
            None => write_value_str(&mut out, &item),
        }
    }
    Ok(out)
}

fn default(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (args, kwargs) = split_kwargs(&args)?;
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get(name),
    };
    let (other, boolean) = (argument(0, "default_value")?, argument(1, "boolean")?);
    kwargs.assert_all_used()?;
    let absent = value.is_undefined() || (boolean.is_some_and(|flag| flag.is_true()) && !value.is_true());
    Ok(if absent { other.unwrap_or_else(|| Value::from("")) } else { value })
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// What a loop goes over, as Python has it.
fn iterated(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            fuel::spend(text.len())?;
            Ok(Value::from(text.chars().map(Value::from).collect::<Vec<Value>>()))
        }
        ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain => Err(invalid("not iterable")),
        _ => Ok(value),
    }
}

fn add_tests(env: &mut Environment<'static>) {
    fn is_float(value: &Value) -> bool {
        matches!(value.downcast_object_ref::<Number>(), Some(Number::Float(_)))
            || (value.kind() == ValueKind::Number && !value.is_integer())
    }
    fn is_integer(value: &Value) -> bool {
        matches!(value.downcast_object_ref::<Number>(), Some(Number::Int(_))) || value.is_integer()
    }
    env.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::Plain)
    });
    env.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Undefined => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    });
    env.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain && value.downcast_object_ref::<Number>().is_none()
    });
    env.add_test("float", is_float);
    env.add_test("integer", is_integer);
    env.add_test("number", |value: &Value| is_float(value) || is_integer(value) || value.kind() == ValueKind::Bool);
}
