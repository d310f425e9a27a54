//! The working set of a snapshot: the pages of files that a restored process has touched by its first answer
//! (REAP, ASPLOS '22). It is read once, from outside. In the next restored processes a thread prepares these
//! pages while the process itself goes on, which would have a fault at each of them, one after the other.
//!
//! ```text
//!   first restored process ── answers ──► its page map is read ──► WorkingSet
//!                                                                      │
//!   next ones: mappings ──► BECOME ──► asks for work, answers          │
//!                       └─► a thread: madvise of each range, and ends ◄┘
//! ```
//! A page that was written is copied (`MADV_POPULATE_WRITE`): if it was read first, it would have two faults.
//! The others are mapped (`MADV_POPULATE_READ`), those among them that a fault has mapped beside what was
//! read. Anonymous memory is left out: what the process finds there at its restore it has hardly used, and
//! the first answer has mapped the rest itself.
//!
//! A process chooses what it touches, and a saved list may have been changed. So a list is bounded, and each
//! range is only ever advice about the process's own memory: where it does not fit, the kernel refuses.

use std::io::Result;
use std::ops::Range;

use mappings::Area;
use serde::{Deserialize, Serialize};

use crate::plan::{MOST_CALLS, Operation};

const PAGE: u64 = 4096;
/// The end of what a process may map.
const END: u64 = 0x7fff_ffff_f000;
/// The most ranges of what was written: each is a system call. Those of what was read have the other calls.
const MOST_WRITES: usize = MOST_CALLS / 4 * 3;
/// The most bytes of what was written: by so much more memory is a process's own that writes to none of it.
pub const MOST_WRITTEN: u64 = 8 << 20;
/// The most bytes of what was read: page tables of 128 KiB.
pub const MOST_READ: u64 = 64 << 20;
/// The most pages that are looked at, and at once: a process may map files that have none.
const MOST_PAGES: usize = 1 << 22;
const PIECE: usize = 1 << 16;
/// Bits of an entry of /proc/PID/pagemap.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

/// Ranges of whole pages, ascending, that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    /// Pages that are the process's own now.
    written: Vec<Range<u64>>,
    /// Pages that it has mapped.
    read: Vec<Range<u64>>,
}

impl WorkingSet {
    /// Of a process with these mappings, the text of /proc/PID/maps. `page_map` reads its page map from such
    /// an offset.
    ///
    /// # Errors
    /// The page map cannot be read.
    pub fn read(maps: &[u8], page_map: impl Fn(&mut [u8], u64) -> Result<()>) -> Result<WorkingSet> {
        let mut set = WorkingSet::default();
        let mut buffer = vec![0; PIECE * 8];
        let mut left = MOST_PAGES;
        for piece in mappings::each(maps).filter(is_of_file).flat_map(pieces) {
            let pages = ((piece.end - piece.start) / PAGE) as usize;
            let Some(rest) = left.checked_sub(pages) else { break };
            left = rest;
            let entries = &mut buffer[..pages * 8];
            page_map(entries, piece.start / PAGE * 8)?;
            for (number, entry) in entries.chunks_exact(8).enumerate() {
                let entry = u64::from_le_bytes(entry.try_into().expect("8 bytes"));
                if entry & PRESENT == 0 {
                    continue;
                }
                let ranges = if entry & OF_FILE == 0 { &mut set.written } else { &mut set.read };
                let at = piece.start + number as u64 * PAGE;
                match ranges.last_mut() {
                    Some(last) if last.end == at => last.end += PAGE,
                    _ => ranges.push(at..at + PAGE),
                }
            }
        }
        set.written = bounded(set.written, MOST_WRITES, MOST_WRITTEN);
        set.read = bounded(set.read, MOST_CALLS - set.written.len(), MOST_READ);
        Ok(set)
    }

    /// That of such a text, which anyone may have written; `None` if none could be read from a process.
    pub fn parse(text: &[u8]) -> Option<WorkingSet> {
        let set: WorkingSet = serde_json::from_slice(text).ok()?;
        let fits = is_bounded(&set.written, MOST_WRITES, MOST_WRITTEN)
            && is_bounded(&set.read, MOST_CALLS - set.written.len(), MOST_READ);
        fits.then_some(set)
    }

