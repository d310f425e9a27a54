//! The heap's clock: milliseconds since its start, with a resolution of a few ms, for deadlines and
//! lifetimes.
//!
//! A replay of a recorded trace sets it to the trace's time. It can stand still while a program starts: then
//! nothing in the heap depends on time, and instances that do the same have the same layout, which page
//! merging can share.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::system::os;

static START_NS: AtomicU64 = AtomicU64::new(0);
static SET_NS: AtomicU64 = AtomicU64::new(0);

/// Starts the clock; once.
pub fn start() {
    START_NS.store(os::coarse_ns().saturating_sub(1_000_000), Relaxed);
}

/// Stops the clock at its first millisecond until [`settled`].
pub fn stand_still() {
    set(1_000_000);
}

/// The program has started: a stopped clock runs from now on.
pub fn settled() {
    set(0);
}

/// Makes the clock show `ns` until it is set again; 0 returns to real time.
pub fn set(ns: u64) {
    SET_NS.store(ns, Relaxed);
}

/// Whether the clock was set and does not follow real time.
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
