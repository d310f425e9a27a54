//! libmayfly_merge.so, which a function may also use by itself. `MAYFLY_MERGE_LIBRARY` is its path; in
//! instances that do not merge it lies beside this library.

use std::ffi::{CStr, c_uint, c_void};
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use merge_loaded::Library;
pub use merge_loaded::NO_SYSCALLS;

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

fn library() -> Result<&'static Library, i32> {
    let load = || Library::load(&std::env::var("MAYFLY_MERGE_LIBRARY").ok().or_else(beside)?).ok();
    LIBRARY.get_or_init(load).as_ref().ok_or(libc::ENOENT)
}

fn beside() -> Option<String> {
    // SAFETY: dladdr fills the structure for an address inside a loaded object, or returns 0.
    let path = unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(beside as *const c_void, &mut about) == 0 || about.dli_fname.is_null() {
            return None;
        }
        CStr::from_ptr(about.dli_fname).to_str().ok()?
    };
    Some(Path::new(path).with_file_name("libmayfly_merge.so").to_str()?.into())
}

/// Shares the pages of a range; an error is errno.
pub fn advise(range: &Range<usize>, flags: c_uint) -> Result<(), i32> {
    // SAFETY: whole pages that /proc/self/maps has just listed; no thread unmaps memory while the process
    // rests.
    unsafe { library()?.advise(range, flags) }
}

/// Makes a range keep the semantics of anonymous memory where this process is restored from a snapshot.
pub fn keep_anonymous(range: &Range<usize>) -> Result<(), i32> {
    library()?.keep_anonymous(range)
}

/// Pages that calls so far have made shared.
pub fn shared_pages() -> u64 {
    library().map_or(0, Library::shared_pages)
}
