//! TLBs and the page walker, which reads the guest's own page table through the caches.
//!
//! The program's accesses come with their physical address, so a TLB entry whose page differs from it is out
//! of date (the guest has changed the mapping and flushed it): that is a miss. Pages of 4 KiB and 2 MiB share
//! the arrays; 1 GiB pages are held in parts of 2 MiB.

use crate::base::description::TlbDescription;
use crate::memory::hierarchy::{Hierarchy, Level, Purpose};

/// The guest's page tables.
pub trait PageTables {
    /// The eight bytes at this physical address.
    fn entry(&self, physical: u64) -> u64;
}

/// The counters of the TLBs and the walker.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TlbCounts {
    /// Translations of instruction addresses (once a line).
    pub instruction_lookups: u64,
    /// Of which the L1 TLB did not have.
    pub instruction_misses: u64,
    /// Translations of data addresses.
    pub data_lookups: u64,
    /// Of which the L1 TLB did not have.
    pub data_misses: u64,
    /// Misses of the L2 TLB: page walks.
    pub walks: u64,
    /// Cycles from a walk's start to its end, over all walks.
    pub walk_cycles: u64,
    /// Entries read by walks.
    pub walk_reads: u64,
    /// Walks whose address differs from the access's.
    pub walk_disagreements: u64,
}

impl std::ops::AddAssign for TlbCounts {
    fn add_assign(&mut self, other: TlbCounts) {
        self.instruction_lookups += other.instruction_lookups;
        self.instruction_misses += other.instruction_misses;
        self.data_lookups += other.data_lookups;
        self.data_misses += other.data_misses;
        self.walks += other.walks;
        self.walk_cycles += other.walk_cycles;
        self.walk_reads += other.walk_reads;
        self.walk_disagreements += other.walk_disagreements;
    }
}

/// Instructions or data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The instruction TLB.
    Instruction = 0,
    /// The data TLB.
    Data = 1,
}

const EMPTY: u64 = u64::MAX;
const LARGE: u64 = 1 << 40;

struct Array {
    sets: u64,
    ways: usize,
    keys: Box<[u64]>,
    pages: Box<[u64]>,
    used: Box<[u64]>,
    accesses: u64,
}

impl Array {
    fn new(sets: usize, ways: usize) -> Array {
        let entries = sets * ways;
        let zeroes = || vec![0; entries].into();
        Array {
            sets: sets as u64,
            ways,
            keys: vec![EMPTY; entries].into(),
            pages: zeroes(),
            used: zeroes(),
            accesses: 0,
        }
    }

    #[inline]
    fn first(&self, key: u64) -> usize {
        let number = key & (LARGE - 1);
        let set = if self.sets.is_power_of_two() { number & (self.sets - 1) } else { number % self.sets };
        set as usize * self.ways
    }

    /// Whether the entry is there and right.
    #[inline]
    fn lookup(&mut self, key: u64, page: u64) -> bool {
        let first = self.first(key);
        for index in first..first + self.ways {
            if self.keys[index] == key {
                if self.pages[index] != page {
                    self.keys[index] = EMPTY;
                    self.used[index] = 0;
                    return false;
                }
                self.accesses += 1;
                self.used[index] = self.accesses;
                return true;
            }
        }
        false
    }

    /// The page that the key is translated to.
    fn find(&self, key: u64) -> Option<u64> {
        let first = self.first(key);
        (first..first + self.ways).find(|index| self.keys[*index] == key).map(|index| self.pages[index])
    }

    fn insert(&mut self, key: u64, page: u64) {
        let first = self.first(key);
        let oldest = (first..first + self.ways).min_by_key(|index| self.used[*index]).unwrap_or(first);
        self.accesses += 1;
        self.keys[oldest] = key;
        self.pages[oldest] = page;
        self.used[oldest] = self.accesses;
    }

    fn remove(&mut self, key: u64) {
        let first = self.first(key);
        for index in first..first + self.ways {
            if self.keys[index] == key {
                self.keys[index] = EMPTY;
                self.used[index] = 0;
            }
        }
    }
}