    /// Its text.
    pub fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers")
    }

    /// Bytes of the pages that were written.
    pub fn written_bytes(&self) -> u64 {
        bytes(&self.written)
    }

    /// Bytes of the pages that were only read, or lie beside such.
    pub fn read_bytes(&self) -> u64 {
        bytes(&self.read)
    }

    /// Whether there is nothing to prepare.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.read.is_empty()
    }

    /// The calls that prepare it. A kernel before 5.14 knows none of them.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation> {
        let written = self.written.iter().map(|range| (range, libc::MADV_POPULATE_WRITE));
        let read = self.read.iter().map(|range| (range, libc::MADV_POPULATE_READ));
        written.chain(read).map(|(Range { start, end }, advice)| {
            Operation::call(libc::SYS_madvise, &[*start, end - start, advice as u64]).or_not()
        })
    }
}

/// Whether it is a file's memory, of which a process may have pages of its own.
fn is_of_file(area: &Area<&[u8]>) -> bool {
    !area.shared && area.file.is_some()
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Whether these are ranges as they are read.
fn is_bounded(ranges: &[Range<u64>], most: usize, most_bytes: u64) -> bool {
    let mut end = 0;
    let are_in_order = ranges.iter().all(|range| {
        let is_next = end <= range.start && range.start < range.end && range.end <= END;
        end = range.end;
        is_next && range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE)
    });
    are_in_order && ranges.len() <= most && bytes(ranges) <= most_bytes
}

/// A mapping's addresses, in pieces that are looked at at once.
fn pieces(area: Area<&[u8]>) -> impl Iterator<Item = Range<u64>> {
    let Range { start, end } = area.range;
    let bytes = PIECE * PAGE as usize;
    (start..end).step_by(bytes).map(move |at| at as u64..end.min(at.saturating_add(bytes)) as u64)
}

