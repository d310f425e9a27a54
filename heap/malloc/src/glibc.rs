//! Names by which a program would reach glibc's own heap, whose objects would meet ours in one `free`.
//!
//! A library that is opened with RTLD_DEEPBIND (PHP's extensions, Apache's modules) finds the C library's
//! malloc before ours. So `dlopen` here opens it without that flag.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use heap::entry::{allocate, free};
use heap::units::call::ReturnSlot;

use crate::interface::{aligned_from, calloc_from, entry, pvalloc_from, realloc_from, valloc_from};
use crate::next::Next;

entry!(/// glibc's name for malloc.
    __libc_malloc(_size: usize) -> *mut c_void, "rsi", malloc_from);
entry!(/// glibc's name for calloc.
    __libc_calloc(_count: usize, _size: usize) -> *mut c_void, "rdx", calloc_from);
entry!(/// glibc's name for realloc.
    __libc_realloc(_object: *mut c_void, _size: usize) -> *mut c_void, "rdx", realloc_from);
entry!(/// glibc's name for memalign.
    __libc_memalign(_alignment: usize, _size: usize) -> *mut c_void, "rdx", aligned_from);
entry!(/// glibc's name for valloc.
    __libc_valloc(_size: usize) -> *mut c_void, "rsi", valloc_from);
entry!(/// glibc's name for pvalloc.
    __libc_pvalloc(_size: usize) -> *mut c_void, "rsi", pvalloc_from);
entry!(/// glibc's name for free.
    __libc_free(_object: *mut c_void) -> (), "rsi", free_from);

extern "C-unwind" fn malloc_from(size: usize, from: ReturnSlot) -> *mut c_void {
    allocate::allocate_from(size, from).cast()
}

extern "C-unwind" fn free_from(object: *mut c_void, from: ReturnSlot) {
    free::free(object as usize, from);
}

/// POSIX's dlopen. The C library looks for the file as the caller's own settings say, which it finds by the
/// return address: so this continues there and does not return.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn dlopen(_file: *const c_char, _flags: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "and esi, {others}",
        "jmp rax",
        next = sym next_dlopen,
        others = const !libc::RTLD_DEEPBIND,
    )
}

extern "C" fn next_dlopen() -> *mut c_void {
    static NEXT: Next = Next::new(c"dlopen");
    NEXT.get()
}
