//! Something that one thread waits for, by a futex.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Counts how often it has happened.
pub struct Event(AtomicU32);

impl Event {
    pub const fn new() -> Event {
        Event(AtomicU32::new(0))
    }

    /// How often it has happened so far: read before the condition that it changes.
    pub fn seen(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// It has happened: wakes the thread that waits.
    pub fn tell(&self) {
        self.0.fetch_add(1, Ordering::Release);
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: changes no memory.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, 1) };
    }

    /// Waits until it has happened more often than was seen, for at most so long.
    pub fn wait(&self, seen: u32, most: Duration) {
        let timeout = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: reads the word, which lives as long as `self`, and the time.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), operation, seen, &raw const timeout) };
    }
}
