//! `MAYFLY_MERGE_AUTO`: the smallest allocation that is scanned.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

const SMALLEST: usize = 64 << 10;

/// Allocations of at least this many bytes get pages of their own; none until the variable is read.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// See [`LARGE_BYTES`].
pub fn large_bytes() -> usize {
    LARGE_BYTES.load(Ordering::Relaxed)
}

/// Whether the scanner is on.
pub fn is_on() -> bool {
    large_bytes() != usize::MAX
}

/// Reads the variable; reports an invalid value on stderr, and stays off then.
pub fn read() {
    // SAFETY: runs before main, when no other thread changes the environment; the text is copied before it
    // returns.
    let value = unsafe {
        let value = libc::getenv(c"MAYFLY_MERGE_AUTO".as_ptr());
        if value.is_null() {
            return;
        }
        CStr::from_ptr(value).to_string_lossy().into_owned()
    };
    match size_of_text(&value) {
        Some(bytes) => LARGE_BYTES.store(bytes, Ordering::Relaxed),
        None if value.is_empty() || value == "off" => {}
        None => eprintln!(
            "mayfly-merge: MAYFLY_MERGE_AUTO={value}: must be off, or a size of 64K or more, such as 4M"
        ),
    }
}

fn size_of_text(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(1 << shift)?;
    (bytes >= SMALLEST).then_some(bytes)
}
