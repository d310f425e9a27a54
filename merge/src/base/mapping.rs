//! A mapping that is unmapped when dropped.

use std::ptr::NonNull;

use rustix::fd::AsFd;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Memory of this process that belongs to one owner.
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory like any other, and belongs to the owner of this value.
unsafe impl Send for Mapping {}
// SAFETY: shared references give out addresses and read-only bytes only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Fresh zeroed memory.
    ///
    /// # Errors
    /// No memory, or no address range, is left.
    pub fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses a free address; nothing is replaced.
        let at = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)?
        };
        Ok(Mapping { start: NonNull::new(at.cast()).ok_or(io::Errno::NOMEM)?, bytes })
    }

    /// The first `bytes` of a file, shared with all processes that map it.
    ///
    /// # Errors
    /// The file cannot be mapped so.
    pub fn shared(file: impl AsFd, bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: as above.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, 0)? };
        Ok(Mapping { start: NonNull::new(at.cast()).ok_or(io::Errno::NOMEM)?, bytes })
    }

    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone, and nothing borrows it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
