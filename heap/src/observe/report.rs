//! Writes the statistics file at the end of a process.

use core::cell::UnsafeCell;
use core::fmt::Write;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Release},
};

use crate::observe::stats;
use crate::system::files;
use crate::system::paths::{self, PATH_BYTES};
use crate::system::text::{Text, warn};

struct Path(UnsafeCell<[u8; PATH_BYTES]>);
// SAFETY: written once, while the configuration is read, before LENGTH is set.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; PATH_BYTES]));
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Text with room for the report.
pub type Report = Text<8192>;

/// Sets the report's destination: a file, or `-` for stderr.
pub fn set_path(path: &[u8]) {
    if path.len() >= PATH_BYTES {
        return warn(format_args!(
            "MAYFLY_HEAP_STATS is longer than {} bytes; no statistics are written",
            PATH_BYTES - 1
        ));
    }
    // SAFETY: see `Path`.
    unsafe { (&mut *PATH.0.get())[..path.len()].copy_from_slice(path) };
    LENGTH.store(path.len(), Release);
}

/// The report.
pub fn json() -> Report {
    let mut report = Report::default();
    let _ = stats::write_json(&mut report); // cut off at the end, never an error
    report
}

/// Writes the report to its destination.
pub fn write() {
    let length = LENGTH.load(Acquire);
    if length == 0 {
        return;
    }
    // SAFETY: see `Path`; not written again.
    let path = unsafe { &(&*PATH.0.get())[..length] };
    let report = json();
    if path == b"-" {
        files::write(2, report.bytes());
        return;
    }
    let mut name = [0; PATH_BYTES];
    match paths::expand(path, &mut name).and_then(files::create) {
        Some(fd) => {
            files::write(fd, report.bytes());
            files::close(fd);
        }
        None => {
            let mut line = Text::<128>::default();
            let _ =
                line.write_str("mayfly-heap: the statistics file of MAYFLY_HEAP_STATS cannot be created\n");
            files::write(2, line.bytes());
        }
    }
}
