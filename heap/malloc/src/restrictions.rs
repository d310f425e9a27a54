//! Functions by which a program restricts itself, or that want a process of one thread: before each, the heap
//! ends its maintenance thread, which would not have the new rules, and starts no other. A filter of system
//! calls may end the process at a call that it does not expect: the heap opens no file or socket any more.

use core::ffi::{c_int, c_long, c_void};

use heap::entry::maintenance_thread;
use heap::system::{files, os};
use heap::thread::fork;

use crate::next::Next;

/// Namespaces and what else wants a process of one thread.
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

/// The operations of seccomp(2) that set a filter.
const SET_MODE_STRICT: usize = libc::SECCOMP_SET_MODE_STRICT as usize;
const SET_MODE_FILTER: usize = libc::SECCOMP_SET_MODE_FILTER as usize;

fn is_restriction(option: c_int) -> bool {
    matches!(
        option,
        libc::PR_SET_NO_NEW_PRIVS
            | libc::PR_SET_SECCOMP
            | libc::PR_CAPBSET_DROP
            | libc::PR_SET_SECUREBITS
            | libc::PR_CAP_AMBIENT
    )
}

/// Makes a call that may set a filter of system calls, which `sets` says; 0 is success.
fn filtering(sets: bool, call: impl FnOnce() -> c_long) -> c_long {
    // A child of vfork shares this memory, and filters only its own calls.
    if !sets || fork::process() != os::process_id() {
        return call();
    }
    let before = files::forbid(true);
    let result = call();
    if result != 0 {
        files::forbid(before);
    }
    result
}

/// Linux's unshare.
#[unsafe(no_mangle)]
pub extern "C" fn unshare(flags: c_int) -> c_int {
    static NEXT: Next = Next::new(c"unshare");
    if flags & ALONE != 0 {
        maintenance_thread::restrict();
    }
    // SAFETY: the C library's function of this type.
    unsafe { core::mem::transmute::<*mut c_void, extern "C" fn(c_int) -> c_int>(NEXT.get())(flags) }
}

/// Linux's setns.
#[unsafe(no_mangle)]
pub extern "C" fn setns(file: c_int, kind: c_int) -> c_int {
    static NEXT: Next = Next::new(c"setns");
    maintenance_thread::restrict();
    // SAFETY: as above.
    unsafe {
        core::mem::transmute::<*mut c_void, extern "C" fn(c_int, c_int) -> c_int>(NEXT.get())(file, kind)
    }
}

/// Linux's capset.
#[unsafe(no_mangle)]
pub extern "C" fn capset(header: *mut c_void, data: *const c_void) -> c_int {
    static NEXT: Next = Next::new(c"capset");
    maintenance_thread::restrict();
    type Capset = extern "C" fn(*mut c_void, *const c_void) -> c_int;
    // SAFETY: as above.
    unsafe { core::mem::transmute::<*mut c_void, Capset>(NEXT.get())(header, data) }
}

/// Linux's prctl, whose arguments are words.
#[unsafe(no_mangle)]
pub extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    static NEXT: Next = Next::new(c"prctl");
    if is_restriction(option) {
        maintenance_thread::restrict();
    }
    type Prctl = extern "C" fn(c_int, usize, usize, usize, usize) -> c_int;
    // SAFETY: as above; on this machine a variadic function takes words as any other does.
    let call = || unsafe { core::mem::transmute::<*mut c_void, Prctl>(NEXT.get())(option, a, b, c, d) };
    filtering(option == libc::PR_SET_SECCOMP, || call().into()) as c_int
}

/// Linux's syscall: libseccomp and Landlock's users call it. A call with fewer arguments passes on what its
/// registers and stack hold, as the C library's own function does.
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
    static NEXT: Next = Next::new(c"syscall");
    match number {
        libc::SYS_seccomp | libc::SYS_landlock_restrict_self | libc::SYS_capset | libc::SYS_setns => {
            maintenance_thread::restrict();
        }
        libc::SYS_unshare if a as c_int & ALONE != 0 => maintenance_thread::restrict(),
        libc::SYS_prctl if is_restriction(a as c_int) => maintenance_thread::restrict(),
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups => maintenance_thread::restrict(), // the calling thread's alone
        _ => {}
    }
    type Syscall = extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    // SAFETY: as above.
    let call =
        || unsafe { core::mem::transmute::<*mut c_void, Syscall>(NEXT.get())(number, a, b, c, d, e, f) };
    let sets = match number {
        libc::SYS_seccomp => matches!(a, SET_MODE_STRICT | SET_MODE_FILTER),
        libc::SYS_prctl => a as c_int == libc::PR_SET_SECCOMP,
        _ => false,
    };
    filtering(sets, call)
}
