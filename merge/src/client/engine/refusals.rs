//! Why memory is not merged: one line for each reason.

use std::ops::Range;

use mappings::Area;
use rustix::io::Errno;

use crate::base::error::Error;
use crate::client::{address_space, device_writers, mapping_flags};

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

/// Refuses anonymous memory to which a device may write, where the kernel does not tell which pages it has
/// pinned.
pub fn check_devices<'a>(areas: impl Iterator<Item = &'a Area>) -> Result<(), Error> {
    for area in areas {
        if let Some(holder) = device_writers::find_or_counted(&area.range) {
            let line = format!(
                "{}: a device may write to it ({holder}), and here the kernel does not tell to which pages: \
                 advise with MAYFLY_ADVISE_QUIET what no device writes to",
                place(&area.range)
            );
            return Err(Error::new(libc::ENOTSUP, line));
        }
    }
    Ok(())
}

/// Refuses memory that would lose a property by being shared.
pub fn check_properties(ranges: &[Range<usize>]) -> Result<(), Error> {
    match mapping_flags::first_lost(ranges) {
        None => Ok(()),
        Some((at, why)) => {
            let range = ranges.iter().find(|range| range.contains(&at)).unwrap_or(&ranges[0]);
            Err(Error::new(libc::ENOTSUP, format!("{}: at {at:#x}, {why}", place(range))))
        }
    }
}
