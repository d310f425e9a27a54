//! A large allocation of the program.

use std::ops::Range;

pub const PAGE: usize = 4096;

/// One large allocation.
#[derive(Clone, Copy)]
pub struct Block {
    pub start: usize,
    /// Mapped, a multiple of the page size.
    pub bytes: usize,
    /// Distinguishes this block from a later one at the same address.
    pub number: u64,
    /// Whether some of it may be the store's.
    pub is_advised: bool,
}

impl Block {
    /// No block.
    pub const NONE: Block = Block { start: 0, bytes: 0, number: 0, is_advised: false };

    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Unmaps it: the program has freed it, and it is in no list.
    pub fn unmap(&self) {
        // SAFETY: no other code uses it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes) };
    }
}
