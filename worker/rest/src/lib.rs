//! `libmayfly_rest.so`: what an instance does while it has no work. It gives back what its heap holds free, and shares
//! its pages with the other instances of its function (UPM §IV-B).
//!
//! Preloaded into instances. The bootstrap of the function's runtime calls [`mayfly_rest`] between two invocations, on
//! the only thread that then runs. Whatever comes in meanwhile is noticed within some milliseconds.
//!
//! | module | what it is |
//! |---|---|
//! | [`rest`] | which memory is advised, piece by piece, and when that stops |
//! | [`library`] | libmayfly_merge.so, which does the merging |
//! | [`heap`] | what Mayfly's heap says of itself |

mod heap;
mod library;
mod rest;

use std::ffi::c_int;

/// What a rest has done.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// Bytes that were looked at for merging.
    pub advised_bytes: u64,
    /// Pages that now share one that the store had, or has taken over.
    pub shared_pages: u64,
    /// By how much resident memory fell when the heap gave back what it held free.
    pub trimmed_bytes: u64,
    /// Bytes of live objects, where the heap is Mayfly's.
    pub heap_live_bytes: u64,
    /// Of the blocks that they are in, which cannot be given back.
    pub heap_held_bytes: u64,
    /// Whether everything was looked at; 0: work came in between, or merging failed.
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

/// Gives back and, if `merges` is not 0, merges what is named until all is looked at or `work` is readable.
///
/// # Safety
/// There are `count` ranges at `named`; `outcome` is valid. No other thread maps or unmaps memory during the call (Python: the GIL is held).
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
    // SAFETY: malloc_trim only gives back free memory. It is the preloaded heap's, or the C library's.
    unsafe { libc::malloc_trim(0) };
    let trimmed_bytes = before.saturating_sub(resident_bytes());
    let rest = if merges != 0 { rest::merge(work, named) } else { Rest { complete: 1, ..Rest::default() } };
    let heap::Held { live_bytes, held_bytes } = heap::held();
    let rest = Rest { trimmed_bytes, heap_live_bytes: live_bytes, heap_held_bytes: held_bytes, ..rest };
    // What ends a merge early for another reason than work will end the next one, too.
    if merges != 0 && (rest.complete != 0 || rest.errno != 0) {
        heap::settled();
    }
    // SAFETY: the caller's, valid.
    unsafe { *outcome = rest };
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
