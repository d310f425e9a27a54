//! Per-thread words as in `x86_64.rs`: at a fixed distance from the thread pointer, here `tpidr_el0`.

core::arch::global_asm!(
    ".pushsection .tbss.mayfly_heap_thread,\"awT\",%nobits",
    ".p2align 3",
    ".globl mayfly_heap_thread",
    ".hidden mayfly_heap_thread",
    ".type mayfly_heap_thread,%object",
    ".size mayfly_heap_thread,24",
    "mayfly_heap_thread:",
    ".zero 24",
    ".popsection",
);

#[repr(C)]
struct Words {
    /// The distance of the thread's heap from the heap of threads that have none.
    heap: usize,
    tag: u32,
    exits: u16,
    /// Frees while it had no heap.
    frees: u16,
    /// The distance of its counters from those of threads without a heap.
    counts: usize,
}

/// The calling thread's words, which no other thread reads or writes.
#[inline(always)]
fn words() -> *mut Words {
    let address: *mut Words;
    // SAFETY: the symbol is defined above; reads the thread pointer and the symbol's distance from it.
    unsafe {
        core::arch::asm!(
            "mrs {0}, tpidr_el0",
            "adrp {1}, :gottprel:mayfly_heap_thread",
            "ldr {1}, [{1}, :gottprel_lo12:mayfly_heap_thread]",
            "add {0}, {0}, {1}",
            out(reg) address,
            out(reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    address
}

/// The distance of the thread's heap from the heap of threads that have none.
#[inline(always)]
pub fn heap() -> usize {
    // SAFETY: see `words`.
    unsafe { (*words()).heap }
}

/// The tag of spans in which the calling thread may free by clearing a bit; 0 for none.
#[inline(always)]
pub fn tag() -> u32 {
    // SAFETY: see `words`.
    unsafe { (*words()).tag }
}

/// Sets both.
pub fn set_heap(distance: usize, tag: u32) {
    // SAFETY: see `words`.
    unsafe { ((*words()).heap, (*words()).tag) = (distance, tag) };
}

/// Counts an end of the thread: its destructors may allocate and take a heap again.
pub fn count_exit() {
    // SAFETY: see `words`.
    unsafe { (*words()).exits = (*words()).exits.wrapping_add(1) };
}

/// How often the thread has ended.
pub fn exits() -> u32 {
    // SAFETY: see `words`.
    unsafe { u32::from((*words()).exits) }
}

/// Counts a free of the thread while it has no heap; returns their number, up to 2^16 - 1.
pub fn count_free_without_heap() -> u32 {
    // SAFETY: see `words`.
    unsafe {
        (*words()).frees = (*words()).frees.saturating_add(1);
        u32::from((*words()).frees)
    }
}

/// The distance of the thread's counters from those of threads without a heap.
#[inline]
pub fn counts() -> usize {
    // SAFETY: see `words`.
    unsafe { (*words()).counts }
}

/// Sets it.
pub fn set_counts(distance: usize) {
    // SAFETY: see `words`.
    unsafe { (*words()).counts = distance };
}
