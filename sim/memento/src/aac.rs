//! The Arena Allocation Cache (§3.2): next to the page allocator, one direct-mapped entry for each core,
//! which holds the bump pointers of the few size classes that a workload uses.

use crate::layout::PAGE_BYTES;
use crate::statistics::Statistics;

/// An entry: physical addresses of the pointers it holds, the latest first.
type Entry = Vec<u64>;

/// The cache. The pointers' values are kept in the threads' blocks; the cache records which of them are on
/// the chip.
#[derive(Debug)]
pub struct ArenaAllocationCache {
    entries: Vec<Entry>,
    pointers: usize,
}

impl ArenaAllocationCache {
    /// With `entries` entries of `pointers` pointers each.
    pub fn new(entries: usize, pointers: usize) -> ArenaAllocationCache {
        ArenaAllocationCache { entries: vec![Entry::new(); entries], pointers }
    }

    /// Looks up a bump pointer for a core and brings it in if it is missing; true on a hit. A thread that has
    /// moved to another core may have left it in that core's entry, which is written back.
    pub fn access(&mut self, core: usize, pointer: u64, statistics: &mut Statistics) -> bool {
        let which = core % self.entries.len();
        let found = self.entries[which].iter().position(|&held| held == pointer);
        if found.is_none() {
            let other = self.entries.iter_mut().find(|entry| entry.contains(&pointer));
            if let Some(other) = other {
                other.retain(|&held| held != pointer);
                statistics.aac_write_backs += 1;
            }
        }
        let entry = &mut self.entries[which];
        if let Some(place) = found {
            entry.remove(place);
        } else if entry.len() == self.pointers {
            entry.pop();
            statistics.aac_write_backs += 1;
        }
        entry.insert(0, pointer);
        found.is_some()
    }

    /// The pointers that a core's entry holds, the latest first.
    pub fn entry(&self, core: usize) -> &[u64] {
        &self.entries[core % self.entries.len()]
    }

    /// A thread's block has been freed.
    pub fn drop_block(&mut self, block: u64) {
        for entry in &mut self.entries {
            entry.retain(|pointer| pointer / PAGE_BYTES != block / PAGE_BYTES);
        }
    }
}
