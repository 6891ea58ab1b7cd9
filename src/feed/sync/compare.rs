//! Digests of the bridge against what is believed, drawer by drawer.

use std::collections::VecDeque;
use std::rc::Rc;

use super::{Asking, Sync, Target, next_record};
use crate::clock::{Budget, Time};
use crate::feed::digest::{DRAWERS, Digests, bounds, drawer};
use crate::feed::record::Record;

/// Blocks in an answer that cost no more than asking once more.
const WORTH_A_PULL: usize = 2048;

/// Digests on their way through the drawers.
#[derive(Debug)]
pub(super) struct Comparing {
    digests: Digests,
    /// Batches that the digests do not include, while they were not looked through.
    later: VecDeque<Rc<[u8]>>,
    /// Drawers that they touched.
    touched: Vec<bool>,
    begun: bool,
    /// So many drawers that agree may lie between two that don't, and all be pulled at once.
    between: usize,
    /// Drawers compared.
    done: usize,
    /// What differs, as ranges.
    differ: Vec<(u64, u64)>,
}

impl Comparing {
    /// Of these digests; `later` are the batches that they do not include.
    pub fn new(digests: Digests, later: VecDeque<Rc<[u8]>>) -> Self {
        let touched = vec![false; DRAWERS];
        Comparing { digests, later, touched, begun: false, between: 0, done: 0, differ: Vec::new() }
    }
}

impl Sync {
    /// Compares as long as `budget` allows. True: done.
    pub(super) fn compare(
        &mut self,
        c: &mut Comparing,
        target: &mut dyn Target,
        now: Time,
        budget: Budget<'_>,
    ) -> bool {
        while let Some(frame) = c.later.pop_front() {
            touch(&frame, &mut c.touched);
            if !budget() {
                return false;
            }
        }
        if !std::mem::replace(&mut c.begun, true) {
            self.replicas(c.digests.seq, &c.digests.replicas, target, now);
            let blocks = target.digest_begin();
            c.between = (WORTH_A_PULL * DRAWERS).checked_div(blocks).unwrap_or(DRAWERS);
        }
        let first = drawer(c.digests.from);
        while let Some(digest) = c.digests.drawers.get(c.done) {
            let at = first + c.done;
            let touched = c.touched.get(at).copied().unwrap_or(false);
            // While all is believed to be in step, a drawer that is in motion can wait for the next turn.
            if (!touched && target.digest(at) != *digest) || (touched && !self.synced) {
                let (from, through) = bounds(at);
                self.counts.differed += 1;
                match c.differ.last_mut() {
                    Some(last) if at <= drawer(last.1) + 1 + c.between => last.1 = through,
                    _ => c.differ.push((from, through)),
                }
            }
            c.done += 1;
            if c.done & 7 == 0 && !budget() {
                return false;
            }
        }
        if matches!(self.pull, Asking::Applying { valid: true }) {
            self.compared = first + c.done;
            self.wanted.extend(c.differ.drain(..));
        }
        self.answered(now);
        true
    }
}

/// Marks the drawers of which a batch speaks.
fn touch(frame: &[u8], touched: &mut [bool]) {
    let mut at = 0;
    while let Ok(Some(record)) = next_record(frame, &mut at) {
        if let Record::Stored { hashes, .. } | Record::Removed { hashes, .. } = record {
            for hash in hashes {
                if let Some(place) = touched.get_mut(drawer(hash.0)) {
                    *place = true;
                }
            }
        }
    }
}
