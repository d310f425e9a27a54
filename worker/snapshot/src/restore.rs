//! Becoming the process that was taken.

use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::take::{PAGES, WAITS};

/// A copy of a descriptor, away from the numbers that are to be given.
fn away(file: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    Ok(rustix::io::fcntl_dupfd_cloexec(file, PAGES + 1)?)
}

/// Gives a descriptor this number, open over exec.
fn give(file: &OwnedFd, number: RawFd) -> Result<(), Error> {
    // SAFETY: passes numbers. What has the number is closed: this process is about to be another.
    if unsafe { libc::dup2(file.as_raw_fd(), number) } < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Makes a line the descriptor [`WAITS`] of the program that this process executes next, which is to be
/// taken.
///
/// # Errors
/// No descriptor is left.
pub fn wait_at(line: BorrowedFd<'_>) -> Result<(), Error> {
    give(&away(line)?, WAITS)
}

/// Executes a snapshot's program: this process becomes the one that was taken, which finds `told` as
/// descriptor [`WAITS`] and goes on with reading there. Standard streams, user, namespaces, limits and
/// filters are this process's. Returns only with an error, and then has changed nothing but descriptors.
pub fn restore(program: BorrowedFd<'_>, pages: BorrowedFd<'_>, told: BorrowedFd<'_>) -> Error {
    let given = || {
        let (program, pages, told) = (away(program)?, away(pages)?, away(told)?);
        give(&told, WAITS)?;
        give(&pages, PAGES)?;
        Ok(program)
    };
    let program = match given() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let (name, nothing) =
        ([c"mayfly-snapshot".as_ptr(), std::ptr::null()], [std::ptr::null::<libc::c_char>()]);
    // SAFETY: an empty path, and lists that end in null; all outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            name.as_ptr(),
            nothing.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    Error::last_os_error()
}
