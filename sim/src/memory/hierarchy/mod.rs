//! The caches in their order, and DRAM behind them.

mod cores;

pub use cores::SharingCounts;

use crate::base::calendar::Calendar;
use crate::base::description::{CacheDescription, Description, SupportDescription};
use crate::memory::cache::{Cache, CacheCounts, Line};
use crate::memory::dram::{Dram, DramCounts};
use cores::{Private, private_caches};

/// The level that served an access, from near to far. The first four are also the indices of the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// The instruction cache.
    L1i,
    /// The data cache.
    L1d,
    /// The second level, for both.
    L2,
    /// The last level.
    Llc,
    /// Memory.
    Dram,
}

/// What an access is for, so that DRAM's reads can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Instructions.
    Code,
    /// Page tables.
    Walk,
    /// Memento's units: headers, its page table.
    Units,
    /// Objects in a Memento region.
    Objects,
    /// Other memory of programs.
    Program,
    /// The kernel's memory, which all pages are to it when it clears or copies them.
    Kernel,
}

/// How many purposes there are.
pub const PURPOSES: usize = 6;
/// Their names.
pub const PURPOSE_NAMES: [&str; PURPOSES] = ["code", "walks", "units", "objects", "program", "kernel"];

/// L1i and L1d, which share L2, LLC and memory. Neither inclusive nor exclusive: only dirty victims are
/// written to the next level.
pub struct Hierarchy {
    /// The first three are those of the core that makes the accesses now.
    caches: [Cache; 4],
    core: usize,
    others: Vec<Private>,
    /// Traffic between the cores' caches.
    pub sharing: SharingCounts,
    llc_cycles: u64,
    dram: Dram,
    /// The HOT's port to the L1d: one access a cycle.
    units_port: Calendar,
    /// Lines that the LLC makes of zeroes are clean.
    clean_lines: bool,
    /// Of a support core, behind which is the LLC: for instructions and for data. A line of data is in its
    /// cache or in the core's own, never in both.
    support: Option<[Cache; 2]>,
    snoop_cycles: u64,
    /// Lines that the support core took out of the core's caches, and that the core took out of the support
    /// core's.
    pub snoops: [u64; 2],
    /// Lines that were filled with zeroes at the LLC instead of being read (Memento §3.3).
    pub bypasses: u64,
    /// The purpose of the accesses made now.
    pub purpose: Purpose,
    reads_for: [u64; PURPOSES],
}

/// The memory system's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[allow(missing_docs)]
pub struct MemoryCounts {
    pub l1i: CacheCounts,
    pub l1d: CacheCounts,
    pub l2: CacheCounts,
    pub llc: CacheCounts,
    pub dram: DramCounts,
    pub llc_bypasses: u64,
    /// DRAM's reads by purpose.
    pub reads_for: [u64; PURPOSES],
}

impl Hierarchy {
    /// All empty.
    pub fn new(description: &Description) -> Hierarchy {
        let d = description;
        let [l1i, l1d, l2] = private_caches(d);
        Hierarchy {
            caches: [l1i, l1d, l2, Cache::new(&d.llc, d.l2.latency_cycles)],
            core: 0,
            others: Private::all_but_the_first(d),
            sharing: SharingCounts::default(),
            llc_cycles: d.llc.latency_cycles,
            dram: Dram::new(&d.dram, d.core.frequency_mhz),
            units_port: Calendar::new(),
            clean_lines: d.memento.as_ref().is_some_and(|config| config.clean_lines),
            support: d.support.as_ref().map(support_caches),
            snoop_cycles: d.support.as_ref().map_or(d.cores.snoop_cycles, |support| support.snoop_cycles),
            snoops: [0; 2],
            bypasses: 0,
            purpose: Purpose::Kernel,
            reads_for: [0; PURPOSES],
        }
    }

    /// An access to a line that enters at `level` at cycle `at`: when its data is there, and which level had
    /// it. `fresh`: the line was never used since it was allocated, so the LLC makes one of zeroes instead of
    /// reading DRAM.
    #[inline]
    pub fn access(&mut self, level: Level, line: Line, write: bool, fresh: bool, at: u64) -> (u64, Level) {
        let is_shared = write && level == Level::L1d && !self.others.is_empty();
        let at = if is_shared { self.own(line, at) } else { at };
        let cache = &mut self.caches[level as usize];
        let start = cache.start(at);
        let there = start + cache.own_cycles;
        if let Some(ready) = cache.lookup(line, write, there) {
            return (ready.max(there), level);
        }
        self.miss(level, line, write, fresh, there)
    }

    /// When an access of the HOT that arrives at `at` has its port.
    pub fn unit_start(&mut self, at: u64) -> u64 {
        self.units_port.take_one(at)
    }

