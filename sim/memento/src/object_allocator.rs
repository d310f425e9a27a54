//! The hardware object allocator (§3.1, Fig. 6): obj-alloc and obj-free on the HOT's entries, and the arena
//! lists.
//!
//! Left open by the paper, taken here:
//! - The lowest free object is allocated.
//! - An arena that becomes empty is returned to the page allocator unless the HOT holds it; otherwise a
//!   program that allocates and frees one object would take and return an arena each time.
//! - Eager loading replaces the entry as soon as its last object is taken; the next operation on the class
//!   waits if the new header is not there yet.

use crate::arena::{Header, Headers};
use crate::hot::{Entry, Hot, Owner};
use crate::layout::{CLASSES, Location, absent_objects, object_bytes};
use crate::memory_system::{Access, MemorySystem, Port};
use crate::page_allocator::PageAllocator;
use crate::region::{Process, Saved};
use crate::{Exception, Result, Work, bypass};

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Hit,
    Miss,
}

/// The HOTs of all cores, and the headers in memory.
pub(crate) struct ObjectAllocator {
    pub hots: Vec<Hot>,
    /// Of each core: when its frees in the background will be done.
    background: Vec<Vec<u64>>,
    pub headers: Headers,
}

/// The thread that executes the operation, and the state that the operation may change.
pub(crate) struct Caller<'a> {
    pub owner: Owner,
    pub process: &'a mut Process,
    pub pages: &'a mut PageAllocator,
}

impl Caller<'_> {
    fn saved(&mut self, class: usize) -> &mut Saved {
        &mut self.process.lanes[self.owner.lane].as_mut().expect("the caller's lane exists").saved[class]
    }

    fn saved_address(&self, class: usize) -> u64 {
        self.process.lanes[self.owner.lane].as_ref().expect("the caller's lane exists").saved_address(class)
    }
}

impl ObjectAllocator {
    pub fn new(cores: usize, pool_start: u64) -> ObjectAllocator {
        ObjectAllocator {
            hots: (0..cores).map(|_| Hot::new()).collect(),
            background: vec![Vec::new(); cores],
            headers: Headers::new(pool_start),
        }
    }

    fn entry(&mut self, core: usize, class: usize) -> &mut Entry {
        &mut self.hots[core].entries[class]
    }

    /// A thread's first operation (Fig. 6, Initialization): its block, and an arena for each class.
    pub fn initialise<M: MemorySystem>(&mut self, caller: &mut Caller, work: &mut Work<M>) -> Result {
        caller.pages.new_lane(caller.process, caller.owner.lane, work)?;
        if work.config.initialise_all_classes {
            for class in 0..CLASSES {
                self.new_arena(caller, class, work)?;
            }
        }
        Ok(())
    }

