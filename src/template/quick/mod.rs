//! The quick way to render what templates do most.
//!
//! In: the same source and the same variables as the template engine gets. Out: the same text, or [`Fallback`], after
//! which the engine renders from the beginning. A template is compiled once into a [`program::Program`] in which
//! variables have their slots; it then reads the request's values in place, without values of the engine's, and prints
//! into one string.
//!
//! What it does is a part of what the engine does, and never anything else: whatever is not known here, is an error, or
//! would need a rule that is not plain, falls back. So does a render that takes more steps, prints more or nests
//! deeper than its bounds allow, which are no wider than the engine's.

mod compile;
mod eval;
mod program;
mod run;
mod strings;
mod value;

use std::sync::atomic::{AtomicU32, Ordering};

use super::{Clock, Variables};
use program::Program;

/// A template that can be rendered quickly, if it can.
#[derive(Debug)]
pub struct Quick {
    program: Result<Program, &'static str>,
    /// How many tries it may fail before it is left alone: where one fails, all of its time is lost.
    credit: AtomicU32,
}

/// Why the engine has to render it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback(pub &'static str);

/// Tries that may fail in a row.
const CREDIT: u32 = 8;
/// Of the requests after that, one of so many is tried.
const RETRY: u32 = 64;

impl Quick {
    /// Compiles a source that is preprocessed for rendering.
    pub fn compile(source: &str, functions: &[String]) -> Quick {
        Quick { program: compile::compile(source, functions), credit: AtomicU32::new(CREDIT) }
    }

    /// Renders, unless it failed too often.
    pub fn render(&self, variables: &Variables, clock: Clock) -> Result<String, Fallback> {
        let program = self.program.as_ref().map_err(|reason| Fallback(reason))?;
        let credit = self.credit.load(Ordering::Relaxed);
        // Beyond the credit, the same number counts up to the next try.
        if credit > CREDIT {
            let next = if credit >= CREDIT + RETRY { 1 } else { credit + 1 };
            self.credit.store(next, Ordering::Relaxed);
            return Err(Fallback("failed too often"));
        }
        let result = run::render(program, variables, clock);
        let credit = match &result {
            Ok(_) => CREDIT,
            Err(_) if credit <= 1 => CREDIT + 1,
            Err(_) => credit - 1,
        };
        self.credit.store(credit, Ordering::Relaxed);
        result
    }

    /// Renders in any case.
    pub fn try_render(&self, variables: &Variables, clock: Clock) -> Result<String, Fallback> {
        run::render(self.program.as_ref().map_err(|reason| Fallback(reason))?, variables, clock)
    }
}
