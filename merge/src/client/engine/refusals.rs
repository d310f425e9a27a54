//! Why memory is not merged: one line for each reason.

use std::ops::Range;

use mappings::Area;
use rustix::io::Errno;

use crate::base::error::Error;
use crate::client::address_space;

/// A range, as lines name it.
pub fn place(range: &Range<usize>) -> String {
    format!("{:#x}-{:#x}", range.start, range.end)
}

/// The error of memory whose writers cannot be held off.
pub fn cannot_hold(area: &Area, errno: Errno) -> Error {
    match errno {
        Errno::BUSY => Error::new(
            libc::EBUSY,
            format!("{}: another userfaultfd of the program has registered it", place(&area.range)),
        ),
        // Still the same mapping, so it is of a kind that the kernel does not let be watched.
        Errno::INVAL if is_still_there(area) => Error::new(
            libc::ENOTSUP,
            format!("{}: memory that userfaultfd cannot hold, such as MAP_DROPPABLE", place(&area.range)),
        ),
        Errno::INVAL | Errno::NOENT => Error::new(
            libc::ENOMEM,
            format!("{}: no longer mapped, or replaced by another mapping", place(&area.range)),
        ),
        errno => Error::system(format!("{}: holding writers off (userfaultfd)", place(&area.range)), errno),
    }
}

fn is_still_there(area: &Area) -> bool {
    address_space::areas(&area.range).is_ok_and(|now| now.iter().eq([area]))
}

/// The error of memory whose pages could not be replaced.
pub fn cannot_replace(place: String, errno: Errno) -> Error {
    match errno {
        Errno::PERM => Error::new(
            libc::ENOTSUP,
            format!("{place}: sealed memory (mseal), whose pages no call can replace"),
        ),
        errno => Error::system(format!("{place}: mapping shared pages"), errno),
    }
}

/// Refuses locked memory.
pub fn check_locked(ranges: &[Range<usize>]) -> Result<(), Error> {
    if !address_space::any_is_locked() {
        return Ok(());
    }
    for range in ranges {
        if let Some(at) = address_space::locked_in(range) {
            let line = "which sharing would unlock: munlock it first";
            return Err(Error::new(
                libc::ENOTSUP,
                format!("{}: locked memory at {at:#x}, {line}", place(range)),
            ));
        }
    }
    Ok(())
}
