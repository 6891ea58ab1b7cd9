//! Conversation to prompt text, byte for byte what jinja2 in transformers gives.
//!
//! In: a template's source, once; then the variables of each request. Out: text, or an error where Python would
//! raise one, or where the text could not be Python's. Costs about 2 us a message; never prints a part of a
//! text. What most templates do of most requests is rendered by `quick`, the rest by minijinja, from the beginning;
//! `tests/golden` holds one against the other. The environment differs from minijinja's own in how values print ([`python`], `object`), in filters,
//! tests and methods (`environment`, [`text`]), and in what the source is rewritten to (`preprocess`).

pub mod analysis;
mod clock;
mod environment;
mod fuel;
mod object;
mod preprocess;
pub mod python;
mod quick;
mod source;
pub mod text;

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::Environment;
use minijinja::value::{Object, Value};

pub use analysis::ContentFormat;
pub use clock::LocalTime;
pub use quick::Fallback;
pub use source::{ChatTemplates, TemplateSource, own_renderer};

use analysis::Facts;
use quick::Quick;

/// A compiled template.
pub struct Template {
    env: Environment<'static>,
    quick: Quick,
    facts: Facts,
}

const NAME: &str = "chat_template";

impl Template {
    /// Compiles a template. The error names what of it cannot be rendered exactly.
    pub fn compile(source: &str) -> Result<Template, String> {
        let facts = Facts::of(source)?;
        let mut env = environment::environment()?;
        let source = preprocess::preprocess(source, true);
        let functions: Vec<String> = env.globals().map(|(name, _)| name.to_owned()).collect();
        let quick = Quick::compile(&source, &functions);
        env.add_template_owned(NAME, source).map_err(|error| error.to_string())?;
        Ok(Template { env, quick, facts })
    }

    /// What the source says about itself.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Renders with `variables` at the time of `clock`.
    pub fn render(&self, variables: Variables, clock: Clock) -> Result<String, RenderError> {
        match WAY.get() {
            Way::Quick => match self.quick.render(&variables, clock) {
                Ok(text) => Ok(text),
                Err(_) => self.render_in_full(variables, clock),
            },
            Way::Engine => self.render_in_full(variables, clock),
            Way::Both(observer) => {
                let quick = self.render_quickly(&variables, clock);
                let full = self.render_in_full(variables, clock);
                observer(&quick, &full);
                full
            }
        }
    }

    /// What [`Template::render`] tries first, or why it would not do: for tests that compare both ways.
    pub fn render_quickly(&self, variables: &Variables, clock: Clock) -> Result<String, Fallback> {
        self.quick.try_render(variables, clock)
    }

    /// Renders with the template engine.
    pub fn render_in_full(&self, variables: Variables, clock: Clock) -> Result<String, RenderError> {
        fuel::fill(variables.steps);
        let template = self.env.get_template(NAME).map_err(RenderError::of)?;
        let mut text = Text { text: String::with_capacity(variables.text_bytes), most: variables.most_text_bytes() };
        let root = Value::from_object(Root { variables, clock });
        template.render_captured_to(root, &mut text).map_err(|error| match text.is_full() {
            true => RenderError::new(format!("the template prints more than {} bytes", text.most)),
            false => RenderError::of(error),
        })?;
        if fuel::is_exhausted() {
            return Err(RenderError::new("the template reads too many items".to_owned()));
        }
        Ok(text.text)
    }
}

/// What is told of both ways to render.
pub type Observer = fn(&Result<String, Fallback>, &Result<String, RenderError>);

/// How templates are rendered.
#[derive(Clone, Copy, Debug, Default)]
pub enum Way {
    /// Quickly where that will do.
    #[default]
    Quick,
    /// By the template engine alone: for measurements.
    Engine,
    /// In both ways, and the observer is told of both: for tests that compare them.
    Both(Observer),
}

thread_local! {
    static WAY: Cell<Way> = const { Cell::new(Way::Quick) };
}

/// From here on, this thread renders in this way.
pub fn render_by(way: Way) {
    WAY.set(way);
}

