//! How far long runs go, from one look at a word to the next.
//!
//! A run of any length (ten megabytes of spaces) is one word, whose end no window shows until the window has grown
//! to it. Each time it has grown, the scanner begins at the start of the word again; what it saw of a run then is
//! kept here, so that all looks together pass over each byte once and every single one is short.

use std::cell::Cell;

/// Shorter runs are seen again.
const LONG: usize = 4096;

/// A run: which kind of search, where it began, where it is now and what it found.
#[derive(Clone, Copy, Default)]
struct Seen {
    tag: u32,
    from: usize,
    at: usize,
    found: usize,
}

/// See the module. One word tries a few patterns, each of which may go over a long run.
#[derive(Default)]
pub struct Memo {
    seen: Cell<[Seen; 4]>,
    used: Cell<usize>,
}

impl Memo {
    /// Goes on with the run of kind `tag` that begins at `from`: `scan` gets the place to begin at and what was found
    /// before it (0: nothing), and gives the same.
    #[inline(always)]
    pub fn go_on(&self, from: usize, tag: u32, scan: impl FnOnce(usize, usize) -> (usize, usize)) -> (usize, usize) {
        if self.used.get() > 0 {
            let (at, found) = self.known(from, tag);
            let seen = scan(at, found);
            self.keep(from, tag, seen);
            return seen;
        }
        let seen = scan(from, 0);
        if seen.0.wrapping_sub(from) >= LONG {
            self.keep(from, tag, seen);
        }
        seen
    }

    #[inline(never)]
    fn known(&self, from: usize, tag: u32) -> (usize, usize) {
        let seen = self.seen.get();
        let mut known = seen.iter().take(self.used.get()).filter(|seen| seen.from == from && seen.tag == tag);
        known.next().map_or((from, 0), |seen| (seen.at, seen.found))
    }

    #[inline(never)]
    fn keep(&self, from: usize, tag: u32, (at, found): (usize, usize)) {
        if at.wrapping_sub(from) < LONG {
            return;
        }
        let mut seen = self.seen.get();
        let used = self.used.get();
        let place = seen.iter().take(used).position(|seen| seen.from == from && seen.tag == tag).unwrap_or(used);
        if let Some(slot) = seen.get_mut(place) {
            *slot = Seen { tag, from, at, found };
            self.used.set(used.max(place + 1));
            self.seen.set(seen);
        }
    }

    /// A word was taken, or positions mean something else.
    #[inline(always)]
    pub fn clear(&self) {
        if self.used.get() > 0 {
            self.used.set(0);
        }
    }
}
