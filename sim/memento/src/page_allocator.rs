//! The hardware page allocator at the memory controller (§3.2). It hands out arenas' virtual addresses by
//! bump pointers, one for each class and thread, cached in the AAC. It keeps a pool of physical pages, which
//! the OS refills; builds the Memento page table as walks request it; and takes pages and tables back with
//! the arena.
//!
//! Left open by the paper, taken here:
//! - The page allocator fetches each entry of a walk, which takes a message. With `walks_by_page_allocator`
//!   false a walk reads valid entries through the caches, as any, and only an invalid one needs a message.
//! - The pool is last in, first out, so that a freed page is used again while the caches still hold it.
//! - The OS refills the pool when it is empty, and the operation that found it empty waits. Refilled pages
//!   are not cleared, since new lines are instantiated with zeros (§3.3).
//! - The page behind a new arena's header is noted beside the class's bump pointer. The first walk that
//!   requests it enters it into the page table, as all others: "the page allocator constructs the Memento
//!   page table on page walk requests".

use crate::aac::ArenaAllocationCache;
use crate::config::Config;
use crate::held::HeldPages;
use crate::layout::{LINE_BYTES, PAGE_BYTES, arena_bytes, class_range};
use crate::memory_system::{Access, MemorySystem, Port};
use crate::page_table::{PageTables, entry_address};
use crate::region::{Lane, Process};
use crate::statistics::{PageKind, Statistics};
use crate::walk_cache::WalkCache;
use crate::{Exception, Result, Work};

/// The page allocator, its pool and its page tables.
pub struct PageAllocator {
    pool: Vec<u64>,
    /// The lowest page that has never been used.
    unused_from: u64,
    next_from_os: u64,
    end_of_memory: u64,
    pub(crate) aac: ArenaAllocationCache,
    /// The Memento page tables of all processes.
    pub tables: PageTables,
    walk_caches: Vec<WalkCache>,
    /// Pages taken since [`crate::Units::hold_from_here`] and not returned.
    pub held: HeldPages,
}

impl PageAllocator {
    /// Manages pages of the physical addresses `pool`, which the OS hands over as they are needed.
    pub fn new(config: &Config, cores: usize, pool: std::ops::Range<u64>) -> PageAllocator {
        let is_page = pool.start > 0 && pool.start.is_multiple_of(PAGE_BYTES);
        assert!(is_page, "the pool starts at a page, not at 0");
        PageAllocator {
            pool: Vec::new(),
            unused_from: pool.start,
            next_from_os: pool.start,
            end_of_memory: pool.end / PAGE_BYTES * PAGE_BYTES,
            aac: ArenaAllocationCache::new(config.aac_entries, config.aac_pointers),
            tables: PageTables::new(pool.start),
            walk_caches: (0..cores).map(|_| WalkCache::new(config.walk_cache_entries)).collect(),
            held: HeldPages::default(),
        }
    }

    /// Pages that the OS has handed over and that are free.
    pub fn pool_pages(&self) -> u64 {
        self.pool.len() as u64
    }

    /// Of those, how many have never been used.
    pub fn unused_pages(&self) -> u64 {
        (self.next_from_os - self.unused_from) / PAGE_BYTES
    }

    /// Takes a page from the pool.
    pub fn take(&mut self, kind: PageKind, work: &mut Work<impl MemorySystem>) -> Result<u64> {
        if self.pool.is_empty() {
            self.refill(work);
        }
        work.at += work.config.pool_cycles;
        let page = self.pool.pop().ok_or(Exception::OutOfMemory)?;
        work.statistics.pages_allocated[kind as usize] += 1;
        self.held.take(page, kind);
        if page >= self.unused_from {
            self.unused_from = page + PAGE_BYTES;
            work.statistics.pages_from_os[kind as usize] += 1;
        }
        if work.config.clear_pages && kind == PageKind::Data {
            work.statistics.cleared_pages += 1;
            clear(page, work);
        }
        Ok(page)
    }

