//! A lock for short sections, four bytes, that sleeps in the kernel when it has to wait (futex).
//!
//! States: free, held, held with waiters. Nothing of the C library is used that could allocate.

use core::sync::atomic::{AtomicU32, Ordering::{Acquire, Relaxed, Release}};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;
const SPINS: u32 = 100;

/// The lock.
pub struct Lock(AtomicU32);

/// Holds the lock until dropped.
pub struct Guard<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        if self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    /// The lock, if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok().then_some(Guard(self))
    }

    /// Takes the lock without a guard, for fork: it is released in parent and child by [`Lock::release`].
    pub fn hold(&self) {
        core::mem::forget(self.lock());
    }

    /// Releases what [`Lock::hold`] took.
    pub fn release(&self) {
        drop(Guard(self));
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.0.load(Relaxed) == FREE && self.0.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.0.swap(WAITED_FOR, Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WAITED_FOR);
        }
    }

    #[cold]
    fn futex(&self, operation: i32, value: u32) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        let no_timeout = core::ptr::null::<libc::timespec>();
        // SAFETY: the address is this lock's own word; the kernel only reads it.
        crate::os::keep_errno(|| unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, value, no_timeout)
        });
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Release) == WAITED_FOR {
            self.0.futex(libc::FUTEX_WAKE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_under_the_lock_are_not_lost() {
        static LOCK: Lock = Lock::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let _guard = LOCK.lock();
                        COUNT.store(COUNT.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Relaxed), 80_000);
        let held = LOCK.lock();
        assert!(LOCK.try_lock().is_none());
        drop(held);
        assert!(LOCK.try_lock().is_some());
    }
}
