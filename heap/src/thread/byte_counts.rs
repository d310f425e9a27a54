//! How many bytes a thread has allocated and freed, for programs that ask (jemalloc's `thread.allocated` and
//! `thread.deallocated`).
//!
//! Bytes allocated follow from counters of the slow paths. The fast path of a free counts nothing: once a
//! thread has asked, its frees take the slow path, which counts them. Threads that never ask pay nothing.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A thread's counts. All zeros has counted nothing.
pub struct ByteCounts {
    /// What the heap's former threads had allocated.
    before: Cell<u64>,
    /// Whether frees are counted.
    counts_frees: Cell<bool>,
    /// What the program reads, where it keeps the addresses of these two.
    allocated: AtomicU64,
    freed: AtomicU64,
}

impl Default for ByteCounts {
    fn default() -> Self {
        Self::new()
    }
}

impl ByteCounts {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            before: Cell::new(0),
            counts_frees: Cell::new(false),
            allocated: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        }
    }

    /// Whether frees are counted.
    #[inline(always)]
    pub fn counts_frees(&self) -> bool {
        self.counts_frees.get()
    }

    /// Counts frees from now on; `true` at the first call.
    pub fn count_frees(&self) -> bool {
        !self.counts_frees.replace(true)
    }

    /// Bytes allocated, as of the last [`ByteCounts::renew`].
    pub fn allocated(&self) -> &AtomicU64 {
        &self.allocated
    }

    /// Bytes freed since frees are counted.
    pub fn freed(&self) -> &AtomicU64 {
        &self.freed
    }

    /// Starts the counts of a new thread of a heap whose threads have allocated this much.
    pub fn begin(&self, allocated: u64) {
        self.before.set(allocated);
        self.counts_frees.set(false);
        self.allocated.store(0, Relaxed);
        self.freed.store(0, Relaxed);
    }

    /// Renews the number of allocated bytes, from what all threads of the heap have allocated.
    pub fn renew(&self, allocated: u64) {
        self.allocated.store(allocated.wrapping_sub(self.before.get()), Relaxed);
    }

    /// Counts a free.
    pub fn note_freed(&self, bytes: usize) {
        self.freed.store(self.freed.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
    }
}
