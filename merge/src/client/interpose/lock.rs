//! Keeps a batch that is being put in place apart from a `madvise` on the same pages. Held for a batch, which
//! takes a millisecond, or for a few system calls; a waiting thread yields.

use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The lock; dropping it unlocks.
pub struct Guard(());

/// Waits for the lock.
pub fn lock() -> Guard {
    while TAKEN.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: takes no arguments.
        unsafe { libc::sched_yield() };
    }
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}
