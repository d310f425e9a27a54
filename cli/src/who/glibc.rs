//! The memory of glibc's malloc among a process's anonymous mappings, by what it writes there. Its arenas
//! beside the first one lie at multiples of 64 MiB and begin with their sizes (malloc/arena.c, `struct
//! _heap_info`). A large object has a mapping of its own, which begins with its size and a mark
//! (malloc/malloc.c, `struct malloc_chunk`, IS_MMAPPED). The kernel joins adjacent mappings.

use super::mapping::Mapping;
use super::memory::{Memory, PAGE};

const ARENA: u64 = 64 << 20;
/// The least object with a mapping of its own, as glibc begins; the limit grows.
const LEAST: u64 = 128 << 10;
const IS_MMAPPED: u64 = 2;
const MARKS: u64 = 7;

impl Memory {
    /// Bytes of the mapping that are resident in arenas and large objects of glibc's malloc.
    pub fn of_malloc(&self, mapping: &Mapping) -> u64 {
        self.of_parts(mapping, |at, end| self.arena_at(at, end).or_else(|| self.object_at(at, end)))
    }

    fn object_at(&self, at: u64, end: u64) -> Option<u64> {
        let [before, word] = self.words(at)?;
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
}