    fn refill(&mut self, work: &mut Work<impl MemorySystem>) {
        let pages = work.config.refill_pages.min((self.end_of_memory - self.next_from_os) / PAGE_BYTES);
        let refilled = self.next_from_os..self.next_from_os + pages * PAGE_BYTES;
        self.next_from_os = refilled.end;
        // The lowest page is on top.
        self.pool.extend(refilled.step_by(PAGE_BYTES as usize).collect::<Vec<_>>().iter().rev());
        let cycles = work.config.refill_cycles + pages * work.config.refill_page_cycles;
        work.at += cycles;
        work.statistics.refills += 1;
        work.statistics.refilled_pages += pages;
        work.statistics.refill_cycles += cycles;
    }

    fn give_back(&mut self, page: u64, kind: PageKind, statistics: &mut Statistics) {
        self.pool.push(page);
        self.held.give_back(page, kind);
        statistics.pages_freed[kind as usize] += 1;
    }

    fn take_table(&mut self, work: &mut Work<impl MemorySystem>) -> Result<u64> {
        let page = self.take(PageKind::Table, work)?;
        self.tables.create(page);
        clear(page, work);
        Ok(page)
    }

    /// The root of a new process's page table: its MPTR.
    pub fn new_root(&mut self, work: &mut Work<impl MemorySystem>) -> Result<u64> {
        self.take_table(work)
    }

    /// A page of the reserved memory block, for a thread.
    pub fn new_lane(
        &mut self,
        process: &mut Process,
        lane: usize,
        work: &mut Work<impl MemorySystem>,
    ) -> Result {
        let block = self.take(PageKind::Block, work)?;
        process.lanes[lane] = Some(Box::new(Lane::new(process.start, lane, block)));
        Ok(())
    }

    /// A new arena for the object allocator: its address by the bump pointer, its first page at once, the
    /// others when they are touched. Returns its virtual and physical address.
    pub fn new_arena(
        &mut self,
        process: &mut Process,
        lane: usize,
        class: usize,
        work: &mut Work<impl MemorySystem>,
    ) -> Result<(u64, u64)> {
        let end = process.start + class_range(class, lane).1;
        let pointers = process.lanes[lane].as_mut().expect("a thread that allocates has its block");
        let arena = pointers.next[class];
        work.at += work.config.request_cycles + work.config.aac_cycles;
        let pointer = pointers.pointer_address(class);
        if self.aac.access(work.core, pointer, work.statistics) {
            work.statistics.aac_hits += 1;
        } else {
            work.statistics.aac_misses += 1;
            work.access(Port::Controller, Access::Read, pointer);
        }
        if arena + arena_bytes(class) > end {
            return Err(Exception::RegionFull);
        }
        self.map_waiting(process, lane, class, work)?;
        let physical = self.take(PageKind::Data, work)?;
        let pointers = process.lanes[lane].as_mut().expect("as above");
        pointers.waiting[class] = physical;
        pointers.next[class] += arena_bytes(class);
        let noted = pointers.waiting_address(class);
        work.access(Port::Controller, Access::Write, noted);
        work.statistics.arenas_allocated += 1;
        Ok((arena, physical))
    }

    /// The first page of a class's latest arena, if no walk has requested it: it is entered into the table,
    /// with the tables that it needs, since the next arena's takes its place.
    fn map_waiting(
        &mut self,
        process: &mut Process,
        lane: usize,
        class: usize,
        work: &mut Work<impl MemorySystem>,
    ) -> Result {
        let pointers = process.lanes[lane].as_ref().expect("a thread that allocates has its block");
        let page = pointers.waiting[class];
        if page == 0 {
            return Ok(());
        }
        let address = pointers.latest_arena(class);
        let mut table = process.root;
        for level in (1..4).rev() {
            let entry = entry_address(table, level, address);
            work.access(Port::Controller, Access::Read, entry);
            table = match self.tables.entry(table, level, address) {
                Some(next) => next,
                None => self.expand(table, level, address, work)?,
            };
        }
        self.set_leaf(table, address, page, work);
        process.lanes[lane].as_mut().expect("as above").waiting[class] = 0;
        Ok(())
    }

