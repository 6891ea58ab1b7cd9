//! How much work a VM may do before its event loop must run again.
//!
//! Envoy runs everything of a worker in one thread: while the filter works, every stream of the worker stands
//! still. So work is cut into slices, and between two slices the loop has to turn. The quick way to be called
//! again is a message that another VM sends back, but its answer may come within the same turn of the loop; a
//! tick cannot, since timers run once a turn. So slices follow each other by message until `guard` nanoseconds
//! were worked, then a tick has to come. Time spent away from the filter pays back what was worked.

use crate::clock::Time;

/// What calls the next slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing is left to do.
    Nothing,
    /// A message that another VM sends back.
    Bounce,
    /// The next tick, as soon as it can be had.
    Tick,
}

/// The books of one VM over its own work.
#[derive(Clone, Debug)]
pub struct Turns {
    slice: u64,
    guard: u64,
    /// Worked since the loop is known to have turned, less what was paid back.
    worked: u64,
    /// When the filter was last left.
    left: Time,
}

impl Turns {
    /// Slices of `slice` nanoseconds, at most two of them without a tick.
    pub fn new(slice: u64) -> Self {
        Turns { slice: slice.max(1), guard: slice.max(1).saturating_mul(2), worked: 0, left: Time(0) }
    }

    /// A tick has come: the loop has turned.
    pub fn ticked(&mut self) {
        self.worked = 0;
    }

    /// Until when the callback that begins now may work; `None`: not at all, the loop must turn first.
    pub fn begin(&mut self, now: Time) -> Option<Time> {
        self.worked = self.worked.saturating_sub(now.since(self.left));
        self.left = now;
        let credit = self.guard.saturating_sub(self.worked).min(self.slice);
        // Less than an eighth of a slice is not worth the call.
        (credit > self.slice >> 3).then(|| now.after(credit))
    }

    /// The callback that began at `since` ends now. `more`: work is left; `bounce`: another VM would answer.
    pub fn end(&mut self, since: Time, now: Time, more: bool, bounce: bool) -> Next {
        self.worked = self.worked.saturating_add(now.since(since));
        self.left = now;
        match (more, bounce && self.worked < self.guard) {
            (false, _) => Next::Nothing,
            (true, true) => Next::Bounce,
            (true, false) => Next::Tick,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::MS;

    #[test]
    fn two_slices_then_a_tick_even_if_the_bounce_is_fast() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        for expected in [Next::Bounce, Next::Tick] {
            let until = turns.begin(now).unwrap();
            assert_eq!(until.since(now), MS);
            assert_eq!(turns.end(now, until, true, true), expected);
            now = until.after(0);
        }
        assert_eq!(turns.begin(now), None);
        turns.ticked();
        assert!(turns.begin(now).is_some());
    }

    #[test]
    fn time_away_pays_back() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        for _ in 0..100 {
            let until = turns.begin(now).unwrap();
            assert_eq!(turns.end(now, until, true, true), Next::Bounce);
            now = until.after(MS);
        }
    }

    #[test]
    fn without_a_partner_every_slice_waits_for_a_tick() {
        let mut turns = Turns::new(MS);
        assert_eq!(turns.end(Time(5), Time(6), true, false), Next::Tick);
        assert_eq!(turns.end(Time(5), Time(6), false, false), Next::Nothing);
    }

    #[test]
    fn no_sum_of_work_between_ticks_exceeds_the_guard_by_more_than_the_time_away() {
        let mut turns = Turns::new(MS);
        let (start, mut now, mut worked) = (Time(1_000 * MS), Time(1_000 * MS), 0);
        for gap in (0..1_000u64).map(|i| (i * 7_919) & 0x1_ffff) {
            now = now.after(gap);
            let Some(until) = turns.begin(now) else { continue };
            worked += until.since(now);
            turns.end(now, until, true, true);
            now = until;
            let away = now.since(start) - worked;
            assert!(worked <= 2 * MS + away, "{worked} worked, {away} away");
        }
    }
}
