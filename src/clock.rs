//! Time as the state machines see it: given to them, never asked for.

/// A moment on the host's monotonic clock, in nanoseconds. All VMs of one Envoy read the same clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Time(pub u64);

/// One millisecond in the unit of [`Time`].
pub const MS: u64 = 1_000_000;

/// One second in the unit of [`Time`].
pub const SECOND: u64 = 1_000 * MS;

impl Time {
    /// The nanoseconds from `earlier` to here; 0 when `earlier` is later.
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `nanoseconds` later.
    pub fn after(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_add(nanoseconds))
    }
}

/// Says before each small piece of work whether there is time left for it.
///
/// Everything that may take long takes one: the host decides how long a slice is.
pub type Budget<'a> = &'a mut dyn FnMut() -> bool;
