//! Compiles expressions.

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CallType, CompareOpKind, UnaryOpKind};
use minijinja::value::{Kwargs, Value, ValueKind};

use super::{Compiler, Refused};
use crate::template::environment;
use crate::template::preprocess::{ITER, STRING};
use crate::template::python::JsonStyle;
use crate::template::quick::program::{Comparison, Expr, Filter, LoopField, Mapping, Math, Test, Wanted};

impl<'s> Compiler<'s> {
    pub(super) fn expr(&mut self, expr: &'s ast::Expr<'s>) -> Refused<Expr> {
        self.deeper(|this| this.any_expr(expr))
    }

    fn optional(&mut self, expr: Option<&'s ast::Expr<'s>>) -> Refused<Option<Expr>> {
        expr.map(|expr| self.expr(expr)).transpose()
    }

    fn any_expr(&mut self, expr: &'s ast::Expr<'s>) -> Refused<Expr> {
        Ok(match expr {
            ast::Expr::Const(constant) => constant_expr(&constant.value),
            ast::Expr::Var(var) => self.variable(var.id),
            ast::Expr::GetAttr(attr) => match &attr.expr {
                ast::Expr::Var(var) if var.id == "loop" && self.loops > 0 => loop_field(attr.name),
                _ if is_method(attr.name) => Expr::Unknown("a method that is not called"),
                inner => {
                    let name = self.attribute(attr.name);
                    Expr::Attribute(Box::new(self.expr(inner)?), attr.name.into(), name)
                }
            },
            ast::Expr::GetItem(item) => {
                Expr::Item(Box::new((self.expr(&item.expr)?, self.expr(&item.subscript_expr)?)))
            }
            ast::Expr::Slice(slice) => {
                let value = self.expr(&slice.expr)?;
                let start = self.optional(slice.start.as_ref())?;
                let stop = self.optional(slice.stop.as_ref())?;
                let step = self.optional(slice.step.as_ref())?;
                Expr::Slice(Box::new((value, [start, stop, step])))
            }
            ast::Expr::UnaryOp(op) => {
                let inner = Box::new(self.expr(&op.expr)?);
                match op.op {
                    UnaryOpKind::Not => Expr::Not(inner),
                    UnaryOpKind::Neg => Expr::Negative(inner),
                }
            }
            ast::Expr::BinOp(op) => {
                let right = match op.op {
                    BinOpKind::In => self.looked_into(Comparison::In, &op.right)?,
                    _ => self.expr(&op.right)?,
                };
                let sides = Box::new((self.expr(&op.left)?, right));
                match op.op {
                    BinOpKind::ScAnd => Expr::And(sides),
                    BinOpKind::ScOr => Expr::Or(sides),
                    BinOpKind::Add => Expr::Math(Math::Add, sides),
                    BinOpKind::Sub => Expr::Math(Math::Sub, sides),
                    BinOpKind::Mul => Expr::Math(Math::Mul, sides),
                    BinOpKind::FloorDiv => Expr::Math(Math::FloorDiv, sides),
                    BinOpKind::Rem => Expr::Math(Math::Rem, sides),
                    BinOpKind::Concat => Expr::Math(Math::Concat, sides),
                    BinOpKind::Eq => Expr::Compare(Comparison::Eq, sides),
                    BinOpKind::Ne => Expr::Compare(Comparison::Ne, sides),
                    BinOpKind::Lt => Expr::Compare(Comparison::Lt, sides),
                    BinOpKind::Lte => Expr::Compare(Comparison::Le, sides),
                    BinOpKind::Gt => Expr::Compare(Comparison::Gt, sides),
                    BinOpKind::Gte => Expr::Compare(Comparison::Ge, sides),
                    BinOpKind::In => Expr::Compare(Comparison::In, sides),
                    BinOpKind::Div | BinOpKind::Pow => Expr::Unknown("arithmetic that is not plain"),
                }
            }
            ast::Expr::Compare(compare) => match compare.ops.as_slice() {
                [one] => {
                    let op = match one.op {
                        CompareOpKind::Eq => Comparison::Eq,
                        CompareOpKind::Ne => Comparison::Ne,
                        CompareOpKind::Lt => Comparison::Lt,
                        CompareOpKind::Lte => Comparison::Le,
                        CompareOpKind::Gt => Comparison::Gt,
                        CompareOpKind::Gte => Comparison::Ge,
                        CompareOpKind::In => Comparison::In,
                        CompareOpKind::NotIn => Comparison::NotIn,
                    };
                    Expr::Compare(op, Box::new((self.expr(&compare.expr)?, self.looked_into(op, &one.expr)?)))
                }
                _ => Expr::Unknown("a chain of comparisons"),
            },
            ast::Expr::IfExpr(choice) => {
                let condition = self.expr(&choice.test_expr)?;
                let then = self.expr(&choice.true_expr)?;
                let otherwise = self.optional(choice.false_expr.as_ref())?.unwrap_or(Expr::Undefined);
                Expr::If(Box::new((condition, then, otherwise)))
            }
            ast::Expr::List(list) => self.list(&list.items)?,
            ast::Expr::Tuple(_) => Expr::Unknown("a tuple"),
            ast::Expr::Filter(filter) => self.filter(filter)?,
            ast::Expr::Test(test) => self.test(test)?,
            ast::Expr::Call(call) => self.call(call)?,
            ast::Expr::Map(_) => Expr::Unknown("a dictionary of the template"),
        })
    }

