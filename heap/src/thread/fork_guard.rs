//! The gate before sections that a fork must not cut: a program forks while its other threads are allocating.
//!
//! The child gets a copy of memory at one moment and none of the other threads. Sections that must not be cut at such a
//! moment (they hold locks, or change several words that belong together) are entered with [`pass`]. Before a fork the
//! forking thread shuts the gate and waits until nobody is inside. The fast paths change a single word each and need none.
//!
//! Passing the gate is frequent and forking is rare, so the forking thread pays for both: between "I am inside" and the
//! look at the gate there is no fence, since membarrier(2) makes every running thread go through one.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, Release, SeqCst},
    compiler_fence,
};

use crate::system::lock::Lock;
use crate::system::os;
use crate::thread::local::Heap;

static EXCLUSIVE: AtomicBool = AtomicBool::new(false);
static EXCLUSIVE_HEAP: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();

/// Fork waits for this to be dropped.
pub struct SharedGuard<'a>(&'a Heap);

/// Without membarrier, everyone pays.
static FENCES: AtomicBool = AtomicBool::new(true);

/// Prepares for [`pass`]; once, before there are threads.
pub fn start() {
    FENCES.store(!os::membarrier(os::Membarrier::Register), Relaxed);
}

/// Enters a section that fork must not cut. Sections may nest.
#[inline]
pub fn enter(heap: &Heap) -> SharedGuard<'_> {
    let outermost = change(heap, 1) == 0;
    if outermost && EXCLUSIVE.load(SeqCst) && EXCLUSIVE_HEAP.load(SeqCst) != heap.id.get() {
        wait(heap);
    }
    SharedGuard(heap)
}

/// Changes the count of sections that the thread is in; the count before.
#[inline]
fn change(heap: &Heap, by: i32) -> u32 {
    if heap.id.get() == 0 || FENCES.load(Relaxed) {
        return heap.busy.fetch_add(by as u32, SeqCst); // the one for threads without a heap has many writers
    }
    let before = heap.busy.load(Relaxed);
    heap.busy.store(before.wrapping_add(by as u32), Release);
    compiler_fence(SeqCst);
    before
}

#[cold]
fn wait(heap: &Heap) {
    while EXCLUSIVE.load(SeqCst) {
        change(heap, -1);
        drop(LOCK.lock());
        change(heap, 1);
    }
}

impl Drop for SharedGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        change(self.0, -1);
    }
}

/// Shuts the gate for the thread of heap `own`, and waits until nobody else is inside; `heaps` are all.
pub fn lock_exclusive(own: u32, heaps: impl Fn(&dyn Fn(&Heap) -> bool) -> bool) {
    LOCK.hold();
    EXCLUSIVE_HEAP.store(own, SeqCst);
    EXCLUSIVE.store(true, SeqCst);
    os::membarrier(os::Membarrier::Fence);
    let inside = |heap: &Heap| heap.id.get() != own && heap.busy.load(SeqCst) != 0;
    while heaps(&inside) {
        // SAFETY: always allowed.
        unsafe { libc::sched_yield() };
    }
}

/// Opens it again: after fork, and `in_child` where there is no other thread.
pub fn unlock_exclusive(in_child: bool) {
    EXCLUSIVE.store(false, SeqCst);
    EXCLUSIVE_HEAP.store(0, SeqCst);
    if in_child { LOCK.release_alone() } else { LOCK.release() }
}
