//! Files that are mostly holes, as a profile of the heap is: where their data are.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// The entries of a table that overlap `data`.
pub(crate) fn touched(table: &Range<usize>, bytes: usize, data: &[Range<usize>]) -> Vec<usize> {
    let mut numbers = Vec::new();
    for range in data {
        let (from, to) = (range.start.max(table.start), range.end.min(table.end));
        if from < to {
            let behind_last = numbers.last().map_or(0, |last| last + 1);
            let first = ((from - table.start) / bytes).max(behind_last);
            numbers.extend(first..(to - table.start).div_ceil(bytes));
        }
    }
    numbers
}

/// The ranges of a file that are not holes, ascending; the whole file where the kernel does not know.
pub(crate) fn data_of(file: &File, length: usize) -> Vec<Range<usize>> {
    let seek = |from: usize, what| {
        // SAFETY: takes plain numbers.
        usize::try_from(unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, what) }).ok()
    };
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < length {
        let Some(start) = seek(at, libc::SEEK_DATA).filter(|&start| start < length) else {
            // SAFETY: the C library gives every thread a valid errno.
            let none_follows = unsafe { *libc::__errno_location() } == libc::ENXIO;
            return if none_follows { ranges } else { std::iter::once(0..length).collect() };
        };
        at = seek(start, libc::SEEK_HOLE).unwrap_or(length).clamp(start + 1, length);
        ranges.push(start..at);
    }
    ranges
}
