//! jemalloc's extended interface: allocation with flags. Programs that use it also call malloc and free on
//! the same objects (Redis, Valkey, BIND), so one allocator must serve both. [`crate::fast`] has mallocx
//! without flags, dallocx and sdallocx; [`crate::mallctl`] has the controls.
//!
//! Flags that choose a thread cache or an arena are hints here, and have no effect.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::ptr;

use heap::entry::{allocate, extent, free};
use heap::system::os::keep_errno;
use heap::units::call::ReturnSlot;
use heap::units::geometry::MIN_ALIGNMENT;

use crate::interface::{entry, realloc_from};

/// The flags that demand something: MALLOCX_LG_ALIGN and MALLOCX_ZERO.
pub(crate) const ALIGN_OR_ZERO: c_int = LG_ALIGN | ZERO;
const LG_ALIGN: c_int = 0x3f;
const ZERO: c_int = 0x40;

entry!(/// jemalloc's realloc with flags: null, and the object is as before, if it fails.
    rallocx(_object: *mut c_void, _size: usize, _flags: c_int) -> *mut c_void, "rcx", rallocx_from);

/// The alignment that the flags demand; `None` if no object can have it.
fn alignment(flags: c_int) -> Option<usize> {
    let alignment = 1usize << (flags & LG_ALIGN);
    (alignment <= isize::MAX as usize).then_some(alignment.max(MIN_ALIGNMENT))
}

/// Continues [`crate::fast::mallocx`] for flags that demand something.
#[unsafe(naked)]
pub(crate) extern "C-unwind" fn mallocx_flagged(_size: usize, _flags: c_int) -> *mut c_void {
    naked_asm!("mov rdx, rsp", "jmp {inner}", inner = sym mallocx_from)
}

extern "C-unwind" fn mallocx_from(size: usize, flags: c_int, from: ReturnSlot) -> *mut c_void {
    let Some(alignment) = alignment(flags) else { return ptr::null_mut() };
    let object = keep_errno(|| allocate::allocate_aligned(from.call_for(size), alignment));
    if !object.is_null() && flags & ZERO != 0 {
        clear(object, 0);
    }
    object.cast()
}

/// Clears the object's bytes from offset `from` to its end, which a program may use. Memory that is fresh
/// from the operating system reads as zero.
fn clear(object: *mut u8, from: usize) {
    let end = extent::usable_size(object as usize, 0);
    if from < end && !extent::reads_as_zero(object as usize) {
        // SAFETY: the object has `end` bytes.
        unsafe { ptr::write_bytes(object.add(from), 0, end - from) };
    }
}

extern "C-unwind" fn rallocx_from(
    object: *mut c_void,
    size: usize,
    flags: c_int,
    from: ReturnSlot,
) -> *mut c_void {
    let size = size.max(1); // a size of 0 is undefined; realloc would free
    let Some(alignment) = alignment(flags) else { return ptr::null_mut() };
    if object.is_null() {
        return mallocx_from(size, flags, from);
    }
    let before = extent::usable_size(object as usize, from.caller());
    let new = keep_errno(|| {
        if alignment <= MIN_ALIGNMENT {
            realloc_from(object, size, from).cast()
        } else {
            resize_aligned(object.cast(), before, size, alignment, from)
        }
    });
    if !new.is_null() && flags & ZERO != 0 {
        let kept = if new == object.cast() { before } else { before.min(size) };
        clear(new, kept);
    }
    new.cast()
}

/// As realloc, for an alignment that realloc does not keep.
fn resize_aligned(
    object: *mut u8,
    before: usize,
    size: usize,
    alignment: usize,
    from: ReturnSlot,
) -> *mut u8 {
    let address = object as usize;
    if address.is_multiple_of(alignment) {
        let now = extent::resize_unmoved(address, size, from.caller());
        if now >= size && size >= now / 2 {
            return object;
        }
    }
    let new = allocate::allocate_aligned(from.call_for(size), alignment);
    if !new.is_null() {
        // SAFETY: both objects have at least this many bytes, and they are distinct.
        unsafe { ptr::copy_nonoverlapping(object, new, before.min(size)) };
        free::free(address, from);
    }
    new
}

/// jemalloc's xallocx: resizes the object where it lies, to `size` bytes and up to `extra` more if there is
/// room; returns the bytes that it may use afterwards, which are fewer than `size` if it could not grow.
#[unsafe(no_mangle)]
pub extern "C" fn xallocx(object: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize {
    let address = object as usize;
    let before = extent::usable_size(address, 0);
    let mut now = extent::resize_unmoved(address, size.saturating_add(extra).max(1), 0);
    if now < size {
        now = extent::resize_unmoved(address, size, 0);
    }
    if now > before && flags & ZERO != 0 {
        clear(object.cast(), before);
    }
    now
}

/// jemalloc's name for malloc_usable_size.
#[unsafe(no_mangle)]
pub extern "C" fn sallocx(object: *const c_void, _flags: c_int) -> usize {
    extent::usable_size(object as usize, 0)
}

/// jemalloc's nallocx: the bytes that an object of this size and these flags may use at least; 0 if there can
/// be none.
#[unsafe(no_mangle)]
pub extern "C" fn nallocx(size: usize, flags: c_int) -> usize {
    alignment(flags).map_or(0, |alignment| extent::size_in_use(size.max(1), alignment))
}
