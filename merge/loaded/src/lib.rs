//! libmayfly_merge.so, the same that a program may use by itself, loaded while that runs: for libraries that advise memory in
//! its stead.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ops::Range;

/// Other threads write by plain stores only (`MAYFLY_ADVISE_NO_SYSCALLS`).
pub const NO_SYSCALLS: c_uint = 1;
/// In [`Head::path`]: the kernel merges, and counts for itself.
const KERNEL: u32 = 1;

type Advise = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Statistics = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type LastError = unsafe extern "C" fn() -> *const c_char;

/// The library; it stays loaded.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    advise: Advise,
    statistics: Statistics,
    last_error: LastError,
}

/// The head of `struct mayfly_merge_stats`.
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
    /// Loads it, from a path or as the loader finds a name.
    ///
    /// # Errors
    /// It is not there, or not what it should be.
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
        let last_error = find(c"mayfly_merge_error")?;
        // SAFETY: the types are those of merge/include/mayfly_merge.h.
        Ok(unsafe {
            Library {
                advise: transmute::<*mut c_void, Advise>(advise),
                statistics: transmute::<*mut c_void, Statistics>(statistics),
                last_error: transmute::<*mut c_void, LastError>(last_error),
            }
        })
    }

    /// Shares the pages of a range.
    ///
    /// # Errors
    /// errno; [`Library::last_error`] says more.
    ///
    /// # Safety
    /// Whole pages that are mapped, and that nobody unmaps meanwhile.
    pub unsafe fn advise(&self, range: &Range<usize>, flags: c_uint) -> Result<(), i32> {
        // SAFETY: as the caller says.
        match unsafe { (self.advise)(range.start as *mut c_void, range.len(), flags) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    }

    /// A line about this thread's last call that failed.
    pub fn last_error(&self) -> String {
        // SAFETY: a C string that is valid until this thread's next call.
        unsafe { CStr::from_ptr((self.last_error)()) }.to_string_lossy().into_owned()
    }

    /// Pages that calls so far have made shared.
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
    fn what_is_not_the_library_is_told_by_name() {
        assert!(Library::load("/nowhere/libmayfly_merge.so").unwrap_err().contains("/nowhere"));
        assert_eq!(Library::load("libc.so.6").unwrap_err(), "libc.so.6: has no mayfly_advise");
        assert_eq!(Library::load("a\0b").unwrap_err(), "a\0b: not a path");
    }
}
