//! The process as a whole: its threads, and its end.

use crate::system::files;
use crate::system::os::unmap;
use crate::units::geometry::PAGE_BYTES;

/// Prints to stderr and ends the process with SIGABRT.
pub fn abort(message: &[u8]) -> ! {
    files::write(2, message);
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}

/// The number of the process's threads, the first one counted even if it has ended; `None` without /proc.
pub fn threads() -> Option<u32> {
    number(b"/proc/self/stat\0", 20)
}

/// Bytes of the process that are resident; `None` without /proc.
pub fn resident_bytes() -> Option<usize> {
    let (at, bytes) = files::read_small_file(b"/proc/self/statm\0")?;
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let line = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let pages = line.split(|&byte| byte == b' ').nth(1);
    let pages = pages.and_then(|field| core::str::from_utf8(field).ok()?.parse::<usize>().ok());
    unmap(at, files::SMALL_FILE_BYTES);
    pages.map(|pages| pages * PAGE_BYTES)
}

/// Whether the calling thread has a real-time policy.
pub fn is_real_time() -> bool {
    let policy = number(b"/proc/thread-self/stat\0", 41);
    policy.is_some_and(|policy| {
        matches!(policy as i32, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE)
    })
}

/// A field of a file of this kind, counted from 1; the 2nd may contain any characters.
fn number(path_with_nul: &[u8], field: usize) -> Option<u32> {
    let (at, bytes) = files::read_small_file(path_with_nul)?;
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let line = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let behind_name = line.iter().rposition(|&byte| byte == b')').map_or(&line[..0], |end| &line[end + 1..]);
    let field = behind_name.split(|byte| byte.is_ascii_whitespace()).nth(field - 2);
    let number = field.and_then(|field| core::str::from_utf8(field).ok()?.parse().ok());
    unmap(at, files::SMALL_FILE_BYTES);
    number
}
