//! What happens when: events in the order of time, those of one moment in the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Time;

/// See the module.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<(Time, u64, Entry<E>)>>,
    added: u64,
}

/// Equal to any other: the order is decided before it.
#[derive(Debug)]
struct Entry<E>(E);

impl<E> PartialEq for Entry<E> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E> Queue<E> {
    /// It happens at `at`.
    pub fn add(&mut self, at: Time, event: E) {
        self.added += 1;
        self.heap.push(Reverse((at, self.added, Entry(event))));
    }

    /// The next one.
    pub fn take(&mut self) -> Option<(Time, E)> {
        self.heap.pop().map(|Reverse((at, _, Entry(event)))| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_by_turn() {
        let mut queue = Queue::default();
        for (at, event) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            queue.add(Time(at), event);
        }
        let all: Vec<_> = std::iter::from_fn(|| queue.take()).map(|(_, event)| event).collect();
        assert_eq!(all, ["a", "b", "c", "d"]);
    }
}
