//! Finds the functions that this library interposes: the next library's functions of the same names.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A function of the next library, looked up at its first call.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function's address as a function pointer.
    ///
    /// # Safety
    /// `F` is a pointer to a function of the type that the C library gives this name.
    pub unsafe fn get<F: Copy>(&self) -> F {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            assert!(!found.is_null(), "mayfly-merge: the C library has no {:?}", self.name);
            self.found.store(found, Ordering::Relaxed);
        }
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: as the caller promises; both are pointers.
        unsafe { transmute_copy(&found) }
    }
}

pub type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
pub type Calloc = unsafe extern "C" fn(usize, usize) -> *mut c_void;
pub type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
pub type Reallocarray = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
pub type Free = unsafe extern "C" fn(*mut c_void);
pub type Memalign = unsafe extern "C" fn(usize, usize) -> *mut c_void;
pub type PosixMemalign = unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int;
pub type UsableSize = unsafe extern "C" fn(*mut c_void) -> usize;

/// Looking a function up may allocate, once; that memory is never freed.
static EARLY: [AtomicUsize; 512] = [const { AtomicUsize::new(0) }; 512];
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// Zeroed memory for an allocation within the lookup of calloc itself.
pub fn early(bytes: usize) -> *mut c_void {
    let words = bytes.div_ceil(16) * 2;
    let at = EARLY_USED.fetch_add(words, Ordering::Relaxed);
    if at + words > EARLY.len() { null_mut() } else { EARLY[at].as_ptr().cast() }
}

/// Whether a pointer came from [`early`].
pub fn is_early(pointer: *mut c_void) -> bool {
    let start = EARLY.as_ptr() as usize;
    (start..start + size_of_val(&EARLY)).contains(&(pointer as usize))
}
