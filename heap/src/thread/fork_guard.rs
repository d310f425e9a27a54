//! The fork guard: critical sections hold it shared, and a forking thread takes it exclusively.
//!
//! The child of a fork gets a copy of memory at one moment, and none of the other threads. A section that
//! must not be interrupted at such a moment (it holds locks, or changes several words that belong together)
//! starts with [`enter`]. Before a fork the forking thread calls [`lock_exclusive`], which waits until no
//! other thread is in such a section. The fast paths change a single word each and need no guard.
//!
//! Sections are frequent and forks are rare, so the forking thread pays for both: [`enter`] has no fence
//! between its store and its load, since membarrier(2) makes every running thread execute one.

use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, Release, SeqCst},
    compiler_fence,
};

use crate::system::lock::Lock;
use crate::system::os;
use crate::thread::local::Heap;

/// A thread holds it exclusively, or waits for that.
pub static EXCLUSIVE: AtomicBool = AtomicBool::new(false);
static EXCLUSIVE_HEAP: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock = Lock::new();

/// A section that a fork waits for, until dropped.
pub struct SharedGuard<'a>(&'a Heap);

/// Without membarrier every section executes a fence.
static FENCES: AtomicBool = AtomicBool::new(true);

/// Prepares for [`enter`]; once, before there are threads.
pub fn start() {
    FENCES.store(!os::membarrier(os::Membarrier::Register), Relaxed);
}

/// Whether [`enter`] executes a fence.
pub fn fences() -> bool {
    FENCES.load(Relaxed)
}

/// Enters a section that a fork must not interrupt. Sections may nest.
#[inline]
pub fn enter(heap: &Heap) -> SharedGuard<'_> {
    let outermost = change(heap, 1) == 0;
    if outermost && EXCLUSIVE.load(SeqCst) && EXCLUSIVE_HEAP.load(SeqCst) != heap.id.get() {
        wait(heap);
    }
    SharedGuard(heap)
}

/// Changes the number of sections that the thread is in; returns the number before.
#[inline]
fn change(heap: &Heap, by: i32) -> u32 {
    if heap.id.get() == 0 || FENCES.load(Relaxed) {
        return heap.busy.fetch_add(by as u32, SeqCst); // threads without a heap share one counter
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

/// Takes the guard for the thread of heap `own`, and waits until no other thread is in a section; `heaps`
/// iterates over all heaps.
pub fn lock_exclusive(own: u32, heaps: impl Fn(&dyn Fn(&Heap) -> bool) -> bool) {
    LOCK.hold();
    EXCLUSIVE_HEAP.store(own, SeqCst);
    EXCLUSIVE.store(true, SeqCst);
    os::membarrier(os::Membarrier::Fence);
    let inside = |heap: &Heap| heap.id.get() != own && heap.busy.load(SeqCst) != 0;
    while heaps(&inside) {
        os::yield_now();
    }
}

/// Releases it, after a fork; `in_child`: no other thread exists.
pub fn unlock_exclusive(in_child: bool) {
    EXCLUSIVE.store(false, SeqCst);
    EXCLUSIVE_HEAP.store(0, SeqCst);
    if in_child { LOCK.release_alone() } else { LOCK.release() }
}