    /// The next table below an invalid entry.
    fn expand(
        &mut self,
        table: u64,
        level: u32,
        address: u64,
        work: &mut Work<impl MemorySystem>,
    ) -> Result<u64> {
        let next = self.take_table(work)?;
        self.tables.set(table, level, address, next);
        work.access(Port::Controller, Access::Write, entry_address(table, level, address));
        Ok(next)
    }

    /// A page for an invalid leaf entry: the one that an arena was handed out with, or else one from the
    /// pool.
    fn back(
        &mut self,
        process: &mut Process,
        table: u64,
        address: u64,
        work: &mut Work<impl MemorySystem>,
    ) -> Result<u64> {
        let page = match process.waiting(address) {
            Some((lane, class)) => {
                let pointers = process.lanes[lane].as_mut().expect("a lane whose page waits");
                work.access(Port::Controller, Access::Read, pointers.waiting_address(class));
                std::mem::take(&mut pointers.waiting[class])
            }
            None => {
                work.statistics.first_touches += 1;
                self.take(PageKind::Data, work)?
            }
        };
        self.set_leaf(table, address, page, work);
        Ok(page)
    }

    fn set_leaf(&mut self, table: u64, address: u64, page: u64, work: &mut Work<impl MemorySystem>) {
        self.tables.set(table, 0, address, page);
        work.access(Port::Controller, Access::Write, entry_address(table, 0, address));
    }

    /// The physical address of an address whose page is there, whether the page table has it or it waits for
    /// a walk.
    pub fn lookup(&self, process: &Process, address: u64) -> Option<u64> {
        let waiting = || {
            let (lane, class) = process.waiting(address)?;
            Some(process.lanes[lane].as_ref()?.waiting[class] + address % PAGE_BYTES)
        };
        self.tables.lookup(process.root, address).or_else(waiting)
    }

    /// A page walk that the MMU marked as Memento's: from MPTR, through entries that may have to be made
    /// first. Without the page allocator (Fig. 9), the kernel's fault path takes its time for that instead.
    pub fn walk(
        &mut self,
        process: &mut Process,
        address: u64,
        work: &mut Work<impl MemorySystem>,
    ) -> Result<u64> {
        process.shootdown |= 1 << work.core;
        work.statistics.walks += 1;
        let (mut table, levels) = match self.walk_caches[work.core].find(process.root, address) {
            Some(leaf_table) => (leaf_table, 0..1),
            None => (process.root, 0..4),
        };
        let mut fault_at = None;
        let by_allocator = work.config.walks_by_page_allocator;
        let port = if by_allocator { Port::Controller } else { Port::Core };
        for level in levels.rev() {
            if by_allocator {
                work.at += work.config.request_cycles;
            }
            work.access(port, Access::Read, entry_address(table, level, address));
            let found = self.tables.entry(table, level, address);
            if found.is_none() {
                fault_at = fault_at.or(Some(work.at));
                if !by_allocator {
                    work.at += work.config.request_cycles;
                }
            }
            table = match (found, level) {
                (Some(next), _) => next,
                (None, 0) => self.back(process, table, address, work)?,
                (None, _) => self.expand(table, level, address, work)?,
            };
            if level == 1 {
                self.walk_caches[work.core].insert(process.root, address, table);
            }
        }
        if let (Some(fault_at), false) = (fault_at, work.config.page_management) {
            work.at = fault_at + work.config.software_page_fault_cycles;
        }
        Ok(table + address % PAGE_BYTES)
    }

