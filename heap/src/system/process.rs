//! The process as a whole: its threads, and its end.

use crate::system::files;
use crate::system::os::unmap;

/// Prints to stderr and ends the process with SIGABRT.
pub fn abort(message: &[u8]) -> ! {
    files::write(2, message);
    // SAFETY: always allowed.
    unsafe { libc::abort() }
}

/// The number of the process's threads, the first one counted even if it has ended; `None` without /proc.
pub fn threads() -> Option<u32> {
    // The 20th field; the 2nd may contain any characters.
    let (at, bytes) = files::read_small_file(b"/proc/self/stat\0")?;
    // SAFETY: a mapping of that many bytes, until it is unmapped below.
    let line = unsafe { core::slice::from_raw_parts(at as *const u8, bytes) };
    let behind_name = line.iter().rposition(|&byte| byte == b')').map_or(&line[..0], |end| &line[end + 1..]);
    let field = behind_name.split(|&byte| byte == b' ').nth(18);
    let threads = field.and_then(|field| core::str::from_utf8(field).ok()?.parse().ok());
    unmap(at, files::SMALL_FILE_BYTES);
    threads
}
