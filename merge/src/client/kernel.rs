//! The kernel's own merging, on a kernel with Mayfly's UPM series: one madvise.

use std::ops::Range;

use rustix::io::Errno;

use crate::base::error::Error;

const MADV_UPM: i32 = 0x5550;
const MADV_UNUPM: i32 = 0x5551;
/// The kernel may find pages busy for a moment.
const ATTEMPTS: usize = 20;

/// Whether this kernel has UPM.
pub fn is_there() -> bool {
    std::path::Path::new("/sys/kernel/mm/upm").is_dir()
}

fn madvise(range: &Range<usize>, advice: i32, what: &str) -> Result<(), Error> {
    let mut errno = Errno::AGAIN;
    for attempt in 0..ATTEMPTS {
        // SAFETY: neither advice changes the contents of pages.
        if unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), advice) } == 0 {
            return Ok(());
        }
        errno = Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
        if errno != Errno::AGAIN {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(100 << attempt.min(7)));
    }
    let why = match errno {
        Errno::INVAL => {
            "it cannot be merged (shared, device or huge pages, or watched by userfaultfd)".to_owned()
        }
        Errno::NOMEM => "part of it is not mapped".to_owned(),
        Errno::BUSY => "merging is switched off: /sys/kernel/mm/ksm/run is 2".to_owned(),
        Errno::AGAIN => "some pages stayed busy, or the kernel has no memory or mappings left".to_owned(),
        errno => std::io::Error::from(errno).to_string(),
    };
    let errno = if errno == Errno::INVAL { libc::ENOTSUP } else { errno.raw_os_error() };
    Err(Error::new(errno, format!("{:#x}-{:#x}: {what}: {why}", range.start, range.end)))
}

/// Merges a range.
pub fn advise(range: &Range<usize>) -> Result<(), Error> {
    madvise(range, MADV_UPM, "merging")
}

/// Gives a range private copies again.
pub fn unadvise(range: &Range<usize>) -> Result<(), Error> {
    madvise(range, MADV_UNUPM, "giving back private pages")
}
