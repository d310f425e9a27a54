//! The C library's allocation functions. Large allocations become blocks; the next library serves all others.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::{Contents, PAGE};
use crate::blocks::Release;
use crate::next_symbol::{self, Next};
use crate::settings::large_bytes;
use crate::{blocks, scanner, scanner_thread};

static MALLOC: Next = Next::new(c"malloc");
static CALLOC: Next = Next::new(c"calloc");
static REALLOC: Next = Next::new(c"realloc");
static REALLOCARRAY: Next = Next::new(c"reallocarray");
static FREE: Next = Next::new(c"free");
static MEMALIGN: Next = Next::new(c"memalign");
static POSIX_MEMALIGN: Next = Next::new(c"posix_memalign");
static USABLE_SIZE: Next = Next::new(c"malloc_usable_size");

/// A block for a large allocation; null if it is not large or no block can be made.
fn block(bytes: usize, alignment: usize, contents: Contents) -> *mut c_void {
    if bytes < large_bytes() || alignment > PAGE {
        return null_mut();
    }
    let Some(start) = blocks::allocate(bytes, contents) else { return null_mut() };
    scanner::begin();
    start as *mut c_void
}

/// malloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn malloc(bytes: usize) -> *mut c_void {
    let found = block(bytes, 1, Contents::Any);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the next malloc, with the caller's argument.
    again_if_short(|| unsafe { MALLOC.get::<next_symbol::Malloc>()(bytes) })
}

/// The next library's allocation; once more without freed blocks if there is no memory, or no more that the
/// process may have.
fn again_if_short(allocate: impl Fn() -> *mut c_void) -> *mut c_void {
    let found = allocate();
    if found.is_null() && blocks::unmap_freed() { allocate() } else { found }
}

/// calloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, each: usize) -> *mut c_void {
    // The lookup of calloc may call calloc.
    static LOOKING: AtomicBool = AtomicBool::new(false);
    static FOUND: AtomicBool = AtomicBool::new(false);
    if !FOUND.load(Ordering::Relaxed) {
        if LOOKING.swap(true, Ordering::Relaxed) {
            return next_symbol::early(count.saturating_mul(each));
        }
        // SAFETY: as below; only looked up here.
        let _: next_symbol::Calloc = unsafe { CALLOC.get() };
        FOUND.store(true, Ordering::Relaxed);
    }
    if let Some(bytes) = count.checked_mul(each) {
        let found = block(bytes, 1, Contents::Zeros);
        if !found.is_null() {
            return found;
        }
    }
    // SAFETY: the next calloc, with the caller's arguments.
    again_if_short(|| unsafe { CALLOC.get::<next_symbol::Calloc>()(count, each) })
}

/// free(3).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(pointer: *mut c_void) {
    match blocks::release(pointer as usize) {
        Release::Kept => return scanner_thread::note_freed(),
        Release::Unmapped => return,
        Release::None if next_symbol::is_early(pointer) => return,
        Release::None => {}
    }
    // SAFETY: not a block, so the next library's, as the caller promises.
    unsafe { FREE.get::<next_symbol::Free>()(pointer) }
}

/// realloc(3).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(pointer: *mut c_void, bytes: usize) -> *mut c_void {
    let old = blocks::find(pointer as usize);
    let had = match old {
        // The block stays if the new size fits and uses more than half of it.
        Some(block) if bytes > block.bytes / 2 && bytes <= block.bytes => return pointer,
        Some(block) => block.bytes,
        None if next_symbol::is_early(pointer) => 0,
        None if bytes == 0 => {
            // SAFETY: the next library's pointer, as the caller promises: this may free it.
            return unsafe { REALLOC.get::<next_symbol::Realloc>()(pointer, bytes) };
        }
        None => {
            // SAFETY: the next library's pointer, as the caller promises, and still there if this fails.
            return again_if_short(|| unsafe { REALLOC.get::<next_symbol::Realloc>()(pointer, bytes) });
        }
    };
    if bytes == 0 {
        // SAFETY: the caller gives it back.
        unsafe { free(pointer) };
        return null_mut();
    }
    let new = malloc(bytes);
    if !new.is_null() {
        // SAFETY: both are allocations of at least this size, and no other code has the new one.
        unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), new.cast(), had.min(bytes)) };
        // SAFETY: the caller gives it back.
        unsafe { free(pointer) };
    }
    new
}

/// reallocarray(3). The next library's own may not call this realloc, and then does not know the blocks.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(pointer: *mut c_void, count: usize, each: usize) -> *mut c_void {
    match count.checked_mul(each) {
        // SAFETY: as the caller promises.
        Some(bytes) if blocks::find(pointer as usize).is_some() => unsafe { realloc(pointer, bytes) },
        // SAFETY: the next library's pointer, as the caller promises, or too much.
        _ => unsafe { REALLOCARRAY.get::<next_symbol::Reallocarray>()(pointer, count, each) },
    }
}

/// free_sized of C23.
///
/// # Safety
/// As for free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(pointer: *mut c_void, _bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(pointer) }
}

/// free_aligned_sized of C23.
///
/// # Safety
/// As for free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(pointer: *mut c_void, _alignment: usize, _bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { free(pointer) }
}

/// An old name of free.
///
/// # Safety
/// As for free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(pointer: *mut c_void) {
    // SAFETY: as the caller promises.
    unsafe { free(pointer) }
}

/// posix_memalign(3).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    if alignment.is_power_of_two() && alignment.is_multiple_of(size_of::<usize>()) {
        let found = block(bytes, alignment, Contents::Any);
        if !found.is_null() {
            // SAFETY: the caller's pointer to a pointer.
            unsafe { *into = found };
            return 0;
        }
    }
    let next = || {
        // SAFETY: the next one, with the caller's arguments.
        unsafe { POSIX_MEMALIGN.get::<next_symbol::PosixMemalign>()(into, alignment, bytes) }
    };
    match next() {
        libc::ENOMEM if blocks::unmap_freed() => next(),
        outcome => outcome,
    }
}

/// memalign(3).
#[unsafe(no_mangle)]
pub extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    let found = block(bytes, alignment, Contents::Any);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the next one, with the caller's arguments.
    again_if_short(|| unsafe { MEMALIGN.get::<next_symbol::Memalign>()(alignment, bytes) })
}

/// aligned_alloc(3).
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    memalign(alignment, bytes)
}

/// malloc_usable_size(3).
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(pointer: *mut c_void) -> usize {
    match blocks::find(pointer as usize) {
        Some(block) => block.bytes,
        // SAFETY: the next library's pointer, as the caller promises.
        None => unsafe { USABLE_SIZE.get::<next_symbol::UsableSize>()(pointer) },
    }
}
