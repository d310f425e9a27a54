//! The memory of this project's heap among a process's anonymous mappings: huge pages, whose addresses the
//! heap reserves in one piece, and objects with mappings of their own, which a table in the heap lists
//! (heap/src/pages/direct.rs). The kernel joins such an object with a neighbour that is not the heap's.

use std::ops::Range;

use super::mapping::Mapping;
use super::memory::{Memory, PAGE};

/// No other part of a process is as large as the addresses that the heap reserves.
const LEAST_WINDOW: u64 = 16 << 30;
const HUGE_PAGE: u64 = 2 << 20;
/// Entries of a table; more are not the heap's, for a process has 65,530 mappings by default.
const MOST_ENTRIES: u64 = 1 << 20;
/// Of the least table, which all others are multiples of.
const ENTRIES_AT_A_TIME: usize = 256;
const ENTRY_BYTES: u64 = 16;

/// Where the heap of a process has its memory.
pub struct Heap {
    window: Range<u64>,
    /// Objects with mappings of their own; `None` if the table cannot be read.
    objects: Option<Vec<Range<u64>>>,
}

impl Heap {
    /// `table` is the address of the heap's table of objects.
    pub fn new(mappings: &[Mapping], table: Option<u64>, memory: Option<&Memory>) -> Heap {
        let objects = memory.zip(table).and_then(|(memory, table)| objects(memory, table));
        Heap { window: largest_run(mappings), objects }
    }

    /// Anonymous bytes of a mapping that the heap has.
    pub fn bytes_of(&self, mapping: &Mapping, memory: Option<&Memory>) -> u64 {
        if self.window.contains(&mapping.range.start) || mapping.has("nh") {
            return mapping.anonymous_bytes;
        }
        match (&self.objects, memory) {
            (Some(objects), Some(memory)) => {
                let resident = objects.iter().map(|object| memory.resident(mapping, object)).sum::<u64>();
                resident.min(mapping.anonymous_bytes)
            }
            _ if is_on_huge_pages(mapping) => mapping.anonymous_bytes,
            _ => 0,
        }
    }
}

fn objects(memory: &Memory, table: u64) -> Option<Vec<Range<u64>>> {
    let [at, capacity] = memory.words(table)?;
    if capacity > MOST_ENTRIES || !capacity.is_multiple_of(ENTRIES_AT_A_TIME as u64) {
        return None;
    }
    let mut found = Vec::new();
    for entry in (0..capacity).step_by(ENTRIES_AT_A_TIME) {
        let words: [u64; 2 * ENTRIES_AT_A_TIME] = memory.words(at.checked_add(entry * ENTRY_BYTES)?)?;
        found.extend(
            words.chunks_exact(2).filter(|entry| entry[0] != 0).map(|entry| range(entry[0], entry[1])),
        );
    }
    cut_overlaps(&mut found);
    Some(found)
}

fn range(start: u64, word: u64) -> Range<u64> {
    start..start.saturating_add(word & !(PAGE - 1))
}

/// A process can write what it likes into its table: no page is counted twice.
fn cut_overlaps(objects: &mut [Range<u64>]) {
    objects.sort_unstable_by_key(|object| object.start);
    let mut end = 0;
    for object in objects {
        object.start = object.start.max(end);
        end = end.max(object.end);
    }
}

/// Where nothing else tells: most objects lie on huge pages, from one's beginning.
fn is_on_huge_pages(mapping: &Mapping) -> bool {
    mapping.has("hg") && mapping.range.start.is_multiple_of(HUGE_PAGE)
}

/// The addresses of the largest run of anonymous mappings without a gap; none if it is small.
fn largest_run(mappings: &[Mapping]) -> Range<u64> {
    let (mut largest, mut run) = (0..0, 0..0);
    for mapping in mappings.iter().filter(|mapping| !mapping.is_file && mapping.name.is_empty()) {
        run =
            if mapping.range.start == run.end { run.start..mapping.range.end } else { mapping.range.clone() };
        if run.end - run.start > largest.end - largest.start {
            largest = run.clone();
        }
    }
    if largest.end - largest.start >= LEAST_WINDOW { largest } else { 0..0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_is_counted_twice() {
        let mut objects =
            [range(0x9000, 0x2000), range(0x1000, 0x4001), range(0x3000, u64::MAX), range(0x2000, 0)];
        cut_overlaps(&mut objects);
        let bytes: u64 = objects.iter().map(|object| object.end.saturating_sub(object.start)).sum();
        assert_eq!(bytes, u64::MAX - 0x1000);
    }
}
