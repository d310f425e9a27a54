//! `madvise` on advised memory. The program expects zeros after `MADV_DONTNEED`, as of any anonymous memory, but a private
//! mapping of the store's pages would bring the advised bytes back. So fresh memory is put in place instead. Allocators
//! call it: the preloaded heap, the C library's, and those that packages bring with them.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::advised;

const PAGE: usize = 4096;
const DONTNEED_LOCKED: c_int = 24;

type Madvise = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;

/// The function of this name that comes after ours.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// madvise(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    let drops = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | DONTNEED_LOCKED);
    let first = start as usize;
    if drops && first.is_multiple_of(PAGE) && bytes > 0 {
        let range = first..first.saturating_add(bytes).next_multiple_of(PAGE);
        if advised::overlaps(&range) {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: the caller gives the contents of the range up. It was readable and writable when it was advised.
            let fresh =
                unsafe { libc::mmap(start, range.len(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
            return if fresh == libc::MAP_FAILED { -1 } else { 0 };
        }
    }
    // SAFETY: the next one, with the caller's arguments.
    unsafe { next()(start, bytes, advice) }
}

fn next() -> Madvise {
    let mut found = NEXT.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"madvise".as_ptr()) };
        assert!(!found.is_null(), "mayfly: the C library has no madvise");
        NEXT.store(found, Ordering::Relaxed);
    }
    // SAFETY: the C library's function of this name has this type.
    unsafe { transmute::<*mut c_void, Madvise>(found) }
}
