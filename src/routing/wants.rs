//! What it would have saved to hold a prefix on one more replica.
//!
//! The cost of one request never pays for a copy of a long prefix that hundreds ask for: each of them finds it cheaper
//! to stand behind the others than to compute it anew, and a replica that came late stays idle. So a replica that
//! would have been the better place but for the prefix it lacks remembers by how much; once that adds up to what a
//! copy costs, the copy is made (the rule by which pages are replicated on line: pay as much again, not more).

use super::cost::{Candidate, missed};
use super::policy::Policy;
use crate::blocks::BlockHash;
use crate::clock::{SECOND, Time};

/// Prefixes that one replica remembers.
const PLACES: usize = 8;
/// In which half of what a prefix was wanted for is forgotten, in nanoseconds.
const HALF_LIFE: u64 = 60 * SECOND;
/// The gain of requests that come together counts as that of one: what they queue behind is soon over.
const APART: f64 = SECOND as f64;

#[derive(Clone, Copy, Debug)]
struct Want {
    /// The first block that is not held there.
    from: BlockHash,
    tokens: f64,
    at: Time,
}

/// The prefixes that one replica lacks and others were asked for.
#[derive(Clone, Debug, Default)]
pub struct Wants(Vec<Want>);

impl Wants {
    /// Tokens that requests would have saved if the chain were held there from this block on.
    pub fn tokens(&self, from: BlockHash, now: Time) -> f64 {
        self.0.iter().find(|want| want.from == from).map_or(0.0, |want| faded(want, now))
    }

    /// What a choice teaches of a block, by [`taught`].
    pub fn learn(&mut self, from: BlockHash, lesson: Lesson, now: Time) {
        match lesson {
            Lesson::Met => self.met(from),
            Lesson::Missed(gain) => self.add(from, gain, now),
        }
    }

    /// A request would have saved `gain` tokens.
    fn add(&mut self, from: BlockHash, gain: f64, now: Time) {
        if let Some(want) = self.0.iter_mut().find(|want| want.from == from) {
            let share = (now.since(want.at) as f64 / APART).min(1.0);
            want.tokens = faded(want, now) + gain * share;
            want.at = now;
            return;
        }
        let new = Want { from, tokens: 0.0, at: now };
        if self.0.len() < PLACES {
            self.0.push(new);
        } else if let Some(oldest) = self.0.iter_mut().min_by_key(|want| want.at) {
            *oldest = new;
        }
    }

    /// A request that asked for this block on went there: it will hold it.
    fn met(&mut self, from: BlockHash) {
        self.0.retain(|want| want.from != from);
    }
}

/// What a choice says of what a replica lacks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lesson {
    /// The request went there: it will hold it.
    Met,
    /// The request would have saved so many tokens if it held it.
    Missed(f64),
}

/// A request goes to `best`: which candidates learn what of which block. `lacks` is the first block of the prompt that
/// one does not hold.
pub fn taught(
    policy: &Policy,
    candidates: &[Candidate],
    best: usize,
    lacks: impl Fn(usize) -> Option<BlockHash>,
) -> impl Iterator<Item = (usize, BlockHash, Lesson)> {
    let missed = missed(policy, candidates, best).map(|(at, gain)| (at, Lesson::Missed(gain)));
    let lessons = [Some((best, Lesson::Met)), missed].into_iter().flatten();
    lessons.filter_map(move |(at, lesson)| Some((at, lacks(at)?, lesson)))
}

fn faded(want: &Want, now: Time) -> f64 {
    let lives = now.since(want.at) as f64 / HALF_LIFE as f64;
    want.tokens * 0.5f64.powf(lives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_adds_up_and_fades() {
        let (mut wants, block, other) = (Wants::default(), BlockHash(1), BlockHash(2));
        wants.add(block, 100.0, Time(0));
        assert_eq!(wants.tokens(block, Time(0)), 0.0, "one request says nothing of the next");
        wants.add(block, 100.0, Time(SECOND));
        assert_eq!(wants.tokens(block, Time(SECOND)), 100.0);
        assert_eq!(wants.tokens(block, Time(61 * SECOND)), 50.0);
        assert_eq!(wants.tokens(other, Time(SECOND)), 0.0);
        wants.met(block);
        assert_eq!(wants.tokens(block, Time(SECOND)), 0.0);
    }

    #[test]
    fn those_that_come_together_count_once_and_the_memory_is_bounded() {
        let mut wants = Wants::default();
        for _ in 0..100 {
            wants.add(BlockHash(1), 100.0, Time(SECOND));
        }
        assert_eq!(wants.tokens(BlockHash(1), Time(SECOND)), 0.0);
        for n in 0..100 {
            wants.add(BlockHash(n), 1.0, Time(n * SECOND));
        }
        assert_eq!(wants.0.len(), PLACES);
    }
}
