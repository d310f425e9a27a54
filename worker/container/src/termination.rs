//! The end of a runtime as on Lambda: process 1 passes SIGTERM on to it, and SIGKILL if it is asked again.

use std::io::{Error, Result};
use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::process::Pid;

/// The runtime, which leads a process group; 0 before it runs.
static RUNTIME: AtomicI32 = AtomicI32::new(0);
/// How often process 1 was asked.
static ASKED: AtomicU32 = AtomicU32::new(0);

/// Has this process pass SIGTERM on to the runtime. Without this, the kernel would ignore it: process 1 of a
/// namespace receives only signals that it handles.
///
/// # Errors
/// The kernel refuses.
pub fn pass_on() -> Result<()> {
    // SAFETY: an all-zero sigaction is valid; the handler only makes calls that are allowed in one, and keeps
    // errno; the structure outlives the call.
    let outcome = unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut())
    };
    if outcome < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// From now on this is the runtime.
pub fn runtime_is(process: Pid) {
    RUNTIME.store(process.as_raw_nonzero().get(), Ordering::SeqCst);
    if is_asked() {
        signal_runtime(libc::SIGTERM);
    }
}

/// The runtime has ended: its number may be another's.
pub fn runtime_has_ended() {
    RUNTIME.store(0, Ordering::SeqCst);
}

/// Whether the instance is being ended: the end of a process is no fault any more.
pub fn is_asked() -> bool {
    ASKED.load(Ordering::SeqCst) > 0
}

extern "C" fn handle(_: libc::c_int) {
    let again = ASKED.fetch_add(1, Ordering::SeqCst) > 0;
    signal_runtime(if again { libc::SIGKILL } else { libc::SIGTERM });
}

fn signal_runtime(signal: libc::c_int) {
    let runtime = RUNTIME.load(Ordering::SeqCst);
    if runtime > 0 {
        // SAFETY: passes numbers, and restores this thread's errno, which the interrupted code may read next.
        unsafe {
            let errno = *libc::__errno_location();
            // Before its setsid it has no group of its own.
            if libc::kill(-runtime, signal) < 0 {
                libc::kill(runtime, signal);
            }
            *libc::__errno_location() = errno;
        }
    }
}
