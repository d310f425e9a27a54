//! Forks that run no handlers (`_Fork`, and `clone`, by its number, too): while pages are aside to be
//! replaced, a child would find none in their place. So these forks wait for the batch to end, as `fork` does
//! by its handlers. In the child the lock is free by itself: it may go on elsewhere, with a stack of its own.

use std::ffi::{c_int, c_long, c_void};

use super::{ORIGINALS, SyscallOfSix, fail, lock};

pub unsafe extern "C" fn bare_fork() -> libc::pid_t {
    let Some(Some(real)) = ORIGINALS.get() else { return fail(libc::ENOSYS) };
    let Some(original) = real.bare_fork else { return fail(libc::ENOSYS) };
    let _held = lock();
    // SAFETY: the caller's call.
    unsafe { original() }
}

/// The C library's function, with all arguments that it may have (as `syscall` in this folder).
pub unsafe extern "C" fn clone(
    run: *mut c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    thread: *mut c_void,
    child: *mut c_void,
) -> c_int {
    let Some(Some(real)) = ORIGINALS.get() else { return fail(libc::ENOSYS) };
    let Some(original) = real.clone else { return fail(libc::ENOSYS) };
    let _held = (flags & libc::CLONE_VM == 0).then(lock);
    // SAFETY: the caller's call.
    unsafe { original(run, stack, flags, argument, parent, thread, child) }
}

/// Whether a system call is a fork: the child has a copy of the memory.
///
/// # Safety
/// The arguments are those of the system call.
pub unsafe fn is_fork(original: SyscallOfSix, number: c_long, a: c_long, b: c_long) -> bool {
    let shares_memory = |flags: u64| flags & libc::CLONE_VM as u64 != 0;
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_clone => !shares_memory(a as u64),
        libc::SYS_clone3 => {
            // The first word of its arguments. The kernel reads it, for the address may be none.
            let mut flags = 0u64;
            let [to, from] = [&raw mut flags as usize, a as usize]
                .map(|at| libc::iovec { iov_base: at as *mut _, iov_len: size_of::<u64>() });
            let (to, from) = (&raw const to as c_long, &raw const from as c_long);
            // SAFETY: writes at most one word, to `flags`.
            let read = unsafe {
                original(libc::SYS_process_vm_readv, c_long::from(libc::getpid()), to, 1, from, 1, 0)
            };
            b as usize >= size_of::<u64>() && read == size_of::<u64>() as c_long && !shares_memory(flags)
        }
        _ => false,
    }
}

/// Forks by number.
///
/// # Safety
/// [`is_fork`] of the arguments.
pub unsafe fn fork_by_number(original: SyscallOfSix, number: c_long, arguments: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = arguments;
    let _held = lock();
    // SAFETY: as the function's.
    unsafe { original(number, a, b, c, d, e, f) }
}

/// The type of `_Fork`.
pub type BareFork = unsafe extern "C" fn() -> c_int;
/// The type of `clone`.
pub type Clone = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;
