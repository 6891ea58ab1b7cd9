//! Finds `+` on a value that came from the filter `safe` or `escape`.
//!
//! Such a value is a Markup in Python even with autoescape off, and `Markup + str` escapes the string's HTML.
//! The template engine's `+` cannot be told to, so such a template is refused rather than rendered wrongly.

use minijinja::machinery::ast::{BinOpKind, Expr, Stmt};

use super::walk::Node;

/// The line of the first such concatenation.
pub fn concatenation(nodes: &[Node<'_>]) -> Option<u32> {
    let mut marked: Vec<&str> = Vec::new();
    loop {
        let before = marked.len();
        for node in nodes {
            if let Node::Stmt(Stmt::Set(set)) = node
                && is_markup(&set.expr, &marked)
                && let Some(name) = name(&set.target)
                && !marked.contains(&name)
            {
                marked.push(name);
            }
        }
        if marked.len() == before {
            break;
        }
    }
    nodes.iter().find_map(|node| match node {
        Node::Expr(expr @ Expr::BinOp(op))
            if matches!(op.op, BinOpKind::Add) && (is_markup(&op.left, &marked) || is_markup(&op.right, &marked)) =>
        {
            Some(u32::from(expr.span().start_line))
        }
        _ => None,
    })
}

/// A variable's or an attribute's name; attributes are told apart by their name alone.
fn name<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        Expr::GetAttr(attr) => Some(attr.name),
        _ => None,
    }
}

fn is_markup(expr: &Expr<'_>, marked: &[&str]) -> bool {
    match expr {
        Expr::Filter(filter) => match filter.name {
            "safe" | "escape" | "e" | "forceescape" => true,
            // These give plain strings, or no strings.
            "replace" | "join" | "tojson" | "length" | "count" | "int" | "float" | "format" => false,
            _ => filter.expr.as_ref().is_some_and(|inner| is_markup(inner, marked)),
        },
        Expr::Var(_) | Expr::GetAttr(_) => name(expr).is_some_and(|name| marked.contains(&name)),
        Expr::IfExpr(this) => {
            is_markup(&this.true_expr, marked) || this.false_expr.as_ref().is_some_and(|other| is_markup(other, marked))
        }
        Expr::BinOp(op) if matches!(op.op, BinOpKind::Add | BinOpKind::ScOr | BinOpKind::ScAnd | BinOpKind::Mul) => {
            is_markup(&op.left, marked) || is_markup(&op.right, marked)
        }
        Expr::Slice(this) => is_markup(&this.expr, marked),
        Expr::GetItem(this) => is_markup(&this.expr, marked),
        Expr::Call(call) => match &call.expr {
            Expr::GetAttr(method) => is_markup(&method.expr, marked),
            _ => false,
        },
        _ => false,
    }
}
