//! The index of a store: from a page's hash to its location (UPM §V-A's hash table).
//!
//! It lies in memory that only the store's daemon can write and that all clients of the trust domain read, so
//! that a client looks up pages without a request. Lines of four entries are searched from the one that the
//! hash selects. Each search is bounded, so that pages made to collide cost little and are merely not found.
//! A location may be out of date, so clients compare the pages' bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io;

use crate::base::mapping::Mapping;
use crate::base::page::{PAGE_BYTES, PageHash};
use crate::base::segment::reopen_read_only;

const ENTRIES_PER_LINE: usize = 4;
const LINE_BYTES: usize = ENTRIES_PER_LINE * size_of::<Entry>();
/// Lines that a search reads before it gives up.
const MAX_SEARCH: usize = 128;
/// Lines of a new index: 256 KiB.
pub const MIN_LINES: usize = 4096;
/// Lines of the largest index: 64 GiB of entries would be silly, 1 TiB of pages is plenty.
pub const MAX_LINES: usize = 1 << 26;
const MAGIC: u64 = u64::from_le_bytes(*b"mayflyi1");

#[repr(C)]
struct Header {
    magic: u64,
    lines: u64,
    superseded: AtomicU64,
}

#[repr(C)]
struct Entry {
    tag: AtomicU64,
    location: AtomicU64,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In a segment of the store.
    Stored {
        /// The segment's number, from 1.
        segment: u32,
        /// The page's number in it.
        page: u32,
    },
    /// In one client's private memory only: no other client has had its contents yet (docs/merge.md, "private
    /// pages").
    Elsewhere,
}

const EMPTY: u64 = 0;
const REMOVED: u64 = 1;
const ELSEWHERE: u64 = 2;

impl Location {
    /// As one word; 0 means none.
    pub fn pack(self) -> u64 {
        match self {
            Location::Stored { segment, page } => (segment as u64) << 32 | page as u64,
            Location::Elsewhere => ELSEWHERE,
        }
    }

    /// The reverse.
    pub fn unpack(word: u64) -> Option<Location> {
        match word {
            ELSEWHERE => Some(Location::Elsewhere),
            _ if word >> 32 != 0 => {
                Some(Location::Stored { segment: (word >> 32) as u32, page: word as u32 })
            }
            _ => None,
        }
    }
}

fn bytes_for(lines: usize) -> usize {
    PAGE_BYTES + lines * LINE_BYTES
}

/// The entries of a mapped index.
struct Table {
    memory: Mapping,
    lines: usize,
}

impl Table {
    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header (checked in `Reader::open`, written in `Writer::new`) and
        // is page aligned; the part of it that changes is atomic.
        unsafe { &*self.memory.start().cast::<Header>() }
    }

    fn line(&self, line: usize) -> &[Entry; ENTRIES_PER_LINE] {
        debug_assert!(line < self.lines);
        // SAFETY: `lines` lines lie behind the header's page; entries are atomics.
        unsafe { &*self.memory.start().add(PAGE_BYTES + line * LINE_BYTES).cast() }
    }

    /// The lines that may hold a page, in order.
    fn search(&self, hash: PageHash) -> impl Iterator<Item = &[Entry; ENTRIES_PER_LINE]> {
        let mask = self.lines - 1;
        (0..MAX_SEARCH.min(self.lines)).map(move |i| self.line((hash.place as usize).wrapping_add(i) & mask))
    }

    fn find(&self, hash: PageHash) -> Option<(&Entry, u64)> {
        for line in self.search(hash) {
            for entry in line {
                let location = entry.location.load(Acquire);
                if location == EMPTY {
                    return None;
                }
                if location != REMOVED && entry.tag.load(Relaxed) == hash.tag {
                    return Some((entry, location));
                }
            }
        }
        None
    }
}

/// A client's view.
pub struct Reader(Table);

