//! The calling thread's heap, found through one word of thread-local storage
//! ([`crate::system::thread_local`]). A thread gets a heap at its first slow allocation, or when it has freed
//! some objects of others, and leaves it when it ends. Until then it has [`EMPTY`], whose tables match
//! nothing.

use core::ffi::c_void;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::system::thread_stack::ThreadStack;
use crate::system::{events, thread_local};
use crate::thread::local::Heap;
use crate::thread::{fork_guard, refill, registry};
use crate::units::call::Call;

/// The heap of threads that have none yet, or no longer have one.
pub static EMPTY: Heap = Heap::new();

/// The calling thread's heap; [`EMPTY`] if it has none.
#[inline(always)]
pub fn heap() -> &'static Heap {
    let address = (&raw const EMPTY).addr().wrapping_add(thread_local::heap());
    // SAFETY: the word is 0, or `set` set it for a heap, and heaps are never unmapped.
    unsafe {
        core::hint::assert_unchecked(address != 0);
        &*(address as *const Heap)
    }
}

fn set(heap: &'static Heap, tag: u32) {
    let distance = core::ptr::from_ref(heap).addr().wrapping_sub((&raw const EMPTY).addr());
    events::count_in((distance != 0).then_some(&heap.counts));
    thread_local::set_heap(distance, tag);
}

/// The C library runs destructors in four rounds: a thread that takes a heap again after the third might
/// never leave it.
const LAST_EXIT: u32 = 3;

/// Which free of another thread's cell gives a thread its heap. Threads without one share a counter that all
/// of them change atomically, and mark each cell by itself. A thread that ends after a few frees needs none.
pub const FREES_BEFORE_HEAP: u32 = 8;

/// What to call when a thread has ended.
static THREAD_ENDS: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static EXIT_KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static THREADS: AtomicU32 = AtomicU32::new(0);
/// The fast path must not free: every free is recorded.
static SLOW_FREES: AtomicBool = AtomicBool::new(false);

/// Registers a destructor with the C library, to learn of ending threads.
///
/// `thread_ends` is called after a thread has left its heap.
pub fn start(thread_ends: fn()) {
    THREAD_ENDS.store(thread_ends as *mut (), Release);
    let mut key = 0;
    // SAFETY: the function has the type that the C library expects.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) } == 0 {
        EXIT_KEY.store(key, Relaxed);
    }
}

/// Makes every free take the slow path, in threads that start later.
pub fn make_frees_slow() {
    SLOW_FREES.store(true, Relaxed);
}

/// Counts the bytes that the calling thread frees from now on: its frees take the slow path.
pub fn count_frees(heap: &'static Heap) {
    if heap.bytes.count_frees() {
        set(heap, 0);
    }
}

/// A heap for the duration of one call.
pub struct Visit {
    /// The heap.
    pub heap: &'static Heap,
    /// The thread is past its end: it leaves the heap after this call.
    leaves: bool,
}

impl Visit {
    /// Visits the thread's own heap; `None` if it has none.
    #[inline]
    pub fn at_home() -> Option<Self> {
        let heap = heap();
        (heap.id.get() != 0).then_some(Self { heap, leaves: false })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.leaves {
            leave(self.heap);
        }
    }
}

/// Counts a free of another thread's cell by the calling thread, which has no heap; `true` if it should have
/// one now. Never after its end: nothing would make it leave that heap.
pub fn should_enter_to_free() -> bool {
    thread_local::exits() == 0 && thread_local::count_free_without_heap() >= FREES_BEFORE_HEAP
}

/// Gives the calling thread, which has none, a heap; `None` without memory. The library has started.
#[cold]
pub fn enter(call: &Call) -> Option<Visit> {
    let heap = registry::move_in()?;
    heap.large.share(registry::in_use());
    heap.stack.set(ThreadStack::of(call));
    if thread_local::exits() >= LAST_EXIT {
        return Some(Visit { heap, leaves: true });
    }
    heap.thread.set(THREADS.fetch_add(1, Relaxed));
    heap.sequence.set(0);
    heap.bytes.begin(heap.allocated_bytes());
    set(heap, if SLOW_FREES.load(Relaxed) { 0 } else { heap.id.get() });
    let key = EXIT_KEY.load(Relaxed);
    if key != u32::MAX {
        // SAFETY: the key exists; the value is passed to `thread_exit`.
        unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(heap).cast()) };
    }
    Some(Visit { heap, leaves: false })
}

/// The thread ends: its heap becomes vacant. Destructors that run later and allocate take a heap again.
extern "C" fn thread_exit(heap: *mut c_void) {
    // SAFETY: the value set by `enter`.
    let heap: &'static Heap = unsafe { &*heap.cast::<Heap>() };
    set(&EMPTY, 0);
    thread_local::count_exit();
    leave(heap);
    let ends = THREAD_ENDS.load(Acquire);
    if !ends.is_null() {
        // SAFETY: `start` stored a function of this type.
        unsafe { core::mem::transmute::<*mut (), fn()>(ends)() };
    }
}

/// Flushes a heap's caches and makes it vacant.
fn leave(heap: &'static Heap) {
    {
        let _guard = fork_guard::enter(heap);
        refill::flush(heap, true);
    }
    let _guard = fork_guard::enter(&EMPTY);
    registry::move_out(heap);
}
