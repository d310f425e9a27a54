//! Whether this is the process that a recording belongs to, or a child that was forked past the C library's
//! handlers (`_Fork`, clone): such a child lacks the recording's mappings, and has the other threads' locks.
//!
//! A page that the kernel empties in every fork tells them apart. A process id would not: in a PID namespace
//! the child may have its parent's number.

use core::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::system::os;
use crate::units::geometry::PAGE_BYTES;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());

/// Makes this the process of the recording; whether that was possible.
pub fn claim_process() -> bool {
    if page().is_none() {
        let Some(at) = os::map_anywhere(PAGE_BYTES) else { return false };
        if !os::advise(at, PAGE_BYTES, libc::MADV_WIPEONFORK) {
            os::unmap(at, PAGE_BYTES);
            return false;
        }
        PAGE.store(at as *mut AtomicU32, Release);
    }
    page().inspect(|page| page.store(1, Relaxed)).is_some()
}

/// Whether this process made the claim.
pub fn is_claimed() -> bool {
    page().is_some_and(|page| page.load(Relaxed) != 0)
}

fn page() -> Option<&'static AtomicU32> {
    // SAFETY: null or a page of this process that is never unmapped.
    unsafe { PAGE.load(Acquire).as_ref() }
}
