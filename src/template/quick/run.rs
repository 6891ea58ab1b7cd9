//! Runs the statements.

use super::Fallback;
use super::program::{End, Expr, For, Place, Program, Slot, Stmt, Target};
use super::value::{Got, Val};
use crate::request::json::{Json, JsonMap};
use crate::template::{Clock, Variables};

/// A render under way.
pub struct Run<'a> {
    pub(super) program: &'a Program,
    /// The request's variables that the program reads; `None`: of a kind that is not known here.
    globals: Vec<Option<Val<'a>>>,
    /// The slots of the frame outside of macros, then those of the macros under way.
    pub(super) slots: Vec<Val<'a>>,
    /// Where the slots of the frame under way begin.
    pub(super) base: usize,
    /// The loops under way, the innermost last.
    pub(super) loops: Vec<Loop<'a>>,
    /// Namespaces: attribute and value.
    pub(super) spaces: Vec<Vec<(usize, Val<'a>)>>,
    /// The text so far.
    pub(super) out: String,
    /// How long it may become.
    most: usize,
    /// Steps that are left.
    steps: usize,
    /// Macros under way.
    pub(super) depth: usize,
    pub(super) clock: Clock,
}

/// A loop under way.
pub(super) struct Loop<'a> {
    pub(super) items: Val<'a>,
    pub(super) at: usize,
    pub(super) len: usize,
}

/// How a list of statements ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Continue,
    Break,
}

/// Macros that may be within each other: they take the stack.
const MAX_DEPTH: usize = 16;
/// Namespaces, which nobody takes away.
const MAX_SPACES: usize = 100_000;
/// Bytes for which a step is taken, as the engine has it.
const STEP_BYTES: usize = 64;

/// Renders a program.
pub fn render(program: &Program, variables: &Variables, clock: Clock) -> Got<String> {
    if program.functions.iter().any(|name| variables.get(name).is_some()) {
        return Err(Fallback("a variable in the place of a function"));
    }
    let global = |global: &super::program::Global| match variables.get(&global.name) {
        Some(value) => Val::of_variable(value),
        None if global.is_function => Some(Val::Function),
        None => Some(Val::Undefined),
    };
    let mut run = Run {
        program,
        globals: program.globals.iter().map(global).collect(),
        slots: vec![Val::Unset; program.slots],
        base: 0,
        loops: Vec::new(),
        spaces: Vec::new(),
        out: String::with_capacity(variables.text_bytes),
        most: variables.most_text_bytes(),
        steps: variables.steps,
        depth: 0,
        clock,
    };
    run.body(&program.body)?;
    run.within_bounds()?;
    Ok(run.out)
}

impl<'a> Run<'a> {
    /// Takes steps.
    pub(super) fn spend(&mut self, steps: usize) -> Got<()> {
        self.steps = self.steps.checked_sub(steps).ok_or(Fallback("too many steps"))?;
        Ok(())
    }

