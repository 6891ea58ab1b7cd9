//! A template as the quick path runs it: names resolved to slots, everything else where it is needed.

use crate::template::python::JsonStyle;

/// A compiled template.
#[derive(Debug, Default)]
pub struct Program {
    /// The statements.
    pub body: Vec<Stmt>,
    /// Slots of the variables that the statements outside of macros set.
    pub slots: usize,
    /// Names that are looked up in the request, and whether a function stands behind them.
    pub globals: Vec<Global>,
    /// Macros.
    pub macros: Vec<Macro>,
    /// Functions that are called by name. A variable of the request would take their place.
    pub functions: Vec<Box<str>>,
    /// Names of attributes of namespaces.
    pub attributes: Vec<Box<str>>,
}

/// A variable that the request may have.
#[derive(Debug)]
pub struct Global {
    /// Its name.
    pub name: Box<str>,
    /// Whether there is a function of this name otherwise.
    pub is_function: bool,
}

/// A macro.
#[derive(Debug, Default)]
pub struct Macro {
    /// Parameters: name, slot, and the value when it is not given.
    pub parameters: Vec<(Box<str>, usize, Option<Expr>)>,
    /// The statements.
    pub body: Vec<Stmt>,
    /// Slots of the variables that it sets, its parameters among them.
    pub slots: usize,
    /// The slot that says that it was declared.
    pub declared: usize,
}

/// A statement.
#[derive(Debug)]
pub enum Stmt {
    /// Prints a text.
    Text(Box<str>),
    /// Prints a value.
    Emit(Expr),
    /// A loop.
    For(Box<For>),
    /// A condition.
    If(Box<(Expr, Vec<Stmt>, Vec<Stmt>)>),
    /// Sets a variable of the frame under way.
    Set(usize, Expr),
    /// Sets an attribute of a namespace.
    SetAttribute(Expr, usize, Expr),
    /// Sets a variable to what its body prints.
    Capture(usize, Vec<Stmt>),
    /// Statements with variables of their own, which begin empty.
    With(std::ops::Range<usize>, Vec<Stmt>),
    /// From here on the macro can be called.
    Declare(usize),
    /// The next item, please.
    Continue,
    /// Ends the loop.
    Break,
    /// Not known here.
    Unknown(&'static str),
}

/// A loop.
#[derive(Debug)]
pub struct For {
    /// What it goes over.
    pub iterated: Expr,
    /// Where the item goes, or its parts.
    pub target: Target,
    /// A condition on the items, evaluated with the item in a slot of its own.
    pub filter: Option<(Target, Expr)>,
    /// The statements.
    pub body: Vec<Stmt>,
    /// The statements when there was no item.
    pub otherwise: Vec<Stmt>,
    /// The slots that each item begins with empty.
    pub fresh: std::ops::Range<usize>,
}

/// Where an item goes.
#[derive(Debug)]
pub enum Target {
    /// Into a slot.
    One(usize),
    /// A pair, into two.
    Pair(usize, usize),
}

/// A variable: the first of these places that holds a value.
#[derive(Debug)]
pub struct Place {
    /// Slots, from the innermost frame on.
    pub slots: Vec<Slot>,
    /// Then.
    pub end: End,
}

/// A slot of the frame under way, or of the one outside of all macros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Outside of all macros.
    pub root: bool,
    /// Which.
    pub at: usize,
}

/// What stands behind the slots.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// A variable of the request, by its place in the list of them.
    Global(usize),
    /// Nobody knows.
    Unknown,
}

/// An expression.
#[derive(Debug)]
pub enum Expr {
    /// A text.
    Str(Box<str>),
    /// An integer.
    Int(i64),
    /// `true`, `false`
    Bool(bool),
    /// `none`
    None,
    /// What `a if b` is when `b` is false.
    Undefined,
    /// A variable.
    Var(Place),
    /// Of the loop under way.
    Loop(LoopField),
    /// `a.b`, and which attribute of a namespace it would be.
    Attribute(Box<Expr>, Box<str>, usize),
    /// `a[b]`
    Item(Box<(Expr, Expr)>),
    /// `a[b:c:d]`
    Slice(Box<(Expr, [Option<Expr>; 3])>),
    /// `not a`
    Not(Box<Expr>),
    /// `-a`
    Negative(Box<Expr>),
    /// `a and b`
    And(Box<(Expr, Expr)>),
    /// `a or b`
    Or(Box<(Expr, Expr)>),
    /// Arithmetic, and sums of texts.
    Math(Math, Box<(Expr, Expr)>),
    /// A comparison.
    Compare(Comparison, Box<(Expr, Expr)>),
    /// `b if a else c`
    If(Box<(Expr, Expr, Expr)>),
    /// A list.
    List(Vec<Expr>),
    /// A filter.
    Filter(Filter, Box<Expr>),
    /// A test.
    Test(Test, Box<Expr>),
    /// A method.
    Method(Box<Expr>, Box<str>, Vec<Expr>),
    /// A macro, and its arguments in the order of its parameters.
    Macro(usize, Vec<Option<Expr>>),
    /// `namespace(a=b)`
    Namespace(Vec<(usize, Expr)>),
    /// `range(a, b, c)`
    Range(Vec<Expr>),
    /// `strftime_now(a)`
    Time(Box<Expr>),
    /// Not known here.
    Unknown(&'static str),
}

/// What is asked of a loop.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum LoopField {
    Index,
    Index0,
    Length,
    RevIndex,
    RevIndex0,
    First,
    Last,
    Previous,
    Next,
}

/// Arithmetic.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Math {
    Add,
    Sub,
    Mul,
    FloorDiv,
    Rem,
    Concat,
}

/// Comparisons.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// Filters, with their arguments.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Filter {
    Json(JsonStyle),
    Trim,
    Length,
    /// What a loop goes over.
    Iterated,
    /// A string, or an error.
    Text,
    /// `string`, and `safe`, which is the same where nothing is escaped.
    String,
    /// The other value, and whether it replaces what is false, too.
    Default(Box<Expr>, bool),
    Items,
    List,
    First,
    Last,
    Upper,
    Lower,
    Join(Box<Expr>),
    Replace(Box<(Expr, Expr)>),
    /// The objects of a list whose field passes a test, or those whose does not.
    Select(Box<(Box<str>, Wanted)>, bool),
    Map(Mapping),
}

/// What a field of objects is asked.
#[derive(Debug)]
pub enum Wanted {
    /// Whether it is equal to this.
    Equal(Expr),
    /// Whether it is there, or is not.
    Defined(bool),
}

/// What becomes of each item.
#[derive(Debug)]
pub enum Mapping {
    /// A field of it.
    Field(Box<str>),
    /// What a filter makes of it.
    Filter(Box<Filter>),
}

/// Tests.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Test {
    Defined,
    Undefined,
    None,
    String,
    Mapping,
    Sequence,
    Iterable,
    Boolean,
    Number,
    Integer,
    Float,
    True,
    False,
}
