//! The memory of this project's heap among a process's anonymous mappings: huge pages, whose addresses the
//! heap reserves in one piece, and objects with mappings of their own, which a table in the heap lists
//! (heap/src/pages/direct.rs). The kernel joins such an object with a neighbour that is not the heap's.

use std::ops::Range;

use super::mapping::Mapping;
use super::memory::{Memory, PAGE};

/// No other part of a process is as large as the addresses that the heap reserves.
const LEAST_WINDOW: u64 = 16 << 30;
const HUGE_PAGE: u64 = 2 << 20;
/// Entries of a table; more are not the heap's.
const MOST_ENTRIES: u64 = 1 << 24;

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
    if capacity > MOST_ENTRIES {
        return None;
    }
    let entry = |number| memory.words(at + number * 16);
    let entries = (0..capacity).map(entry).collect::<Option<Vec<[u64; 2]>>>()?;
    let object = |[start, word]: [u64; 2]| start..start.saturating_add(word & !(PAGE - 1));
    Some(entries.into_iter().filter(|entry| entry[0] != 0).map(object).collect())
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
