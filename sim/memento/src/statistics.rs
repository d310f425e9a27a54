//! The units' counters, each with its unit in the name, and the sums that must hold for every program.

use serde::Serialize;

/// The use of a page from the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Arenas.
    Data = 0,
    /// The Memento page table.
    Table = 1,
    /// Threads' bump pointers and list heads.
    Block = 2,
}

/// How full arenas are at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Occupancy {
    /// Slots of all arenas.
    pub slots: u64,
    /// Of those that have an object: not of the one that a class has from the start, where it has never had
    /// any.
    pub slots_in_use: u64,
    /// Objects in them.
    pub objects: u64,
    /// The slots in bytes: the memory of arenas handed to the HOT.
    pub slot_bytes: u64,
    /// Bytes of the slots that have an object.
    pub object_bytes: u64,
}

/// Counters since the units were made. Operations unless the name has another unit; pages by [`PageKind`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the names are their documentation
pub struct Statistics {
    pub allocations: u64,
    pub allocation_hits: u64,
    pub allocation_misses: u64,
    pub allocation_exceptions: u64,
    pub allocated_bytes: u64,
    pub frees: u64,
    pub free_hits: u64,
    pub free_misses: u64,
    pub free_exceptions: u64,
    pub non_local_frees: u64,
    pub batched_frees: u64,
    pub batched_frees_done: u64,
    pub batches: u64,
    pub double_frees: u64,
    /// Of operations that looked into an arena for an object: bits set and bits cleared.
    pub objects_allocated: u64,
    pub objects_freed: u64,
    /// Objects of processes that exited, freed with their arenas.
    pub objects_released: u64,
    pub allocations_with_list_operations: u64,
    pub frees_with_list_operations: u64,
    pub eager_loads: u64,
    pub hot_loads: u64,
    pub hot_write_backs: u64,
    pub hot_flushes: u64,
    pub hot_flushed_entries: u64,
    pub hot_flush_cycles: u64,
    pub hot_invalidations: u64,
    pub aac_hits: u64,
    pub aac_misses: u64,
    pub aac_write_backs: u64,
    pub arenas_allocated: u64,
    pub arenas_freed: u64,
    pub arenas_released: u64,
    /// Sums over all operations: the slots of the arenas there were, and the objects in them (§6.6,
    /// Fragmentation).
    pub slots_by_operation: u64,
    pub objects_by_operation: u64,
    pub pages_allocated: [u64; 3],
    pub pages_freed: [u64; 3],
    /// Of the pages allocated: those that came from the OS and not from an arena or a table that was freed.
    pub pages_from_os: [u64; 3],
    pub refills: u64,
    pub refilled_pages: u64,
    pub refill_cycles: u64,
    pub walks: u64,
    pub first_touches: u64,
    pub shootdowns: u64,
    /// Accesses to lines that were new: if such a line is in no cache, the LLC instantiates it.
    pub new_lines: u64,
    pub alloc_cycles: u64,
    pub free_cycles: u64,
    pub background_cycles: u64,
    /// How long frees that missed waited, because the background already had the most frees that it may have.
    pub background_wait_cycles: u64,
    pub cleared_pages: u64,
    pub walk_cycles: u64,
}

impl Statistics {
    /// Share of allocations that hit in the HOT (Fig. 12).
    pub fn allocation_hit_rate(&self) -> f64 {
        ratio(self.allocation_hits, self.allocation_hits + self.allocation_misses)
    }

    /// Share of frees that hit in the HOT (Fig. 12).
    pub fn free_hit_rate(&self) -> f64 {
        ratio(self.free_hits, self.free_hits + self.free_misses)
    }

    /// After each operation: how full the arenas are.
    pub(crate) fn note_occupancy(&mut self) {
        let arenas = self.arenas_allocated - self.arenas_freed - self.arenas_released;
        self.slots_by_operation += arenas * crate::layout::OBJECTS as u64;
        self.objects_by_operation += self.objects_allocated - self.objects_freed - self.objects_released;
    }

    /// Pages taken from the pool and not yet returned.
    pub fn pages_held(&self) -> u64 {
        self.pages_allocated.iter().sum::<u64>() - self.pages_freed.iter().sum::<u64>()
    }

    /// The sums that follow from counters alone; [`crate::Units::check`] compares them with what the units
    /// hold.
    ///
    /// # Errors
    /// The sum that does not hold, with both sides.
    pub fn check(&self) -> Result<(), String> {
        let equal = |what: &str, left: u64, right: u64| {
            if left == right { Ok(()) } else { Err(format!("{what}: {left} is not {right}")) }
        };
        equal(
            "allocations = HOT hits + misses + exceptions",
            self.allocations,
            self.allocation_hits + self.allocation_misses + self.allocation_exceptions,
        )?;
        equal(
            "frees = HOT hits + misses + non-local + batched + exceptions",
            self.frees,
            self.free_hits
                + self.free_misses
                + self.non_local_frees
                + self.batched_frees
                + self.free_exceptions,
        )?;
        equal(
            "objects allocated = HOT hits + misses",
            self.objects_allocated,
            self.allocation_hits + self.allocation_misses,
        )?;
        equal(
            "objects freed = HOT hits + misses + non-local + batches' frees",
            self.objects_freed,
            self.free_hits + self.free_misses + self.non_local_frees + self.batched_frees_done,
        )?;
        let used: u64 = self.pages_held();
        if used > self.refilled_pages {
            return Err(format!("{used} pages are held, but the OS handed over {}", self.refilled_pages));
        }
        Ok(())
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}