/// Both L1 TLBs, the L2 TLB, the walker and its cache of upper levels.
pub struct Tlbs {
    l1: [Array; 2],
    l2: Array,
    l2_cycles: u64,
    /// Of each side: the key and page found last.
    last: [(u64, u64); 2],
    /// Upper levels: (prefix of the address and level, table it leads to), oldest first out.
    upper: Box<[(u64, u64)]>,
    upper_next: usize,
    root: u64,
    /// Distinguishes user entries of one process's turn from another's: a change of CR3 flushes them.
    turn: u64,
    /// Counters.
    pub counts: TlbCounts,
}

/// The result of a translation.
pub struct Translated {
    /// When the physical address is known.
    pub at: u64,
    /// A page walk was needed.
    pub walked: bool,
}

impl Tlbs {
    /// All empty.
    pub fn new(description: &TlbDescription) -> Tlbs {
        let l1 = || Array::new(description.l1_sets, description.l1_ways);
        Tlbs {
            l1: [l1(), l1()],
            l2: Array::new(description.l2_sets, description.l2_ways),
            l2_cycles: description.l2_latency_cycles,
            last: [(EMPTY, 0); 2],
            upper: vec![(EMPTY, 0); description.walk_cache_entries].into(),
            upper_next: 0,
            root: 0,
            turn: 1,
            counts: TlbCounts::default(),
        }
    }

    /// CR3 was written: another process, or a flush. Global (kernel) entries stay.
    pub fn set_root(&mut self, cr3: u64) {
        self.root = cr3 & 0x000f_ffff_ffff_f000;
        self.turn = (self.turn + 1) & 0x3f_ffff;
        self.last = [(EMPTY, 0); 2];
        self.upper.fill((EMPTY, 0));
    }

    /// The page table's root.
    pub fn root(&self) -> u64 {
        self.root
    }

    #[inline]
    fn small_key(&self, va: u64) -> u64 {
        let turn = if va >> 63 == 1 { 0 } else { self.turn };
        (va >> 12) & 0xf_ffff_ffff | turn << 41
    }

    #[inline]
    fn large_key(&self, va: u64) -> u64 {
        let turn = if va >> 63 == 1 { 0 } else { self.turn };
        (va >> 21) & 0x7ff_ffff | LARGE | turn << 41
    }

    /// Looks `va` up; `physical` is the access's address. True if an L1 TLB has it: no time passes.
    #[inline]
    pub fn quick(&mut self, side: Side, va: u64, physical: u64) -> bool {
        let counts = &mut self.counts;
        *(if side == Side::Data { &mut counts.data_lookups } else { &mut counts.instruction_lookups }) += 1;
        let key = self.small_key(va);
        if self.last[side as usize] == (key, physical >> 12) {
            return true;
        }
        let large = self.large_key(va);
        let array = &mut self.l1[side as usize];
        let found = array.lookup(key, physical >> 12) || array.lookup(large, physical >> 21);
        if found {
            self.last[side as usize] = (key, physical >> 12);
        }
        found
    }

    /// The slow path, after [`Tlbs::quick`] missed: L2 TLB, then a walk.
    pub fn slow(
        &mut self,
        side: Side,
        va: u64,
        physical: u64,
        at: u64,
        hierarchy: &mut Hierarchy,
        tables: &impl PageTables,
    ) -> Translated {
        if let Some(at) = self.second_level(side, va, physical, at) {
            return Translated { at, walked: false };
        }
        let start = at + self.l2_cycles;
        let (done, large) = self.walk(va, physical, start, hierarchy, tables);
        self.fill(side, va, physical, large);
        self.count_walk(start, done);
        Translated { at: done, walked: true }
    }

