//! libmayfly_merge.so, the same that programs call directly, loaded at run time: for libraries that advise
//! memory on a program's behalf.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ops::Range;

/// Other threads write by plain stores only (`MAYFLY_ADVISE_NO_SYSCALLS`).
pub const NO_SYSCALLS: c_uint = 1;
/// In [`Head::path`]: the kernel merges, and has the counts.
const KERNEL: u32 = 1;

type KeepAnonymous = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Advise = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Statistics = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;

/// The library; it stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    advise: Advise,
    keep_anonymous: KeepAnonymous,
    statistics: Statistics,
    last_error: LastError,
}

/// The first fields of `struct mayfly_merge_stats`.
#[repr(C)]
#[derive(Default)]
struct Head {
    size: u32,
    path: u32,
    calls: u64,
    pages: u64,
    unchanged: u64,
    merged: u64,
    inserted: u64,
}

impl Library {
    /// Loads it, from a path or by a name that the loader finds.
    ///
    /// # Errors
    /// It does not exist, or is another library.
    pub fn load(path: &str) -> Result<Library, String> {
        let text = CString::new(path).map_err(|_| format!("{path}: not a path"))?;
        // SAFETY: a C string.
        let loaded = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW) };
        if loaded.is_null() {
            // SAFETY: after a failure dlerror gives a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(why.to_string_lossy().into_owned());
        }
        let find = |name: &CStr| {
            // SAFETY: a C string and a loaded library.
            let found = unsafe { libc::dlsym(loaded, name.as_ptr()) };
            if found.is_null() {
                Err(format!("{path}: has no {}", name.to_string_lossy()))
            } else {
                Ok(found)
            }
        };
        let (advise, statistics) = (find(c"mayfly_advise")?, find(c"mayfly_merge_stats")?);
        let (keep, last_error) = (find(c"mayfly_keep_anonymous")?, find(c"mayfly_merge_error")?);
        // SAFETY: the types are those of merge/include/mayfly_merge.h.
        Ok(unsafe {
            Library {
                advise: transmute::<*mut c_void, Advise>(advise),
                keep_anonymous: transmute::<*mut c_void, KeepAnonymous>(keep),
                statistics: transmute::<*mut c_void, Statistics>(statistics),
                last_error: transmute::<*mut c_void, LastError>(last_error),
            }
        })
    }

    /// Shares the pages of a range.
    ///
    /// # Errors
    /// errno; [`Library::last_error`] explains it.
    ///
    /// # Safety
    /// Whole pages that are mapped, and that no thread unmaps meanwhile.
    pub unsafe fn advise(&self, range: &Range<usize>, flags: c_uint) -> Result<(), i32> {
        // SAFETY: as the caller promises.
        match unsafe { (self.advise)(range.start as *mut c_void, range.len(), flags) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    }

    /// Makes a range keep the semantics of anonymous memory where this process is restored from a snapshot.
    ///
    /// # Errors
    /// errno; [`Library::last_error`] explains it.
    pub fn keep_anonymous(&self, range: &Range<usize>) -> Result<(), i32> {
        // SAFETY: the library notes the numbers, and touches no memory there.
        match unsafe { (self.keep_anonymous)(range.start as *mut c_void, range.len()) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    }

    /// A line about this thread's last failed call.
    pub fn last_error(&self) -> String {
        // SAFETY: a C string that is valid until this thread's next call.
        unsafe { CStr::from_ptr((self.last_error)()) }.to_string_lossy().into_owned()
    }

    /// Pages that calls so far have shared.
    pub fn shared_pages(&self) -> u64 {
        let mut head = Head::default();
        // SAFETY: the library writes at most so many bytes.
        unsafe { (self.statistics)((&raw mut head).cast(), size_of::<Head>()) };
        if head.path == KERNEL {
            let text = std::fs::read_to_string("/proc/self/ksm_merging_pages").unwrap_or_default();
            return text.trim().parse().unwrap_or(0);
        }
        head.merged + head.inserted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_names_a_file_that_is_not_the_library() {
        assert!(Library::load("/nowhere/libmayfly_merge.so").unwrap_err().contains("/nowhere"));
        assert_eq!(Library::load("libc.so.6").unwrap_err(), "libc.so.6: has no mayfly_advise");
        assert_eq!(Library::load("a\0b").unwrap_err(), "a\0b: not a path");
    }
}
