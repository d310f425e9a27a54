//! The page map (/proc/self/pagemap): which pages have been touched and written.

use mappings::page_map;
use rustix::io::Errno;

use crate::base::error::{Error, While};
use crate::base::page::PAGE_BYTES;
use crate::client::checked_fd::CheckedFd;

pub use mappings::page_map::open_early;

/// Reads /proc/self/pagemap: which pages have been touched and written.
pub struct PageMap(CheckedFd);

/// The page map's entry of one page.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Entry(u64);

impl Entry {
    /// Marks a page that must be left alone. (The kernel never sets all these bits.)
    pub const EXCLUDED: Entry = Entry(u64::MAX);

    /// Whether it is [`Entry::EXCLUDED`].
    pub fn is_excluded(self) -> bool {
        self.0 == u64::MAX
    }

    /// Whether there is memory behind it, in RAM or in swap.
    pub fn is_there(self) -> bool {
        self.0 >> 62 != 0
    }

    /// Whether it is this process's own copy, and not a page of its file.
    pub fn is_own(self) -> bool {
        self.is_there() && self.0 >> 61 & 1 == 0
    }

    /// Whether it is a guard (`MADV_GUARD_INSTALL`), as far as the kernel shows them: Linux 6.15 and later.
    pub fn is_guard(self) -> bool {
        self.0 >> 58 & 1 != 0 && !self.is_excluded()
    }

    /// Whether the page table has an entry that is no page in RAM: a page in swap, or a marker, at which a
    /// read raises SIGSEGV (a guard) or SIGBUS (`UFFDIO_POISON`, defective memory).
    pub fn is_not_present(self) -> bool {
        self.0 >> 62 == 1
    }

    /// Whether another process, or another mapping, has the page as well.
    pub fn is_mapped_elsewhere(self) -> bool {
        self.0 >> 63 == 1 && self.0 >> 56 & 1 == 0
    }

    /// Whether it is one page of anonymous memory for this process and another, since a fork. (So reads the
    /// kernel's page of zeros, too.)
    pub fn is_shared_by_fork(self) -> bool {
        self.is_own() && self.is_mapped_elsewhere()
    }

    /// Whether it is write-protected by userfaultfd.
    pub fn is_protected(self) -> bool {
        self.0 >> 57 & 1 != 0
    }
}

impl PageMap {
    /// Of this process.
    pub fn open() -> Result<PageMap, Error> {
        let file = page_map::open().map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let what_next = match errno {
                libc::EACCES => {
                    ": this process has changed its user. Load the library before it does (import mayfly in \
                     gunicorn.conf.py), or call prctl(PR_SET_DUMPABLE, 1) afterwards"
                }
                _ => "",
            };
            Error::new(errno, format!("{}, which merging needs: {error}{what_next}", page_map::PATH))
        })?;
        Ok(PageMap(CheckedFd::new(file.into()).while_doing(page_map::PATH)?))
    }

    /// Whether it can still be read: programs close descriptors that are not their own.
    pub fn is_there(&self) -> bool {
        self.0.get().is_ok()
    }

    /// Reads the entries of the pages from `start` on.
    pub fn read(&self, start: usize, entries: &mut [Entry]) -> rustix::io::Result<()> {
        // SAFETY: entries are words of any value.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        let file = self.0.get()?;
        let (mut filled, at) = (0, (start / PAGE_BYTES * size_of::<Entry>()) as u64);
        // By rustix, which leaves errno alone: errno's page may be frozen.
        while filled < bytes.len() {
            match rustix::io::pread(file, &mut bytes[filled..], at + filled as u64)? {
                0 => return Err(Errno::IO),
                n => filled += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::mapping::Mapping;

    #[test]
    fn the_page_map_shows_touched_pages() {
        let memory = Mapping::anonymous(2 * PAGE_BYTES).unwrap();
        // SAFETY: ours.
        unsafe { memory.start().write(1) };
        let mut entries = [Entry(0); 2];
        PageMap::open().unwrap().read(memory.start() as usize, &mut entries).unwrap();
        assert!(entries[0].is_there() && entries[0].is_own());
        assert!(!entries[1].is_there() && !entries[1].is_own());
        assert!(!entries[0].is_shared_by_fork() && !entries[1].is_shared_by_fork());
    }
}
