//! Evaluates expressions.

use super::Fallback;
use super::program::{Comparison, Expr, Filter, LoopField, Mapping, Math, Test, Wanted};
use super::run::Run;
use super::strings;
use super::value::{Got, Val, push_int};
use crate::request::json::Json;
use crate::template::python::{Dumped, JsonStyle, append_json};
use crate::template::text::is_space;

/// How far ranges go.
const MAX_RANGE: i64 = 40_000;

impl<'a> Run<'a> {
    /// Whether a condition holds.
    pub(super) fn truth(&mut self, expr: &'a Expr) -> Got<bool> {
        match expr {
            Expr::Not(inner) => Ok(!self.truth(inner)?),
            Expr::And(sides) => Ok(self.truth(&sides.0)? && self.truth(&sides.1)?),
            Expr::Or(sides) => Ok(self.truth(&sides.0)? || self.truth(&sides.1)?),
            Expr::Compare(op, sides) => self.compare(*op, &sides.0, &sides.1),
            Expr::Test(test, inner) => self.test(*test, inner),
            _ => self.eval(expr)?.is_true(),
        }
    }

    /// Prints an expression.
    pub(super) fn print(&mut self, expr: &'a Expr, out: &mut String) -> Got<()> {
        match expr {
            Expr::Str(text) => {
                out.push_str(text);
                Ok(())
            }
            Expr::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                let chosen = if self.truth(condition)? { then } else { otherwise };
                self.print(chosen, out)
            }
            Expr::Math(Math::Concat, sides) => {
                for side in [&sides.0, &sides.1] {
                    match side {
                        Expr::Math(Math::Concat, _) => self.print(side, out)?,
                        _ => joined(&self.eval(side)?, out)?,
                    }
                }
                Ok(())
            }
            Expr::Filter(Filter::Json(style), inner) => {
                let value = self.eval(inner)?;
                json(&value, style, out)
            }
            Expr::Filter(Filter::Text, inner) => match self.eval(inner)?.as_str() {
                Some(text) => {
                    out.push_str(text);
                    Ok(())
                }
                None => Err(Fallback("a sum of a text and something else")),
            },
            _ => self.eval(expr)?.print(out),
        }
    }

    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'a Expr) -> Got<Val<'a>> {
        self.spend(1)?;
        Ok(match expr {
            Expr::Str(text) => Val::Str(text),
            Expr::Int(value) => Val::Int(*value),
            Expr::Bool(value) => Val::Bool(*value),
            Expr::None => Val::None,
            Expr::Undefined => Val::Undefined,
            Expr::Var(place) => self.variable(place)?,
            Expr::Loop(field) => self.loop_field(*field)?,
            Expr::Attribute(inner, name, attribute) => match self.eval(inner)? {
                Val::Map(map) => map.get(name).map_or(Val::Undefined, Val::of),
                Val::Space(space) => {
                    let space = self.spaces.get(space).ok_or(Fallback("a namespace that is gone"))?;
                    let known = space.iter().find(|(known, _)| known == attribute);
                    known.map_or(Val::Undefined, |(_, value)| value.clone())
                }
                Val::None | Val::Bool(_) | Val::Int(_) | Val::Str(_) | Val::Made(_) | Val::Seq(_) => Val::Undefined,
                _ => return Err(Fallback("an attribute of a value that has none")),
            },
            Expr::Item(parts) => {
                let value = self.eval(&parts.0)?;
                let key = self.eval(&parts.1)?;
                value.item(&key)?
            }
            Expr::Slice(parts) => {
                let value = self.eval(&parts.0)?;
                let [start, stop, step] = &parts.1;
                let (start, stop, step) = (self.bound(start)?, self.bound(stop)?, self.bound(step)?);
                if let Some(text) = value.as_str() {
                    self.spend_bytes(text.len())?;
                }
                slice(&value, start, stop, step)?
            }
            Expr::Not(_) | Expr::Compare(..) | Expr::Test(..) => Val::Bool(self.truth(expr)?),
            Expr::Negative(inner) => match self.eval(inner)? {
                Val::Int(value) => Val::Int(value.checked_neg().ok_or(Fallback("a large number"))?),
                _ => return Err(Fallback("a negative that is no integer")),
            },
            Expr::And(sides) => {
                let left = self.eval(&sides.0)?;
                if left.is_true()? { self.eval(&sides.1)? } else { left }
            }
            Expr::Or(sides) => {
                let left = self.eval(&sides.0)?;
                if left.is_true()? { left } else { self.eval(&sides.1)? }
            }
            Expr::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                let chosen = if self.truth(condition)? { then } else { otherwise };
                self.eval(chosen)?
            }
            Expr::Math(op, sides) => {
                let left = self.eval(&sides.0)?;
                let right = self.eval(&sides.1)?;
                self.math(*op, &left, &right)?
            }
            Expr::List(items) => {
                let items: Got<Vec<Val<'a>>> = items.iter().map(|item| self.eval(item)).collect();
                Val::list(items?)
            }
            Expr::Filter(filter, inner) => {
                let value = self.eval(inner)?;
                self.filter(filter, value)?
            }
            Expr::Method(inner, name, args) => self.method(inner, name, args)?,
            Expr::Macro(at, args) => self.call_macro(*at, args)?,
            Expr::Namespace(values) => {
                let mut made: Vec<(usize, Val<'a>)> = Vec::with_capacity(values.len());
                for (name, value) in values {
                    let value = self.eval(value)?;
                    made.push((*name, value));
                }
                self.space(made)?
            }
            Expr::Range(args) => {
                let args: Got<Vec<Val<'a>>> = args.iter().map(|arg| self.eval(arg)).collect();
                self.range(&args?)?
            }
            Expr::Time(format) => {
                let format = self.eval(format)?;
                let format = format.as_str().ok_or(Fallback("a format of the time that is no text"))?;
                let text = self.clock.local().format(format).ok_or(Fallback("a format of the time"))?;
                Val::Made(text.into())
            }
            Expr::Unknown(what) => return Err(Fallback(what)),
        })
    }

    fn range(&mut self, args: &[Val<'a>]) -> Got<Val<'a>> {
        let (start, stop, step) = match args {
            [Val::Int(stop)] => (0, *stop, 1),
            [Val::Int(start), Val::Int(stop)] => (*start, *stop, 1),
            [Val::Int(start), Val::Int(stop), Val::Int(step)] => (*start, *stop, *step),
            _ => return Err(Fallback("a range that is not plain")),
        };
        if !matches!(step, -1 | 1) || start.abs().max(stop.abs()) > MAX_RANGE {
            return Err(Fallback("a range that is not plain"));
        }
        let len = usize::try_from((stop - start) * step).unwrap_or(0);
        self.spend(len)?;
        let items = (0..len).map(|at| Val::Int(start + step * i64::try_from(at).unwrap_or(0)));
        Ok(Val::list(items.collect()))
    }

    fn loop_field(&self, field: LoopField) -> Got<Val<'a>> {
        let each = self.loops.last().ok_or(Fallback("no loop"))?;
        let int = |value: usize| i64::try_from(value).map(Val::Int).map_err(|_| Fallback("a large number"));
        let neighbour = |at: Option<usize>| match (&each.items, at) {
            (Val::Items(..), _) => Err(Fallback("a neighbouring pair")),
            (items, Some(at)) => Ok(items.at(at)),
            (_, None) => Ok(Val::Undefined),
        };
        match field {
            LoopField::Index => int(each.at + 1),
            LoopField::Index0 => int(each.at),
            LoopField::Length => int(each.len),
            LoopField::RevIndex => int(each.len.saturating_sub(each.at)),
            LoopField::RevIndex0 => int(each.len.saturating_sub(each.at + 1)),
            LoopField::First => Ok(Val::Bool(each.at == 0)),
            LoopField::Last => Ok(Val::Bool(each.at + 1 == each.len)),
            LoopField::Previous => neighbour(each.at.checked_sub(1)),
            LoopField::Next => neighbour(Some(each.at + 1)),
        }
    }

    fn bound(&mut self, expr: &'a Option<Expr>) -> Got<Option<i64>> {
        match expr {
            None => Ok(None),
            Some(expr) => match self.eval(expr)? {
                Val::None => Ok(None),
                Val::Int(value) => Ok(Some(value)),
                _ => Err(Fallback("a bound of a slice that is no integer")),
            },
        }
    }

    fn math(&mut self, op: Math, left: &Val<'a>, right: &Val<'a>) -> Got<Val<'a>> {
        let value = match (op, left, right) {
            (Math::Add, Val::Int(a), Val::Int(b)) => a.checked_add(*b),
            (Math::Sub, Val::Int(a), Val::Int(b)) => a.checked_sub(*b),
            (Math::Mul, Val::Int(a), Val::Int(b)) => a.checked_mul(*b),
            // Python rounds down; so it is the same as Euclid's where the divisor is positive.
            (Math::FloorDiv, Val::Int(a), Val::Int(b)) if *b > 0 => a.checked_div_euclid(*b),
            (Math::Rem, Val::Int(a), Val::Int(b)) if *b > 0 => a.checked_rem_euclid(*b),
            (Math::Concat, _, _) => {
                let mut text = String::new();
                joined(left, &mut text)?;
                joined(right, &mut text)?;
                self.spend_bytes(text.len())?;
                return Ok(Val::Made(text.into()));
            }
            (Math::Add, Val::Seq(_) | Val::List(_) | Val::Part(..), Val::Seq(_) | Val::List(_) | Val::Part(..)) => {
                self.spend(left.len()? + right.len()?)?;
                let items = |list: &Val<'a>| list.len().map(|len| (0..len).map(|at| list.at(at)).collect::<Vec<_>>());
                return Ok(Val::list([items(left)?, items(right)?].concat()));
            }
            (Math::Add, _, _) => {
                let (Some(left), Some(right)) = (left.as_str(), right.as_str()) else {
                    return Err(Fallback("a sum of values that are not plain"));
                };
                self.spend_bytes(left.len() + right.len())?;
                return Ok(Val::Made([left, right].concat().into()));
            }
            _ => return Err(Fallback("arithmetic with values that are not plain")),
        };
        value.map(Val::Int).ok_or(Fallback("a large number"))
    }

    fn compare(&mut self, op: Comparison, left: &'a Expr, right: &'a Expr) -> Got<bool> {
        self.spend(1)?;
        let left = self.eval(left)?;
        if let (Comparison::In | Comparison::NotIn, Expr::List(items)) = (op, right) {
            // All of them are evaluated before they are compared.
            let mut found = None;
            for item in items {
                let item = self.eval(item)?;
                if found != Some(true) {
                    found = Some(item.equals(&left)?);
                }
            }
            return Ok((found == Some(true)) == matches!(op, Comparison::In));
        }
        let right = self.eval(right)?;
        let ints = || match (&left, &right) {
            (Val::Int(a), Val::Int(b)) => Ok((*a, *b)),
            _ => Err(Fallback("an order of values that are no integers")),
        };
        Ok(match op {
            Comparison::Eq => left.equals(&right)?,
            Comparison::Ne => !left.equals(&right)?,
            Comparison::Lt => ints().map(|(a, b)| a < b)?,
            Comparison::Le => ints().map(|(a, b)| a <= b)?,
            Comparison::Gt => ints().map(|(a, b)| a > b)?,
            Comparison::Ge => ints().map(|(a, b)| a >= b)?,
            Comparison::In | Comparison::NotIn => {
                match right.as_str() {
                    Some(text) => self.spend_bytes(text.len())?,
                    None if matches!(right, Val::Seq(_) | Val::Part(..) | Val::List(_)) => self.spend(right.len()?)?,
                    None => {}
                }
                right.contains(&left)? == matches!(op, Comparison::In)
            }
        })
    }

    fn test(&mut self, test: Test, inner: &'a Expr) -> Got<bool> {
        let value = self.eval(inner)?;
        match test {
            Test::Defined => return Ok(!matches!(value, Val::Undefined)),
            Test::Undefined => return Ok(matches!(value, Val::Undefined)),
            Test::None => return Ok(matches!(value, Val::None)),
            _ => {}
        }
        let is_text = value.as_str().is_some();
        let is_plain = matches!(value, Val::None | Val::Undefined | Val::Bool(_) | Val::Int(_) | Val::Number(_));
        if !(is_text || is_plain || matches!(value, Val::Seq(_) | Val::Map(_) | Val::List(_))) {
            return Err(Fallback("a test of a value that is not plain"));
        }
        Ok(match test {
            Test::String => is_text,
            Test::Mapping => matches!(value, Val::Map(_)),
            Test::Sequence => is_text || matches!(value, Val::Undefined | Val::Seq(_) | Val::Map(_) | Val::List(_)),
            Test::Iterable => is_text || matches!(value, Val::Undefined | Val::Seq(_) | Val::Map(_) | Val::List(_)),
            Test::Boolean => matches!(value, Val::Bool(_)),
            Test::Number => matches!(value, Val::Bool(_) | Val::Int(_) | Val::Number(_)),
            Test::Integer if matches!(value, Val::Bool(_)) => return Err(Fallback("whether a boolean is an integer")),
            Test::Integer => matches!(value, Val::Int(_) | Val::Number(Json::BigInt(_))),
            Test::Float => matches!(value, Val::Number(Json::Float(_))),
            Test::True => matches!(value, Val::Bool(true)),
            Test::False => matches!(value, Val::Bool(false)),
            Test::Defined | Test::Undefined | Test::None => false,
        })
    }

    fn filter(&mut self, filter: &'a Filter, value: Val<'a>) -> Got<Val<'a>> {
        if let Some(text) = value.as_str() {
            self.spend_bytes(text.len())?;
        }
        let made = |text: String| Val::Made(text.into());
        Ok(match filter {
            Filter::Json(style) => {
                let mut out = String::new();
                json(&value, style, &mut out)?;
                self.spend_bytes(out.len())?;
                made(out)
            }
            Filter::Trim if value.as_str().is_some() => value.part(|text| text.trim_matches(is_space))?,
            Filter::Trim => {
                let mut out = String::new();
                value.print(&mut out)?;
                self.spend_bytes(out.len())?;
                Val::made(out.trim_matches(is_space))
            }
            Filter::Length => i64::try_from(value.len()?).map(Val::Int).map_err(|_| Fallback("a large number"))?,
            // The loop itself looks at it.
            Filter::Iterated => value,
            Filter::Text if value.as_str().is_some() => value,
            Filter::Text => return Err(Fallback("a sum of a text and something else")),
            Filter::String if value.as_str().is_some() => value,
            Filter::String => {
                let mut out = String::new();
                value.print(&mut out)?;
                self.spend_bytes(out.len())?;
                made(out)
            }
            Filter::Default(other, also_false) => {
                let other = self.eval(other)?;
                match value {
                    Val::Undefined => other,
                    value if *also_false && !value.is_true()? => other,
                    value => value,
                }
            }
            Filter::Items => match value {
                Val::Map(map) => Val::Items(map, false),
                _ => return Err(Fallback("items of a value that has none")),
            },
            Filter::List => match value {
                Val::Seq(_) | Val::List(_) | Val::Items(_, true) => value,
                Val::Part(..) => {
                    self.spend(value.len()?)?;
                    Val::list((0..value.len()?).map(|at| value.at(at)).collect())
                }
                Val::Items(map, false) => Val::Items(map, true),
                _ => return Err(Fallback("a list of a value that is not plain")),
            },
            Filter::First | Filter::Last => match (&value, value.len()) {
                (Val::Seq(_) | Val::List(_), Ok(len)) if len > 0 => {
                    value.at(if matches!(filter, Filter::First) { 0 } else { len - 1 })
                }
                _ => return Err(Fallback("an end of a value that is not plain")),
            },
            Filter::Upper => made(value.as_str().ok_or(Fallback("upper of no text"))?.to_uppercase()),
            Filter::Lower => made(value.as_str().ok_or(Fallback("lower of no text"))?.to_lowercase()),
            Filter::Join(separator) => {
                let separator = self.eval(separator)?;
                let separator = separator.as_str().ok_or(Fallback("a separator that is no text"))?;
                if !matches!(value, Val::Seq(_) | Val::List(_) | Val::Part(..)) {
                    return Err(Fallback("join of a value that is not plain"));
                }
                let mut out = String::new();
                for at in 0..value.len()? {
                    self.spend(1)?;
                    if at > 0 {
                        out.push_str(separator);
                    }
                    value.at(at).print(&mut out)?;
                }
                self.spend_bytes(out.len())?;
                made(out)
            }
            Filter::Select(parts, wanted) => {
                let (name, test) = &**parts;
                let mut kept = Vec::new();
                for at in 0..listed(&value)? {
                    self.spend(1)?;
                    let item = value.at(at);
                    let Val::Map(map) = item else { return Err(Fallback("a field of no object")) };
                    let field = map.get(name).map_or(Val::Undefined, Val::of);
                    let passed = match test {
                        Wanted::Equal(other) => field.equals(&self.eval(other)?)?,
                        Wanted::Defined(defined) => *defined != matches!(field, Val::Undefined),
                    };
                    if passed == *wanted {
                        kept.push(item);
                    }
                }
                Val::list(kept)
            }
            Filter::Map(mapping) => {
                let mut made = Vec::new();
                for at in 0..listed(&value)? {
                    self.spend(1)?;
                    made.push(match (mapping, value.at(at)) {
                        (Mapping::Field(name), Val::Map(map)) => map.get(name).map_or(Val::Undefined, Val::of),
                        (Mapping::Field(_), _) => return Err(Fallback("a field of no object")),
                        (Mapping::Filter(filter), item) => self.filter(filter, item)?,
                    });
                }
                Val::list(made)
            }
            Filter::Replace(parts) => {
                let (from, to) = (self.eval(&parts.0)?, self.eval(&parts.1)?);
                match (value.as_str(), from.as_str(), to.as_str()) {
                    (Some(text), Some(from), Some(to)) if !from.is_empty() && to.len() <= from.len() => {
                        made(text.replace(from, to))
                    }
                    _ => return Err(Fallback("replace with values that are not plain")),
                }
            }
        })
    }

    fn method(&mut self, inner: &'a Expr, name: &'a str, args: &'a [Expr]) -> Got<Val<'a>> {
        let value = self.eval(inner)?;
        let args: Got<Vec<Val<'a>>> = args.iter().map(|arg| self.eval(arg)).collect();
        let args = args?;
        if let Some(text) = value.as_str() {
            self.spend_bytes(text.len())?;
            let result = strings::call(&value, name, &args)?;
            match &result {
                Val::List(list) => self.spend(list.len())?,
                Val::Made(text) => self.spend_bytes(text.len())?,
                _ => {}
            }
            return Ok(result);
        }
        let Val::Map(map) = value else { return Err(Fallback("a method of a value that is not plain")) };
        match (name, args.as_slice()) {
            ("get", [key]) => Ok(key.as_str().and_then(|key| map.get(key)).map_or(Val::None, Val::of)),
            ("get", [key, default]) => {
                Ok(key.as_str().and_then(|key| map.get(key)).map_or_else(|| default.clone(), Val::of))
            }
            ("items", []) => Ok(Val::Items(map, true)),
            ("keys", []) => {
                self.spend(map.len())?;
                Ok(Val::list(map.iter().map(|(key, _)| Val::Str(key.as_str())).collect()))
            }
            ("values", []) => {
                self.spend(map.len())?;
                Ok(Val::list(map.iter().map(|(_, item)| Val::of(item)).collect()))
            }
            _ => Err(Fallback("a method that is not plain")),
        }
    }
}

