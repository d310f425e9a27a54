//! `libmayfly_rest.so`: idle work of an instance (a rest). The instance returns its heap's free memory, and
//! shares its pages with the other instances of its function (UPM §IV-B).
//!
//! Preloaded into instances. The bootstrap of the function's runtime calls [`mayfly_rest`] between two
//! invocations, on the only thread that then runs. The call returns within some milliseconds of arriving
//! work.
//!
//! | module | contents |
//! |---|---|
//! | [`rest`] | which memory is advised, piece by piece, and when that stops |
//! | [`library`] | libmayfly_merge.so, which merges |
//! | [`heap`] | statistics of Mayfly's heap |
//! | [`node`] | what Node.js calls before and after a snapshot |

mod heap;
mod library;
mod node;
mod rest;

use std::ffi::{CStr, c_int, c_void};

/// The outcome of a rest.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// Bytes that were examined for merging.
    pub advised_bytes: u64,
    /// Pages that are now mapped from the store, which had an equal page or has adopted this one.
    pub shared_pages: u64,
    /// By how much resident memory fell when the heap returned its free memory.
    pub trimmed_bytes: u64,
    /// Bytes of live objects, where the heap is Mayfly's.
    pub heap_live_bytes: u64,
    /// Of the blocks that they are in, which the heap cannot return.
    pub heap_held_bytes: u64,
    /// 1 if everything was examined; 0 if work arrived before, or merging failed.
    pub complete: u32,
    /// Why merging failed (errno), 0 if it did not.
    pub errno: i32,
}

/// Memory that the program has named.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Where it begins.
    pub start: usize,
    /// How long it is.
    pub bytes: usize,
}

/// Returns free heap memory and, if `merges` is not 0, merges the named ranges until all are examined or
/// `work` is readable.
///
/// # Safety
/// There are `count` ranges at `named`; `outcome` is valid. No other thread maps or unmaps memory during the
/// call (Python: the GIL is held).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mayfly_rest(
    merges: c_int,
    work: c_int,
    named: *const Range,
    count: usize,
    outcome: *mut Rest,
) {
    // SAFETY: the caller's ranges; Python gives no null pointer for none.
    let named = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(named, count) } };
    let before = resident_bytes();
    // SAFETY: malloc_trim only returns free memory. It is the preloaded heap's, or the C library's.
    unsafe { libc::malloc_trim(0) };
    let trimmed_bytes = before.saturating_sub(resident_bytes());
    let rest = if merges != 0 { rest::merge(work, named) } else { Rest { complete: 1, ..Rest::default() } };
    if merges != 0 {
        // What merging has allocated and freed is free memory again: a heap of some size caches it.
        // SAFETY: as above.
        unsafe { libc::malloc_trim(0) };
    }
    let heap::Held { live_bytes, held_bytes } = heap::held();
    let rest = Rest { trimmed_bytes, heap_live_bytes: live_bytes, heap_held_bytes: held_bytes, ..rest };
    // A failure that ends this merge early will end the next one, too; arriving work need not.
    if merges != 0 && (rest.complete != 0 || rest.errno != 0) {
        heap::settled();
    }
    // SAFETY: the caller's, valid.
    unsafe { *outcome = rest };
}

/// Prepares the process to be taken as a snapshot: returns free heap memory, and makes all of its own memory
/// keep the semantics of anonymous memory in restored processes, which have it as mappings of a file.
/// Returns 0, or errno.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_rest_before_snapshot() -> c_int {
    // SAFETY: malloc_trim only returns free memory.
    unsafe { libc::malloc_trim(0) };
    rest::before_snapshot().iter().find_map(|range| library::keep_anonymous(range).err()).unwrap_or(0)
}

/// A function of the program or of a library that it has loaded; null if there is none of this name.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
