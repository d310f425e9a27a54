//! Forking a program whose other threads are allocating.
//!
//! The child gets a copy of memory at one moment and none of the other threads. Sections that must not be cut at such a
//! moment (they hold locks, or change several words that belong together) are entered with [`pass`]. Before a fork the
//! forking thread shuts the gate and waits until nobody is inside. The fast paths change a single word each and need none.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use crate::heap::Heap;
use crate::lock::Lock;
use crate::registry;
use crate::thread;

static SHUT: AtomicBool = AtomicBool::new(false);
static FORKING: AtomicU32 = AtomicU32::new(0);
static GATE: Lock = Lock::new();

/// Fork waits for this to be dropped.
pub struct Pass<'a>(&'a Heap);

/// Enters a section that fork must not cut.
#[inline]
pub fn pass(heap: &Heap) -> Pass<'_> {
    heap.busy.fetch_add(1, SeqCst);
    if SHUT.load(SeqCst) && FORKING.load(SeqCst) != heap.id.get() {
        wait(heap);
    }
    Pass(heap)
}

#[cold]
fn wait(heap: &Heap) {
    while SHUT.load(SeqCst) {
        heap.busy.fetch_sub(1, SeqCst);
        drop(GATE.lock());
        heap.busy.fetch_add(1, SeqCst);
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

/// Registered with pthread_atfork.
pub extern "C" fn before() {
    GATE.hold();
    let own = thread::current();
    FORKING.store(own.id.get(), SeqCst);
    SHUT.store(true, SeqCst);
    let inside = |heap: &Heap| heap.id.get() != own.id.get() && heap.busy.load(SeqCst) != 0;
    while inside(&thread::EMPTY) || registry::heaps().any(inside) {
        // SAFETY: always allowed.
        unsafe { libc::sched_yield() };
    }
    registry::lock().hold();
}

/// Registered with pthread_atfork, for the parent.
pub extern "C" fn after_in_parent() {
    registry::lock().release();
    open();
}

/// Registered with pthread_atfork, for the child.
pub extern "C" fn after_in_child() {
    thread::EMPTY.busy.store(0, SeqCst);
    registry::only_survivor(thread::current());
    registry::lock().release();
    crate::trace::stop_in_child();
    open();
}

fn open() {
    SHUT.store(false, SeqCst);
    FORKING.store(0, SeqCst);
    GATE.release();
}
