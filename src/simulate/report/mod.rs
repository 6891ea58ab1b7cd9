//! Outcomes for people: a page with plots. The table of the terminal is the command line's.

mod page;
mod plot;

pub use page::page;
