//! Writes that end no program. A write beyond RLIMIT_FSIZE, or to a pipe without a reader, sends the writing
//! thread a signal that ends a process unless it handles it (SIGXFSZ, SIGPIPE). The program did not write, so
//! the thread that writes for the heap holds these signals back and takes its own away.

use crate::system::filtered;
use crate::system::raw::syscall;

/// The kernel's set of the two signals.
const SIGNALS: u64 = 1 << (libc::SIGXFSZ - 1) | 1 << (libc::SIGPIPE - 1);
const SET_BYTES: usize = size_of::<u64>();

/// Runs a write, which reports whether it succeeded, without a signal to this process.
pub fn quietly(write: impl FnOnce() -> bool) -> bool {
    if filtered::are_forbidden() {
        return write(); // a filter of system calls may know of no others
    }
    let mut before = 0u64;
    let (now, no_time) = (SIGNALS, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the sets have the kernel's length; `before` is put back below, so the program sees no change.
    let is_held = unsafe {
        syscall!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const now, &raw mut before, SET_BYTES) == 0
    };
    let mut waiting = 0u64;
    if is_held && before & SIGNALS != 0 {
        // Those that the program holds back itself and that wait already are its own.
        // SAFETY: as above.
        unsafe { syscall!(SYS_rt_sigpending, &raw mut waiting, SET_BYTES) };
    }
    let done = write();
    if is_held {
        let own = SIGNALS & !waiting;
        // SAFETY: as above; the call takes a signal that waits, or returns at once.
        unsafe {
            while !done
                && syscall!(SYS_rt_sigtimedwait, &raw const own, 0usize, &raw const no_time, SET_BYTES) > 0
            {
            }
            syscall!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0usize, SET_BYTES);
        }
    }
    done
}
