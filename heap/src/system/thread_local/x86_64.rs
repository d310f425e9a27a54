//! What each thread has at hand, in thread-local storage that is laid out by hand in the initial-exec model, a fixed distance
//! from the thread pointer: one load, where Rust's `thread_local!` in a shared library calls a function.
//!
//! Where its heap and its counts are is kept as a distance from those of threads that have none. So a thread whose words are
//! still zero, even one whose thread-local storage the dynamic linker has not set up yet, has those, and the fast paths need
//! not ask whether there is a heap. Beside them lies the tag that marks the thread's own spans.

core::arch::global_asm!(
    ".pushsection .tbss.mayfly_heap_thread,\"awT\",@nobits",
    ".p2align 3",
    ".globl mayfly_heap_thread",
    ".hidden mayfly_heap_thread",
    ".type mayfly_heap_thread,@object",
    ".size mayfly_heap_thread,24", // the heap, the tag, how often the thread has ended, and the counts
    "mayfly_heap_thread:",
    ".zero 24",
    ".popsection",
);

/// How far the thread's heap is from that of threads that have none.
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

/// Counts an end of the thread: its destructors may allocate and bring it back.
pub fn count_exit() {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + mayfly_heap_thread@GOTTPOFF]",
            "inc dword ptr fs:[{0} + 12]",
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
            "mov {1:e}, dword ptr fs:[{0} + 12]",
            out(reg) _,
            out(reg) exits,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    exits
}

/// How far the thread's counts are from those of threads that have no heap.
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
