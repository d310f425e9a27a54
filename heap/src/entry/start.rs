//! Initialization at the first call: reads the configuration and registers with the C library.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::entry::config;
use crate::system::clock;
use crate::system::lock::Lock;
use crate::thread::current::Visit;
use crate::thread::{current, fork, fork_guard};
use crate::units::call::Call;

static STARTED: AtomicBool = AtomicBool::new(false);
static STARTING: Lock = Lock::new();

/// Starts the library; the first call does it, and concurrent ones wait.
pub fn start() {
    if STARTED.load(Acquire) {
        return;
    }
    {
        let _guard = STARTING.lock();
        if STARTED.load(Relaxed) {
            return;
        }
        clock::start();
        fork_guard::start();
        config::load();
        current::start();
        STARTED.store(true, Release);
    }
    fork::start(); // not under the lock: this may allocate
}

/// The calling thread's heap, created now if it has none; `None` without memory.
#[inline]
pub fn visit(call: &Call) -> Option<Visit> {
    Visit::at_home().or_else(|| enter(call))
}

#[cold]
fn enter(call: &Call) -> Option<Visit> {
    start();
    current::enter(call)
}
