//! Whether the process filters its system calls (seccomp): then a call that the program does not make itself
//! may end it, such as one that opens a file.

use core::sync::atomic::{AtomicBool, AtomicI8, Ordering::Relaxed};

use crate::system::raw::syscall;

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Sets whether files and sockets may not be opened; returns what held before.
pub fn forbid(on: bool) -> bool {
    FORBIDDEN.swap(on, Relaxed)
}

/// Whether files and sockets may not be opened.
pub fn are_forbidden() -> bool {
    FORBIDDEN.load(Relaxed)
}

/// Whether a filter may be there: the program's, or one that it was started with. That is asked once.
pub fn is_possible() -> bool {
    static FROM_START: AtomicI8 = AtomicI8::new(UNKNOWN);
    const UNKNOWN: i8 = -1;
    if are_forbidden() {
        return true;
    }
    if FROM_START.load(Relaxed) == UNKNOWN {
        // SAFETY: reads a setting of this thread.
        let mode = unsafe { syscall!(SYS_prctl, libc::PR_GET_SECCOMP, 0usize, 0usize, 0usize, 0usize) };
        FROM_START.store((mode > 0) as i8, Relaxed);
    }
    FROM_START.load(Relaxed) != 0
}
