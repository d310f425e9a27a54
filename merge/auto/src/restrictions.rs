//! Calls after which the scanner must not run: a filter of system calls may end the process at one that it
//! does not expect, and a namespace wants a process of one thread. Before each the scanner ends, for good.
//! (The functions of libmayfly_merge.so go on: they make system calls where the program does.)

use std::ffi::{c_int, c_long};

use crate::next_symbol::Next;
use crate::scanner_thread;

/// Namespaces, which the calling thread alone would be in, and what wants a process of one thread.
const ALONE: c_int = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWTIME
    | libc::CLONE_VM
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD;

static UNSHARE: Next = Next::new(c"unshare");
static SETNS: Next = Next::new(c"setns");
static PRCTL: Next = Next::new(c"prctl");
static SYSCALL: Next = Next::new(c"syscall");

type Unshare = extern "C" fn(c_int) -> c_int;
type Setns = extern "C" fn(c_int, c_int) -> c_int;
type Prctl = extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
type Syscall = extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;

/// Finds the functions behind these: a signal handler may call them, and a look-up takes the loader's lock.
pub fn find_next() {
    // SAFETY: the C library's functions have these types.
    unsafe {
        let _: Unshare = UNSHARE.get();
        let _: Setns = SETNS.get();
        let _: Prctl = PRCTL.get();
        let _: Syscall = SYSCALL.get();
    }
}

/// Linux's unshare.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    if flags & ALONE != 0 {
        scanner_thread::end();
    }
    // SAFETY: as in `find_next`.
    let next: Unshare = unsafe { UNSHARE.get() };
    next(flags)
}

/// Linux's setns.
#[unsafe(no_mangle)]
pub extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    scanner_thread::end();
    // SAFETY: as in `find_next`.
    let next: Setns = unsafe { SETNS.get() };
    next(file, kind)
}

/// Linux's prctl, whose arguments are words.
#[unsafe(no_mangle)]
pub extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option, a, b);
    // SAFETY: as in `find_next`; on this machine a variadic function takes words as any other does.
    let next: Prctl = unsafe { PRCTL.get() };
    next(option, a, b, c, d)
}

/// Without rules the call only asks whether the kernel can filter.
fn before_prctl(option: c_int, mode: usize, rules: usize) {
    if option == libc::PR_SET_SECCOMP && (mode == libc::SECCOMP_MODE_STRICT as usize || rules != 0) {
        scanner_thread::end();
    }
}

/// Linux's syscall: libseccomp calls it. A call with fewer arguments passes on what its registers and stack
/// hold, as the C library's own function does.
#[unsafe(no_mangle)]
pub extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    const STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
    const FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;
    match number {
        libc::SYS_seccomp if a == STRICT || a == FILTER && c != 0 => scanner_thread::end(),
        libc::SYS_prctl => before_prctl(a as c_int, b, c),
        libc::SYS_unshare if a as c_int & ALONE != 0 => scanner_thread::end(),
        libc::SYS_setns => scanner_thread::end(),
        _ => {}
    }
    // SAFETY: as in `find_next`.
    let next: Syscall = unsafe { SYSCALL.get() };
    next(number, a, b, c, d, e, f)
}
