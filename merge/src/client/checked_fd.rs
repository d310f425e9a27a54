//! A file descriptor of this library's that is still the one it was: programs close descriptors that they do not know
//! (daemons, `closefrom`), and then their own files have the same numbers.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, Result};

/// A descriptor and what it was opened for.
pub struct Descriptor {
    file: ManuallyDrop<OwnedFd>,
    identity: (u64, u64),
}

fn identity(file: impl AsFd) -> Result<(u64, u64)> {
    rustix::fs::fstat(file).map(|about| (about.st_dev, about.st_ino))
}

impl Descriptor {
    /// Remembers what `file` is.
    pub fn new(file: OwnedFd) -> Result<Descriptor> {
        let identity = identity(&file)?;
        Ok(Descriptor { file: ManuallyDrop::new(file), identity })
    }

    /// Device and number of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// The descriptor, if nobody has closed it behind our back.
    ///
    /// # Errors
    /// `BADF`.
    pub fn get(&self) -> Result<BorrowedFd<'_>> {
        if identity(&*self.file) == Ok(self.identity) { Ok(self.file.as_fd()) } else { Err(Errno::BADF) }
    }
}

impl Drop for Descriptor {
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
    fn a_number_that_became_another_file_is_left_alone() {
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        let other = std::fs::File::open("/proc/self/cmdline").unwrap();
        let mine = Descriptor::new(file).unwrap();
        assert!(mine.get().is_ok());
        let number = mine.file.as_raw_fd();
        // SAFETY: puts another file under the number, as a careless program would.
        unsafe { libc::dup2(other.as_raw_fd(), number) };
        assert!(mine.get().is_err());
        drop(mine);
        // SAFETY: the number is this test's since dup2, and open if the drop has left it alone.
        let left = unsafe { OwnedFd::from_raw_fd(number) };
        assert_eq!(identity(&left), identity(&other));
    }
}
