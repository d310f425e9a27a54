//! `madvise` and `process_madvise` on advised memory: anonymous memory that an advice empties is zero
//! afterwards, and a private mapping of the store's pages would have the advised bytes again.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstat;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::{ORIGINALS, Originals, active_calls, advised_ranges, fail, first_of, lock, map_zeros};
use crate::base::page::PAGE_BYTES;

const DONTNEED_LOCKED: c_int = 24;
/// Empties pages, and has every access end in SIGSEGV until they are removed (Linux 6.13).
const GUARD_INSTALL: c_int = 102;

/// Descriptors that name the calling process without being open (Linux 6.14, and what it became later).
const PIDFD_SELF: [RawFd; 4] = [-100, -200, -10_000, -10_001];

/// Whether the program has given memory a property since the first call that shared pages of the store would
/// not have.
static HAS_PROPERTIES: AtomicBool = AtomicBool::new(false);

/// Whether memory that was shared may have got such a property since.
pub fn may_have_properties() -> bool {
    HAS_PROPERTIES.load(Ordering::Relaxed)
}

/// Whether memory of the program's is empty after this advice.
fn empties(advice: c_int) -> bool {
    matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | DONTNEED_LOCKED | GUARD_INSTALL)
}

/// The system call itself: another interposer's function might wait for a thread that waits for this one.
///
/// # Safety
/// As madvise(2).
unsafe fn by_system_call(real: &Originals, start: usize, bytes: usize, advice: c_int) -> bool {
    // SAFETY: as the function's.
    unsafe { (real.syscall)(libc::SYS_madvise, start, bytes, advice) == 0 }
}

pub unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    let Some(Some(real)) = ORIGINALS.get() else { return fail(libc::ENOSYS) };
    // SAFETY: the caller's arguments.
    unsafe { madvise_over(real, start, bytes, advice, || (real.madvise)(start, bytes, advice)) }
}

/// As [`madvise`] by system call.
///
/// # Safety
/// As madvise(2).
pub unsafe fn madvise_by_number(real: &Originals, start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    let original = || {
        // SAFETY: the caller's arguments.
        if unsafe { by_system_call(real, start as usize, bytes, advice) } { 0 } else { -1 }
    };
    // SAFETY: the caller's arguments.
    unsafe { madvise_over(real, start, bytes, advice, original) }
}

/// Empties advised memory; other memory and other advices are left to the original call.
///
/// # Safety
/// As madvise(2).
unsafe fn madvise_over(
    real: &Originals,
    start: *mut c_void,
    bytes: usize,
    advice: c_int,
    original: impl Fn() -> c_int,
) -> c_int {
    if matches!(advice, libc::MADV_WIPEONFORK | libc::MADV_DONTFORK | libc::MADV_DONTDUMP) {
        HAS_PROPERTIES.store(true, Ordering::Relaxed);
    }
    let at = start as usize;
    let whole = at.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(PAGE_BYTES));
    let (true, true, Some(end)) = (empties(advice) && bytes > 0, at.is_multiple_of(PAGE_BYTES), whole) else {
        return original();
    };
    let _call = active_calls::begin();
    if !advised_ranges::overlaps(&(at..end)) {
        return original();
    }
    // While a batch is put in place, its old pages must not be dropped.
    let _held = lock();
    // A kernel that does not know the advice must leave the memory as it is.
    // SAFETY: no byte is advised.
    if !unsafe { by_system_call(real, at, 0, advice) } {
        return -1;
    }
    let (mut next, mut result) = (at, 0);
    while next < end {
        let mut first = None;
        if !first_of(&(next..end), &mut first) {
            // An error is better than memory that the caller wrongly takes for zeroed.
            return fail(libc::ENOMEM);
        }
        let Some(part) = first else { return fail(libc::ENOMEM) };
        // SAFETY: the caller gives the contents of the range up.
        let is_done = unsafe {
            (!part.is_store || map_zeros(&part.range, part.rights))
                // What was just mapped is empty, but has no guards yet.
                && (part.is_store && advice != GUARD_INSTALL
                    || by_system_call(real, part.range.start, part.range.len(), advice))
        };
        if !is_done {
            result = -1;
        } else if part.range.start > next {
            result = fail(libc::ENOMEM);
        }
        next = part.range.end;
    }
    result
}

pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: u32,
) -> isize {
    let Some(Some(real)) = ORIGINALS.get() else { return fail(libc::ENOSYS) as isize };
    // By system call: older C libraries lack the function.
    // SAFETY: the caller's arguments.
    let call = |count: usize| unsafe {
        (real.syscall)(libc::SYS_process_madvise, process, ranges, count, advice, flags) as isize
    };
    const MOST: usize = 1024; // of the kernel
    // Without a range the kernel checks all but the ranges, and whether it allows this advice at all.
    if !empties(advice) || count == 0 || count > MOST || !is_this_process(process) || call(0) != 0 {
        return call(count);
    }
    let mut done = 0;
    for i in 0..count {
        // SAFETY: the caller's ranges; each is treated as the kernel would.
        let failed = unsafe {
            let range = *ranges.add(i);
            madvise_by_number(real, range.iov_base, range.iov_len, advice) != 0 || {
                done += range.iov_len as isize;
                false
            }
        };
        if failed {
            return if done > 0 { done } else { -1 };
        }
    }
    done
}

/// Whether a PID file descriptor is this process's. Kernels that allow these advices by `process_madvise`
/// (Linux 6.13) give each process's descriptors an inode of its own.
fn is_this_process(descriptor: RawFd) -> bool {
    if descriptor < 0 {
        return PIDFD_SELF.contains(&descriptor);
    }
    let identity = |file: BorrowedFd<'_>| fstat(file).map(|about| (about.st_dev, about.st_ino));
    let own = pidfd_open(getpid(), PidfdFlags::empty()).and_then(|file| identity(file.as_fd()));
    // SAFETY: only read, and a descriptor that is not open is an error.
    own.is_ok() && own == identity(unsafe { BorrowedFd::borrow_raw(descriptor) })
}