    /// Takes back an arena's pages, and the tables that become empty; cores that have walked this process's
    /// table drop the pages from their TLBs.
    pub fn free_arena(
        &mut self,
        process: &Process,
        arena: u64,
        class: usize,
        work: &mut Work<impl MemorySystem>,
    ) {
        work.at += work.config.request_cycles;
        let mut last_line = None;
        for address in (arena..arena + arena_bytes(class)).step_by(PAGE_BYTES as usize) {
            let path = self.tables.path(process.root, address);
            let Some(leaf) = path[0] else { continue };
            let Some(page) = self.tables.entry(leaf, 0, address) else { continue };
            let entry = entry_address(leaf, 0, address);
            // Entries in one line are read and written together.
            if last_line != Some(entry / LINE_BYTES) {
                last_line = Some(entry / LINE_BYTES);
                work.access(Port::Controller, Access::Write, entry);
            }
            work.at += work.config.pool_cycles;
            self.give_back(page, PageKind::Data, work.statistics);
            for core in (0..self.walk_caches.len()).filter(|core| process.shootdown >> core & 1 == 1) {
                work.memory.shootdown(core, address);
                work.statistics.shootdowns += 1;
            }
            self.unmap(&path, address, work);
        }
        work.at += work.config.shootdown_cycles * u64::from(process.shootdown != 0);
        work.statistics.arenas_freed += 1;
    }

    fn unmap(&mut self, path: &[Option<u64>; 4], address: u64, work: &mut Work<impl MemorySystem>) {
        for level in 0..4 {
            let table = path[level as usize].expect("the path to a mapped page is whole");
            if !self.tables.clear(table, level, address) || level == 3 {
                return;
            }
            self.tables.destroy(table);
            self.give_back(table, PageKind::Table, work.statistics);
            work.access(
                Port::Controller,
                Access::Write,
                entry_address(path[level as usize + 1].expect("as above"), level + 1, address),
            );
            for cache in &mut self.walk_caches {
                cache.drop_table(table);
            }
        }
    }

    /// A process has exited: all its pages are returned to the pool at once (§2.2: batch-freed when the
    /// function exits).
    pub fn release(&mut self, process: &Process, work: &mut Work<impl MemorySystem>) {
        let (mut data, tables) = self.tables.pages_below(process.root, 3);
        let waiting = process.lanes.iter().flatten().flat_map(|lane| lane.waiting);
        data.extend(waiting.filter(|&page| page != 0));
        work.at += work.config.request_cycles;
        self.read_entries(process, work);
        for table in tables.iter().chain([&process.root]) {
            self.tables.destroy(*table);
            self.give_back(*table, PageKind::Table, work.statistics);
        }
        for page in &data {
            work.at += work.config.pool_cycles;
            self.give_back(*page, PageKind::Data, work.statistics);
        }
        for lane in process.lanes.iter().flatten() {
            self.give_back(lane.block, PageKind::Block, work.statistics);
            self.aac.drop_block(lane.block);
        }
        self.tables.forget(process.root);
        for cache in &mut self.walk_caches {
            cache.drop_process(process.root);
        }
    }

    /// Reads the entries of all arenas that were handed out: the bump pointers mark their end.
    fn read_entries(&self, process: &Process, work: &mut Work<impl MemorySystem>) {
        let mut read = [0; 4];
        for (lane, its) in process.lanes.iter().enumerate() {
            let Some(its) = its else { continue };
            for (class, &end) in its.next.iter().enumerate() {
                let start = process.start + class_range(class, lane).0;
                for address in (start..end).step_by(PAGE_BYTES as usize) {
                    let path = self.tables.path(process.root, address);
                    for level in (0..4).rev() {
                        let Some(table) = path[level] else { break };
                        let line = entry_address(table, level as u32, address) / LINE_BYTES;
                        if read[level] != line {
                            read[level] = line;
                            work.access(Port::Controller, Access::Read, line * LINE_BYTES);
                        }
                    }
                }
            }
        }
    }
}

/// Zeroes a page: whole lines, written side by side.
fn clear(page: u64, work: &mut Work<impl MemorySystem>) {
    let start = work.at;
    for line in 0..PAGE_BYTES / LINE_BYTES {
        let done = work.memory.instantiate(work.core, Port::Controller, page + line * LINE_BYTES, start);
        work.at = work.at.max(done);
    }
}