/// How many items a list has.
fn listed(value: &Val<'_>) -> Got<usize> {
    match value {
        Val::Seq(_) | Val::List(_) | Val::Part(..) => value.len(),
        _ => Err(Fallback("a list was expected")),
    }
}

/// What `~` makes of a value.
fn joined(value: &Val<'_>, out: &mut String) -> Got<()> {
    match value {
        Val::Str(text) => out.push_str(text),
        Val::Made(text) => out.push_str(text),
        Val::Int(value) => push_int(out, *value),
        _ => return Err(Fallback("'~' with a value that is not plain")),
    }
    Ok(())
}

fn json(value: &Val<'_>, style: &JsonStyle, out: &mut String) -> Got<()> {
    match value {
        Val::None => out.push_str("null"),
        Val::Bool(true) => out.push_str("true"),
        Val::Bool(false) => out.push_str("false"),
        Val::Int(value) => push_int(out, *value),
        Val::Number(json @ Json::Float(_)) => append_json(out, Dumped::Json(json), style),
        Val::Str(text) => append_json(out, Dumped::Text(text), style),
        Val::Made(text) => append_json(out, Dumped::Text(text), style),
        Val::Seq(seq) => append_json(out, Dumped::Seq(seq), style),
        Val::Map(map) => append_json(out, Dumped::Map(map), style),
        _ => return Err(Fallback("tojson of a value that is not plain")),
    }
    Ok(())
}