impl Reader {
    /// Maps the index that the store has sent.
    ///
    /// # Errors
    /// EINVAL: the file is not an index; otherwise it cannot be mapped.
    pub fn open(file: impl AsFd) -> io::Result<Reader> {
        let bytes = rustix::fs::fstat(&file)?.st_size as usize;
        if bytes < bytes_for(MIN_LINES) {
            return Err(io::Errno::INVAL);
        }
        let memory = Mapping::shared(file, bytes, false)?;
        let mut table = Table { memory, lines: 0 };
        let lines = table.header().lines as usize;
        // The bytes of too many lines would be more than a number holds.
        let fits = lines.is_power_of_two() && lines <= MAX_LINES && bytes_for(lines) <= bytes;
        if table.header().magic != MAGIC || !fits {
            return Err(io::Errno::INVAL);
        }
        table.lines = lines;
        Ok(Reader(table))
    }

    /// Where a page with this hash is, or was a moment ago.
    #[inline]
    pub fn find(&self, hash: PageHash) -> Option<Location> {
        self.0.find(hash).and_then(|(_, location)| Location::unpack(location))
    }

    /// Begins to load the line that [`Reader::find`] will read.
    #[inline]
    pub fn prefetch(&self, hash: PageHash) {
        let line: *const _ = self.0.line(hash.place as usize & (self.0.lines - 1));
        // SAFETY: a hint about memory that this process has mapped.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, readonly, preserves_flags));
        }
    }

    /// Whether the store has a larger index now.
    pub fn is_superseded(&self) -> bool {
        self.0.header().superseded.load(Acquire) != 0
    }
}

/// The daemon's side.
pub struct Writer {
    table: Table,
    read_only: OwnedFd,
    used: usize,
    removed: usize,
}

impl Writer {
    /// An empty index of so many lines, a power of two.
    ///
    /// # Errors
    /// No memory, or no file descriptor, is left.
    pub fn new(lines: usize) -> io::Result<Writer> {
        let lines = lines.next_power_of_two().clamp(MIN_LINES, MAX_LINES);
        let bytes = bytes_for(lines);
        let file = rustix::fs::memfd_create("mayfly-index", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        // All of it now: memory that runs out later would be a SIGBUS.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
        let memory = Mapping::shared(&file, bytes, true)?;
        // From now on only this mapping can write.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        // SAFETY: fresh memory of our own, large enough and aligned.
        unsafe {
            memory.start().cast::<Header>().write(Header {
                magic: MAGIC,
                lines: lines as u64,
                superseded: AtomicU64::new(0),
            });
        }
        let read_only = reopen_read_only(&file)?;
        Ok(Writer { table: Table { memory, lines }, read_only, used: 0, removed: 0 })
    }

    /// The file that clients map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.read_only.as_fd()
    }

    /// Entries with a location.
    pub fn entries(&self) -> usize {
        self.used - self.removed
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.table.memory.bytes()
    }

    /// Lines in which `entries` fit well.
    pub fn lines_for(entries: usize) -> usize {
        entries.div_ceil(ENTRIES_PER_LINE * 3 / 4).next_power_of_two().max(MIN_LINES)
    }

    /// Whether so many more entries should go into a larger or cleaner index.
    pub fn is_full_with(&self, more: usize) -> bool {
        (self.used + more) * 4 > self.table.lines * ENTRIES_PER_LINE * 3 && self.table.lines < MAX_LINES
    }

    /// How many lines it has.
    pub fn lines(&self) -> usize {
        self.table.lines
    }

    /// Removes all entries. Clients that search meanwhile find a new entry or none; they lose at most a hit.
    pub fn clear(&mut self) {
        for line in 0..self.table.lines {
            for entry in self.table.line(line) {
                entry.location.store(EMPTY, Release);
            }
        }
        (self.used, self.removed) = (0, 0);
    }

    /// Makes clients ask for another index.
    pub fn supersede(&self) {
        self.table.header().superseded.store(1, Release);
    }

    /// Where a page is.
    pub fn find(&self, hash: PageHash) -> Option<Location> {
        self.table.find(hash).and_then(|(_, location)| Location::unpack(location))
    }

    /// Adds a page or changes its location. Returns false if all lines of its search are full.
    pub fn put(&mut self, hash: PageHash, location: Location) -> bool {
        let word = location.pack();
        if let Some((entry, _)) = self.table.find(hash) {
            entry.location.store(word, Release);
            return true;
        }
        for line in self.table.search(hash) {
            for entry in line {
                let old = entry.location.load(Relaxed);
                if old <= REMOVED {
                    entry.tag.store(hash.tag, Relaxed);
                    entry.location.store(word, Release);
                    if old == EMPTY {
                        self.used += 1;
                    } else {
                        self.removed -= 1;
                    }
                    return true;
                }
            }
        }
        false
    }

