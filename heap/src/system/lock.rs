//! A lock of eight bytes for short sections: one atomic instruction to take it, a plain store to release it.
//!
//! A waiting thread sleeps in the kernel (futex) and counts itself in `waiters`. The release stores and then
//! reads `waiters` without a fence between (an atomic instruction would cost as much as a whole section). So
//! it can miss a thread that is just going to sleep: sleeps are short, and that thread tries again. The lock
//! uses no function of the C library that could allocate.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::system::raw::syscall;

const FREE: u32 = 0;
const HELD: u32 = 1;
const SPINS: u32 = 100;
static SLEEP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The lock.
pub struct Lock {
    state: AtomicU32,
    waiters: AtomicU32,
}

/// Holds the lock until dropped.
pub struct Guard<'a>(&'a Lock);

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self { state: AtomicU32::new(FREE), waiters: AtomicU32::new(0) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_> {
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard(self)
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let taken = self.state.load(Relaxed) == FREE
            && self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok();
        taken.then(|| Guard(self)) // not then_some: dropping the guard would release the lock
    }

    /// Takes the lock without a guard, for fork: [`Lock::release`] releases it in parent and child.
    pub fn hold(&self) {
        core::mem::forget(self.lock());
    }

    /// Releases what [`Lock::hold`] took.
    pub fn release(&self) {
        drop(Guard(self));
    }

    /// As [`Lock::release`], in a forked child, where the waiting threads do not exist.
    pub fn release_alone(&self) {
        self.waiters.store(0, Relaxed);
        self.release();
    }

    #[cold]
    fn wait(&self) {
        loop {
            for _ in 0..SPINS {
                if let Some(guard) = self.try_lock() {
                    core::mem::forget(guard);
                    return;
                }
                core::hint::spin_loop();
            }
            self.waiters.fetch_add(1, Relaxed);
            self.futex(libc::FUTEX_WAIT, HELD, &raw const SLEEP);
            self.waiters.fetch_sub(1, Relaxed);
        }
    }

    #[cold]
    fn futex(&self, operation: i32, value: u32, timeout: *const libc::timespec) {
        let operation = operation | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the address is this lock's own word; the kernel only reads it, and the timeout.
        unsafe { syscall!(SYS_futex, self.state.as_ptr(), operation, value, timeout) };
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.state.store(FREE, Release);
        if self.0.waiters.load(Relaxed) != 0 {
            self.0.futex(libc::FUTEX_WAKE, 1, core::ptr::null());
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
        assert!(LOCK.try_lock().is_none(), "a failed attempt must not release the lock");
        drop(held);
        assert!(LOCK.try_lock().is_some());
    }
}
