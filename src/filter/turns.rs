//! How much work a VM may do before its event loop must run again.
//!
//! Envoy runs everything of a worker in one thread: while the filter works, every stream of the worker stands
//! still. So work is cut into slices, and between two slices the loop has to turn. The quick way to be called
//! again is a message that another VM sends back, but its answer may come within the same turn of the loop, some
//! 12 microseconds later; one that takes [`TURNED`] most likely does not. A tick never does, since timers run once
//! a turn, but it takes 4 to 5 milliseconds. So there are two accounts of what was worked, less the time away:
//!
//! * since the loop *most likely* turned: past two slices a turn is waited for;
//! * since the loop *surely* turned: past eight slices a tick is waited for. It is asked for while there is work,
//!   so it comes in time unless messages keep the loop from turning.
//!
//! Small requests have one slice more of either: so one that comes while a long prompt is tokenized is most often
//! decided in the callback that brings it. And while small ones come, long ones have one slice less.

use crate::clock::{MS, Time};

/// A message that comes this long after the filter was left, in nanoseconds, comes in another turn of the loop.
pub const TURNED: u64 = 50_000;

/// So long after the last small request others are expected, in nanoseconds.
const EXPECTED: u64 = 100 * MS;

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

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Long requests, news, what nobody waits for.
    Long,
    /// Small requests, too.
    Small,
}

/// The books of one VM over its own work.
#[derive(Clone, Debug)]
pub struct Turns {
    slice: u64,
    guard: u64,
    /// Worked since the loop most likely turned, less what was paid back.
    worked: u64,
    /// Since the last tick.
    since_tick: u64,
    /// When the filter was last left.
    left: Time,
    /// Until when small requests are expected.
    expected: Time,
    longest: u64,
}

impl Turns {
    /// Slices of `slice` nanoseconds, at most two of them in one turn of the loop.
    pub fn new(slice: u64) -> Self {
        Turns {
            slice: slice.max(1),
            guard: slice.max(1).saturating_mul(2),
            worked: 0,
            since_tick: 0,
            left: Time(0),
            expected: Time(0),
            longest: 0,
        }
    }

    /// Another length of slices; the books stay.
    pub fn set_slice(&mut self, slice: u64) {
        let new = Turns::new(slice);
        (self.slice, self.guard) = (new.slice, new.guard);
    }

    /// The longest stretch since this was asked last, in nanoseconds.
    pub fn take_longest(&mut self) -> u64 {
        std::mem::take(&mut self.longest)
    }

    /// A tick has come: the loop has turned.
    pub fn ticked(&mut self) {
        (self.worked, self.since_tick) = (0, 0);
    }

    /// A message of another VM has come: if it took its time, the loop has turned.
    pub fn called(&mut self, now: Time) {
        if now.since(self.left) >= TURNED {
            self.worked = 0;
        }
    }

    /// Whether so much is worked that ticks should come often.
    pub fn is_busy(&self) -> bool {
        self.since_tick > self.guard
    }

    /// A small request has come.
    pub fn expect_small(&mut self, now: Time) {
        self.expected = now.after(EXPECTED);
    }

    /// What may be worked at once.
    fn credit(&self, now: Time, small: bool) -> u64 {
        let of = |guard: u64| {
            let less = if now < self.expected { self.slice } else { 0 };
            let more = if small { self.slice } else { 0 };
            guard.saturating_sub(less).saturating_add(more)
        };
        let likely = of(self.guard).saturating_sub(self.worked);
        let surely = of(self.guard.saturating_mul(4)).saturating_sub(self.since_tick);
        let credit = likely.min(surely).min(self.slice);
        // Less than an eighth of a slice is not worth the call.
        if credit > self.slice >> 3 { credit } else { 0 }
    }

    /// Until when the callback that begins now may work; `None`: not at all, the loop must turn first.
    pub fn begin(&mut self, now: Time) -> Option<Time> {
        let away = now.since(self.left);
        self.worked = self.worked.saturating_sub(away);
        self.since_tick = self.since_tick.saturating_sub(away);
        self.left = now;
        let credit = self.credit(now, false);
        (credit > 0).then(|| now.after(credit))
    }

    /// Until when the callback that [began](Turns::begin) now may work on small requests.
    pub fn small(&self, now: Time) -> Time {
        now.after(self.credit(now, true))
    }

