//! libmayfly_merge.so, the same that a function may use by itself; `MAYFLY_MERGE_LIBRARY` says where it is.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ops::Range;
use std::sync::OnceLock;

/// Other threads write by plain stores only (`MAYFLY_ADVISE_NO_SYSCALLS`).
pub const NO_SYSCALLS: c_uint = 1;

type Advise = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> c_int;
type Statistics = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

struct Library {
    advise: Advise,
    statistics: Statistics,
}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

fn library() -> Result<&'static Library, i32> {
    LIBRARY.get_or_init(load).as_ref().ok_or(libc::ENOENT)
}

fn load() -> Option<Library> {
    let path = CString::new(std::env::var("MAYFLY_MERGE_LIBRARY").ok()?).ok()?;
    // SAFETY: a C string; the library stays loaded.
    let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if loaded.is_null() {
        return None;
    }
    // SAFETY: C strings and a loaded library.
    let find = |name: &std::ffi::CStr| unsafe { libc::dlsym(loaded, name.as_ptr()) };
    let (advise, statistics) = (find(c"mayfly_advise"), find(c"mayfly_merge_stats"));
    if advise.is_null() || statistics.is_null() {
        return None;
    }
    // SAFETY: the types are those of merge/include/mayfly_merge.h.
    Some(unsafe {
        Library {
            advise: transmute::<*mut c_void, Advise>(advise),
            statistics: transmute::<*mut c_void, Statistics>(statistics),
        }
    })
}

/// Shares the pages of a range; an error is errno.
pub fn advise(range: &Range<usize>, flags: c_uint) -> Result<(), i32> {
    let library = library()?;
    // SAFETY: whole pages that were just seen to be mapped; nobody unmaps memory while the process rests.
    match unsafe { (library.advise)(range.start as *mut c_void, range.len(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

/// The head of `struct mayfly_merge_stats`.
#[repr(C)]
#[derive(Default)]
struct Counts {
    size: u32,
    path: u32,
    calls: u64,
    pages: u64,
    unchanged: u64,
    merged: u64,
    inserted: u64,
}

/// In `Counts::path`: the kernel merges, and counts for itself.
const KERNEL: u32 = 1;

/// Pages that calls so far have made shared.
pub fn shared_pages() -> u64 {
    let mut counts = Counts::default();
    let Ok(library) = library() else { return 0 };
    // SAFETY: the library writes at most so many bytes.
    unsafe { (library.statistics)((&raw mut counts).cast(), size_of::<Counts>()) };
    if counts.path == KERNEL {
        let text = std::fs::read_to_string("/proc/self/ksm_merging_pages").unwrap_or_default();
        return text.trim().parse().unwrap_or(0);
    }
    counts.merged + counts.inserted
}
