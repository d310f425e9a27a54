//! Per-thread words in thread-local storage, laid out explicitly in the initial-exec model at a fixed
//! distance from the thread pointer. An access is one load, where Rust's `thread_local!` in a shared library
//! calls a function.
//!
//! The words hold the distances of the thread's heap and counters from those of threads without a heap. So
//! zeros mean the latter, even before the dynamic linker has set up a thread's storage, and the fast paths
//! need no check for a heap. A third word is the tag of the thread's own spans.

core::arch::global_asm!(
    ".pushsection .tbss.mayfly_heap_thread,\"awT\",@nobits",
    ".p2align 3",
    ".globl mayfly_heap_thread",
    ".hidden mayfly_heap_thread",
    ".type mayfly_heap_thread,@object",
    // The heap, the tag, how often the thread has ended, its frees without a heap, and the counters.
    ".size mayfly_heap_thread,24",
    "mayfly_heap_thread:",
    ".zero 24",
    ".popsection",
);

/// The distance of the thread's heap from the heap of threads that have none.
#[inline(always)]
pub fn heap() -> usize {
    let distance: usize;
    // SAFETY: the symbol is defined above; only this thread reads and writes its words.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) distance,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    distance
}

/// The tag of spans in which the calling thread may free by clearing a bit; 0 for none.
#[inline(always)]
pub fn tag() -> u32 {
    let tag: u32;
    // SAFETY: as in `heap`.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "mov {1:e}, dword ptr fs:[{0} + 8]",
            out(reg) _,
            out(reg) tag,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    tag
}

/// Sets both.
pub fn set_heap(distance: usize, tag: u32) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "mov qword ptr fs:[{0}], {1}",
            "mov dword ptr fs:[{0} + 8], {2:e}",
            out(reg) _,
            in(reg) distance,
            in(reg) tag,
            options(nostack, preserves_flags),
        );
    }
}

/// Counts an end of the thread: its destructors may allocate and take a heap again.
pub fn count_exit() {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "inc word ptr fs:[{0} + 12]",
            out(reg) _,
            options(nostack),
        );
    }
}

/// How often the thread has ended.
pub fn exits() -> u32 {
    let exits: u32;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "movzx {1:e}, word ptr fs:[{0} + 12]",
            out(reg) _,
            out(reg) exits,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    exits
}

/// Counts a free of the thread while it has no heap; returns their number, up to 2^16 - 1.
pub fn count_free_without_heap() -> u32 {
    let frees: u32;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "add word ptr fs:[{0} + 14], 1",
            "sbb word ptr fs:[{0} + 14], 0",
            "movzx {1:e}, word ptr fs:[{0} + 14]",
            out(reg) _,
            out(reg) frees,
            options(nostack),
        );
    }
    frees
}

/// The distance of the thread's counters from those of threads without a heap.
#[inline]
pub fn counts() -> usize {
    let distance: usize;
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0} + 16]",
            out(reg) distance,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    distance
}

/// Sets it.
pub fn set_counts(distance: usize) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "mov qword ptr fs:[{0} + 16], {1}",
            out(reg) _,
            in(reg) distance,
            options(nostack, preserves_flags),
        );
    }
}
