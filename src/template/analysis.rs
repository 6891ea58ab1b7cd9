//! What a template's syntax tree says: the content format that the engine detects, whether it prints the time,
//! and whether it needs something that cannot be rendered exactly.

mod markup;
mod unknown;
pub(in crate::template) mod walk;

use minijinja::machinery::ast::{CallArg, Expr, Stmt};
use minijinja::machinery::parse;

use minijinja::Value;

use super::{environment, fuel, preprocess};
use crate::request::json::{Json, Text};
use walk::Node;

/// In which shape the engine hands a message's content to the template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// One string.
    String,
    /// A list of parts.
    OpenAi,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The format that the engine detects.
    pub content_format: ContentFormat,
    /// The format that vLLM below 0.30 detects, which does not look at the parameters of macros.
    pub format_without_macros: ContentFormat,
    /// Whether it holds `'developer'` or `"developer"`: vLLM's sign that it knows the role.
    pub knows_developer: bool,
    /// Whether it fails on a system message between the turns, as vLLM tries it.
    pub refuses_inline_system: bool,
    /// The formats in which it prints the local time.
    pub time_formats: Vec<String>,
}

impl Facts {
    /// Looks at a template's source.
    pub fn of(source: &str) -> Result<Facts, String> {
        let source = preprocess::preprocess(source, false);
        let tree = parse(&source, "chat_template", environment::syntax()?).map_err(|error| error.to_string())?;
        let nodes = walk::nodes(&tree);
        if let Some(line) = markup::concatenation(&nodes) {
            return Err(format!(
                "line {line}: '+' with a value of the filter 'safe' or 'escape' (Python escapes HTML there)"
            ));
        }
        if let Some(error) = unknown::first(&nodes) {
            return Err(error);
        }
        Ok(Facts {
            content_format: detect_format(&nodes, true).unwrap_or(ContentFormat::String),
            format_without_macros: detect_format(&nodes, false).unwrap_or(ContentFormat::String),
            knows_developer: source.contains("\"developer\"") || source.contains("'developer'"),
            refuses_inline_system: refuses_inline_system(&source),
            time_formats: time_formats(&nodes),
        })
    }

    /// What an operator should know of a template that prints the time.
    pub fn time_warning(&self) -> Option<String> {
        let formats = &self.time_formats;
        let seconds = ["%S", "%T", "%M", "%X", "%c", "%s", "%f"];
        let worst = formats.iter().find(|format| seconds.iter().any(|directive| format.contains(directive)));
        if let Some(format) = worst {
            return Some(format!(
                "the template prints the time ({format}): prompts of different minutes share nothing"
            ));
        }
        let format = formats.first()?;
        Some(format!("the template prints the date ({format}): all keys change at the engine's midnight"))
    }
}

impl ContentFormat {
    /// The format that SGLang detects (parser/jinja_template_utils.py): by a word, or by a loop over the content of what
    /// is called a message.
    pub fn of_sglang(source: &str) -> ContentFormat {
        if ["image", "audio", "video", "vision"].iter().any(|word| source.contains(word)) {
            return ContentFormat::OpenAi;
        }
        let source = preprocess::preprocess(source, false);
        let Some(tree) = environment::syntax().ok().and_then(|syntax| parse(&source, "chat_template", syntax).ok())
        else {
            return ContentFormat::String;
        };
        let over_content = |node: &Node<'_>| match node {
            Node::Stmt(Stmt::ForLoop(each)) => {
                ["message", "msg", "m"].iter().any(|name| is_access(&each.iter, name, Some("content")))
            }
            _ => false,
        };
        match walk::nodes(&tree).iter().any(over_content) {
            true => ContentFormat::OpenAi,
            false => ContentFormat::String,
        }
    }
}

/// vLLM's probe for /v1/messages renders [system, user, system, user] in a bare environment: one without
/// transformers' functions, its generation block and any other variable.
fn refuses_inline_system(source: &str) -> bool {
    let Ok(mut env) = environment::environment() else { return true };
    env.remove_global("raise_exception");
    env.remove_global("strftime_now");
    if source.contains(preprocess::GENERATION) {
        return true;
    }
    let message =
        |role: &str| Json::map(vec![(Text::from("role"), Json::str(role)), (Text::from("content"), Json::str("t"))]);
    let messages = Json::seq(["system", "user", "system", "user"].into_iter().map(message).collect());
    fuel::fill(1_000_000);
    let variables = [("messages", messages.to_value()), ("add_generation_prompt", Value::from(false))];
    env.render_str(source, Value::from_pairs(variables)).is_err()
}

