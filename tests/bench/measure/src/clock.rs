//! Time, and what was measured of it.

use std::collections::BTreeMap;

/// Nanoseconds on some clock.
pub type Clock<'a> = &'a dyn Fn() -> u64;

/// Names and microseconds (or what the name says).
pub type Rows = BTreeMap<String, f64>;

/// The quickest of some runs, in microseconds: what it takes where nothing else wants the core.
pub fn best(clock: Clock<'_>, runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs).map(|_| timed(clock, &mut work)).fold(f64::INFINITY, f64::min)
}

/// One run in microseconds.
pub fn timed(clock: Clock<'_>, mut work: impl FnMut()) -> f64 {
    let begun = clock();
    work();
    (clock() - begun) as f64 / 1e3
}

/// CPU time of this process in nanoseconds: that of all threads of a rival that has some, and of nobody else.
#[cfg(not(target_family = "wasm"))]
pub fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to what it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