    /// Takes steps for bytes that are looked at or written.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Got<()> {
        self.spend(bytes.checked_div(STEP_BYTES).unwrap_or(0))
    }

    fn within_bounds(&self) -> Got<()> {
        if self.out.len() > self.most { Err(Fallback("a long text")) } else { Ok(()) }
    }

    fn body(&mut self, body: &'a [Stmt]) -> Got<Flow> {
        for stmt in body {
            match self.stmt(stmt)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn stmt(&mut self, stmt: &'a Stmt) -> Got<Flow> {
        self.spend(1)?;
        match stmt {
            Stmt::Text(text) => {
                self.out.push_str(text);
                self.spend_bytes(text.len())?;
                self.within_bounds()?;
            }
            Stmt::Emit(expr) => self.emit(expr)?,
            Stmt::If(parts) => {
                let (condition, then, otherwise) = &**parts;
                let body = if self.truth(condition)? { then } else { otherwise };
                return self.body(body);
            }
            Stmt::Set(slot, expr) => {
                let value = self.eval(expr)?;
                self.set(*slot, value);
            }
            Stmt::For(each) => self.each(each)?,
            Stmt::SetAttribute(space, name, expr) => {
                let value = self.eval(expr)?;
                let Val::Space(space) = self.eval(space)? else { return Err(Fallback("an attribute of no namespace")) };
                let space = self.spaces.get_mut(space).ok_or(Fallback("a namespace that is gone"))?;
                match space.iter_mut().find(|(known, _)| known == name) {
                    Some((_, old)) => *old = value,
                    None => space.push((*name, value)),
                }
            }
            Stmt::Capture(slot, body) => {
                let text = self.capture(|run| run.body(body).map(drop))?;
                self.set(*slot, Val::Made(text.into()));
            }
            Stmt::With(fresh, body) => {
                self.clear(fresh);
                self.body(body)?;
            }
            Stmt::Declare(slot) => self.set(*slot, Val::Function),
            Stmt::Continue => return Ok(Flow::Continue),
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Unknown(what) => return Err(Fallback(what)),
        }
        Ok(Flow::Next)
    }

    /// Prints a value.
    fn emit(&mut self, expr: &'a Expr) -> Got<()> {
        let before = self.out.len();
        let mut out = std::mem::take(&mut self.out);
        let done = self.print(expr, &mut out);
        self.out = out;
        done?;
        self.spend_bytes(self.out.len().saturating_sub(before))?;
        self.within_bounds()
    }

    /// What `work` prints, instead of printing it.
    pub(super) fn capture(&mut self, work: impl FnOnce(&mut Self) -> Got<()>) -> Got<String> {
        let out = std::mem::take(&mut self.out);
        let done = work(self);
        let text = std::mem::replace(&mut self.out, out);
        done?;
        self.spend_bytes(text.len())?;
        Ok(text)
    }

    fn set(&mut self, slot: usize, value: Val<'a>) {
        if let Some(place) = self.slots.get_mut(self.base + slot) {
            *place = value;
        }
    }

    fn clear(&mut self, slots: &std::ops::Range<usize>) {
        let base = self.base;
        for slot in self.slots.get_mut(base + slots.start..base + slots.end).unwrap_or_default() {
            *slot = Val::Unset;
        }
    }

    fn assign(&mut self, target: &'a Target, items: &Val<'a>, at: usize) -> Got<()> {
        match (target, items) {
            (Target::One(_), Val::Items(..)) => return Err(Fallback("a pair in one variable")),
            (Target::One(slot), _) => self.set(*slot, items.at(at)),
            (Target::Pair(key, value), Val::Items(map, _)) => {
                let (name, item) = entry(map, at)?;
                self.set(*key, name);
                self.set(*value, item);
            }
            (Target::Pair(..), _) => return Err(Fallback("an item that is taken apart")),
        }
        Ok(())
    }

    fn each(&mut self, each: &'a For) -> Got<()> {
        let mut items = self.eval(&each.iterated)?;
        let mut len = match &items {
            Val::Undefined => 0,
            Val::Seq(_) | Val::Part(..) | Val::List(_) | Val::Map(_) => items.len()?,
            Val::Items(map, _) => map.len(),
            _ => return Err(Fallback("a loop over a value that is not plain")),
        };
        if let Some((target, condition)) = &each.filter {
            self.spend(len)?;
            let mut kept = Vec::new();
            for at in 0..len {
                self.clear(&each.fresh);
                self.assign(target, &items, at)?;
                if self.truth(condition)? {
                    // A pair in one variable has failed already, one in two would be lost.
                    if matches!(items, Val::Items(..)) {
                        return Err(Fallback("a condition on pairs"));
                    }
                    kept.push(items.at(at));
                }
            }
            len = kept.len();
            items = Val::list(kept);
        }
        if len == 0 {
            return match self.body(&each.otherwise)? {
                Flow::Next => Ok(()),
                _ => Err(Fallback("a loop that ends in its else")),
            };
        }
        self.loops.push(Loop { items: items.clone(), at: 0, len });
        for at in 0..len {
            self.spend(1)?;
            if let Some(each) = self.loops.last_mut() {
                each.at = at;
            }
            self.clear(&each.fresh);
            self.assign(&each.target, &items, at)?;
            if self.body(&each.body)? == Flow::Break {
                break;
            }
        }
        self.loops.pop();
        Ok(())
    }

    /// The value of a variable.
    pub(super) fn variable(&self, place: &'a Place) -> Got<Val<'a>> {
        for Slot { root, at } in &place.slots {
            let base = if *root { 0 } else { self.base };
            match self.slots.get(base + at) {
                Some(Val::Unset) | None => {}
                Some(value) => return Ok(value.clone()),
            }
        }
        match place.end {
            End::Global(at) => match self.globals.get(at) {
                Some(Some(value)) => Ok(value.clone()),
                _ => Err(Fallback("a variable of a kind that is not plain")),
            },
            End::Unknown => Err(Fallback("a variable that a macro sets, or not")),
        }
    }

    /// Calls a macro and returns what it prints.
    pub(super) fn call_macro(&mut self, at: usize, args: &'a [Option<Expr>]) -> Got<Val<'a>> {
        let program = self.program;
        let this = program.macros.get(at).ok_or(Fallback("a macro that is gone"))?;
        if !matches!(self.slots.get(this.declared), Some(Val::Function)) {
            return Err(Fallback("a macro that is not declared yet"));
        }
        if self.depth >= MAX_DEPTH {
            return Err(Fallback("macros within macros"));
        }
        let mut values = Vec::with_capacity(this.parameters.len());
        for (arg, (_, slot, default)) in args.iter().zip(&this.parameters) {
            let mut value = match arg {
                Some(arg) => self.eval(arg)?,
                None => Val::Undefined,
            };
            if let (Val::Undefined, Some(default)) = (&value, default) {
                value = self.eval(default)?;
            }
            values.push((*slot, value));
        }
        let (base, top) = (self.base, self.slots.len());
        self.slots.resize(top + this.slots, Val::Unset);
        self.base = top;
        self.depth += 1;
        let loops = std::mem::take(&mut self.loops);
        for (slot, value) in values {
            self.set(slot, value);
        }
        let text = self.capture(|run| run.body(&this.body).map(drop))?;
        self.loops = loops;
        self.depth -= 1;
        self.base = base;
        self.slots.truncate(top);
        Ok(Val::Made(text.into()))
    }

    /// Makes a namespace.
    pub(super) fn space(&mut self, values: Vec<(usize, Val<'a>)>) -> Got<Val<'a>> {
        if self.spaces.len() >= MAX_SPACES {
            return Err(Fallback("many namespaces"));
        }
        self.spaces.push(values);
        Ok(Val::Space(self.spaces.len() - 1))
    }
}

fn entry(map: &JsonMap, at: usize) -> Got<(Val<'_>, Val<'_>)> {
    let (key, item): (_, &Json) = map.entry(at).ok_or(Fallback("an entry that is gone"))?;
    Ok((Val::Str(key.as_str()), Val::of(item)))
}
