//! Whether the program has restricted itself since it was loaded: by Landlock, by a filter of system calls.
//! What it then forbids us is its own decision, and no fault to report.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the process could not gain rights when the library was loaded: others may have restricted it.
static AT_LOAD: AtomicBool = AtomicBool::new(true);

/// Both need this first, in a process without rights.
fn cannot_gain_rights() -> bool {
    // SAFETY: reads one flag of this thread.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// When the library is loaded.
pub fn note() {
    AT_LOAD.store(cannot_gain_rights(), Ordering::Relaxed);
}

/// Whether the program has restricted the calling thread, or who started it.
pub fn is_there() -> bool {
    cannot_gain_rights() && !AT_LOAD.load(Ordering::Relaxed)
}
