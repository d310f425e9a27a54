//! The units of one machine put together (Fig. 7), and the calls that the machine makes, besides the two
//! instructions: the page walk, every access's check of the bypass counter, and the OS's operations (regions,
//! context switches, exits).

use std::ops::Range;

use crate::config::Config;
use crate::held::HeldPages;
use crate::layout::{LANES, REGION_BYTES};
use crate::memory_system::MemorySystem;
use crate::object_allocator::ObjectAllocator;
use crate::page_allocator::PageAllocator;
use crate::region::Process;
use crate::statistics::Statistics;
use crate::{Exception, Result, Work, bypass};

/// An instruction's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The cycle at which the result can be used.
    pub at: u64,
    /// obj-alloc: the object's address; otherwise 0.
    pub address: u64,
    /// Why the operation was refused, if it was.
    pub exception: Option<Exception>,
}

/// Everything that Memento adds to a machine.
pub struct Units {
    pub(crate) config: Config,
    pub(crate) objects: ObjectAllocator,
    pub(crate) pages: PageAllocator,
    pub(crate) processes: Vec<Option<Process>>,
    /// By core: the process whose MRS, MRE and MPTR are loaded.
    pub(crate) registers: Vec<Option<usize>>,
    pub(crate) statistics: Statistics,
}

macro_rules! work {
    ($units:ident, $core:expr, $at:expr, $memory:expr) => {
        Work {
            memory: $memory,
            config: &$units.config,
            statistics: &mut $units.statistics,
            core: $core,
            at: $at,
        }
    };
}
pub(crate) use work;

impl Units {
    /// Units for a machine of `cores` cores, whose pool gets its pages from the physical addresses `pool`.
    pub fn new(config: &Config, cores: usize, pool: Range<u64>) -> Units {
        assert!((1..=64).contains(&cores), "the shootdown vector has a bit for each of 64 cores");
        Units {
            config: config.clone(),
            objects: ObjectAllocator::new(cores, pool.start),
            pages: PageAllocator::new(config, cores, pool),
            processes: Vec::new(),
            registers: vec![None; cores],
            statistics: Statistics::default(),
        }
    }

    /// The parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Pages of arenas, tables and blocks that were taken from the pool since [`Units::hold_from_here`], and
    /// have not been returned to it.
    pub fn pages_held(&self) -> [u64; 3] {
        self.pages.held.by_kind()
    }

    /// Pages that are held now count no more.
    pub fn hold_from_here(&mut self) {
        self.pages.held = HeldPages::default();
    }

    pub(crate) fn number_of(&self, key: u64) -> Option<usize> {
        self.processes.iter().position(|process| process.as_ref().is_some_and(|p| p.key == key))
    }

    /// The OS gives the process `key`, which runs on `core`, the region `start..end` (§3.2). A process that
    /// had one before (its program was replaced) starts anew. Returns when the root of its page table is
    /// there, and with it the pool's pages.
    ///
    /// # Errors
    /// [`Exception::NoRegion`] for a range of another length; no page is left for its tables.
    pub fn set_region<M: MemorySystem>(
        &mut self,
        core: usize,
        key: u64,
        region: Range<u64>,
        at: u64,
        memory: &mut M,
    ) -> Result<u64> {
        if region.end.wrapping_sub(region.start) != REGION_BYTES {
            return Err(Exception::NoRegion);
        }
        let at = self.process_exit(key, at, memory);
        let at = self.context_switch(core, key, at, memory);
        let mut work = work!(self, core, at, memory);
        let root = self.pages.new_root(&mut work)?;
        let done = work.at;
        let process = Process {
            key,
            start: region.start,
            end: region.end,
            root,
            shootdown: 0,
            lanes: [const { None }; LANES],
        };
        let number = self.processes.iter().position(Option::is_none).unwrap_or(self.processes.len());
        if number == self.processes.len() {
            self.processes.push(None);
        }
        self.processes[number] = Some(process);
        self.registers[core] = Some(number);
        Ok(done)
    }

    /// The OS switches `core` to the process `key`: it flushes the HOT and loads the region registers (§3.2,
    /// §4). Returns when that is done.
    pub fn context_switch<M: MemorySystem>(&mut self, core: usize, key: u64, at: u64, memory: &mut M) -> u64 {
        let next = self.number_of(key);
        if next.is_some() && next == self.registers[core] {
            return at;
        }
        let at = match self.objects.hots[core].owner {
            Some(owner) if self.config.drain_at_switch => self.drain(core, owner.lane, at, memory).at,
            _ => at,
        };
        let at = self.flush(core, at, memory);
        self.registers[core] = next;
        at
    }

