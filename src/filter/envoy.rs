//! The real host.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use hashbrown::HashMap;
use proxy_wasm::types::{LogLevel, MapType, MetricType};

use super::host::{Host, Level};
use super::metrics::{Counter, Gauge, Timing};
use super::{memory, sys};
use crate::clock::{SECOND, Time};
use crate::feed::slots::{QueueId, Set, Shared};
use crate::look::SECRET_HEADER;

/// Envoy, as the callbacks of one root context and its streams see it.
#[derive(Clone, Copy, Debug)]
pub struct Envoy {
    /// Number of the root context.
    pub root: u32,
}

/// A counter: Envoy's number of it, what it is not told of yet, and all that was counted.
#[derive(Default)]
struct Count {
    metric: Option<Option<u32>>,
    more: u64,
    all: u64,
}

thread_local! {
    static COUNTERS: RefCell<HashMap<Counter, Count>> = RefCell::default();
    /// The counters without a label are there.
    static SHOWN: Cell<bool> = const { Cell::new(false) };
    static LOG_LEVEL: Cell<u32> = const { Cell::new(LogLevel::Info as u32) };
    static TIMINGS: RefCell<HashMap<Timing, Option<u32>>> = RefCell::default();
    static GAUGES: RefCell<HashMap<(Gauge, u32), Option<u32>>> = RefCell::default();
}

fn level(level: Level) -> LogLevel {
    match level {
        Level::Debug => LogLevel::Debug,
        Level::Info => LogLevel::Info,
        Level::Warn => LogLevel::Warn,
    }
}

impl Shared for Envoy {
    fn shared_get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        sys::shared(key)
    }
    fn shared_set(&self, key: &str, value: &[u8], cas: u32) -> Set {
        match sys::set_shared(key, value, cas) {
            sys::Stored::Yes => Set::Done,
            sys::Stored::Mismatch => Set::Changed,
            sys::Stored::Failed => Set::Failed,
        }
    }
    fn register_queue(&self, name: &str) -> Option<QueueId> {
        sys::register_queue(name).map(QueueId)
    }
    fn enqueue(&self, queue: QueueId, message: &[u8]) -> bool {
        sys::enqueue(queue.0, message)
    }
    fn dequeue(&self, queue: QueueId) -> Option<Vec<u8>> {
        sys::dequeue(queue.0)
    }
}

impl Host for Envoy {
    fn now(&self) -> Time {
        Time(sys::now())
    }
    #[allow(clippy::integer_division_remainder_used)] // the divisor is a constant
    fn unix_seconds(&self) -> u64 {
        sys::wall_clock() / SECOND
    }
    fn enter(&self, stream: u32) -> bool {
        sys::enter(stream)
    }
    fn leave(&self) {
        sys::enter(self.root);
    }
    fn request_header(&self, name: &str) -> Option<String> {
        String::from_utf8(sys::header(MapType::HttpRequestHeaders, name)?).ok()
    }
    fn set_request_header(&self, name: &str, value: &str) -> bool {
        sys::set_header(MapType::HttpRequestHeaders, name, value)
    }
    fn set_state(&self, name: &str, value: &str) {
        sys::set_property(name, value);
    }
    fn resume(&self) -> bool {
        sys::resume_request()
    }
    fn ask(&self, cluster: &str, path: &str, secret: &str, body: &[u8], timeout_ms: u64) -> bool {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let headers =
            vec![(":method", method), (":path", path), (":authority", "kvroute-bridge"), (SECRET_HEADER, secret)];
        let (timeout, body) = (Duration::from_millis(timeout_ms), Some(body).filter(|body| !body.is_empty()));
        proxy_wasm::hostcalls::dispatch_http_call(cluster, headers, body, vec![], timeout).is_ok()
    }
    fn count(&self, counter: Counter, by: u64) {
        COUNTERS.with_borrow_mut(|known| {
            let count = known.entry(counter).or_default();
            count.more = count.more.saturating_add(by);
            count.all = count.all.saturating_add(by);
        });
    }
    fn counted(&self, counter: Counter) -> u64 {
        COUNTERS.with_borrow(|known| known.get(&counter).map_or(0, |count| count.all))
    }
    fn refresh(&self) {
        COUNTERS.with_borrow_mut(|known| {
            if !SHOWN.replace(true) {
                Counter::PLAIN.iter().for_each(|counter| {
                    known.entry(*counter).or_default();
                });
            }
            for (counter, count) in known.iter_mut().filter(|(_, count)| count.more > 0 || count.metric.is_none()) {
                let more = std::mem::take(&mut count.more);
                let define = || sys::metric(MetricType::Counter, &counter.name());
                if let Some(metric) = count.metric.get_or_insert_with(define)
                    && more > 0
                {
                    sys::increment(*metric, more.min(i64::MAX as u64) as i64);
                }
            }
        });
        LOG_LEVEL.set(sys::log_level());
    }
    fn gauge(&self, gauge: Gauge, slot: u32, value: u64) {
        let id = GAUGES.with_borrow_mut(|known| {
            *known.entry((gauge, slot)).or_insert_with(|| sys::metric(MetricType::Gauge, &gauge.name(slot)))
        });
        if let Some(id) = id {
            sys::record(id, value);
        }
    }
    fn time(&self, timing: Timing, us: u64) {
        let define = || sys::metric(MetricType::Histogram, timing.name());
        let id = TIMINGS.with_borrow_mut(|known| *known.entry(timing).or_insert_with(define));
        if let Some(id) = id {
            sys::record(id, us);
        }
    }
    fn memory_used(&self) -> usize {
        memory::used()
    }
    fn logs(&self, at: Level) -> bool {
        level(at) as u32 >= LOG_LEVEL.get()
    }
    fn log(&self, at: Level, line: &str) {
        sys::log(level(at), line);
    }
}
