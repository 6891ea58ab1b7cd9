//! An allocator that counts what the current thread takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static TOTAL: Cell<usize> = const { Cell::new(0) };
}

/// What a block costs an allocator besides its bytes.
const HEADER: usize = 16;

fn took(bytes: usize) {
    // A thread that ends has no counters any more.
    let _ = NOW.try_with(|now| {
        now.set(now.get() + (bytes + HEADER) as isize);
        PEAK.with(|peak| peak.set(peak.get().max(now.get())));
        TOTAL.with(|total| total.set(total.get() + bytes + HEADER));
    });
}

fn gave(bytes: usize) {
    let _ = NOW.try_with(|now| now.set(now.get() - (bytes + HEADER) as isize));
}

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        gave(layout.size());
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // As if it always had to move: that is what it may come to.
        took(size);
        gave(layout.size());
        unsafe { System.realloc(at, layout, size) }
    }
}

/// What a piece of work took of this thread's memory.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// At most at once.
    pub peak: usize,
    /// Taken in all, given back or not.
    pub total: usize,
}

/// Does something and counts.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Taken) {
    let before = (NOW.get(), TOTAL.get());
    PEAK.set(before.0);
    let result = work();
    (result, Taken { peak: (PEAK.get() - before.0).max(0) as usize, total: TOTAL.get() - before.1 })
}
