//! Compiles a template's syntax tree.
//!
//! What is not known becomes a node that falls back when a render comes to it, so that the rest of the template is
//! quick all the same. Only what would make the places of variables uncertain refuses the whole template.

mod expr;

use std::collections::{HashMap, HashSet};

use minijinja::machinery::ast::{self, CallType};
use minijinja::machinery::parse;

use super::program::{End, Expr, For, Global, Macro, Place, Program, Slot, Stmt, Target};
use crate::template::analysis::walk::{self, Node};
use crate::template::environment;
use expr::constant_expr;

/// Why a template is left to the engine.
type Refused<T> = Result<T, &'static str>;

/// How deeply statements and expressions may nest: they are run by recursion.
const MAX_DEPTH: usize = 80;

/// Compiles a source that is preprocessed for rendering. `functions`: what the engine knows by name.
pub fn compile(source: &str, functions: &[String]) -> Refused<Program> {
    let syntax = environment::syntax().map_err(|_| "no syntax")?;
    let tree = parse(source, "chat_template", syntax).map_err(|_| "it does not parse")?;
    let ast::Stmt::Template(template) = &tree else { return Err("no template") };
    let mut stored: HashMap<&str, usize> = HashMap::new();
    for name in stored_in(&walk::nodes(&tree)) {
        *stored.entry(name).or_default() += 1;
    }
    if stored.contains_key("loop") {
        return Err("a variable that is called loop");
    }
    let mut compiler = Compiler {
        program: Program::default(),
        functions,
        stored,
        macros: HashMap::new(),
        places: HashMap::new(),
        attributes: HashMap::new(),
        frames: Vec::new(),
        next_slot: 0,
        in_macro: None,
        loops: 0,
        can_break: false,
        depth: 0,
    };
    compiler.open(&template.children, &[]);
    compiler.find_macros(&template.children);
    let body = compiler.body(&template.children)?;
    compiler.program.slots = compiler.next_slot;
    compiler.program.body = body;
    Ok(compiler.program)
}

struct Compiler<'s> {
    program: Program,
    functions: &'s [String],
    /// How often each name is set, anywhere.
    stored: HashMap<&'s str, usize>,
    macros: HashMap<&'s str, (usize, Vec<&'s str>)>,
    /// Of the request's variables.
    places: HashMap<&'s str, usize>,
    /// Of namespaces.
    attributes: HashMap<&'s str, usize>,
    frames: Vec<Frame<'s>>,
    next_slot: usize,
    /// The names that the macro under way sets anywhere.
    in_macro: Option<HashSet<&'s str>>,
    /// Loops around the place under way, within its macro.
    loops: usize,
    /// Whether only conditions stand between here and the loop.
    can_break: bool,
    depth: usize,
}

struct Frame<'s> {
    names: Vec<(&'s str, usize)>,
    root: bool,
}

/// The names that statements set in the frame that they stand in.
fn set_here<'s>(body: &'s [ast::Stmt<'s>], out: &mut Vec<&'s str>) {
    for stmt in body {
        match stmt {
            ast::Stmt::Set(set) => targets(&set.target, out),
            ast::Stmt::SetBlock(set) => {
                targets(&set.target, out);
                set_here(&set.body, out);
            }
            ast::Stmt::IfCond(branch) => {
                set_here(&branch.true_body, out);
                set_here(&branch.false_body, out);
            }
            ast::Stmt::ForLoop(each) => set_here(&each.else_body, out),
            ast::Stmt::FilterBlock(block) => set_here(&block.body, out),
            ast::Stmt::Macro(this) => out.push(this.name),
            _ => {}
        }
    }
}

/// The names that any of the nodes sets.
fn stored_in<'s>(nodes: &[Node<'s>]) -> Vec<&'s str> {
    let mut out = Vec::new();
    for node in nodes {
        match node {
            Node::Stmt(ast::Stmt::Set(set)) => targets(&set.target, &mut out),
            Node::Stmt(ast::Stmt::SetBlock(set)) => targets(&set.target, &mut out),
            Node::Stmt(ast::Stmt::ForLoop(each)) => targets(&each.target, &mut out),
            Node::Stmt(ast::Stmt::WithBlock(with)) => {
                with.assignments.iter().for_each(|(target, _)| targets(target, &mut out));
            }
            Node::Stmt(ast::Stmt::Macro(this)) => {
                out.push(this.name);
                this.args.iter().for_each(|arg| targets(arg, &mut out));
            }
            _ => {}
        }
    }
    out
}

fn targets<'s>(target: &'s ast::Expr<'s>, out: &mut Vec<&'s str>) {
    match target {
        ast::Expr::Var(var) => out.push(var.id),
        ast::Expr::List(list) => list.items.iter().for_each(|item| targets(item, out)),
        ast::Expr::Tuple(list) => list.items.iter().for_each(|item| targets(item, out)),
        _ => {}
    }
}

