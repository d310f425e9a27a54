//! Keeps a batch that is being put in place apart from a `madvise` on the same pages. Held for a batch, which
//! takes a millisecond, or for a few system calls; a waiting thread yields. In a forked child it is free.

use std::sync::atomic::Ordering;

use crate::client::this_process::lock_word;

/// Whether a thread of this process has the lock.
pub fn is_taken() -> bool {
    lock_word().load(Ordering::Acquire) != 0
}

/// The lock; dropping it unlocks.
pub struct Guard(());

/// Waits for the lock.
pub fn lock() -> Guard {
    while lock_word().compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: takes no arguments.
        unsafe { libc::sched_yield() };
    }
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock_word().store(0, Ordering::Release);
    }
}
