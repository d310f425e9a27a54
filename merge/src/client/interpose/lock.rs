//! What keeps a batch that is put in place and a `madvise` on the same pages apart. Held for a batch, which is a
//! millisecond, or for a few system calls; who waits gives way.

use std::sync::atomic::{AtomicBool, Ordering};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The lock, let go when dropped.
pub struct Held(());

/// Waits until nobody has it.
pub fn hold() -> Held {
    while TAKEN.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: takes nothing.
        unsafe { libc::sched_yield() };
    }
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}
