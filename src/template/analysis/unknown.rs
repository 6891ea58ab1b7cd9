//! Finds what of Jinja2 is not rendered here, or not exactly, so that such a template is refused by name when it
//! is packed, not when a request meets it.

use minijinja::machinery::ast::{Expr, Stmt};

use super::walk::Node;

/// Filters of Jinja2 that print otherwise here, or are not there. A filter that Jinja2 does not know fails in both.
const FILTERS: [&str; 13] = [
    "attr",
    "center",
    "filesizeformat",
    "groupby",
    "pprint",
    "random",
    "striptags",
    "truncate",
    "urlencode",
    "urlize",
    "wordcount",
    "wordwrap",
    "xmlattr",
];

/// Tests of Jinja2 that decide otherwise here.
const TESTS: [&str; 2] = ["escaped", "safe"];

/// What is wrong with the first node that is not known, and its line.
pub fn first(nodes: &[Node<'_>]) -> Option<String> {
    nodes.iter().find_map(|node| match node {
        Node::Stmt(Stmt::AutoEscape(stmt)) => Some(at(stmt.span().start_line, "the statement 'autoescape'")),
        Node::Expr(Expr::Filter(filter)) => FILTERS
            .contains(&filter.name)
            .then(|| at(filter.span().start_line, &format!("the filter '{}'", filter.name))),
        Node::Expr(Expr::Test(test)) => {
            TESTS.contains(&test.name).then(|| at(test.span().start_line, &format!("the test '{}'", test.name)))
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
