//! What the logic of the filter needs of Envoy, so that it runs without one in tests.

use super::metrics::{Counter, Gauge, Timing};
use crate::clock::Time;
use crate::feed::slots::Shared;

/// How loud a line of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For whoever looks at single requests.
    Debug,
    /// Changes of state.
    Info,
    /// Something is wrong and routing suffers.
    Warn,
}

/// Envoy as one VM sees it. Calls that fail are left without effect; nothing here panics.
pub trait Host: Shared {
    /// The monotonic clock, the same for all VMs of an Envoy.
    fn now(&self) -> Time;
    /// Seconds since 1970.
    fn unix_seconds(&self) -> u64;
    /// Makes the next calls speak of this stream. False: it is gone.
    fn enter(&self, stream: u32) -> bool;
    /// Makes the next calls speak of the root context again.
    fn leave(&self);
    /// A header of the request of the current stream.
    fn request_header(&self, name: &str) -> Option<String>;
    /// Sets a header of the request of the current stream.
    fn set_request_header(&self, name: &str, value: &str) -> bool;
    /// Sets `wasm.NAME` in the filter state of the current stream: access logs and spans can show it.
    fn set_state(&self, name: &str, value: &str);
    /// Lets the paused request of the current stream go on.
    fn resume(&self) -> bool;
    /// Sends a GET, or with a body a POST; its answer comes by itself. False: it was not sent.
    fn ask(&self, cluster: &str, path: &str, secret: &str, body: &[u8], timeout_ms: u64) -> bool;
    /// Adds to a counter. Envoy shows it after the next [`Host::refresh`].
    fn count(&self, counter: Counter, by: u64);
    /// What this VM has counted since its start.
    fn counted(&self, counter: Counter) -> u64;
    /// With every tick: hands over what was counted, and asks how loud the log is to be.
    fn refresh(&self);
    /// Sets a gauge of a slot.
    fn gauge(&self, gauge: Gauge, slot: u32, value: u64);
    /// Adds a sample to a histogram.
    fn time(&self, timing: Timing, us: u64);
    /// Bytes that this VM has allocated and not given back.
    fn memory_used(&self) -> usize;
    /// Whether a line of this level would be written, as far as is known since the last tick.
    fn logs(&self, level: Level) -> bool;
    /// Writes a line to the log.
    fn log(&self, level: Level, line: &str);
}
