//! C++'s operators new under their mangled names; [`crate::fast`] has the plain ones and all of delete.
//!
//! A failed new calls the program's new_handler until memory is found or no handler is left, then throws
//! std::bad_alloc (or returns null if nothrow). Handlers and exceptions belong to the C++ library, which is
//! looked up when needed: a C program has none.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr;

use heap::entry::allocate;
use heap::units::call::{Call, ReturnSlot};
use heap::units::geometry::MIN_ALIGNMENT;

use crate::interface::entry;

macro_rules! news {
    ($($name:ident = ($($argument:ident),*) $slot:literal $inner:path;)*) => {
        $(entry!(/// One of C++'s operators new.
            $name($($argument: usize),*) -> *mut c_void, $slot, $inner);)*
    };
}

news! {
    _ZnwmRKSt9nothrow_t = (_size, _nothrow) "rsi" new_nothrow_from;
    _ZnamRKSt9nothrow_t = (_size, _nothrow) "rsi" new_nothrow_from;
    _ZnwmSt11align_val_t = (_size, _alignment) "rdx" new_aligned_from;
    _ZnamSt11align_val_t = (_size, _alignment) "rdx" new_aligned_from;
    _ZnwmSt11align_val_tRKSt9nothrow_t = (_size, _alignment, _nothrow) "rdx" new_aligned_nothrow_from;
    _ZnamSt11align_val_tRKSt9nothrow_t = (_size, _alignment, _nothrow) "rdx" new_aligned_nothrow_from;
}

/// The slow path of the plain operators new.
pub(crate) extern "C-unwind" fn new_slow(size: usize, from: ReturnSlot) -> *mut c_void {
    let object = allocate::allocate_slow(size, from);
    if object.is_null() { out_of_memory(&from.call_for(size), MIN_ALIGNMENT, true) } else { object.cast() }
}

extern "C-unwind" fn new_nothrow_from(size: usize, from: ReturnSlot) -> *mut c_void {
    new_aligned(from.call_for(size), MIN_ALIGNMENT, false)
}

extern "C-unwind" fn new_aligned_from(size: usize, alignment: usize, from: ReturnSlot) -> *mut c_void {
    new_aligned(from.call_for(size), alignment, true)
}

extern "C-unwind" fn new_aligned_nothrow_from(
    size: usize,
    alignment: usize,
    from: ReturnSlot,
) -> *mut c_void {
    new_aligned(from.call_for(size), alignment, false)
}

fn new_aligned(call: Call, alignment: usize, throws: bool) -> *mut c_void {
    let alignment = alignment.max(MIN_ALIGNMENT);
    if !alignment.is_power_of_two() {
        return out_of_memory(&Call { size: usize::MAX, ..call }, MIN_ALIGNMENT, throws);
    }
    let object = allocate::allocate_aligned(call, alignment);
    if object.is_null() { out_of_memory(&call, alignment, throws) } else { object.cast() }
}

type Handler = extern "C-unwind" fn();

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends in NUL.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn new_handler() -> Option<Handler> {
    let get = symbol(c"_ZSt15get_new_handlerv");
    if get.is_null() {
        return None;
    }
    // SAFETY: std::get_new_handler takes nothing and returns a function pointer or null.
    unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> Option<Handler>>(get)() }
}

#[cold]
#[inline(never)]
fn out_of_memory(call: &Call, alignment: usize, throws: bool) -> *mut c_void {
    while let Some(handler) = new_handler() {
        if throws {
            handler(); // may throw: the frames that it passes have nothing to clean up
        } else {
            // A nothrow form turns the handler's exception into null. Only C++ can catch it: its own nothrow
            // new does.
            return nothrow_through_library(call, alignment);
        }
        let object = allocate::allocate_aligned(*call, alignment);
        if !object.is_null() {
            return object.cast();
        }
    }
    if throws {
        throw_bad_alloc();
    }
    ptr::null_mut()
}

/// The C++ library's own nothrow operator new calls the throwing one, which is ours, and catches.
fn nothrow_through_library(call: &Call, alignment: usize) -> *mut c_void {
    let name = if alignment <= MIN_ALIGNMENT {
        c"_ZnwmRKSt9nothrow_t"
    } else {
        c"_ZnwmSt11align_val_tRKSt9nothrow_t"
    };
    // SAFETY: the name ends in NUL; RTLD_NEXT finds the library's function behind ours, with the signature
    // used here.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if next.is_null() {
            return ptr::null_mut();
        }
        let nothrow = 0u8;
        if alignment <= MIN_ALIGNMENT {
            core::mem::transmute::<*mut c_void, extern "C-unwind" fn(usize, *const u8) -> *mut c_void>(next)(
                call.size,
                &raw const nothrow,
            )
        } else {
            core::mem::transmute::<*mut c_void, extern "C-unwind" fn(usize, usize, *const u8) -> *mut c_void>(
                next,
            )(call.size, alignment, &raw const nothrow)
        }
    }
}

fn throw_bad_alloc() -> ! {
    let throw = symbol(c"_ZSt17__throw_bad_allocv");
    if throw.is_null() {
        heap::system::process::abort(
            b"mayfly-heap: operator new: out of memory, and no C++ library to throw std::bad_alloc\n",
        );
    }
    // SAFETY: std::__throw_bad_alloc takes nothing and does not return.
    unsafe { core::mem::transmute::<*mut c_void, extern "C-unwind" fn() -> !>(throw)() }
}
