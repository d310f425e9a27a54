//! Descriptors that this process has inherited.

use std::io;

/// The first one behind the standard streams.
const FIRST: libc::c_uint = 3;

/// Has programs that this process starts inherit none but the standard streams, and what they are given. What
/// a shell or a service manager left open would else be open in functions.
///
/// # Errors
/// Linux is older than 5.11.
pub fn keep_from_programs() -> io::Result<()> {
    // SAFETY: passes numbers. Descriptors stay open and are closed by exec alone.
    let done =
        unsafe { libc::close_range(FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