    /// The callback that began at `since` ends now. `bounce`: another VM would answer.
    pub fn end(&mut self, since: Time, now: Time, left: Left, bounce: bool) -> Next {
        let took = now.since(since);
        self.worked = self.worked.saturating_add(took);
        self.since_tick = self.since_tick.saturating_add(took);
        self.longest = self.longest.max(took);
        self.left = now;
        let credit = match left {
            Left::Nothing => return Next::Nothing,
            Left::Long => self.credit(now, false),
            Left::Small => self.credit(now, true),
        };
        if bounce && credit > 0 { Next::Bounce } else { Next::Tick }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slices_then_a_tick_even_if_the_bounce_is_fast() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        for expected in [Next::Bounce, Next::Tick] {
            let until = turns.begin(now).unwrap();
            assert_eq!(until.since(now), MS);
            assert_eq!(turns.end(now, until, Left::Long, true), expected);
            now = until.after(0);
        }
        assert_eq!(turns.begin(now), None);
        turns.ticked();
        assert!(turns.begin(now).is_some());
    }

    #[test]
    fn small_requests_have_a_slice_of_their_own() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        for expected in [Next::Bounce, Next::Tick] {
            let until = turns.begin(now).unwrap();
            assert_eq!(turns.small(now), until);
            assert_eq!(turns.end(now, until, Left::Long, true), expected);
            now = until;
        }
        assert_eq!(turns.begin(now), None);
        assert_eq!(turns.small(now), now.after(MS));
        let half = now.after(MS >> 1);
        assert_eq!(turns.end(now, half, Left::Small, true), Next::Bounce);
        now = half;
        assert_eq!((turns.begin(now), turns.small(now)), (None, now.after(MS >> 1)));
        assert_eq!(turns.end(now, now.after(MS >> 1), Left::Small, true), Next::Tick);
        assert_eq!(turns.small(now), now);
    }

    #[test]
    fn while_small_requests_come_long_ones_have_one_slice_a_turn() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        turns.expect_small(now);
        let until = turns.begin(now).unwrap();
        assert_eq!(turns.end(now, until, Left::Long, true), Next::Tick);
        now = until;
        assert_eq!((turns.begin(now), turns.small(now)), (None, now.after(MS)));
        now = now.after(EXPECTED);
        turns.ticked();
        let until = turns.begin(now).unwrap();
        assert_eq!(turns.end(now, until, Left::Long, true), Next::Bounce);
    }

    #[test]
    fn time_away_pays_back() {
        let mut turns = Turns::new(MS);
        let mut now = Time(1_000 * MS);
        for _ in 0..100 {
            let until = turns.begin(now).unwrap();
            assert_eq!(turns.end(now, until, Left::Long, true), Next::Bounce);
            now = until.after(MS);
        }
    }

    #[test]
    fn slow_bounces_go_on_until_a_tick_is_missing() {
        let mut turns = Turns::new(MS);
        let (mut now, mut slices) = (Time(1_000 * MS), 0);
        loop {
            let until = turns.begin(now).unwrap();
            slices += 1;
            if turns.end(now, until, Left::Long, true) == Next::Tick {
                break;
            }
            now = until.after(TURNED);
            turns.called(now);
        }
        assert!((8..=9).contains(&slices), "{slices}");
        now = now.after(2 * TURNED);
        turns.called(now);
        turns.ticked();
        assert!(turns.begin(now).is_some() && !turns.is_busy());
    }

    #[test]
    fn without_a_partner_every_slice_waits_for_a_tick() {
        let mut turns = Turns::new(MS);
        assert_eq!(turns.end(Time(5), Time(6), Left::Long, false), Next::Tick);
        assert_eq!(turns.end(Time(5), Time(6), Left::Nothing, false), Next::Nothing);
    }

    #[test]
    fn no_sum_of_work_between_ticks_exceeds_the_guard_by_more_than_the_time_away() {
        let mut turns = Turns::new(MS);
        let (start, mut now, mut worked) = (Time(1_000 * MS), Time(1_000 * MS), 0);
        for gap in (0..1_000u64).map(|i| (i * 7_919) & 0x1_ffff) {
            now = now.after(gap);
            let Some(until) = turns.begin(now) else { continue };
            worked += until.since(now);
            turns.end(now, until, Left::Long, true);
            now = until;
            let away = now.since(start) - worked;
            assert!(worked <= 2 * MS + away, "{worked} worked, {away} away");
        }
    }
}