    /// Removes a page if this is its location.
    pub fn remove(&mut self, hash: PageHash, location: Location) {
        if let Some((entry, word)) = self.table.find(hash)
            && word == location.pack()
        {
            entry.location.store(REMOVED, Release);
            self.removed += 1;
            fence(Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn hash(n: u64) -> PageHash {
        // Few places, so that searches run into one another.
        PageHash { place: n % 3 * 1000, tag: n.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
    }

    #[test]
    fn location_round_trips_through_a_word() {
        for location in [Location::Elsewhere, Location::Stored { segment: 1, page: 0 }] {
            assert_eq!(Location::unpack(location.pack()), Some(location));
        }
        assert_eq!(Location::unpack(EMPTY), None);
        assert_eq!(Location::unpack(REMOVED), None);
    }

    #[test]
    fn put_refuses_once_the_search_lines_are_full() {
        let mut writer = Writer::new(MIN_LINES).unwrap();
        let here = Location::Stored { segment: 1, page: 1 };
        let taken = (0..1000).filter(|&n| writer.put(PageHash { place: 5, tag: n }, here)).count();
        assert_eq!(taken, MAX_SEARCH * ENTRIES_PER_LINE);
    }

    #[test]
    fn an_index_at_its_limit_still_accepts_every_page() {
        let mut writer = Writer::new(MIN_LINES).unwrap();
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 32) ^ state << 32
        };
        let here = Location::Stored { segment: 1, page: 1 };
        let mut taken = 0;
        while !writer.is_full_with(1) {
            assert!(writer.put(PageHash { place: random(), tag: random() }, here));
            taken += 1;
        }
        assert_eq!(taken, MIN_LINES * ENTRIES_PER_LINE * 3 / 4);
        assert_eq!(Writer::lines_for(taken), MIN_LINES);
    }

    #[test]
    fn a_file_with_more_lines_than_bytes_is_no_index() {
        for (lines, fits) in [(MIN_LINES, true), (2 * MIN_LINES, false), (1 << 58, false), (3, false)] {
            let file = std::fs::File::from(crate::base::segment::create().unwrap());
            file.set_len(bytes_for(MIN_LINES) as u64).unwrap();
            rustix::io::pwrite(&file, &[MAGIC.to_le_bytes(), lines.to_le_bytes()].concat(), 0).unwrap();
            assert_eq!(Reader::open(&file).is_ok(), fits, "{lines}");
        }
    }

    #[test]
    fn clients_cannot_write() {
        let writer = Writer::new(MIN_LINES).unwrap();
        assert!(Mapping::shared(writer.file(), PAGE_BYTES, true).is_err());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer.file()));
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path);
        if let Ok(again) = again {
            assert!(Mapping::shared(&again, PAGE_BYTES, true).is_err());
            assert!(rustix::io::pwrite(&again, b"x", 0).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reader_finds_the_writers_entries(steps in proptest::collection::vec((0u64..300, 0u8..3, 1u32..9), 1..400)) {
            let mut writer = Writer::new(MIN_LINES).unwrap();
            let reader = Reader::open(writer.file()).unwrap();
            let mut model: HashMap<u64, Location> = HashMap::new();
            for (n, action, segment) in steps {
                let location = Location::Stored { segment, page: n as u32 };
                match action {
                    0 => {
                        writer.remove(hash(n), location);
                        if model.get(&n) == Some(&location) {
                            model.remove(&n);
                        }
                    }
                    1 if writer.put(hash(n), location) => { model.insert(n, location); }
                    2 if writer.put(hash(n), Location::Elsewhere) => { model.insert(n, Location::Elsewhere); }
                    _ => {}
                }
                prop_assert_eq!(writer.entries(), model.len());
            }
            for n in 0..300 {
                prop_assert_eq!(reader.find(hash(n)), model.get(&n).copied());
            }
        }
    }
}
