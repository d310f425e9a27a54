//! Initialization at the first call: reads the configuration and registers with the C library.
//!
//! A function of the C library that another preloaded library interposes may allocate, and so come here again
//! in the middle of it. Such a call finds the library not yet started, and its object gets a mapping of its
//! own.

use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use core::cell::UnsafeCell;

use crate::entry::{config, maintenance_thread};
use crate::system::clock;
use crate::system::glibc_heap;
use crate::system::lock::Lock;
use crate::system::os::{self, Affinity};
use crate::system::own_data;
use crate::system::process;
use crate::system::thread_stack;
use crate::thread::current::Visit;
use crate::thread::{current, fork, fork_guard};
use crate::units::call::Call;

static STARTED: AtomicBool = AtomicBool::new(false);
static STARTING: Lock = Lock::new();
/// The thread that starts the library, 0 for none.
static STARTER: AtomicUsize = AtomicUsize::new(0);

struct Processors(UnsafeCell<Affinity>);
// SAFETY: see `start`.
unsafe impl Sync for Processors {}
/// The processors that the process started with.
static AFFINITY: Processors = Processors(UnsafeCell::new([0; 128]));
static AFFINITY_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Starts the library; the first call does it, and concurrent ones wait. `false` for a call within it.
pub fn start() -> bool {
    if STARTED.load(Acquire) {
        return true;
    }
    let thread = thread_stack::control_block();
    if STARTER.load(Relaxed) == thread {
        return false;
    }
    own_data::use_small_pages();
    {
        let _guard = STARTING.lock();
        if STARTED.load(Relaxed) {
            return true;
        }
        STARTER.store(thread, Relaxed);
        clock::start();
        glibc_heap::start();
        // SAFETY: written once, with the lock held, before any other thread reads it.
        AFFINITY_BYTES.store(os::affinity(unsafe { &mut *AFFINITY.0.get() }), Relaxed);
        fork_guard::start();
        config::load();
        current::start(maintenance_thread::thread_ends);
        STARTED.store(true, Release);
        STARTER.store(0, Relaxed);
    }
    fork::start(maintenance_thread::before_fork); // not under the lock: this may allocate
    true
}

/// Makes the calling thread an ordinary one of this name, on the processors that the process started with.
pub fn become_ordinary(name_with_nul: &[u8]) {
    os::name_thread(name_with_nul);
    if process::is_real_time() {
        os::set_default_policy();
    }
    // SAFETY: the library has started, and the array does not change any more.
    os::set_affinity(unsafe { &*AFFINITY.0.get() }, AFFINITY_BYTES.load(Relaxed));
}

/// The calling thread's heap, created now if it has none; `None` without memory.
#[inline]
pub fn visit(call: &Call) -> Option<Visit> {
    Visit::at_home().or_else(|| enter(call))
}

#[cold]
fn enter(call: &Call) -> Option<Visit> {
    start().then(|| current::enter(call))?
}
