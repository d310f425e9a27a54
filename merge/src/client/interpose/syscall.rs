//! `syscall(2)`: programs call madvise, mremap and process_madvise by their numbers, too. Other interposers
//! do so within those functions: what is left to the original call here is the system call itself.

use std::ffi::{c_int, c_long, c_void};

use super::madvise::{madvise_by_number, process_madvise};
use super::mremap::mremap_over;
use super::{ORIGINALS, SyscallOfSix, fail, forks};

/// Takes the most arguments that a system call has. As in the C library's own function, those that the caller
/// did not pass are whatever the registers and the caller's stack hold, and the kernel ignores them.
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let Some(Some(real)) = ORIGINALS.get() else { return fail(libc::ENOSYS) as c_long };
    // SAFETY: the caller's arguments, as each system call takes them.
    unsafe {
        match number {
            libc::SYS_madvise => madvise_by_number(real, a as *mut c_void, b as usize, c as c_int) as c_long,
            libc::SYS_mremap => {
                let original = || (real.syscall)(number, a, b, c, d, e) as *mut c_void;
                let (old, to) = (a as *mut c_void, e as *mut c_void);
                mremap_over(real, old, b as usize, c as usize, d as c_int, to, original) as c_long
            }
            libc::SYS_process_madvise => {
                process_madvise(a as c_int, b as *const libc::iovec, c as usize, d as c_int, e as u32)
                    as c_long
            }
            _ => {
                let original = std::mem::transmute::<super::Syscall, SyscallOfSix>(real.syscall);
                if forks::is_fork(original, number, a, b) {
                    return forks::fork_by_number(original, number, [a, b, c, d, e, f]);
                }
                original(number, a, b, c, d, e, f)
            }
        }
    }
}
