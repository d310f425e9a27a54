//! Whether the process filters its system calls (seccomp): then a call that the program does not make itself
//! may end it, such as one that opens a file.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Sets whether files and sockets may not be opened; returns what held before.
pub fn forbid(on: bool) -> bool {
    FORBIDDEN.swap(on, Relaxed)
}

/// Whether files and sockets may not be opened.
pub fn are_forbidden() -> bool {
    FORBIDDEN.load(Relaxed)
}
