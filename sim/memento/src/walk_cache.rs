//! The MMU's paging-structure cache for walks from MPTR: the leaf tables of the latest 2 MiB ranges, replaced
//! in LRU order, as an ordinary walk has it for CR3's tables.

/// A core's cache.
#[derive(Debug)]
pub struct WalkCache {
    /// (root, 2 MiB range, leaf table), the latest first.
    entries: Vec<(u64, u64, u64)>,
    capacity: usize,
}

const RANGE_SHIFT: u32 = 21;

impl WalkCache {
    /// Empty, for `capacity` ranges; 0 makes every walk start at the root.
    pub fn new(capacity: usize) -> WalkCache {
        WalkCache { entries: Vec::with_capacity(capacity), capacity }
    }

    /// The table that holds the leaf entry of `address`.
    pub fn find(&mut self, root: u64, address: u64) -> Option<u64> {
        let range = address >> RANGE_SHIFT;
        let place = self.entries.iter().position(|entry| (entry.0, entry.1) == (root, range))?;
        let entry = self.entries.remove(place);
        self.entries.insert(0, entry);
        Some(entry.2)
    }

    /// Adds a leaf table.
    pub fn insert(&mut self, root: u64, address: u64, table: u64) {
        if self.capacity == 0 {
            return;
        }
        self.entries.truncate(self.capacity - 1);
        self.entries.insert(0, (root, address >> RANGE_SHIFT, table));
    }

    /// A table has been freed.
    pub fn drop_table(&mut self, table: u64) {
        self.entries.retain(|entry| entry.2 != table);
    }

    /// A process has exited.
    pub fn drop_process(&mut self, root: u64) {
        self.entries.retain(|entry| entry.0 != root);
    }
}