fn time_formats(nodes: &[Node<'_>]) -> Vec<String> {
    let mut out = Vec::new();
    for node in nodes {
        let Node::Expr(Expr::Call(call)) = node else { continue };
        if is_name(&call.expr, "strftime_now") {
            let format = match call.args.first() {
                Some(CallArg::Pos(Expr::Const(format))) => format.value.as_str().unwrap_or("?").to_owned(),
                _ => "?".to_owned(),
            };
            out.push(format);
        }
    }
    out
}

fn is_name(expr: &Expr<'_>, name: &str) -> bool {
    matches!(expr, Expr::Var(var) if var.id == name)
}

/// `name`, or `name.key` when there is a key; through filters, tests and slices.
fn is_access(expr: &Expr<'_>, name: &str, key: Option<&str>) -> bool {
    match expr {
        Expr::Filter(filter) => filter.expr.as_ref().is_some_and(|inner| is_access(inner, name, key)),
        Expr::Test(test) => is_access(&test.expr, name, key),
        Expr::Slice(slice) => is_access(&slice.expr, name, key),
        Expr::GetAttr(attr) => key == Some(attr.name) && is_name(&attr.expr, name),
        Expr::GetItem(item) => {
            let index = match &item.subscript_expr {
                Expr::Const(index) => index.value.as_str(),
                _ => None,
            };
            key.is_some() && index == key && is_name(&item.expr, name)
        }
        Expr::Var(var) => key.is_none() && var.id == name,
        _ => false,
    }
}

/// A plain variable's name; `None` is where vLLM's search gives up.
fn target<'a>(expr: &Expr<'a>) -> Option<&'a str> {
    match expr {
        Expr::Var(var) => Some(var.id),
        _ => None,
    }
}

/// vLLM's search for a loop over a message's content (renderers/hf.py); `None` where it gives up.
fn detect_format(nodes: &[Node<'_>], through_macros: bool) -> Option<ContentFormat> {
    let mut lists = vec!["messages"];
    let mut at = 0;
    while let Some(list) = lists.get(at).copied() {
        at += 1;
        for node in nodes {
            let Node::Stmt(Stmt::Set(set)) = node else { continue };
            if is_access(&set.expr, list, None) {
                let name = target(&set.target)?;
                if !lists.contains(&name) {
                    lists.push(name);
                }
            }
        }
    }
    let mut messages = Vec::new();
    for node in nodes {
        let Node::Stmt(Stmt::ForLoop(each)) = node else { continue };
        if lists.iter().any(|list| is_access(&each.iter, list, None)) {
            messages.push(target(&each.target)?);
        }
    }
    let is_content = |expr: &Expr<'_>| messages.iter().any(|message| is_access(expr, message, Some("content")));

    let mut in_macros: Vec<(*const (), Vec<&str>)> = Vec::new();
    for node in nodes.iter().filter(|_| through_macros) {
        let Node::Stmt(Stmt::Macro(this)) = node else { continue };
        let params: Vec<&str> = this.args.iter().filter_map(target).collect();
        let mut given = Vec::new();
        for node in nodes {
            let Node::Expr(Expr::Call(call)) = node else { continue };
            if !is_name(&call.expr, this.name) {
                continue;
            }
            for (at, arg) in call.args.iter().enumerate() {
                match arg {
                    CallArg::Pos(expr) if is_content(expr) => given.extend(params.get(at)),
                    CallArg::Kwarg(name, expr) if is_content(expr) => {
                        given.extend(params.iter().find(|param| *param == name));
                    }
                    _ => {}
                }
            }
        }
        for node in walk::nodes_of(&this.body) {
            if let Node::Stmt(Stmt::ForLoop(each)) = node {
                in_macros.push((address(&**each), given.clone()));
            }
        }
    }
    for node in nodes {
        let Node::Stmt(Stmt::ForLoop(each)) = node else { continue };
        let inside = in_macros.iter().rev().find(|(known, _)| *known == address(&**each));
        let over_content = match (&each.iter, inside) {
            (expr, _) if is_content(expr) => true,
            (Expr::Var(var), Some((_, given))) => given.contains(&var.id),
            (Expr::Var(var), None) => var.id == "content",
            _ => false,
        };
        if over_content {
            target(&each.target)?;
            return Some(ContentFormat::OpenAi);
        }
    }
    Some(ContentFormat::String)
}

fn address<T>(node: &T) -> *const () {
    std::ptr::from_ref(node).cast()
}
