//! All nodes of a syntax tree, in the order of the source.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

/// A statement or an expression.
#[derive(Clone, Copy)]
pub enum Node<'a> {
    /// A statement.
    Stmt(&'a Stmt<'a>),
    /// An expression.
    Expr(&'a Expr<'a>),
}

/// Every node below and including `root`.
pub fn nodes<'a>(root: &'a Stmt<'a>) -> Vec<Node<'a>> {
    let mut out = Vec::new();
    stmt(root, &mut out);
    out
}

/// Every node of a list of statements.
pub fn nodes_of<'a>(body: &'a [Stmt<'a>]) -> Vec<Node<'a>> {
    let mut out = Vec::new();
    body.iter().for_each(|child| stmt(child, &mut out));
    out
}

fn stmt<'a>(node: &'a Stmt<'a>, out: &mut Vec<Node<'a>>) {
    out.push(Node::Stmt(node));
    let body = |list: &'a [Stmt<'a>], out: &mut Vec<Node<'a>>| list.iter().for_each(|child| stmt(child, out));
    match node {
        Stmt::Template(this) => body(&this.children, out),
        Stmt::EmitExpr(this) => expr(&this.expr, out),
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        Stmt::ForLoop(this) => {
            expr(&this.target, out);
            expr(&this.iter, out);
            this.filter_expr.iter().for_each(|inner| expr(inner, out));
            body(&this.body, out);
            body(&this.else_body, out);
        }
        Stmt::IfCond(this) => {
            expr(&this.expr, out);
            body(&this.true_body, out);
            body(&this.false_body, out);
        }
        Stmt::WithBlock(this) => {
            for (target, value) in &this.assignments {
                expr(target, out);
                expr(value, out);
            }
            body(&this.body, out);
        }
        Stmt::Set(this) => {
            expr(&this.target, out);
            expr(&this.expr, out);
        }
        Stmt::SetBlock(this) => {
            expr(&this.target, out);
            this.filter.iter().for_each(|inner| expr(inner, out));
            body(&this.body, out);
        }
        Stmt::AutoEscape(this) => {
            expr(&this.enabled, out);
            body(&this.body, out);
        }
        Stmt::FilterBlock(this) => {
            expr(&this.filter, out);
            body(&this.body, out);
        }
        Stmt::Macro(this) => {
            this.defaults.iter().for_each(|inner| expr(inner, out));
            body(&this.body, out);
        }
        Stmt::CallBlock(this) => {
            expr(&this.call.expr, out);
            args(&this.call.args, out);
            body(&this.macro_decl.body, out);
        }
        Stmt::Do(this) => {
            expr(&this.call.expr, out);
            args(&this.call.args, out);
        }
    }
}

fn args<'a>(list: &'a [CallArg<'a>], out: &mut Vec<Node<'a>>) {
    for arg in list {
        match arg {
            CallArg::Pos(inner) | CallArg::Kwarg(_, inner) | CallArg::PosSplat(inner) | CallArg::KwargSplat(inner) => {
                expr(inner, out);
            }
        }
    }
}

fn expr<'a>(node: &'a Expr<'a>, out: &mut Vec<Node<'a>>) {
    out.push(Node::Expr(node));
    match node {
        Expr::Var(_) | Expr::Const(_) => {}
        Expr::Slice(this) => {
            expr(&this.expr, out);
            [&this.start, &this.stop, &this.step].into_iter().flatten().for_each(|inner| expr(inner, out));
        }
        Expr::UnaryOp(this) => expr(&this.expr, out),
        Expr::BinOp(this) => {
            expr(&this.left, out);
            expr(&this.right, out);
        }
        Expr::Compare(this) => {
            expr(&this.expr, out);
            this.ops.iter().for_each(|op| expr(&op.expr, out));
        }
        Expr::IfExpr(this) => {
            expr(&this.test_expr, out);
            expr(&this.true_expr, out);
            this.false_expr.iter().for_each(|inner| expr(inner, out));
        }
        Expr::Filter(this) => {
            this.expr.iter().for_each(|inner| expr(inner, out));
            args(&this.args, out);
        }
        Expr::Test(this) => {
            expr(&this.expr, out);
            args(&this.args, out);
        }
        Expr::GetAttr(this) => expr(&this.expr, out),
        Expr::GetItem(this) => {
            expr(&this.expr, out);
            expr(&this.subscript_expr, out);
        }
        Expr::Call(this) => {
            expr(&this.expr, out);
            args(&this.args, out);
        }
        Expr::List(this) => this.items.iter().for_each(|inner| expr(inner, out)),
        Expr::Tuple(this) => this.items.iter().for_each(|inner| expr(inner, out)),
        Expr::Map(this) => {
            this.keys.iter().for_each(|inner| expr(inner, out));
            this.values.iter().for_each(|inner| expr(inner, out));
        }
    }
}
