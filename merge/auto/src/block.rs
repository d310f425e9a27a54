//! A large allocation of the program.

use std::ops::Range;

pub const PAGE: usize = 4096;
/// What the program may do in a block, as in all memory of malloc's.
pub const RIGHTS: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// What an allocation finds in its memory.
#[derive(Clone, Copy, PartialEq)]
pub enum Contents {
    Any,
    Zeros,
}

/// One large allocation.
#[derive(Clone, Copy)]
pub struct Block {
    pub start: usize,
    /// Mapped, a multiple of the page size.
    pub bytes: usize,
    /// Distinguishes this block from a later one at the same address.
    pub number: u64,
    pub contents: Contents,
    /// Whether some of it may be the store's.
    pub is_advised: bool,
}

impl Block {
    /// No block.
    pub const NONE: Block =
        Block { start: 0, bytes: 0, number: 0, contents: Contents::Any, is_advised: false };

    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Makes it readable and writable, as it was when the program got it. False if it cannot be.
    pub fn open(&self) -> bool {
        // SAFETY: the program has freed it: no other code uses it.
        unsafe { libc::mprotect(self.start as *mut libc::c_void, self.bytes, RIGHTS) == 0 }
    }

    /// Makes it zeros, whose pages are not resident. False if it cannot be (it is locked).
    pub fn empty(&self) -> bool {
        let (start, advice) = (self.start as *mut libc::c_void, libc::MADV_DONTNEED);
        // SAFETY: the program has freed it: no other code uses it. The kernel's own call: the block is not
        // the store's.
        unsafe { libc::syscall(libc::SYS_madvise, start, self.bytes, advice) == 0 }
    }

    /// Unmaps it: the program has freed it, and it is in no list.
    pub fn unmap(&self) {
        // SAFETY: no other code uses it.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.bytes) };
    }
}