    pub(crate) fn flush<M: MemorySystem>(&mut self, core: usize, at: u64, memory: &mut M) -> u64 {
        let Some(owner) = self.objects.hots[core].owner else { return at };
        let process = self.processes[owner.process].as_mut().expect("a HOT's owner lives");
        let mut work = work!(self, core, at, memory);
        self.objects.flush(process, &mut work);
        work.at
    }

    /// The process has exited; its pages are returned to the pool.
    pub fn process_exit<M: MemorySystem>(&mut self, key: u64, at: u64, memory: &mut M) -> u64 {
        let Some(number) = self.number_of(key) else { return at };
        for core in 0..self.registers.len() {
            if self.objects.hots[core].owner.is_some_and(|owner| owner.process == number) {
                self.objects.hots[core] = crate::hot::Hot::new();
            }
            if self.registers[core] == Some(number) {
                self.registers[core] = None;
            }
        }
        let process = self.processes[number].take().expect("it was just found");
        let mut work = work!(self, 0, at, memory);
        self.pages.release(&process, &mut work);
        let done = work.at;
        // Objects that the program never freed are freed with their arenas.
        self.statistics.objects_released = self.statistics.objects_allocated - self.statistics.objects_freed;
        self.statistics.objects_released -= self.live_objects();
        self.statistics.arenas_released =
            self.statistics.arenas_allocated - self.statistics.arenas_freed - self.live_arenas();
        done
    }

    /// Whether an address belongs to the region of the process on `core`.
    #[inline]
    pub fn contains(&self, core: usize, address: u64) -> bool {
        self.process_on(core).is_some_and(|process| process.contains(address))
    }

    pub(crate) fn process_on(&self, core: usize) -> Option<&Process> {
        self.processes[self.registers[core]?].as_ref()
    }

    /// The physical address of an address in the region, if its page has been touched; takes no time, changes
    /// nothing.
    #[inline]
    pub fn lookup(&self, core: usize, address: u64) -> Option<u64> {
        let process = self.process_on(core)?;
        if process.contains(address) { self.pages.tables.lookup(process.root, address) } else { None }
    }

    /// The Memento page table's leaf entry for an address, with its permissions, if it is valid.
    pub fn leaf_entry(&self, core: usize, address: u64) -> Option<u64> {
        let process = self.process_on(core)?;
        let leaf = self.pages.tables.path(process.root, address)[0]?;
        Some(self.pages.tables.raw_entry(leaf, 0, address)).filter(|&entry| entry != 0)
    }

    /// The MMU's walk for an address in the region (§3.2): from MPTR, with the page allocator where an entry
    /// is invalid. Returns the physical address and when it is known.
    ///
    /// # Errors
    /// The core's process has no region, or the address is not in it, or no page is left.
    pub fn walk<M: MemorySystem>(
        &mut self,
        core: usize,
        address: u64,
        at: u64,
        memory: &mut M,
    ) -> Result<(u64, u64)> {
        let number = self.registers[core].ok_or(Exception::NoRegion)?;
        let process = self.processes[number].as_mut().expect("a register names a process that lives");
        if !process.contains(address) {
            return Err(Exception::NotInRegion);
        }
        let mut work = work!(self, core, at, memory);
        let physical = self.pages.walk(process, address, &mut work)?;
        let done = work.at;
        self.statistics.walk_cycles += done - at;
        Ok((physical, done))
    }

    /// Every access to the region, before its look-up in L1 (§3.3): true if the line is new, so that, if no
    /// cache has it, the LLC instantiates it.
    #[inline]
    pub fn touch(&mut self, core: usize, address: u64) -> bool {
        let Some(number) = self.registers[core] else { return false };
        let start = self.processes[number].as_ref().map_or(0, |process| process.start);
        let (held, is_new) = bypass::touch(&mut self.objects.hots[core], start, address);
        if !held && self.objects.hots.len() > 1 {
            for other in
                self.objects.hots.iter_mut().filter(|hot| hot.owner.is_some_and(|o| o.process == number))
            {
                bypass::touch(other, start, address);
            }
        }
        self.statistics.new_lines += u64::from(is_new);
        is_new && self.config.bypass
    }

    /// Frees that wait in a thread's buffer.
    pub fn batched(&self, key: u64, lane: usize) -> usize {
        let process = self.number_of(key).and_then(|number| self.processes[number].as_ref());
        process.and_then(|process| process.lanes[lane].as_ref()).map_or(0, |lane| lane.batch.len())
    }

    /// Objects that are allocated now, counted in all bitmaps.
    pub fn live_objects(&self) -> u64 {
        self.arenas().map(|header| header.live()).sum()
    }

    pub(crate) fn live_arenas(&self) -> u64 {
        self.arenas().count() as u64
    }
}
