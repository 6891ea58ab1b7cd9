//! Shared keys and queues in memory, for tests: as unkind as the real ones.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::{QueueId, Set, Shared};

type Hook = Rc<dyn Fn(&Memory, &str)>;

/// All of one Envoy.
#[derive(Default)]
pub struct Memory {
    keys: RefCell<HashMap<String, (Vec<u8>, u32)>>,
    queues: RefCell<Vec<(String, VecDeque<Vec<u8>>)>>,
    /// Runs before the next write of a key: what another VM does in between.
    before_set: RefCell<Option<Hook>>,
    /// Every so many writes fail.
    fail_every: Cell<u32>,
    writes: Cell<u32>,
}

impl Memory {
    /// Once, before the next write, does `hook`.
    pub fn race(&self, hook: impl Fn(&Memory, &str) + 'static) {
        *self.before_set.borrow_mut() = Some(Rc::new(hook));
    }

    /// Every so many writes fail; 0: none.
    pub fn fail_every(&self, writes: u32) {
        self.fail_every.set(writes);
    }

    /// Messages in the queue of slot `number`.
    pub fn waiting(&self, number: u32) -> usize {
        let name = super::queue_name(number);
        self.queues.borrow().iter().find(|q| q.0 == name).map_or(0, |q| q.1.len())
    }
}

impl Shared for Memory {
    fn shared_get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.keys.borrow().get(key).cloned()
    }

    fn shared_set(&self, key: &str, value: &[u8], cas: u32) -> Set {
        let hook = self.before_set.borrow_mut().take();
        if let Some(hook) = hook {
            hook(self, key);
        }
        self.writes.set(self.writes.get() + 1);
        if self.fail_every.get() > 0 && self.writes.get().is_multiple_of(self.fail_every.get()) {
            return Set::Failed;
        }
        let mut keys = self.keys.borrow_mut();
        let entry = keys.entry(key.to_owned()).or_insert((Vec::new(), 0));
        if cas != 0 && cas != entry.1 {
            return Set::Changed;
        }
        *entry = (value.to_vec(), entry.1 + 1);
        Set::Done
    }

    fn register_queue(&self, name: &str) -> Option<QueueId> {
        let mut queues = self.queues.borrow_mut();
        let at = queues.iter().position(|q| q.0 == name).unwrap_or_else(|| {
            queues.push((name.to_owned(), VecDeque::new()));
            queues.len() - 1
        });
        Some(QueueId(at as u32 + 1))
    }

    fn enqueue(&self, queue: QueueId, message: &[u8]) -> bool {
        let mut queues = self.queues.borrow_mut();
        let Some(queue) = queues.get_mut(queue.0 as usize - 1) else { return false };
        queue.1.push_back(message.to_vec());
        true
    }

    fn dequeue(&self, queue: QueueId) -> Option<Vec<u8>> {
        self.queues.borrow_mut().get_mut(queue.0 as usize - 1)?.1.pop_front()
    }
}
