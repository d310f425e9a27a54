//! Mayfly's heap as a Rust program's allocator.
//!
//! ```
//! #[global_allocator]
//! static HEAP: mayfly_alloc::Mayfly = mayfly_alloc::Mayfly;
//!
//! fn main() {
//!     let words: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
//!     assert_eq!(words.concat().len(), 2890);
//!     assert!(mayfly_alloc::holds(words.as_ptr()));
//! }
//! ```
//!
//! A program that the heap is preloaded into (`mayfly run`) needs none of this.

#![no_std]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use heap::entry::{allocate, extent, free};
use heap::pages::region;
use heap::units::call::ReturnSlot;
use heap::units::geometry::MIN_ALIGNMENT;

/// The allocator, for `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mayfly;

/// Whether this address lies in the heap's own pages; the largest objects have mappings of their own.
pub fn holds<T>(address: *const T) -> bool {
    region::holds(address.addr())
}

extern "C-unwind" fn allocate_from(size: usize, alignment: usize, from: ReturnSlot) -> *mut u8 {
    match alignment <= MIN_ALIGNMENT {
        true => allocate::allocate_from(size, from),
        false => allocate::allocate_aligned(from.call_for(size), alignment),
    }
}

/// Allocates, and passes on where it was called from: lifetimes are learned by call site. The sites of a
/// program meet in `alloc`, and the heap learns which word of the stack tells them apart.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C-unwind" fn allocate(_size: usize, _alignment: usize) -> *mut u8 {
    core::arch::naked_asm!("mov rdx, rsp", "jmp {inner}", inner = sym allocate_from)
}

/// Allocates; lifetimes are learned by size alone.
#[cfg(not(target_arch = "x86_64"))]
extern "C-unwind" fn allocate(size: usize, alignment: usize) -> *mut u8 {
    allocate_from(size, alignment, ReturnSlot::NONE)
}

// SAFETY: the heap's objects are distinct, have the size and alignment that were asked for, and stay until
// they are freed; it does not unwind, and allocates nothing itself.
unsafe impl GlobalAlloc for Mayfly {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate(layout.size(), layout.align())
    }

    unsafe fn dealloc(&self, object: *mut u8, _: Layout) {
        free::free(object.addr(), ReturnSlot::NONE);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let object = allocate(layout.size(), layout.align());
        if !object.is_null() && !extent::reads_as_zero(object.addr()) {
            // SAFETY: the object has at least this size.
            unsafe { ptr::write_bytes(object, 0, layout.size()) };
        }
        object
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= MIN_ALIGNMENT
            && let Some(resized) = extent::resize_in_place(object.addr(), &ReturnSlot::NONE.call_for(size))
        {
            return resized;
        }
        let new = allocate(size, layout.align());
        if !new.is_null() {
            // SAFETY: both objects have at least this size, and they are distinct.
            unsafe { ptr::copy_nonoverlapping(object, new, layout.size().min(size)) };
            free::free(object.addr(), ReturnSlot::NONE);
        }
        new
    }
}
