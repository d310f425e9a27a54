//! A file descriptor that checks, before each use, that it is still this library's: programs close
//! descriptors that are not their own (daemons, `closefrom`), and then their own files get the same numbers.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};

/// A descriptor and the identity of its file.
pub struct CheckedFd {
    file: ManuallyDrop<OwnedFd>,
    identity: (u64, u64),
}

fn identity(file: impl AsFd) -> Result<(u64, u64)> {
    rustix::fs::fstat(file).map(|about| (about.st_dev, about.st_ino))
}

impl CheckedFd {
    /// Records the identity of `file`.
    pub fn new(file: OwnedFd) -> Result<CheckedFd> {
        let identity = identity(&file)?;
        Ok(CheckedFd { file: ManuallyDrop::new(file), identity })
    }

    /// Device and inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// The descriptor, if the program has not closed it.
    ///
    /// # Errors
    /// `BADF`.
    pub fn get(&self) -> Result<BorrowedFd<'_>> {
        if identity(&*self.file) == Ok(self.identity) { Ok(self.file.as_fd()) } else { Err(Errno::BADF) }
    }
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        if self.get().is_ok() {
            // SAFETY: not used again.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::*;

    #[test]
    fn a_number_reused_for_another_file_stays_open() {
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        let other = std::fs::File::open("/proc/self/cmdline").unwrap();
        let mine = CheckedFd::new(file).unwrap();
        assert!(mine.get().is_ok());
        let number = mine.file.as_raw_fd();
        // SAFETY: puts another file under the number, as a careless program would.
        unsafe { libc::dup2(other.as_raw_fd(), number) };
        assert!(mine.get().is_err());
        drop(mine);
        // SAFETY: the number is this test's since dup2, and open if the drop has not closed it.
        let left = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(identity(&left), identity(&other));
    }
}
