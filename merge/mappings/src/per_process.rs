//! Words that are zero in each new process, however it was forked: by `fork`, by `_Fork`, or by clone, which
//! runs no handlers. What they say of threads, and of the locks that these hold, is true of one process only.
//! (A process ID would not tell: in a new namespace a child may have its parent's.)

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `N` words in a page that the kernel empties in a child (`MADV_WIPEONFORK`).
pub struct PerProcess<const N: usize> {
    page: AtomicPtr<[AtomicUsize; N]>,
    /// Used until the page is mapped, and for ever where it cannot be. A child has a copy of these.
    unmapped: [AtomicUsize; N],
}

impl<const N: usize> Default for PerProcess<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> PerProcess<N> {
    /// Words of zero.
    pub const fn new() -> PerProcess<N> {
        assert!(N * size_of::<usize>() <= 4096);
        PerProcess { page: AtomicPtr::new(null_mut()), unmapped: [const { AtomicUsize::new(0) }; N] }
    }

    /// Maps the page, once, before other threads use the words: when the library is loaded.
    pub fn map(&self) {
        let bytes = N * size_of::<usize>();
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let page = unsafe { libc::mmap(null_mut(), bytes, rights, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return;
        }
        // SAFETY: the page of above, of which no other code knows.
        unsafe {
            if libc::madvise(page, bytes, libc::MADV_WIPEONFORK) != 0 {
                libc::munmap(page, bytes);
                return;
            }
        }
        self.page.store(page.cast(), Ordering::Release);
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[AtomicUsize; N] {
        // SAFETY: null, or a page that stays mapped; zeros are words.
        unsafe { self.page.load(Ordering::Acquire).as_ref() }.unwrap_or(&self.unmapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zero_in_a_child_that_runs_no_handlers() {
        static WORDS: PerProcess<2> = PerProcess::new();
        WORDS.map();
        WORDS.words()[1].store(7, Ordering::Relaxed);
        // SAFETY: the child reads a word and ends.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(WORDS.words()[1].load(Ordering::Relaxed) as i32) };
        }
        let mut status = 0;
        // SAFETY: writes the child's status.
        assert_eq!(unsafe { libc::waitpid(child as i32, &mut status, 0) }, child as i32);
        assert_eq!(status, 0, "the child has its parent's word");
        assert_eq!(WORDS.words()[1].load(Ordering::Relaxed), 7);
    }
}
