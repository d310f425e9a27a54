//! The memory of glibc's malloc among a process's anonymous mappings, by what it writes there. Its arenas
//! beside the first one lie at multiples of 64 MiB and begin with their sizes (malloc/arena.c, `struct
//! _heap_info`). A large object has a mapping of its own, which begins with its size and a mark
//! (malloc/malloc.c, `struct malloc_chunk`, IS_MMAPPED). The kernel joins adjacent mappings.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::mapping::Mapping;

const ARENA: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// The least object with a mapping of its own, as glibc begins; the limit grows.
const LEAST: u64 = 128 << 10;
const IS_MMAPPED: u64 = 2;
const MARKS: u64 = 7;
const PRESENT: u64 = 1 << 63;
/// Mappings beyond this are looked at up to here.
const MOST: u64 = 16 << 30;

/// A process's memory, opened to read the headers of objects.
pub struct Memory {
    contents: File,
    pages: File,
}

impl Memory {
    /// `None` if this process may not read the other's memory.
    pub fn of_process(pid: u32) -> Option<Memory> {
        let open = |name: &str| File::open(format!("/proc/{pid}/{name}")).ok();
        Some(Memory { contents: open("mem")?, pages: open("pagemap")? })
    }

    /// Bytes of the mapping that are resident in arenas and large objects of glibc's malloc.
    pub fn of_malloc(&self, mapping: &Mapping) -> u64 {
        let end = mapping.range.end.min(mapping.range.start + MOST);
        let there = self.there(mapping.range.start, end);
        let resident = |range: std::ops::Range<u64>| {
            let pages = (range.start - mapping.range.start) / PAGE..(range.end - mapping.range.start) / PAGE;
            let part = there.get(pages.start as usize..pages.end as usize).unwrap_or_default();
            part.iter().filter(|&&is_there| is_there).count() as u64 * PAGE
        };
        let (mut at, mut found) = (mapping.range.start, 0);
        while at < end {
            // A page that is not there has no header, and reading it would map it.
            let is_there = there.get(((at - mapping.range.start) / PAGE) as usize) == Some(&true);
            match is_there.then(|| self.arena_at(at, end).or_else(|| self.object_at(at, end))).flatten() {
                Some(bytes) => {
                    found += resident(at..at + bytes);
                    at += bytes;
                }
                None => at += PAGE,
            }
        }
        found
    }

    fn object_at(&self, at: u64, end: u64) -> Option<u64> {
        let [before, word, ..] = self.words(at)?;
        let size = word & !MARKS;
        let is_object = before == 0
            && word & MARKS == IS_MMAPPED
            && size.is_multiple_of(PAGE)
            && (LEAST..=end - at).contains(&size);
        is_object.then_some(size)
    }

    fn arena_at(&self, at: u64, end: u64) -> Option<u64> {
        if !at.is_multiple_of(ARENA) {
            return None;
        }
        let [state, before, used, usable] = self.words(at)?;
        // An arena's first part has its state right behind this header, a later one is behind another part.
        let is_first = before == 0 && (at..at + PAGE).contains(&state);
        let is_later = before != 0 && before.is_multiple_of(ARENA) && state.is_multiple_of(16) && state != 0;
        let fits = used <= usable && (PAGE..=ARENA.min(end - at)).contains(&usable);
        ((is_first || is_later) && fits && used > 0 && usable.is_multiple_of(PAGE)).then_some(usable)
    }

    fn words(&self, at: u64) -> Option<[u64; 4]> {
        let mut header = [0; 32];
        self.contents.read_exact_at(&mut header, at).ok()?;
        let word = |place: usize| u64::from_le_bytes(header[place..place + 8].try_into().unwrap_or_default());
        Some([word(0), word(8), word(16), word(24)])
    }

    fn there(&self, start: u64, end: u64) -> Vec<bool> {
        let mut words = vec![0; ((end - start) / PAGE * 8) as usize];
        if self.pages.read_exact_at(&mut words, start / PAGE * 8).is_err() {
            return Vec::new();
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        words.chunks_exact(8).map(|bytes| word(bytes) & PRESENT != 0).collect()
    }
}
