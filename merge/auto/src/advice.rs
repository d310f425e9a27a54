//! Calls whose meaning would change on shared pages: a page of the store that is dropped with MADV_DONTNEED comes back
//! with the store's bytes, where the program expects zeros, and a locked page must be the program's own. Such ranges are
//! made private first.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::blocks::{self, PAGE};
use crate::library;
use crate::next::{self, Next};

static MADVISE: Next = Next::new(c"madvise");
static MLOCK: Next = Next::new(c"mlock");
static MLOCK2: Next = Next::new(c"mlock2");

fn make_private(range: Range<usize>) {
    blocks::with_shared(range, |part| {
        let start = part.start / PAGE * PAGE;
        library::unadvise(start..part.end.next_multiple_of(PAGE));
    });
}

fn range(start: *const c_void, bytes: usize) -> Range<usize> {
    start as usize..(start as usize).saturating_add(bytes)
}

/// madvise(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    const DONTNEED_LOCKED: c_int = 24;
    if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE | DONTNEED_LOCKED) {
        make_private(range(start, bytes));
    }
    // SAFETY: the next one, with the caller's arguments.
    unsafe { MADVISE.get::<next::Madvise>()(start, bytes, advice) }
}

/// mlock(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(start: *const c_void, bytes: usize) -> c_int {
    make_private(range(start, bytes));
    // SAFETY: the next one, with the caller's arguments.
    unsafe { MLOCK.get::<next::Mlock>()(start, bytes) }
}

/// mlock2(2).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(start: *const c_void, bytes: usize, flags: c_int) -> c_int {
    make_private(range(start, bytes));
    // SAFETY: the next one, with the caller's arguments.
    unsafe { MLOCK2.get::<next::Mlock2>()(start, bytes, flags) }
}