impl<'s> Compiler<'s> {
    /// Opens the frame of some statements and returns its slots.
    fn open(&mut self, body: &'s [ast::Stmt<'s>], more: &[&'s str]) -> std::ops::Range<usize> {
        let mut names = more.to_vec();
        set_here(body, &mut names);
        names.sort_unstable();
        names.dedup();
        let start = self.next_slot;
        let names: Vec<(&str, usize)> = names.into_iter().zip(start..).collect();
        self.next_slot += names.len();
        let root = self.frames.is_empty();
        self.frames.push(Frame { names, root });
        start..self.next_slot
    }

    fn close(&mut self) {
        self.frames.pop();
    }

    /// The slot of a name that the frame under way sets.
    fn slot(&self, name: &str) -> Refused<usize> {
        let frame = self.frames.last().ok_or("no frame")?;
        let known = frame.names.iter().find(|(known, _)| *known == name);
        known.map(|(_, slot)| *slot).ok_or("a variable without a place")
    }

    /// Macros can call those that come later.
    fn find_macros(&mut self, body: &'s [ast::Stmt<'s>]) {
        for stmt in body {
            match stmt {
                ast::Stmt::Macro(this) => {
                    let mut names = Vec::new();
                    this.args.iter().for_each(|arg| targets(arg, &mut names));
                    self.macros.insert(this.name, (self.program.macros.len(), names));
                    self.program.macros.push(Macro::default());
                }
                ast::Stmt::IfCond(branch) => {
                    self.find_macros(&branch.true_body);
                    self.find_macros(&branch.false_body);
                }
                _ => {}
            }
        }
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Refused<T>) -> Refused<T> {
        if self.depth >= MAX_DEPTH {
            return Err("nested too deeply");
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn body(&mut self, body: &'s [ast::Stmt<'s>]) -> Refused<Vec<Stmt>> {
        self.deeper(|this| body.iter().map(|stmt| this.stmt(stmt)).collect())
    }

    fn stmt(&mut self, stmt: &'s ast::Stmt<'s>) -> Refused<Stmt> {
        Ok(match stmt {
            ast::Stmt::EmitRaw(raw) => Stmt::Text(raw.raw.into()),
            ast::Stmt::EmitExpr(emit) => match &emit.expr {
                ast::Expr::Call(call) if matches!(call.identify_call(), CallType::Function("loop")) => {
                    return Err("a recursive loop");
                }
                expr => Stmt::Emit(self.expr(expr)?),
            },
            ast::Stmt::IfCond(branch) => Stmt::If(Box::new((
                self.expr(&branch.expr)?,
                self.body(&branch.true_body)?,
                self.body(&branch.false_body)?,
            ))),
            ast::Stmt::Set(set) => {
                let value = self.expr(&set.expr)?;
                match &set.target {
                    ast::Expr::Var(var) => Stmt::Set(self.slot(var.id)?, value),
                    ast::Expr::GetAttr(attr) => {
                        let name = self.attribute(attr.name);
                        Stmt::SetAttribute(self.expr(&attr.expr)?, name, value)
                    }
                    _ => Stmt::Unknown("a value that is taken apart"),
                }
            }
            ast::Stmt::SetBlock(set) => {
                let ast::Expr::Var(var) = &set.target else { return Ok(Stmt::Unknown("a block in no variable")) };
                if set.filter.is_some() {
                    return Ok(Stmt::Unknown("a block with a filter"));
                }
                let slot = self.slot(var.id)?;
                Stmt::Capture(slot, self.unbroken(&set.body)?)
            }
            ast::Stmt::WithBlock(with) => {
                let mut names = Vec::new();
                with.assignments.iter().for_each(|(target, _)| targets(target, &mut names));
                let fresh = self.open(&with.body, &names);
                let mut body = Vec::new();
                for (target, value) in &with.assignments {
                    let value = self.expr(value)?;
                    body.push(match target {
                        ast::Expr::Var(var) => Stmt::Set(self.slot(var.id)?, value),
                        _ => Stmt::Unknown("a value that is taken apart"),
                    });
                }
                body.extend(self.unbroken(&with.body)?);
                self.close();
                Stmt::With(fresh, body)
            }
            ast::Stmt::ForLoop(each) => self.each(each)?,
            ast::Stmt::Macro(this) => self.declare(this)?,
            ast::Stmt::Continue(_) if self.can_break => Stmt::Continue,
            ast::Stmt::Break(_) if self.can_break => Stmt::Break,
            ast::Stmt::CallBlock(_) => return Err("a call block"),
            _ => Stmt::Unknown("a statement that is not known here"),
        })
    }

    /// Statements that a loop cannot be left from.
    fn unbroken(&mut self, body: &'s [ast::Stmt<'s>]) -> Refused<Vec<Stmt>> {
        let before = std::mem::replace(&mut self.can_break, false);
        let body = self.body(body);
        self.can_break = before;
        body
    }

    fn target(&self, target: &'s ast::Expr<'s>) -> Refused<Target> {
        let slot = |expr: &ast::Expr<'s>| match expr {
            ast::Expr::Var(var) => self.slot(var.id),
            _ => Err("a target that is no variable"),
        };
        let items = match target {
            ast::Expr::List(list) => &list.items,
            ast::Expr::Tuple(list) => &list.items,
            one => return slot(one).map(Target::One),
        };
        match items.as_slice() {
            [key, value] => Ok(Target::Pair(slot(key)?, slot(value)?)),
            _ => Err("a target of more than two variables"),
        }
    }

    fn each(&mut self, each: &'s ast::ForLoop<'s>) -> Refused<Stmt> {
        if each.recursive {
            return Err("a recursive loop");
        }
        let iterated = self.expr(&each.iter)?;
        let mut names = Vec::new();
        targets(&each.target, &mut names);
        // The condition sees the loop around this one, as it does in the engine.
        let mut fresh = self.next_slot..self.next_slot;
        let filter = match &each.filter_expr {
            Some(condition) => {
                fresh = self.open(&[], &names);
                let filter = (self.target(&each.target)?, self.expr(condition)?);
                self.close();
                Some(filter)
            }
            None => None,
        };
        let slots = self.open(&each.body, &names);
        fresh.end = slots.end;
        let target = self.target(&each.target)?;
        self.loops += 1;
        let before = std::mem::replace(&mut self.can_break, true);
        let body = self.body(&each.body);
        self.can_break = before;
        self.loops -= 1;
        self.close();
        let body = body?;
        let otherwise = self.body(&each.else_body)?;
        // Inner loops have slots of their own, which they clear themselves.
        Ok(Stmt::For(Box::new(For { iterated, target, filter, body, otherwise, fresh })))
    }

    fn declare(&mut self, this: &'s ast::Macro<'s>) -> Refused<Stmt> {
        let declared = self.slot(this.name)?;
        if self.frames.len() != 1 || self.in_macro.is_some() {
            return Err("a macro that is not declared outside");
        }
        let (at, names) = self.macros.get(this.name).cloned().ok_or("a macro without a place")?;
        if names.len() != this.args.len() {
            return Err("a macro with other parameters");
        }
        let mut inside: HashSet<&str> = stored_in(&walk::nodes_of(&this.body)).into_iter().collect();
        inside.extend(&names);
        self.in_macro = Some(inside);
        let (next_slot, loops) = (std::mem::replace(&mut self.next_slot, 0), std::mem::replace(&mut self.loops, 0));
        let before = std::mem::replace(&mut self.can_break, false);
        self.open(&this.body, &names);
        let defaults = this.args.len().saturating_sub(this.defaults.len());
        let mut parameters = Vec::new();
        for (place, name) in names.iter().enumerate() {
            let default = place.checked_sub(defaults).and_then(|place| this.defaults.get(place));
            let default = match default {
                None => None,
                Some(ast::Expr::Const(constant)) => Some(constant_expr(&constant.value)),
                Some(_) => Some(Expr::Unknown("a default that is no constant")),
            };
            parameters.push(((*name).into(), self.slot(name)?, default));
        }
        let body = self.body(&this.body)?;
        self.close();
        let slots = std::mem::replace(&mut self.next_slot, next_slot);
        self.loops = loops;
        self.can_break = before;
        self.in_macro = None;
        if let Some(place) = self.program.macros.get_mut(at) {
            *place = Macro { parameters, body, slots, declared };
        }
        Ok(Stmt::Declare(declared))
    }

    fn attribute(&mut self, name: &'s str) -> usize {
        let next = self.attributes.len();
        let attributes = &mut self.program.attributes;
        *self.attributes.entry(name).or_insert_with(|| {
            attributes.push(name.into());
            next
        })
    }

    fn variable(&mut self, name: &'s str) -> Expr {
        if name == "loop" {
            return Expr::Unknown("the loop as a value");
        }
        let mut slots = Vec::new();
        for frame in self.frames.iter().rev() {
            let known = frame.names.iter().find(|(known, _)| *known == name);
            // The engine does not always see what stands outside then.
            let inside = self.in_macro.as_ref().is_some_and(|inside| inside.contains(name));
            if frame.root && inside && known.is_some() {
                return Expr::Var(Place { slots, end: End::Unknown });
            }
            slots.extend(known.map(|(_, at)| Slot { root: frame.root, at: *at }));
        }
        let next = self.places.len();
        let (globals, functions) = (&mut self.program.globals, self.functions);
        let at = *self.places.entry(name).or_insert_with(|| {
            let is_function = functions.iter().any(|function| function == name);
            globals.push(Global { name: name.into(), is_function });
            next
        });
        Expr::Var(Place { slots, end: End::Global(at) })
    }
}
