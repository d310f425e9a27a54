//! Finds the definitions of the C library's functions: the code that a call reaches as long as no GOT entry
//! is redirected.
//!
//! A program linked without PIE that takes a function's address has that address in its own PLT, and dlsym
//! of `RTLD_DEFAULT` returns the PLT entry. It jumps through the program's GOT entry, which [`super::got`]
//! redirects: a replacement that called it would call itself for ever.

use std::ffi::{CStr, CString, c_int, c_void};
use std::ops::Range;

use super::got;

/// The definition that other objects' calls reach, or None if no object has one.
pub fn of(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string; the address is not used here.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    match found.is_null() {
        true => None,
        false if got::plt_entry_of_program(name) == Some(found as usize) => first_of_libraries(name),
        false => Some(found),
    }
}

/// The base of the object that contains an address.
pub fn object_of(address: *mut c_void) -> Option<usize> {
    // SAFETY: dladdr fills the structure for an address inside a loaded object, or returns 0.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        (libc::dladdr(address, &mut about) != 0).then_some(about.dli_fbase as usize)
    }
}

struct Loaded {
    path: CString,
    segments: Vec<Range<usize>>,
}

/// The first definition among the loaded libraries, in the order in which the loader searches them.
fn first_of_libraries(name: &CStr) -> Option<*mut c_void> {
    let mut libraries: Vec<Loaded> = Vec::new();
    // SAFETY: `list` has the type of a callback, and takes the vector.
    unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut libraries).cast()) };
    libraries.iter().find_map(|library| {
        // SAFETY: C strings; the library is loaded already, and stays loaded.
        let found = unsafe {
            let handle = libc::dlopen(library.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return None;
            }
            let found = libc::dlsym(handle, name.as_ptr());
            libc::dlclose(handle);
            found
        };
        // dlsym also searches what the library depends on, whose turn is later.
        let is_its_own = library.segments.iter().any(|segment| segment.contains(&(found as usize)));
        is_its_own.then_some(found)
    })
}

unsafe extern "C" fn list(about: *mut libc::dl_phdr_info, _size: usize, libraries: *mut c_void) -> c_int {
    // SAFETY: the loader's description of an object, and the caller's vector.
    unsafe {
        let path = (*about).dlpi_name;
        // The program itself has no name.
        if path.is_null() || *path == 0 {
            return 0;
        }
        let headers = std::slice::from_raw_parts((*about).dlpi_phdr, (*about).dlpi_phnum.into());
        let segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD).map(|header| {
            let start = ((*about).dlpi_addr + header.p_vaddr) as usize;
            start..start + header.p_memsz as usize
        });
        let loaded = Loaded { path: CStr::from_ptr(path).to_owned(), segments: segments.collect() };
        (*libraries.cast::<Vec<Loaded>>()).push(loaded);
    }
    0
}
