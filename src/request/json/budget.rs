//! What the values of one request may take.
//!
//! The text of its strings takes no more than the body does. What comes on top, for each value, can be fifty times
//! the body (`[[0],[0],…`); so each value is counted, those that are made of the body's on the way to the template
//! too, and a request whose values take more than five times its body and 4 MiB gets no key. No request that people
//! send comes near it: the densest are arrays of token ids, with three to five times their length, and a megabyte of
//! messages of some ten bytes each.

use std::cell::Cell;
use std::mem::size_of;

use super::{Json, JsonMap, JsonSeq, Text};
use crate::nokey::{NoKey, NoKeyReason};

/// Values may take this many times the length of their text,
const TIMES: usize = 5;
/// and this much on top: below it nobody needs to count.
const FREE: usize = 4 << 20;

/// What the allocator and shared ownership add to a block.
const BLOCK: usize = 32;
/// An object without its entries.
pub const MAP: usize = size_of::<JsonMap>() + 2 * BLOCK;
/// An entry of an object.
pub const ENTRY: usize = size_of::<(Text, Json)>();
/// An array without its items.
pub const SEQ: usize = size_of::<JsonSeq>() + 2 * BLOCK;
/// An item of an array.
pub const ITEM: usize = size_of::<Json>();
/// A string or number that does not fit into a value.
pub const STRING: usize = BLOCK;
/// A list that grows by doubling takes up to this many times its items while it moves.
pub const GROWING: usize = 3;

/// Bytes that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget(usize);

impl Budget {
    /// That of a text of this many bytes.
    pub fn of(bytes: usize) -> Budget {
        Budget(bytes.saturating_mul(TIMES).saturating_add(FREE))
    }

    /// Takes some; false when there is not so much.
    pub fn take(&mut self, bytes: usize) -> bool {
        let left = self.0.checked_sub(bytes);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// How many more items an array may have.
    pub fn items_left(&self) -> usize {
        self.0.checked_div(ITEM).unwrap_or(0)
    }
}

thread_local! {
    /// Of the request under way: JSON within its strings counts with its body.
    static CURRENT: Cell<Budget> = const { Cell::new(Budget(FREE)) };
    static BODY: Cell<usize> = const { Cell::new(0) };
}

/// From here on, [`super::parse_part`] takes from `budget`, what a body of so many bytes has left.
pub fn begin(budget: Budget, body_bytes: usize) {
    CURRENT.set(budget);
    BODY.set(body_bytes);
}

/// Bytes of the body of the request under way.
pub fn body_bytes() -> usize {
    BODY.get()
}

/// Counts what was made of values of the request under way.
pub fn note(bytes: usize) {
    with_current(|budget| _ = budget.take(bytes));
}

/// An error when the request under way took more than it may.
pub fn check() -> Result<(), NoKeyReason> {
    match CURRENT.get() {
        Budget(0) => Err(NoKeyReason::new(NoKey::BodyTooLarge, "too many small values for its length")),
        _ => Ok(()),
    }
}

/// Does something with the budget of the request under way.
pub fn with_current<T>(work: impl FnOnce(&mut Budget) -> T) -> T {
    let mut budget = CURRENT.get();
    let result = work(&mut budget);
    CURRENT.set(budget);
    result
}
