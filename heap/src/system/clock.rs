//! The heap's clock: milliseconds since it started, a few ms coarse. Deadlines and lifetimes are measured by it.
//!
//! A replay of a recorded trace sets it to the trace's time. It can stand still while a program starts: then nothing in the
//! heap depends on time, and instances that do the same lay the same out alike, which page merging finds.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::system::os;

static START_NS: AtomicU64 = AtomicU64::new(0);
static SET_NS: AtomicU64 = AtomicU64::new(0);

/// Starts the clock; once.
pub fn start() {
    START_NS.store(os::coarse_ns().saturating_sub(1_000_000), Relaxed);
}

/// The clock stands at its first millisecond until [`settled`].
pub fn stand_still() {
    set(1_000_000);
}

/// The program has started: the clock goes on, if it stood still.
pub fn settled() {
    set(0);
}

/// Makes the clock show `ns` until it is set again; 0 returns to real time.
pub fn set(ns: u64) {
    SET_NS.store(ns, Relaxed);
}

/// Whether the clock shows what it was set to, and not the time.
pub fn is_set() -> bool {
    SET_NS.load(Relaxed) != 0
}

/// Milliseconds since the start: 64 bits of them, for servers that run for years.
#[inline]
pub fn now_ms() -> u64 {
    let set = SET_NS.load(Relaxed);
    let ns = if set != 0 { set } else { os::coarse_ns().saturating_sub(START_NS.load(Relaxed)) };
    ns / 1_000_000
}
