//! The calling thread's heap: found through one word of thread-local storage, made at the thread's first slow call.
//!
//! The word is laid out by hand in the initial-exec model, a fixed distance from the thread pointer: one load, where
//! Rust's `thread_local!` in a shared library calls a function. It holds the distance from [`EMPTY`] to the heap. So a
//! thread whose word is still zero, even one whose thread-local storage the dynamic linker has not set up yet, has
//! `EMPTY`, whose tables match nothing, and the fast paths need not ask whether there is a heap. Beside it lies the
//! tag that marks the thread's own spans.

use core::ffi::c_void;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::fork;
use crate::heap::{Call, Heap};
use crate::lock::Lock;
use crate::{clock, config, refill, registry};

/// The heap of threads that have none yet, or have none any more.
pub static EMPTY: Heap = Heap::new();

core::arch::global_asm!(
    ".pushsection .tbss.mayfly_heap_current,\"awT\",@nobits",
    ".p2align 3",
    ".globl mayfly_heap_current",
    ".hidden mayfly_heap_current",
    ".type mayfly_heap_current,@object",
    ".size mayfly_heap_current,16", // the distance, the tag, and how often the thread has ended
    "mayfly_heap_current:",
    ".zero 16",
    ".popsection",
);

/// The calling thread's heap; [`EMPTY`] if it has none.
#[inline(always)]
pub fn current() -> &'static Heap {
    let distance: usize;
    // SAFETY: the symbol is defined above; only this thread reads and writes its word.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_current@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) distance,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    let address = (&raw const EMPTY).addr().wrapping_add(distance);
    // SAFETY: the word is 0, or `set_current` set it for a heap, and heaps are never unmapped.
    unsafe {
        core::hint::assert_unchecked(address != 0);
        &*(address as *const Heap)
    }
}

/// The tag of spans in which the calling thread may free by clearing a bit; 0 for none.
#[inline(always)]
pub fn current_tag() -> u32 {
    let tag: u32;
    // SAFETY: as in `current`.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_current@GOTTPOFF]",
            "mov {1:e}, dword ptr fs:[{0} + 8]",
            out(reg) _,
            out(reg) tag,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    tag
}

fn set_current(heap: &'static Heap, tag: u32) {
    let distance = core::ptr::from_ref(heap).addr().wrapping_sub((&raw const EMPTY).addr());
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_current@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
            "mov dword ptr fs:[{0} + 8], {2:e}",
            out(reg) _,
            in(reg) distance,
            in(reg) tag,
            options(nostack, preserves_flags),
        );
    }
}

/// Counts an end of the thread: its destructors may allocate and bring it back.
fn count_exit() {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_current@GOTTPOFF]",
            "inc dword ptr fs:[{0} + 12]",
            out(reg) _,
            options(nostack),
        );
    }
}

/// How often the thread has ended.
fn exits() -> u32 {
    let exits: u32;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_current@GOTTPOFF]",
            "mov {1:e}, dword ptr fs:[{0} + 12]",
            out(reg) _,
            out(reg) exits,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    exits
}

/// The C library runs destructors in four rounds: a thread that comes back after the third might never end again.
const LAST_EXIT: u32 = 3;

static STARTED: AtomicBool = AtomicBool::new(false);
static STARTING: Lock = Lock::new();
static EXIT_KEY: AtomicU32 = AtomicU32::new(u32::MAX);
static THREADS: AtomicU32 = AtomicU32::new(0);
/// Spans are not to be freed by the fast path: everything is recorded.
static SLOW_FREES: AtomicBool = AtomicBool::new(false);

/// Reads the configuration and registers with the C library; the first call does it, at once or in time.
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
        fork::start();
        config::load();
        let mut key = 0;
        // SAFETY: the function has the type that the C library expects.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exit)) } == 0 {
            EXIT_KEY.store(key, Relaxed);
        }
        STARTED.store(true, Release);
    }
    // Not under the lock: this may allocate.
    // SAFETY: as above.
    unsafe {
        libc::pthread_atfork(Some(fork::before), Some(fork::after_in_parent), Some(fork::after_in_child))
    };
}

/// From now on every free takes the slow path, in threads that begin later.
pub fn make_frees_slow() {
    SLOW_FREES.store(true, Relaxed);
}

/// A heap for the length of one call, of a thread that has none.
pub struct Visit {
    /// The heap.
    pub heap: &'static Heap,
    /// The thread is past its end: it leaves the heap after this call.
    leaves: bool,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.leaves {
            leave(self.heap);
        }
    }
}

/// The calling thread's heap, made now if it has none; `None` without memory.
#[inline]
pub fn visit(call: &Call) -> Option<Visit> {
    let heap = current();
    if heap.id.get() != 0 {
        return Some(Visit { heap, leaves: false });
    }
    enter(call)
}

#[cold]
fn enter(call: &Call) -> Option<Visit> {
    start();
    let heap = registry::move_in()?;
    heap.stack_base.set(stack_base(call));
    if exits() >= LAST_EXIT {
        return Some(Visit { heap, leaves: true });
    }
    heap.thread.set(THREADS.fetch_add(1, Relaxed));
    heap.sequence.set(0);
    set_current(heap, if SLOW_FREES.load(Relaxed) { 0 } else { heap.id.get() });
    let key = EXIT_KEY.load(Relaxed);
    if key != u32::MAX {
        // SAFETY: the key exists; the value is passed to `thread_exit`.
        unsafe { libc::pthread_setspecific(key, core::ptr::from_ref(heap).cast()) };
    }
    Some(Visit { heap, leaves: false })
}

/// From where the heights of a thread's stack are measured. The C library puts a thread's control block, which `fs:0` points
/// to, at the top of its stack: so threads that run the same code have the same heights, and functions that allocate from
/// different ones have different heights. The first thread's is elsewhere: it has one first call, and measures from there.
fn stack_base(call: &Call) -> usize {
    const FARTHEST: usize = 1 << 30;
    let control_block: usize;
    // SAFETY: reads the thread's own control block, which begins with its address (System V ABI).
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            out(reg) control_block,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    if control_block.wrapping_sub(call.stack) < FARTHEST { control_block } else { call.stack }
}

/// The thread ends: its heap becomes vacant. Destructors that run later and allocate move in again.
extern "C" fn thread_exit(heap: *mut c_void) {
    // SAFETY: the value set by `enter`.
    let heap: &'static Heap = unsafe { &*heap.cast::<Heap>() };
    set_current(&EMPTY, 0);
    count_exit();
    leave(heap);
}

/// Empties a heap's hands and makes it vacant.
fn leave(heap: &'static Heap) {
    {
        let _pass = fork::pass(heap);
        refill::flush(heap, true);
    }
    let _pass = fork::pass(&EMPTY);
    registry::move_out(heap);
}
