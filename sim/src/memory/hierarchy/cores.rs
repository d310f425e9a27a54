//! Coherence of several cores' private caches. A line that a core has written is in its caches alone; other
//! lines may be in several cores' caches. So a store invalidates the line in all other cores' caches, and a
//! miss takes a written line out of its owner's: it arrives through the LLC, which has it from then on. The
//! LLC has a directory of which core has which line, so no snoop is in vain.
//!
//! Stores do not invalidate lines of instruction caches, neither other cores' nor their own.

use super::{Hierarchy, Level};
use crate::base::calendar::Calendar;
use crate::base::description::Description;
use crate::memory::cache::{Cache, CacheCounts, Line};

/// L1i, L1d and L2 of a core whose turn it is not.
pub(super) struct Private {
    core: usize,
    caches: [Cache; 3],
    units_port: Calendar,
}

/// Traffic between the private caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct SharingCounts {
    /// Lines that another core's miss took, because they were written or the LLC did not have them.
    pub lines_taken: u64,
    /// Lines that another core's store took, one or more copies of each.
    pub lines_invalidated: u64,
}

impl Private {
    pub(super) fn all_but_the_first(description: &Description) -> Vec<Private> {
        let one = |core| Private { core, caches: private_caches(description), units_port: Calendar::new() };
        (1..description.cores.number).map(one).collect()
    }
}

/// L1i, L1d and L2.
pub(super) fn private_caches(d: &Description) -> [Cache; 3] {
    let inner = d.l1d.latency_cycles.max(d.l1i.latency_cycles);
    [Cache::new(&d.l1i, 0), Cache::new(&d.l1d, 0), Cache::new(&d.l2, inner)]
}

impl Hierarchy {
    /// Accesses are this core's from now on.
    pub fn switch(&mut self, core: usize) {
        let Some(other) = self.others.iter_mut().find(|other| other.core == core) else { return };
        std::mem::swap(&mut self.core, &mut other.core);
        for (own, its) in self.caches.iter_mut().zip(&mut other.caches) {
            std::mem::swap(own, its);
        }
        std::mem::swap(&mut self.units_port, &mut other.units_port);
    }

    /// The core that makes the accesses.
    pub fn core(&self) -> usize {
        self.core
    }

    /// A store is about to write the line: when it is in no other core's caches any more.
    #[inline(never)]
    pub(super) fn own(&mut self, line: Line, at: u64) -> u64 {
        let here = [Level::L1d, Level::L2].map(|level| self.caches[level as usize].is_dirty(line));
        if here.contains(&Some(true)) {
            return at;
        }
        let copies = self.others.iter_mut().flat_map(|other| &mut other.caches[Level::L1d as usize..]);
        let taken: Vec<bool> = copies.filter_map(|cache| cache.remove(line)).collect();
        if taken.is_empty() {
            return at;
        }
        self.sharing.lines_invalidated += 1;
        if taken.contains(&true) {
            self.supply(line, true, at);
        }
        // A core that has the line needs no data, but must ask the LLC's directory which other cores have it.
        let request = if here == [None, None] { 0 } else { self.llc_cycles };
        at + request + self.snoop_cycles
    }

    /// A line that the core's L2 misses: when the LLC has it, if another core's caches must supply it.
    #[inline(never)]
    pub(super) fn snoop(&mut self, line: Line, at: u64) -> u64 {
        let copies = self.others.iter().flat_map(|other| &other.caches[Level::L1d as usize..]);
        let Some(is_dirty) = copies.filter_map(|cache| cache.is_dirty(line)).max() else { return at };
        if is_dirty {
            for cache in self.others.iter_mut().flat_map(|other| &mut other.caches[Level::L1d as usize..]) {
                cache.remove(line);
            }
        } else if self.holds(Level::Llc, line) {
            return at;
        }
        self.sharing.lines_taken += 1;
        self.supply(line, is_dirty, at);
        at + self.snoop_cycles
    }

    /// A core's caches supply a line to the LLC.
    fn supply(&mut self, line: Line, is_dirty: bool, at: u64) {
        if is_dirty {
            self.write_back(Level::Llc, line, at);
        } else if let Some(victim) = self.caches[Level::Llc as usize].insert(line, false, at)
            && victim.dirty
        {
            self.write_back(Level::Dram, victim.line, at);
        }
    }

    /// Counters of L1i, L1d and L2, of all cores together.
    pub(super) fn private_counts(&self) -> [CacheCounts; 3] {
        let own = [0, 1, 2].map(|level| self.caches[level].counts);
        self.others.iter().fold(own, |mut sums, other| {
            for (sum, cache) in sums.iter_mut().zip(&other.caches) {
                *sum += cache.counts;
            }
            sums
        })
    }

    pub(super) fn reset_private_counts(&mut self) {
        self.sharing = SharingCounts::default();
        for cache in self.others.iter_mut().flat_map(|other| &mut other.caches) {
            cache.counts = CacheCounts::default();
        }
    }
}
