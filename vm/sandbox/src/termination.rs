//! The end of an instance as on Lambda. Process 1 passes SIGTERM on to the runtime, and SIGKILL if it is
//! asked again. It reports the end of the runtime and of each extension, and lives on until all have ended.

use std::io::{Error, Result};
use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::extensions::Extensions;

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

/// Reaps all processes until the runtime and all extensions have ended. Tells of the end of each: its status
/// of `wait`, and its name, which the runtime has not. While nothing ends the instance, an extension that
/// exits with 0 is not told of, unless it was the last one.
///
/// # Errors
/// `tell` fails, or the kernel refuses.
pub fn reap(
    runtime: i32,
    mut extensions: Extensions,
    mut tell: impl FnMut(i32, Option<String>) -> Result<()>,
) -> Result<()> {
    RUNTIME.store(runtime, Ordering::SeqCst);
    if is_asked() {
        signal_runtime(libc::SIGTERM);
    }
    let (mut runs, mut ends) = (true, false);
    while runs || !(ends && extensions.is_empty()) {
        let (process, status) = wait()?;
        ends |= is_asked();
        let is_runtime = process == runtime;
        let extension = match ends {
            true => extensions.remove(process as u32),
            false => extensions.ended(process as u32, status),
        };
        if is_runtime {
            // Its number may be another's from now on.
            RUNTIME.store(0, Ordering::SeqCst);
            runs = false;
        } else if extension.is_none() {
            continue;
        }
        // From now on, the worker ends the instance: the others have a moment for their own end.
        ends = true;
        tell(status, extension)?;
    }
    Ok(())
}

/// The next process that ends, and its status.
fn wait() -> Result<(i32, i32)> {
    loop {
        let mut status = 0;
        // SAFETY: the number outlives the call, which writes it.
        let process = unsafe { libc::waitpid(-1, &raw mut status, 0) };
        if process > 0 {
            return Ok((process, status));
        }
        let error = Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether the instance is being ended: the end of a process is no fault any more.
fn is_asked() -> bool {
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