    /// An arena from the page allocator into the entry; its header is set there and reaches memory when it is
    /// written back.
    fn new_arena<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        class: usize,
        work: &mut Work<M>,
    ) -> Result {
        let (address, physical) = caller.pages.new_arena(caller.process, caller.owner.lane, class, work)?;
        let header = Header::new(address, absent_objects(class, work.config.whole_pages));
        self.headers.write(physical, header);
        let entry = self.entry(work.core, class);
        entry.valid = true;
        entry.dirty = true;
        entry.physical = physical;
        entry.header = header;
        Ok(())
    }

    /// Fills an entry that a flush or an invalidation has emptied.
    fn load_entry<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        class: usize,
        work: &mut Work<M>,
    ) -> Result {
        let saved = *caller.saved(class);
        *self.entry(work.core, class) =
            Entry { available: saved.available, full: saved.full, ready_at: 0, ..Entry::default() };
        work.access(Port::Core, Access::Read, caller.saved_address(class));
        if saved.current == 0 {
            return self.new_arena(caller, class, work);
        }
        self.load_header(class, saved.current, work);
        Ok(())
    }

    fn load_header<M: MemorySystem>(&mut self, class: usize, physical: u64, work: &mut Work<M>) {
        work.access(Port::Core, Access::Read, physical);
        work.statistics.hot_loads += 1;
        let header = self.headers.read(physical);
        let entry = self.entry(work.core, class);
        entry.valid = true;
        entry.dirty = false;
        entry.physical = physical;
        entry.header = header;
    }

    /// Writes an entry's header back to memory.
    fn write_back<M: MemorySystem>(&mut self, core: usize, class: usize, work: &mut Work<M>) {
        let entry = &mut self.hots[core].entries[class];
        bypass::leaving(&mut entry.header, class);
        // The arena is in no list while it is here, so its links are unused.
        self.headers.write(entry.physical, Header { prev: 0, next: 0, ..entry.header });
        if entry.dirty {
            entry.dirty = false;
            work.statistics.hot_write_backs += 1;
            work.write_line(Port::Core, entry.physical);
        }
    }

    /// Replaces a full arena by the head of the available list or, if that is empty, by a new arena; the full
    /// one becomes the head of the full list.
    fn replace<M: MemorySystem>(&mut self, caller: &mut Caller, class: usize, work: &mut Work<M>) -> Result {
        let core = work.core;
        let Entry { physical: old, available, .. } = *self.entry(core, class);
        // Its link to the full list is written with it.
        self.entry(core, class).dirty = true;
        self.write_back(core, class, work);
        if available == 0 {
            self.new_arena(caller, class, work)?;
        } else {
            self.load_header(class, available, work);
            let mut head = available;
            let neighbours = self.headers.unlink(&mut head, available);
            self.touch_neighbours(&neighbours, work);
            let header = self.headers.read(available);
            let entry = self.entry(core, class);
            entry.available = head;
            entry.header = header;
        }
        let mut full = self.entry(core, class).full;
        let neighbour = self.headers.push(&mut full, old);
        self.touch_neighbours(&[neighbour], work);
        self.entry(core, class).full = full;
        Ok(())
    }

    fn touch_neighbours<M: MemorySystem>(&self, neighbours: &[Option<u64>], work: &mut Work<M>) {
        for &neighbour in neighbours.iter().flatten() {
            work.access(Port::Core, Access::Write, neighbour);
        }
    }

    /// obj-alloc of a class.
    pub fn allocate<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        class: usize,
        work: &mut Work<M>,
    ) -> Result<(u64, Outcome)> {
        let core = work.core;
        work.at = work.at.max(self.entry(core, class).ready_at);
        let mut outcome = Outcome::Hit;
        if !self.entry(core, class).valid {
            outcome = Outcome::Miss;
            self.load_entry(caller, class, work)?;
        }
        if self.entry(core, class).header.is_full() {
            outcome = Outcome::Miss;
            work.statistics.allocations_with_list_operations += 1;
            self.replace(caller, class, work)?;
        }
        let entry = self.entry(core, class);
        let index = entry.header.first_free().expect("an available arena has a free object");
        entry.header.set(index);
        entry.dirty = true;
        let address = entry.header.address + crate::layout::HEADER_BYTES + index as u64 * object_bytes(class);
        work.at += work.config.hot_cycles;
        if work.config.eager && entry.header.is_full() {
            // In the background: only the next operation on this class can notice.
            let answered_at = work.at;
            if self.replace(caller, class, work).is_ok() {
                work.statistics.eager_loads += 1;
                work.statistics.allocations_with_list_operations += 1;
            }
            self.entry(core, class).ready_at = work.at;
            work.statistics.background_cycles += work.at - answered_at;
            work.at = answered_at;
        }
        Ok((address, outcome))
    }

    /// obj-free of an object of the caller's own.
    pub fn free<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        address: u64,
        place: Location,
        work: &mut Work<M>,
    ) -> Result<Outcome> {
        let (core, class) = (work.core, place.class);
        work.at = work.at.max(self.entry(core, class).ready_at);
        let mut outcome = Outcome::Hit;
        if !self.entry(core, class).valid {
            if caller.saved(class).current == 0 {
                work.access(Port::Core, Access::Read, caller.saved_address(class));
                return Err(Exception::NoArena);
            }
            outcome = Outcome::Miss;
            self.load_entry(caller, class, work)?;
        }
        work.at += work.config.hot_cycles;
        let entry = self.entry(core, class);
        if entry.header.address == place.arena {
            if !entry.header.is_allocated(place.index) {
                return Err(Exception::DoubleFree);
            }
            entry.header.clear(place.index);
            entry.dirty = true;
            bypass::freed(&mut entry.header, class, place.index);
            return Ok(outcome);
        }
        if work.config.background_free_misses {
            self.admit(work);
        }
        let answered_at = work.at;
        let physical = translate(caller, address, place.arena, work)?;
        work.access(Port::Core, Access::Read, physical);
        let (was_full, is_empty) = self.clear_in_memory(physical, place, work)?;
        if was_full || is_empty {
            work.statistics.frees_with_list_operations += 1;
            let entry = self.entry(core, class);
            let mut lists = Saved { current: entry.physical, available: entry.available, full: entry.full };
            self.relist(&mut lists, physical, was_full, is_empty, work);
            let entry = self.entry(core, class);
            entry.available = lists.available;
            entry.full = lists.full;
            if is_empty {
                caller.pages.free_arena(caller.process, place.arena, class, work);
            }
        }
        if work.config.background_free_misses {
            work.statistics.background_cycles += work.at - answered_at;
            self.background[core].push(work.at);
            work.at = answered_at;
        }
        Ok(Outcome::Miss)
    }

    /// A free that missed gets its place among those in the background, or waits for the first of them to be
    /// done.
    fn admit<M: MemorySystem>(&mut self, work: &mut Work<M>) {
        let waiting = &mut self.background[work.core];
        waiting.retain(|&done| done > work.at);
        if waiting.len() < work.config.background_frees {
            return;
        }
        let first = waiting.iter().copied().min().unwrap_or(work.at);
        work.statistics.background_wait_cycles += first - work.at;
        work.at = first;
        waiting.retain(|&done| done > first);
    }

    /// Clears the bit of an object whose arena no HOT holds; whether the arena was full, and whether it is
    /// empty now.
    pub fn clear_in_memory<M: MemorySystem>(
        &mut self,
        physical: u64,
        place: Location,
        work: &mut Work<M>,
    ) -> Result<(bool, bool)> {
        let header = self.headers.at(physical);
        if header.address != place.arena {
            return Err(Exception::NoArena);
        }
        if !header.is_allocated(place.index) {
            return Err(Exception::DoubleFree);
        }
        let was_full = header.is_full();
        header.clear(place.index);
        bypass::freed(header, place.class, place.index);
        let is_empty = header.is_empty();
        work.access(Port::Core, Access::Write, physical);
        Ok((was_full, is_empty))
    }

    /// Moves an arena that was full to the head of the available list; takes one that is empty out of it.
    pub fn relist<M: MemorySystem>(
        &mut self,
        lists: &mut Saved,
        physical: u64,
        was_full: bool,
        is_empty: bool,
        work: &mut Work<M>,
    ) {
        if was_full {
            let neighbours = self.headers.unlink(&mut lists.full, physical);
            self.touch_neighbours(&neighbours, work);
            let neighbour = self.headers.push(&mut lists.available, physical);
            self.touch_neighbours(&[neighbour], work);
        }
        if is_empty {
            let neighbours = self.headers.unlink(&mut lists.available, physical);
            self.touch_neighbours(&neighbours, work);
            *self.headers.at(physical) = Header::default();
        }
    }

    /// Writes an entry back and empties it; its list heads go to the thread's block.
    pub fn evict<M: MemorySystem>(
        &mut self,
        core: usize,
        class: usize,
        process: &mut Process,
        work: &mut Work<M>,
    ) -> bool {
        let owner = self.hots[core].owner.expect("entries belong to a thread");
        let entry = self.hots[core].entries[class];
        if !entry.valid {
            return false;
        }
        work.at = work.at.max(entry.ready_at);
        self.write_back(core, class, work);
        let lane = process.lanes[owner.lane].as_mut().expect("entries belong to a thread with a block");
        lane.saved[class] = Saved { current: entry.physical, available: entry.available, full: entry.full };
        work.access(Port::Core, Access::Write, lane.saved_address(class));
        self.hots[core].entries[class] = Entry::default();
        true
    }

    /// Empties a core's HOT, as the OS asks for before a context switch (§4).
    pub fn flush<M: MemorySystem>(&mut self, process: &mut Process, work: &mut Work<M>) {
        let (started, mut done) = (work.at, work.at);
        let mut flushed = 0;
        // One flush operation an entry (§6.6), issued one a cycle; none waits for the one before.
        for class in 0..CLASSES {
            work.at = started + flushed;
            flushed += u64::from(self.evict(work.core, class, process, work));
            done = done.max(work.at);
        }
        work.at = done;
        work.statistics.hot_flushed_entries += flushed;
        self.hots[work.core].owner = None;
        work.statistics.hot_flushes += 1;
        work.statistics.hot_flush_cycles += work.at - started;
    }
}

/// The physical address of an arena's header, by the TLB or a walk; where there is no arena, none is made.
pub(crate) fn translate<M: MemorySystem>(
    caller: &mut Caller,
    address: u64,
    arena: u64,
    work: &mut Work<M>,
) -> Result<u64> {
    debug_assert!(arena <= address);
    let mapped = caller.pages.lookup(caller.process, arena).ok_or(Exception::NoArena)?;
    let (found, at) = work.memory.tlb_lookup(work.core, arena, work.at);
    work.at = at;
    if found.is_none() {
        caller.pages.walk(caller.process, arena, work)?;
        work.memory.tlb_fill(work.core, arena, mapped);
    }
    Ok(mapped)
}
