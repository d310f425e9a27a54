//! `libmayfly_merge.so`: the C interface of [`merge`]. merge/include/mayfly_merge.h documents each function.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::time::Duration;

use merge::{Error, Flags, Path, Statistics};

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
    static LAST_PATH: RefCell<CString> = RefCell::default();
}

fn keep(text: String, in_which: &'static std::thread::LocalKey<RefCell<CString>>) -> *const c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    in_which
        .try_with(|last| {
            *last.borrow_mut() = text;
            last.borrow().as_ptr()
        })
        .unwrap_or(c"".as_ptr())
}

fn failed(error: Error) -> c_int {
    keep(error.to_string(), &LAST_ERROR);
    // SAFETY: every thread has an errno.
    unsafe { *libc::__errno_location() = error.errno };
    -1
}

fn answer(result: Result<(), Error>) -> c_int {
    result.map_or_else(failed, |()| 0)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_advise(address: *mut c_void, length: usize, flags: c_uint) -> c_int {
    answer(Flags::from_bits(flags).and_then(|flags| merge::advise(&[(address as usize, length)], flags)))
}

/// See the header.
///
/// # Safety
/// `ranges` points to `count` ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mayfly_advise_all(ranges: *const libc::iovec, count: usize, flags: c_uint) -> c_int {
    let ranges: Vec<_> = match count {
        0 => Vec::new(),
        // SAFETY: as the caller promises.
        _ => unsafe { std::slice::from_raw_parts(ranges, count) }
            .iter()
            .map(|range| (range.iov_base as usize, range.iov_len))
            .collect(),
    };
    answer(Flags::from_bits(flags).and_then(|flags| merge::advise(&ranges, flags)))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_unadvise(address: *mut c_void, length: usize) -> c_int {
    answer(merge::unadvise(address as usize, length))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_keep_anonymous(address: *mut c_void, length: usize) -> c_int {
    answer(merge::keep_anonymous(address as usize, length))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_advise_begin(address: *mut c_void, length: usize, flags: c_uint) -> i64 {
    Flags::from_bits(flags)
        .and_then(|flags| merge::advise_begin(address as usize, length, flags))
        .unwrap_or_else(|error| failed(error) as i64)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_advise_wait(ticket: i64, timeout_ms: c_int) -> c_int {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    answer(merge::advise_wait(ticket, timeout))
}

/// See the header.
///
/// # Safety
/// `out` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mayfly_merge_stats(out: *mut c_void, size: usize) -> c_int {
    if out.is_null() || size < size_of::<u32>() {
        return failed(Error::new(libc::EINVAL, "mayfly_merge_stats: no room for statistics"));
    }
    let statistics = merge::statistics();
    let bytes = size.min(size_of::<Statistics>());
    // SAFETY: both have so many bytes; the structure is plain numbers.
    unsafe { std::ptr::copy_nonoverlapping((&raw const statistics).cast::<u8>(), out.cast(), bytes) };
    0
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_merge_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_merge_bypass() -> *const c_char {
    let path = merge::bypass().unwrap_or_default();
    keep(path.to_string_lossy().into_owned(), &LAST_PATH)
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn mayfly_merge_path() -> *const c_char {
    let text = match merge::path() {
        Ok(Path::Kernel) => "kernel".to_owned(),
        Ok(_) => "engine".to_owned(),
        Err(error) => format!("none: {error}"),
    };
    keep(text, &LAST_PATH)
}
