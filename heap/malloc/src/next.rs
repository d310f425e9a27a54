//! Functions of the C library behind those that the heap interposes.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A function of the C library that stands behind ours.
pub(crate) struct Next(&'static CStr, AtomicPtr<c_void>);

impl Next {
    /// The function of this name.
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self(name, AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Its address, looked up at the first call.
    pub(crate) fn get(&self) -> *mut c_void {
        let mut at = self.1.load(Relaxed);
        if at.is_null() {
            // SAFETY: the name ends in NUL.
            at = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
            self.1.store(at, Relaxed);
        }
        if at.is_null() {
            heap::system::process::abort(
                b"mayfly-heap: the C library lacks a function that the heap interposes\n",
            );
        }
        at
    }
}