    /// The L2 TLB: when the address is known, if it has it.
    pub fn second_level(&mut self, side: Side, va: u64, physical: u64, at: u64) -> Option<u64> {
        let counts = &mut self.counts;
        *(if side == Side::Data { &mut counts.data_misses } else { &mut counts.instruction_misses }) += 1;
        let (small, large) = (self.small_key(va), self.large_key(va));
        let (key, page) = match () {
            () if self.l2.lookup(small, physical >> 12) => (small, physical >> 12),
            () if self.l2.lookup(large, physical >> 21) => (large, physical >> 21),
            () => return None,
        };
        self.l1[side as usize].insert(key, page);
        self.last[side as usize] = (small, physical >> 12);
        Some(at + self.l2_cycles)
    }

    /// Enters a translation into both levels.
    pub fn fill(&mut self, side: Side, va: u64, physical: u64, large: bool) {
        let (key, page) =
            if large { (self.large_key(va), physical >> 21) } else { (self.small_key(va), physical >> 12) };
        self.l1[side as usize].insert(key, page);
        self.l2.insert(key, page);
        self.last[side as usize] = (self.small_key(va), physical >> 12);
    }

    /// The physical address of a data address in a 4 KiB page, if a TLB has it, and when that is known.
    pub fn find(&mut self, va: u64, at: u64) -> (Option<u64>, u64) {
        let key = self.small_key(va);
        let address = |page: u64| page << 12 | va & 0xfff;
        if let Some(page) = self.l1[Side::Data as usize].find(key) {
            return (Some(address(page)), at);
        }
        (self.l2.find(key).map(address), at + self.l2_cycles)
    }

    /// Counts a translation that no TLB can have.
    pub fn count_miss(&mut self) {
        self.counts.data_lookups += 1;
        self.counts.data_misses += 1;
    }

    /// Counts a walk.
    pub fn count_walk(&mut self, start: u64, done: u64) {
        self.counts.walks += 1;
        self.counts.walk_cycles += done - start;
    }

    /// Cycles from an L1 TLB's miss to the start of a walk.
    pub fn l2_cycles(&self) -> u64 {
        self.l2_cycles
    }

    /// This page's translation is no longer valid.
    pub fn shootdown(&mut self, va: u64) {
        let key = self.small_key(va);
        for array in self.l1.iter_mut().chain([&mut self.l2]) {
            array.remove(key);
        }
        self.last = [(EMPTY, 0); 2];
    }

    /// Four levels, less those in the walk cache; entries are data to the caches. When, and whether the page
    /// is larger than 4 KiB.
    fn walk(
        &mut self,
        va: u64,
        physical: u64,
        at: u64,
        hierarchy: &mut Hierarchy,
        tables: &impl PageTables,
    ) -> (u64, bool) {
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let mut table = self.root;
        let mut level = 3;
        let mut cached = false;
        for below in 1..=3 {
            let prefix = (va >> (12 + 9 * below)) << 2 | below;
            if let Some((_, found)) = self.upper.iter().find(|(key, _)| *key == prefix) {
                (table, level, cached) = (*found, below - 1, true);
                break;
            }
        }
        let mut done = at;
        loop {
            let entry_at = table + 8 * ((va >> (12 + 9 * level)) & 511);
            let entry = tables.entry(entry_at);
            hierarchy.purpose = Purpose::Walk;
            (done, _) = hierarchy.access(Level::L1d, entry_at >> 6, false, false, done);
            self.counts.walk_reads += 1;
            let large = level > 0 && entry & 0x80 != 0;
            if entry & 1 == 0 || level == 0 || large {
                let mask = (1 << (12 + 9 * level)) - 1;
                let right = entry & 1 == 1 && (entry & ADDRESS & !mask) == physical & !mask;
                if !right && cached {
                    // A table that the guest has replaced meanwhile: again, from the root.
                    self.upper.fill((EMPTY, 0));
                    (table, level, cached) = (self.root, 3, false);
                    continue;
                }
                self.counts.walk_disagreements += u64::from(!right);
                return (done, large);
            }
            table = entry & ADDRESS;
            if !self.upper.is_empty() {
                self.upper[self.upper_next] = ((va >> (12 + 9 * level)) << 2 | level, table);
                self.upper_next = (self.upper_next + 1) % self.upper.len();
            }
            level -= 1;
        }
    }
}
