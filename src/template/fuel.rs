//! A bound on the steps that one render may take over the values of the request.
//!
//! The engine's own fuel counts instructions and bytes, but not the items that a template skips when it indexes
//! a slice of a list, which makes `messages[1:][i]` in a loop quadratic. Each item read costs one step here.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

thread_local! {
    static STEPS: Cell<usize> = const { Cell::new(0) };
}

/// Fills the tank for one render.
pub fn fill(steps: usize) {
    STEPS.set(steps);
}

/// Takes `steps`; an error when there are not so many left.
pub fn spend(steps: usize) -> Result<(), Error> {
    match STEPS.get().checked_sub(steps) {
        Some(left) => {
            STEPS.set(left);
            Ok(())
        }
        None => {
            exhaust();
            Err(Error::new(ErrorKind::OutOfFuel, "the template reads too many items"))
        }
    }
}

/// Empties the tank: the render cannot be trusted and must fail.
pub fn exhaust() {
    STEPS.set(0);
}

/// Whether the tank ran out.
pub fn is_exhausted() -> bool {
    STEPS.get() == 0
}
