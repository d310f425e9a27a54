//! `pthread_create`: starts the heap's maintenance thread with the program's first thread, see
//! [`heap::entry::maintenance_thread`].

use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use heap::entry::{maintenance_thread, start};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    Option<Start>,
    *mut c_void,
) -> libc::c_int;

/// Bytes of the maintenance thread's stack, of which it touches only what it uses.
const STACK_BYTES: usize = 256 << 10;

/// The C library's own function, looked up at the first call.
fn next() -> Option<Create> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mut at = NEXT.load(Relaxed);
    if at == 0 {
        // SAFETY: the name ends in NUL.
        at = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) } as usize;
        NEXT.store(at, Relaxed);
    }
    // SAFETY: 0, or the address of a function of this type.
    unsafe { core::mem::transmute::<usize, Option<Create>>(at) }
}

/// POSIX's pthread_create.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Option<Start>,
    argument: *mut c_void,
) -> libc::c_int {
    let Some(create) = next() else { return libc::EAGAIN };
    // SAFETY: the caller's arguments, passed on.
    let result = unsafe { create(thread, attributes, start, argument) };
    if result == 0 && maintenance_thread::claim_start() && !start_maintenance_thread(create) {
        maintenance_thread::mark_stopped();
    }
    result
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    start::become_ordinary(b"mayfly-maintain\0");
    maintenance_thread::run(start::visit);
    core::ptr::null_mut()
}

/// Starts the maintenance thread with all signals blocked: they are for the program's own threads.
fn start_maintenance_thread(create: Create) -> bool {
    // SAFETY: all structures are initialised by the calls that receive them; the thread needs nothing of this
    // frame.
    heap::system::os::keep_errno(|| unsafe {
        let mut attributes = core::mem::zeroed();
        let (mut all, mut before, mut thread) = (core::mem::zeroed(), core::mem::zeroed(), 0);
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = create(&raw mut thread, &raw const attributes, Some(run), core::ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        libc::pthread_attr_destroy(&raw mut attributes);
        result == 0
    })
}