    #[inline(never)]
    fn miss(&mut self, level: Level, line: Line, write: bool, fresh: bool, at: u64) -> (u64, Level) {
        let (mshr, from) = self.caches[level as usize].reserve(at);
        let mut dirty = write;
        let (done, served) = match next(level) {
            // Of zeroes that DRAM does not have: dirty from the start, unless configured otherwise.
            Level::Dram if fresh => {
                self.bypasses += 1;
                dirty |= !self.clean_lines;
                (from, Level::Llc)
            }
            Level::Dram => {
                self.reads_for[self.purpose as usize] += 1;
                (self.dram.read(line, from), Level::Dram)
            }
            behind => {
                let from = match level {
                    Level::L2 if !self.others.is_empty() => self.snoop(line, from),
                    Level::L2 => self.snoop_support(line, from),
                    _ => from,
                };
                self.access(behind, line, false, fresh, from)
            }
        };
        let cache = &mut self.caches[level as usize];
        cache.hold(mshr, at, done);
        if let Some(victim) = cache.insert(line, dirty, done)
            && victim.dirty
        {
            self.write_back(next(level), victim.line, from);
        }
        (done, served)
    }

    /// A dirty line arrives from the level before: kept here, whichever line must be evicted for it.
    fn write_back(&mut self, level: Level, line: Line, at: u64) {
        if level == Level::Dram {
            return self.dram.write(line, at);
        }
        let cache = &mut self.caches[level as usize];
        if !cache.mark_dirty(line)
            && let Some(victim) = cache.insert(line, true, at)
            && victim.dirty
        {
            self.write_back(next(level), victim.line, at);
        }
    }

    /// The support core's access to a line, by its cache of code (L1i) or data: when it is there. A line of
    /// data is taken out of the core's caches.
    pub fn support_access(&mut self, level: Level, line: Line, write: bool, at: u64) -> u64 {
        let Some(caches) = &mut self.support else { return at };
        let cache = &mut caches[level as usize];
        let there = at + cache.own_cycles;
        if let Some(ready) = cache.lookup(line, write, there) {
            return ready.max(there);
        }
        let mut from = there;
        if level == Level::L1d {
            let held = [Level::L1d, Level::L2].map(|level| self.caches[level as usize].remove(line));
            if held != [None, None] {
                self.snoops[0] += 1;
                from += self.snoop_cycles;
            }
            if held.contains(&Some(true)) {
                self.write_back(Level::Llc, line, from);
            }
        }
        let (done, _) = self.access(Level::Llc, line, false, false, from);
        let victim =
            self.support.as_mut().and_then(|caches| caches[level as usize].insert(line, write, done));
        if let Some(victim) = victim
            && victim.dirty
        {
            self.write_back(Level::Llc, victim.line, from);
        }
        done
    }

    /// The core's caches miss a line that the support core may have: the cycle at which the LLC has it.
    #[inline]
    fn snoop_support(&mut self, line: Line, at: u64) -> u64 {
        let Some([_, data]) = &mut self.support else { return at };
        let Some(dirty) = data.remove(line) else { return at };
        self.snoops[1] += 1;
        if dirty {
            self.write_back(Level::Llc, line, at);
        }
        at + self.snoop_cycles
    }

    /// From now on DRAM's requests are kept.
    pub fn record_dram(&mut self) {
        self.dram.recorded = Some(Vec::new());
    }

    /// DRAM's requests, if they are kept: clock, and line with whether it is written in the lowest bit.
    pub fn dram_requests(&self) -> Option<&[[u64; 2]]> {
        self.dram.recorded.as_deref()
    }

    /// Whether this level has the line.
    pub fn holds(&self, level: Level, line: Line) -> bool {
        self.caches[level as usize].holds(line)
    }

    /// The counters of the support core's caches, if there are any.
    pub fn support_counts(&self) -> Option<[CacheCounts; 2]> {
        self.support.as_ref().map(|caches| [caches[0].counts, caches[1].counts])
    }

    /// The counters so far.
    pub fn counts(&self) -> MemoryCounts {
        let [l1i, l1d, l2] = self.private_counts();
        MemoryCounts {
            l1i,
            l1d,
            l2,
            llc: self.caches[Level::Llc as usize].counts,
            dram: self.dram.counts,
            llc_bypasses: self.bypasses,
            reads_for: self.reads_for,
        }
    }

    /// Counts from zero; what the caches hold stays.
    pub fn reset_counts(&mut self) {
        for cache in self.caches.iter_mut().chain(self.support.iter_mut().flatten()) {
            cache.counts = CacheCounts::default();
        }
        self.reset_private_counts();
        self.dram.counts = DramCounts::default();
        if let Some(requests) = &mut self.dram.recorded {
            requests.clear();
        }
        self.bypasses = 0;
        self.snoops = [0; 2];
        self.reads_for = [0; PURPOSES];
    }
}

fn support_caches(description: &SupportDescription) -> [Cache; 2] {
    let one = CacheDescription {
        sets: description.cache_sets,
        ways: description.cache_ways,
        latency_cycles: description.cache_latency_cycles,
        mshrs: 1,
        cycles_per_access: 0,
        replacement: Default::default(),
    };
    [Cache::new(&one, 0), Cache::new(&one, 0)]
}

fn next(level: Level) -> Level {
    match level {
        Level::L1i | Level::L1d => Level::L2,
        Level::L2 => Level::Llc,
        Level::Llc | Level::Dram => Level::Dram,
    }
}
