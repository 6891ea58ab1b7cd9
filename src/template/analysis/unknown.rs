//! Finds what of Jinja2 is not rendered here, or not exactly, so that such a template is refused by name when it
//! is packed, not when a request meets it.

use minijinja::machinery::ast::{Expr, Stmt};

use super::walk::Node;

/// Filters of Jinja2 that print the same here.
const FILTERS: [&str; 40] = [
    "abs",
    "batch",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
];

/// More of them, and those that statements make.
const MORE_FILTERS: [&str; 1] = ["upper"];

/// Tests of Jinja2 that decide the same here.
const TESTS: [&str; 34] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "==",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    ">=",
    "gt",
    "greaterthan",
    ">",
    "in",
    "integer",
    "iterable",
    "le",
    "<=",
    "lower",
    "lt",
    "lessthan",
    "<",
    "mapping",
    "ne",
    "!=",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
];

/// More of them.
const MORE_TESTS: [&str; 4] = ["test", "true", "undefined", "upper"];

/// What is wrong with the first node that is not known, and its line.
pub fn first(nodes: &[Node<'_>]) -> Option<String> {
    nodes.iter().find_map(|node| match node {
        Node::Stmt(Stmt::AutoEscape(stmt)) => Some(at(stmt.span().start_line, "the statement 'autoescape'")),
        Node::Expr(Expr::Filter(filter)) => {
            let known = FILTERS.contains(&filter.name) || MORE_FILTERS.contains(&filter.name);
            (!known).then(|| at(filter.span().start_line, &format!("the filter '{}'", filter.name)))
        }
        Node::Expr(Expr::Test(test)) => {
            let known = TESTS.contains(&test.name) || MORE_TESTS.contains(&test.name);
            (!known).then(|| at(test.span().start_line, &format!("the test '{}'", test.name)))
        }
        Node::Expr(Expr::Var(var)) if matches!(var.id, "self" | "varargs" | "kwargs") => {
            Some(at(var.span().start_line, &format!("the variable '{}'", var.id)))
        }
        Node::Expr(Expr::Call(call)) => match &call.expr {
            Expr::Var(var) if matches!(var.id, "cycler" | "joiner" | "lipsum") => {
                Some(at(var.span().start_line, &format!("the function '{}'", var.id)))
            }
            _ => None,
        },
        _ => None,
    })
}

fn at(line: impl Into<u32>, what: &str) -> String {
    format!("line {}: {what} is not rendered here", line.into())
}