/// Why there is no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderError {
    /// What went wrong.
    pub text: String,
    /// Python raises for certain: the template itself does, or prints something as JSON that is none.
    pub raised: bool,
}

impl RenderError {
    fn new(text: String) -> RenderError {
        RenderError { text, raised: false }
    }

    fn of(error: minijinja::Error) -> RenderError {
        RenderError { raised: environment::is_raised(&error), text: error.to_string() }
    }
}

impl From<RenderError> for String {
    fn from(error: RenderError) -> String {
        error.text
    }
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The text under way. It begins with the room that it will probably need, since to grow by doubling would take
/// three times the text, and ends at a bound.
struct Text {
    text: String,
    most: usize,
}

impl Text {
    /// Whether it came to its bound.
    fn is_full(&self) -> bool {
        self.text.len() > self.most
    }
}

impl std::io::Write for Text {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        // The engine hands over whole strings.
        let text = simdutf8::basic::from_utf8(part).map_err(|_| std::io::ErrorKind::InvalidData)?;
        self.text.push_str(text);
        match self.is_full() {
            true => Err(std::io::ErrorKind::OutOfMemory.into()),
            false => Ok(part.len()),
        }
    }

    fn write_all(&mut self, part: &[u8]) -> std::io::Result<()> {
        self.write(part).map(drop)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("facts", &self.facts).finish_non_exhaustive()
    }
}

/// The wall clock, and how far the engine's host is ahead of UTC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Seconds since 1970, UTC.
    pub unix_seconds: u64,
    /// Minutes.
    pub offset_minutes: i32,
}

impl Clock {
    /// The engine host's local time.
    pub fn local(self) -> LocalTime {
        LocalTime::new(self.unix_seconds, self.offset_minutes)
    }
}

/// The variables of one render. A later value of a name replaces an earlier one.
#[derive(Clone, Debug, Default)]
pub struct Variables {
    list: Vec<(Arc<str>, Value)>,
    /// Where each name stands, where there are many: those that requests bring along have no bound.
    index: Option<HashMap<Arc<str>, usize>>,
    steps: usize,
    text_bytes: usize,
}

/// Names up to which a search is faster than an index.
const SEARCHED_NAMES: usize = 32;

impl Variables {
    /// No variables. `items` is how many messages and tools there are: it bounds the steps of the render.
    pub fn new(items: usize) -> Variables {
        Variables { steps: 2_000_000 + items.saturating_mul(64), ..Variables::default() }
    }

    /// Tells how long the text will be at about.
    pub fn expect_text(&mut self, bytes: usize) {
        self.text_bytes = bytes;
    }

    /// A longer text is an error. Templates print what they get once, in a frame of some bytes for each message.
    fn most_text_bytes(&self) -> usize {
        (4 << 20) + self.text_bytes.saturating_mul(4)
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl AsRef<str> + Into<Arc<str>>, value: Value) {
        if let Some((_, old)) = self.place(name.as_ref()).and_then(|at| self.list.get_mut(at)) {
            *old = value;
            return;
        }
        let name = name.into();
        if let Some(index) = &mut self.index {
            index.insert(name.clone(), self.list.len());
        }
        self.list.push((name, value));
        if self.index.is_none() && self.list.len() > SEARCHED_NAMES {
            self.index = Some(self.list.iter().enumerate().map(|(at, (name, _))| (name.clone(), at)).collect());
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(name).copied(),
            // The last ones, `messages` among them, are those that templates ask for most.
            None => self.list.iter().rposition(|(known, _)| **known == *name),
        }
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.list.get(self.place(name)?).map(|(_, value)| value)
    }
}

#[derive(Debug)]
struct Root {
    variables: Variables,
    clock: Clock,
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if key == environment::NOW {
            let seconds = i64::try_from(self.clock.unix_seconds).unwrap_or_default();
            return Some(Value::from(vec![Value::from(seconds), Value::from(self.clock.offset_minutes)]));
        }
        self.variables.get(key).cloned()
    }
}