fn slice<'a>(value: &Val<'a>, start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> Got<Val<'a>> {
    let unknown = Fallback("a slice of a value that is not plain");
    let items = match value {
        Val::Seq(seq) => Some(seq.0.as_slice()),
        _ => None,
    };
    match (items, step.unwrap_or(1)) {
        (Some(items), -1) if start.is_none() && stop.is_none() => Ok(Val::Part(items, true)),
        (Some(items), 1) => {
            let (start, end) = bounds(start, stop, items.len());
            Ok(Val::Part(items.get(start..end).unwrap_or_default(), false))
        }
        (None, 1) => value.part(|text| {
            let len = text.chars().count();
            let (start, end) = bounds(start, stop, len);
            let place = |at: usize| match len == text.len() {
                true => at,
                false => text.char_indices().nth(at).map_or(text.len(), |(place, _)| place),
            };
            text.get(place(start)..place(end)).unwrap_or_default()
        }),
        _ => Err(unknown),
    }
}

/// Python's bounds of a slice: within the length, the end never before the start.
fn bounds(start: Option<i64>, stop: Option<i64>, len: usize) -> (usize, usize) {
    let clamp = |bound: i64| match usize::try_from(bound) {
        Ok(bound) => bound.min(len),
        Err(_) => usize::try_from(bound.unsigned_abs()).map_or(0, |back| len.saturating_sub(back)),
    };
    let start = start.map_or(0, clamp);
    (start, stop.map_or(len, clamp).max(start))
}