    /// What stands at the right of a comparison: a tuple is the same as a list only where it is looked into.
    fn looked_into(&mut self, op: Comparison, expr: &'s ast::Expr<'s>) -> Refused<Expr> {
        match (op, expr) {
            (Comparison::In | Comparison::NotIn, ast::Expr::Tuple(list)) => self.list(&list.items),
            _ => self.expr(expr),
        }
    }

    fn list(&mut self, items: &'s [ast::Expr<'s>]) -> Refused<Expr> {
        let items: Refused<Vec<Expr>> = items.iter().map(|item| self.expr(item)).collect();
        items.map(Expr::List)
    }

    fn test(&mut self, test: &'s ast::Test<'s>) -> Refused<Expr> {
        let inner = self.expr(&test.expr)?;
        let args = self.positional(&test.args)?;
        let kind = match (test.name, args.as_deref()) {
            ("defined", Some([])) => Test::Defined,
            ("undefined", Some([])) => Test::Undefined,
            ("none", Some([])) => Test::None,
            ("string", Some([])) => Test::String,
            ("mapping", Some([])) => Test::Mapping,
            ("sequence", Some([])) => Test::Sequence,
            ("iterable", Some([])) => Test::Iterable,
            ("boolean", Some([])) => Test::Boolean,
            ("number", Some([])) => Test::Number,
            ("integer", Some([])) => Test::Integer,
            ("float", Some([])) => Test::Float,
            ("true", Some([])) => Test::True,
            ("false", Some([])) => Test::False,
            _ => return Ok(Expr::Unknown("a test that is not known here")),
        };
        Ok(Expr::Test(kind, Box::new(inner)))
    }

    /// Arguments without names. `None`: there are others.
    fn positional(&mut self, args: &'s [CallArg<'s>]) -> Refused<Option<Vec<Expr>>> {
        let mut out = Vec::with_capacity(args.len());
        for arg in args {
            match arg {
                CallArg::Pos(expr) => out.push(self.expr(expr)?),
                _ => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    fn filter(&mut self, filter: &'s ast::Filter<'s>) -> Refused<Expr> {
        let Some(inner) = &filter.expr else { return Ok(Expr::Unknown("a filter of a block")) };
        let inner = self.expr(inner)?;
        let unknown = Ok(Expr::Unknown("a filter that is not known here"));
        let kind = match filter.name {
            "tojson" => match constant_args(&filter.args).and_then(|args| environment::json_style(&args).ok()) {
                Some(style) => Filter::Json(style),
                None => return unknown,
            },
            "default" | "d" => {
                let mut flag = false;
                let args = match filter.args.as_slice() {
                    [CallArg::Pos(other)] => Some(other),
                    [
                        CallArg::Pos(other),
                        CallArg::Pos(ast::Expr::Const(set)) | CallArg::Kwarg("boolean", ast::Expr::Const(set)),
                    ] => {
                        flag = set.value.is_true();
                        Some(other)
                    }
                    _ => None,
                };
                match args {
                    Some(other) => Filter::Default(Box::new(self.expr(other)?), flag),
                    None => return unknown,
                }
            }
            "selectattr" | "rejectattr" => match self.selection(filter)? {
                Some(kind) => kind,
                None => return unknown,
            },
            "map" => match filter.args.as_slice() {
                [CallArg::Kwarg("attribute", ast::Expr::Const(name))] => match plain_name(&name.value) {
                    Some(name) => Filter::Map(Mapping::Field(name)),
                    None => return unknown,
                },
                [CallArg::Pos(ast::Expr::Const(name))] => match name.value.as_str() {
                    Some("trim") => Filter::Map(Mapping::Filter(Box::new(Filter::Trim))),
                    Some("upper") => Filter::Map(Mapping::Filter(Box::new(Filter::Upper))),
                    Some("tojson") => Filter::Map(Mapping::Filter(Box::new(Filter::Json(JsonStyle::default())))),
                    _ => return unknown,
                },
                _ => return unknown,
            },
            name => {
                let Some(args) = self.positional(&filter.args)? else { return unknown };
                let mut args = args.into_iter();
                match (name, args.next(), args.next(), args.next()) {
                    ("trim", None, _, _) => Filter::Trim,
                    ("length" | "count", None, _, _) => Filter::Length,
                    (ITER, None, _, _) => Filter::Iterated,
                    (STRING, None, _, _) => Filter::Text,
                    ("string" | "safe", None, _, _) => Filter::String,
                    ("items", None, _, _) => Filter::Items,
                    ("list", None, _, _) => Filter::List,
                    ("first", None, _, _) => Filter::First,
                    ("last", None, _, _) => Filter::Last,
                    ("upper", None, _, _) => Filter::Upper,
                    ("lower", None, _, _) => Filter::Lower,
                    ("join", None, _, _) => Filter::Join(Box::new(Expr::Str("".into()))),
                    ("join", Some(separator), None, _) => Filter::Join(Box::new(separator)),
                    ("replace", Some(from), Some(to), None) => Filter::Replace(Box::new((from, to))),
                    _ => return unknown,
                }
            }
        };
        Ok(Expr::Filter(kind, Box::new(inner)))
    }

    /// `selectattr(field, test, value)`, and its opposite.
    fn selection(&mut self, filter: &'s ast::Filter<'s>) -> Refused<Option<Filter>> {
        let Some(args) = constant_args(&filter.args) else { return Ok(None) };
        let Some(name) = args.first().and_then(plain_name) else { return Ok(None) };
        let test = match (args.get(1).and_then(Value::as_str), args.get(2), args.get(3)) {
            (Some("equalto" | "eq" | "=="), Some(value), None) => Wanted::Equal(constant_expr(value)),
            (Some("defined"), None, _) => Wanted::Defined(true),
            (Some("undefined"), None, _) => Wanted::Defined(false),
            _ => return Ok(None),
        };
        Ok(Some(Filter::Select(Box::new((name, test)), filter.name == "selectattr")))
    }

    fn call(&mut self, call: &'s ast::Call<'s>) -> Refused<Expr> {
        match call.identify_call() {
            CallType::Method(inner, name) => {
                if matches!(inner, ast::Expr::Var(var) if var.id == "loop") {
                    return Ok(Expr::Unknown("a method of the loop"));
                }
                // The tree lends the object itself for as long as it lives only through the call.
                let ast::Expr::GetAttr(attr) = &call.expr else { return Ok(Expr::Unknown("no method")) };
                let inner = self.expr(&attr.expr)?;
                match self.positional(&call.args)? {
                    Some(args) => Ok(Expr::Method(Box::new(inner), name.into(), args)),
                    None => Ok(Expr::Unknown("a method with named arguments")),
                }
            }
            CallType::Function(name) => self.function(name, &call.args),
            _ => Ok(Expr::Unknown("a call of a value")),
        }
    }

    fn function(&mut self, name: &'s str, args: &'s [CallArg<'s>]) -> Refused<Expr> {
        let stored = self.stored.get(name).copied().unwrap_or(0);
        if let Some((at, parameters)) = self.macros.get(name).cloned() {
            if stored != 1 {
                return Err("a macro whose name is set twice");
            }
            let mut values: Vec<Option<Expr>> = parameters.iter().map(|_| None).collect();
            for (place, arg) in args.iter().enumerate() {
                let (place, value) = match arg {
                    CallArg::Pos(value) => (Some(place), value),
                    CallArg::Kwarg(name, value) => (parameters.iter().position(|known| known == name), value),
                    _ => return Ok(Expr::Unknown("a macro with a list of arguments")),
                };
                let value = self.expr(value)?;
                match place.and_then(|place| values.get_mut(place)) {
                    Some(slot @ None) => *slot = Some(value),
                    _ => return Ok(Expr::Unknown("a macro with other arguments")),
                }
            }
            return Ok(Expr::Macro(at, values));
        }
        if stored > 0 || !self.functions.iter().any(|known| known == name) {
            return Ok(Expr::Unknown("a call of a variable"));
        }
        if !self.program.functions.iter().any(|known| **known == *name) {
            self.program.functions.push(name.into());
        }
        match (name, args) {
            ("namespace", args) => {
                let mut values = Vec::new();
                for arg in args {
                    let CallArg::Kwarg(name, value) = arg else {
                        return Ok(Expr::Unknown("a namespace of a dictionary"));
                    };
                    let value = self.expr(value)?;
                    let name = self.attribute(name);
                    if values.iter().any(|(known, _)| *known == name) {
                        return Ok(Expr::Unknown("a name that comes twice"));
                    }
                    values.push((name, value));
                }
                Ok(Expr::Namespace(values))
            }
            ("strftime_now", [CallArg::Pos(format)]) => Ok(Expr::Time(Box::new(self.expr(format)?))),
            ("range", [_] | [_, _] | [_, _, _]) => match self.positional(args)? {
                Some(args) => Ok(Expr::Range(args)),
                None => Ok(Expr::Unknown("a range with named bounds")),
            },
            ("raise_exception", _) => Ok(Expr::Unknown("an exception")),
            _ => Ok(Expr::Unknown("a function that is not known here")),
        }
    }
}

pub(super) fn constant_expr(value: &Value) -> Expr {
    match value.kind() {
        ValueKind::String => Expr::Str(value.as_str().unwrap_or_default().into()),
        ValueKind::Bool => Expr::Bool(value.is_true()),
        ValueKind::None => Expr::None,
        ValueKind::Number if value.is_integer() => value.as_i64().map_or(Expr::Unknown("a large number"), Expr::Int),
        _ => Expr::Unknown("a constant that is not plain"),
    }
}

/// The arguments as the engine hands them to a filter, where all are constants.
fn constant_args(args: &[CallArg<'_>]) -> Option<Vec<Value>> {
    let (mut values, mut named) = (Vec::new(), Vec::new());
    for arg in args {
        match arg {
            CallArg::Pos(value) => values.push(value.as_const()?),
            CallArg::Kwarg(name, value) => named.push((*name, value.as_const()?)),
            _ => return None,
        }
    }
    if !named.is_empty() {
        values.push(Value::from(named.into_iter().collect::<Kwargs>()));
    }
    Some(values)
}

/// The name of a field that is neither a path nor a method.
fn plain_name(value: &Value) -> Option<Box<str>> {
    let name = value.as_str()?;
    let plain = |c: char| c.is_ascii_alphabetic() || c == '_';
    (!name.is_empty() && name.chars().all(plain) && !is_method(name)).then(|| name.into())
}

fn loop_field(name: &str) -> Expr {
    Expr::Loop(match name {
        "index" => LoopField::Index,
        "index0" => LoopField::Index0,
        "length" => LoopField::Length,
        "revindex" => LoopField::RevIndex,
        "revindex0" => LoopField::RevIndex0,
        "first" => LoopField::First,
        "last" => LoopField::Last,
        "previtem" => LoopField::Previous,
        "nextitem" => LoopField::Next,
        _ => return Expr::Unknown("a field of the loop"),
    })
}

/// An attribute that is a method of some value is not its key.
fn is_method(name: &str) -> bool {
    crate::template::object::is_method(name)
}
