//! Handlers around a fork: at the fork no other thread is in a section that the fork guard
//! ([`crate::thread::fork_guard`]) protects, and in the child all heaps but the forking thread's are vacant.

use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use crate::system::{observers, os};
use crate::thread::current::{self, EMPTY, Visit};
use crate::thread::{fork_guard, registry};
use crate::units::call::Call;

static BEFORE: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Registers with the C library; once, and not under a lock, since this may allocate.
///
/// `before_fork` is called before each fork, in no section.
pub fn start(before_fork: fn()) {
    BEFORE.store(before_fork as *mut (), Release);
    PROCESS.store(os::process_id(), Relaxed);
    // SAFETY: the functions have the type that the C library expects.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

/// The process, which a child of vfork is not.
pub fn process() -> u32 {
    PROCESS.load(Relaxed)
}

extern "C" fn before() {
    let before_fork = BEFORE.load(Acquire);
    if !before_fork.is_null() {
        // SAFETY: `start` stored a function of this type.
        unsafe { core::mem::transmute::<*mut (), fn()>(before_fork)() };
    }
    // With its own heap the forking thread differs from threads that have none. This may be its first use of
    // the heap: then stack heights are measured from here.
    let here = 0u8;
    let call = Call { size: 0, caller: 0, stack: (&raw const here).addr() };
    let visit = || Visit::at_home().or_else(|| current::enter(&call));
    let own = visit().map_or_else(current::heap, |visit| visit.heap);
    fork_guard::lock_exclusive(own.id.get(), |inside| inside(&EMPTY) || registry::heaps().any(inside));
    registry::lock().hold();
}

extern "C" fn after_in_parent() {
    registry::lock().release();
    fork_guard::unlock_exclusive(false);
}

extern "C" fn after_in_child() {
    PROCESS.store(os::process_id(), Relaxed);
    EMPTY.busy.store(0, SeqCst);
    registry::only_survivor(current::heap());
    observers::in_child();
    registry::lock().release_alone();
    fork_guard::unlock_exclusive(true);
}