/// The longest ranges, as many as are allowed.
fn bounded(mut all: Vec<Range<u64>>, most: usize, most_bytes: u64) -> Vec<Range<u64>> {
    all.sort_by_key(|range| std::cmp::Reverse(range.end - range.start));
    let mut left = most_bytes;
    all.truncate(most);
    all.retain(|range| {
        let bytes = range.end - range.start;
        let fits = bytes <= left;
        left -= if fits { bytes } else { 0 };
        fits
    });
    all.sort_by_key(|range| range.start);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
10000-14000 rw-p 00000000 fd:01 7    /srv/mayfly-snapshot.1.1 (deleted)
20000-22000 rw-p 00000000 00:00 0    [heap]
30000-32000 rw-s 00000000 fd:01 8    /srv/shared
40000-42000 r--p 00000000 fd:01 9    /usr/lib/x.so
42000-43000 rw-p 00002000 fd:01 9    /usr/lib/x.so
";

    /// What is read where the pages at these addresses were written, those at others are as in their file,
    /// and all else was not touched.
    fn read(maps: &[u8], written: &[u64], present: &[u64]) -> WorkingSet {
        let page_map = |entries: &mut [u8], offset: u64| {
            for (number, entry) in entries.chunks_exact_mut(8).enumerate() {
                let at = (offset / 8 + number as u64) * PAGE;
                let bits = match (written.contains(&at), present.contains(&at)) {
                    (true, _) => PRESENT,
                    (_, true) => PRESENT | OF_FILE,
                    _ => 0,
                };
                entry.copy_from_slice(&bits.to_le_bytes());
            }
            Ok(())
        };
        WorkingSet::read(maps, page_map).unwrap()
    }

    fn only(ranges: &[Range<u64>]) -> &Range<u64> {
        assert_eq!(ranges.len(), 1);
        &ranges[0]
    }

    #[test]
    fn pages_of_files_that_were_touched_are_found() {
        let written = [0x10000, 0x12000, 0x13000, 0x20000, 0x30000, 0x42000];
        let set = read(MAPS, &written, &[0x11000, 0x21000, 0x31000, 0x40000, 0x41000]);
        assert_eq!(set.written, [0x10000..0x11000, 0x12000..0x14000, 0x42000..0x43000]);
        assert_eq!(set.read, [0x11000..0x12000, 0x40000..0x42000]);
        assert_eq!((set.written_bytes(), set.read_bytes()), (4 * PAGE, 3 * PAGE));
        assert_eq!(set.operations().count(), 5);
        assert_eq!(WorkingSet::parse(&set.text()), Some(set));
        assert!(read(MAPS, &[], &[]).is_empty());
        // Of a mapping without end only the begin is looked at.
        let endless = b"10000-7ffffffff000 rw-p 00000000 fd:01 7    /tmp/sparse\n";
        assert_eq!(only(&read(endless, &[0x10000], &[]).written), &(0x10000..0x11000));
        let fails = |_: &mut [u8], _| Err(std::io::ErrorKind::PermissionDenied.into());
        assert!(WorkingSet::read(MAPS, fails).is_err());
    }

    #[test]
    fn a_process_that_touches_much_has_a_bounded_list() {
        let maps = b"100000-2100000 rw-p 00000000 fd:01 7    /srv/x\n";
        let pages: Vec<u64> = (0x10_0000..0x210_0000_u64).step_by(2 * PAGE as usize).collect();
        let (written, present) = pages.split_at(pages.len() / 2);
        let scattered = read(maps, written, present);
        assert_eq!((scattered.written.len(), scattered.read.len()), (MOST_WRITES, MOST_CALLS - MOST_WRITES));
        assert_eq!(WorkingSet::parse(&scattered.text()), Some(scattered));
        // One range that is too long leaves others.
        let mut long: Vec<u64> =
            (0x10_0000..0x10_0000 + MOST_WRITTEN + PAGE).step_by(PAGE as usize).collect();
        long.push(0x200_0000);
        assert_eq!(only(&read(maps, &long, &[]).written), &(0x200_0000..0x200_1000));
    }

    #[test]
    fn no_list_is_read_from_a_text_that_holds_none() {
        let text =
            |written: &str, read: &str| format!(r#"{{"written":[{written}],"read":[{read}]}}"#).into_bytes();
        let range = |start: u64, end: u64| format!(r#"{{"start":{start},"end":{end}}}"#);
        let good = range(4096, 8192);
        assert!(WorkingSet::parse(&text(&good, &good)).is_some());
        assert!(WorkingSet::parse(&text("", "")).is_some_and(|set| set.is_empty()));
        let most = range(0, MOST_READ);
        assert!(WorkingSet::parse(&text("", &most)).is_some());
        let number = |n: u64| range(2 * n * PAGE, (2 * n + 1) * PAGE);
        let many: Vec<_> = (0..=MOST_WRITES as u64).map(number).collect();
        assert!(WorkingSet::parse(&text(&many[1..].join(","), "")).is_some());
        let wrong = [
            "1".to_string(),
            r#"{"start":-4096,"end":4096}"#.to_string(),
            range(4097, 8192),
            range(4096, 8191),
            range(8192, 4096),
            range(4096, 4096),
            range(0, MOST_READ + PAGE),
            range(END - PAGE, END + PAGE),
            range(u64::MAX - 4095, u64::MAX),
            [range(8192, 16384), range(12288, 20480)].join(","),
            [range(8192, 12288), range(4096, 8192)].join(","),
        ];
        let both = wrong.iter().flat_map(|wrong| [text(wrong, &good), text(&good, wrong)]);
        let others = [
            text(&many.join(","), ""),
            text(&many[1..].join(","), &many.join(",")),
            Vec::new(),
            b"{}".to_vec(),
            b"\xff\xfe".to_vec(),
            text(&range(0, MOST_WRITTEN + PAGE), ""),
        ];
        for wrong in both.chain(others) {
            assert_eq!(WorkingSet::parse(&wrong), None, "{}", String::from_utf8_lossy(&wrong));
        }
    }
}
