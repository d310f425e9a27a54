//! jemalloc's controls: mallctl and its forms, and malloc_stats_print.
//!
//! A control has a dotted name, whose numbers choose an arena, a bin or a thread cache; [`names`] has all
//! names, [`values`] what they do. Names of parts that this heap does not have (profiling, extent hooks,
//! mutexes) are absent: ENOENT, as in a jemalloc that was built without them.

mod names;
mod print;
mod statistics;
mod values;

use core::ffi::{CStr, c_char, c_int, c_void};

use names::{Found, MOST_SEGMENTS};
use values::Access;

/// jemalloc's mallctl: reads a control into `old`, then writes `new` to it; 0 or an error number.
///
/// # Safety
/// `name` is a C string; `old` and `old_length`, and `new`, are null or valid for the lengths given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallctl(
    name: *const c_char,
    old: *mut c_void,
    old_length: *mut usize,
    new: *mut c_void,
    new_length: usize,
) -> c_int {
    // SAFETY: the caller guarantees a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    match names::find(name) {
        // SAFETY: the caller's pointers.
        Some(found) if found.is_whole() => unsafe { access(&found, old, old_length, new, new_length) },
        _ => libc::ENOENT,
    }
}

unsafe fn access(
    found: &Found,
    old: *mut c_void,
    old_length: *mut usize,
    new: *mut c_void,
    new_length: usize,
) -> c_int {
    // SAFETY: the caller's pointers.
    let access = unsafe { Access::new(old, old_length, new, new_length) };
    heap::system::os::keep_errno(|| values::control(found, access)).err().unwrap_or(0)
}

/// jemalloc's mallctlnametomib: the numbers by which mallctlbymib finds the control of a name, or of the
/// first parts of one; 0 or an error number. A caller may replace the numbers of arenas, bins and thread
/// caches.
///
/// # Safety
/// `name` is a C string; `numbers` is valid for `*length` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallctlnametomib(
    name: *const c_char,
    numbers: *mut usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: the caller guarantees a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let Some(found) = names::find(name) else { return libc::ENOENT };
    // SAFETY: the caller's pointers are valid for that many numbers.
    unsafe {
        let written = found.numbers().len().min(*length);
        core::ptr::copy_nonoverlapping(found.numbers().as_ptr(), numbers, written);
        *length = written;
    }
    0
}

/// jemalloc's mallctlbymib: as mallctl, for numbers from mallctlnametomib.
///
/// # Safety
/// `numbers` is valid for `length` numbers; the others as for mallctl.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mallctlbymib(
    numbers: *const usize,
    length: usize,
    old: *mut c_void,
    old_length: *mut usize,
    new: *mut c_void,
    new_length: usize,
) -> c_int {
    if length == 0 || length > MOST_SEGMENTS {
        return libc::ENOENT;
    }
    // SAFETY: the caller guarantees that many numbers.
    let numbers = unsafe { core::slice::from_raw_parts(numbers, length) };
    match names::find_numbers(numbers) {
        // SAFETY: the caller's pointers.
        Some(found) => unsafe { access(&found, old, old_length, new, new_length) },
        None => libc::ENOENT,
    }
}

/// jemalloc's malloc_stats_print: passes text to `write`, or prints it on stderr if that is null. The option
/// `J` asks for JSON; the others, which leave parts out, have no effect.
///
/// # Safety
/// `write` is a function that takes `opaque` and a C string; `options` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_stats_print(
    write: Option<extern "C" fn(*mut c_void, *const c_char)>,
    opaque: *mut c_void,
    options: *const c_char,
) {
    // SAFETY: the caller guarantees null or a C string.
    let as_json = !options.is_null() && unsafe { CStr::from_ptr(options) }.to_bytes().contains(&b'J');
    let printed = print::text(as_json);
    let text = printed.bytes();
    match write {
        Some(write) => write(opaque, text.as_ptr().cast()),
        None => {
            heap::system::files::write(2, &text[..text.len() - 1]);
        }
    }
}
