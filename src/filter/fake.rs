//! A host for tests: time stands still unless told, and everything said to it is kept.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::host::{Host, Level};
use super::metrics::{Counter, Gauge, Timing};
use crate::clock::Time;
use crate::feed::slots::fake::Memory;
use crate::feed::slots::{QueueId, Set, Shared};

/// One VM's view of an Envoy.
pub struct Fake {
    /// What the VMs of the Envoy share.
    pub shared: Rc<Memory>,
    /// The clock.
    pub now: Cell<u64>,
    /// What each look at the clock adds to it.
    pub step: Cell<u64>,
    /// Counters by name.
    pub counters: RefCell<BTreeMap<String, u64>>,
    /// Samples of histograms, in order.
    pub times: RefCell<Vec<(Timing, u64)>>,
    /// The stream that was entered.
    pub stream: Cell<u32>,
    /// Headers by stream.
    pub headers: RefCell<BTreeMap<(u32, String), String>>,
    /// Filter state by stream.
    pub states: RefCell<BTreeMap<(u32, String), String>>,
    /// Streams that were resumed, in order.
    pub resumed: RefCell<Vec<u32>>,
    /// Queues registered by this VM, in order.
    pub registered: RefCell<Vec<String>>,
    /// Whether headers are refused.
    pub refuses_headers: Cell<bool>,
}

impl Fake {
    /// A VM of the Envoy with this memory.
    pub fn new(shared: &Rc<Memory>) -> Fake {
        Fake {
            shared: shared.clone(),
            now: Cell::new(1 << 40),
            step: Cell::new(0),
            counters: RefCell::default(),
            times: RefCell::default(),
            stream: Cell::new(0),
            headers: RefCell::default(),
            states: RefCell::default(),
            resumed: RefCell::default(),
            registered: RefCell::default(),
            refuses_headers: Cell::new(false),
        }
    }

    /// Lets time pass.
    pub fn pass(&self, nanoseconds: u64) {
        self.now.set(self.now.get() + nanoseconds);
    }

    /// A counter's value.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.borrow().get(&counter.name()).copied().unwrap_or(0)
    }

    /// A header of a stream.
    pub fn header(&self, stream: u32, name: &str) -> Option<String> {
        self.headers.borrow().get(&(stream, name.to_owned())).cloned()
    }

    /// Filter state of a stream.
    pub fn state(&self, stream: u32, name: &str) -> Option<String> {
        self.states.borrow().get(&(stream, name.to_owned())).cloned()
    }
}

impl Shared for Fake {
    fn shared_get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.shared.shared_get(key)
    }
    fn shared_set(&self, key: &str, value: &[u8], cas: u32) -> Set {
        self.shared.shared_set(key, value, cas)
    }
    fn register_queue(&self, name: &str) -> Option<QueueId> {
        self.registered.borrow_mut().push(name.to_owned());
        self.shared.register_queue(name)
    }
    fn enqueue(&self, queue: QueueId, message: &[u8]) -> bool {
        self.shared.enqueue(queue, message)
    }
    fn dequeue(&self, queue: QueueId) -> Option<Vec<u8>> {
        self.shared.dequeue(queue)
    }
}

impl Host for Fake {
    fn now(&self) -> Time {
        self.pass(self.step.get());
        Time(self.now.get())
    }
    fn unix_seconds(&self) -> u64 {
        1_700_000_000
    }
    fn enter(&self, stream: u32) -> bool {
        self.stream.set(stream);
        true
    }
    fn leave(&self) {
        self.stream.set(0);
    }
    fn request_header(&self, name: &str) -> Option<String> {
        self.headers.borrow().get(&(self.stream.get(), name.to_owned())).cloned()
    }
    fn set_request_header(&self, name: &str, value: &str) -> bool {
        if self.refuses_headers.get() {
            return false;
        }
        self.headers.borrow_mut().insert((self.stream.get(), name.to_owned()), value.to_owned());
        true
    }
    fn set_state(&self, name: &str, value: &str) {
        self.states.borrow_mut().insert((self.stream.get(), name.to_owned()), value.to_owned());
    }
    fn resume(&self) -> bool {
        self.resumed.borrow_mut().push(self.stream.get());
        true
    }
    fn ask(&self, _cluster: &str, _path: &str, _secret: &str, _body: &[u8], _timeout_ms: u64) -> bool {
        true
    }
    fn counted(&self, counter: Counter) -> u64 {
        self.counter(counter)
    }
    fn count(&self, counter: Counter, by: u64) {
        *self.counters.borrow_mut().entry(counter.name()).or_default() += by;
    }
    fn refresh(&self) {}
    fn gauge(&self, _gauge: Gauge, _slot: u32, _value: u64) {}
    fn time(&self, timing: Timing, us: u64) {
        self.times.borrow_mut().push((timing, us));
    }
    fn memory_used(&self) -> usize {
        0
    }
    fn logs(&self, _level: Level) -> bool {
        false
    }
    fn log(&self, _level: Level, _line: &str) {}
}
