//! The two instructions (§3.1, Fig. 6): obj-alloc and obj-free as a core executes them, with frees of another
//! thread's objects (§4).

use crate::config::NonLocalFree;
use crate::hot::Owner;
use crate::layout::{LANES, Location, class_of, locate};
use crate::memory_system::MemorySystem;
use crate::object_allocator::{Caller, Outcome};
use crate::units::{Done, Units, work};
use crate::{Exception, Result, Work};

/// The result of an obj-free; `Buffered`: it waits in the thread's buffer.
enum Freed {
    Local(Outcome),
    NonLocal,
    Buffered { full: bool },
}

impl Units {
    /// obj-alloc by the thread `lane` of the process that runs on `core`.
    pub fn obj_alloc<M: MemorySystem>(
        &mut self,
        core: usize,
        lane: usize,
        size: u64,
        at: u64,
        memory: &mut M,
    ) -> Done {
        self.statistics.allocations += 1;
        let mut now = at;
        let result = self.try_alloc(core, lane, size, &mut now, memory);
        if !self.config.object_alloc {
            now = at + self.config.software_alloc_cycles;
        }
        self.statistics.alloc_cycles += now - at;
        self.statistics.note_occupancy();
        match result {
            Ok((address, outcome)) => {
                self.statistics.objects_allocated += 1;
                self.statistics.allocated_bytes += size;
                match outcome {
                    Outcome::Hit => self.statistics.allocation_hits += 1,
                    Outcome::Miss => self.statistics.allocation_misses += 1,
                }
                Done { at: now, address, exception: None }
            }
            Err(exception) => {
                self.statistics.allocation_exceptions += 1;
                Done { at: now, address: 0, exception: Some(exception) }
            }
        }
    }

    fn try_alloc<M: MemorySystem>(
        &mut self,
        core: usize,
        lane: usize,
        size: u64,
        now: &mut u64,
        memory: &mut M,
    ) -> Result<(u64, Outcome)> {
        let class = class_of(size)?;
        let owner = self.enter(core, lane, now, memory)?;
        let process = self.processes[owner.process].as_mut().expect("enter found it");
        let mut work = work!(self, core, *now, memory);
        let mut caller = Caller { owner, process, pages: &mut self.pages };
        let result = self.objects.allocate(&mut caller, class, &mut work);
        *now = work.at;
        result
    }

    /// Makes the HOT of `core` the thread's: flushes another's entries; a thread that is new gets its arenas.
    fn enter<M: MemorySystem>(
        &mut self,
        core: usize,
        lane: usize,
        now: &mut u64,
        memory: &mut M,
    ) -> Result<Owner> {
        let process = self.registers[core].filter(|_| lane < LANES).ok_or(Exception::NoRegion)?;
        let owner = Owner { process, lane };
        if self.objects.hots[core].owner == Some(owner) {
            return Ok(owner);
        }
        *now = self.flush(core, *now, memory);
        // A thread that ran on another core has been switched out there.
        if let Some(other) = self.objects.hots.iter().position(|hot| hot.owner == Some(owner)) {
            *now = self.flush(other, *now, memory);
        }
        self.objects.hots[core].owner = Some(owner);
        let its_process = self.processes[process].as_mut().expect("a register names a process that lives");
        if its_process.lanes[lane].is_none() {
            let mut work = work!(self, core, *now, memory);
            let mut caller = Caller { owner, process: its_process, pages: &mut self.pages };
            let result = self.objects.initialise(&mut caller, &mut work);
            *now = work.at;
            if result.is_err() && caller.process.lanes[lane].is_none() {
                self.objects.hots[core].owner = None;
            }
            result?;
        }
        Ok(owner)
    }

    /// obj-free by the thread `lane` of the process that runs on `core`.
    pub fn obj_free<M: MemorySystem>(
        &mut self,
        core: usize,
        lane: usize,
        address: u64,
        at: u64,
        memory: &mut M,
    ) -> Done {
        self.statistics.frees += 1;
        let (mut now, mut exception) = (at, None);
        match self.try_free(core, lane, address, &mut now, memory) {
            Ok(Freed::Local(Outcome::Hit)) => self.statistics.free_hits += 1,
            Ok(Freed::Local(Outcome::Miss)) => self.statistics.free_misses += 1,
            Ok(Freed::NonLocal) => self.statistics.non_local_frees += 1,
            Ok(Freed::Buffered { full }) => {
                self.statistics.batched_frees += 1;
                if full {
                    let done = self.drain(core, lane, now, memory);
                    (now, exception) = (done.at, done.exception);
                }
            }
            Err(refused) => {
                self.statistics.free_exceptions += 1;
                exception = Some(refused);
            }
        }
        if !self.config.object_free {
            now = at + self.config.software_free_cycles;
        }
        self.statistics.free_cycles += now - at;
        self.statistics.note_occupancy();
        Done { at: now, address: 0, exception }
    }

    fn try_free<M: MemorySystem>(
        &mut self,
        core: usize,
        lane: usize,
        address: u64,
        now: &mut u64,
        memory: &mut M,
    ) -> Result<Freed> {
        let owner = self.enter(core, lane, now, memory)?;
        let process = self.processes[owner.process].as_mut().expect("enter found it");
        let place = locate(process.start, address)?;
        if place.lane == lane || self.config.non_local_free == NonLocalFree::Hardware {
            return self.free(owner, core, address, place, now, memory);
        }
        *now += self.config.hot_cycles;
        let batch = &mut process.lanes[lane].as_mut().expect("enter made it").batch;
        batch.push(address);
        Ok(Freed::Buffered { full: batch.len() == self.config.batch_objects })
    }

    /// A free that is done at once: of the thread's own object, or of another thread's (§4).
    fn free<M: MemorySystem>(
        &mut self,
        owner: Owner,
        core: usize,
        address: u64,
        place: Location,
        now: &mut u64,
        memory: &mut M,
    ) -> Result<Freed> {
        let process = self.processes[owner.process].as_mut().expect("a HOT's owner lives");
        let mut work = work!(self, core, *now, memory);
        let mut caller = Caller { owner, process, pages: &mut self.pages };
        let result = if place.lane == owner.lane {
            self.objects.free(&mut caller, address, place, &mut work).map(Freed::Local)
        } else {
            self.objects.free_non_local(&mut caller, address, place, &mut work).map(|()| Freed::NonLocal)
        };
        *now = work.at;
        self.statistics.objects_freed += u64::from(result.is_ok());
        self.statistics.double_frees += u64::from(result.as_ref().err() == Some(&Exception::DoubleFree));
        result
    }

    /// The software handler executes a thread's batch of non-local frees (§4); the first of its exceptions is
    /// returned.
    pub fn drain<M: MemorySystem>(&mut self, core: usize, lane: usize, at: u64, memory: &mut M) -> Done {
        let mut done = Done { at, address: 0, exception: None };
        let Some(number) = self.registers[core] else { return done };
        let process = self.processes[number].as_mut().expect("a register names a process that lives");
        let (start, its_lane) = (process.start, process.lanes[lane].as_mut());
        let batch = its_lane.map_or_else(Vec::new, |its_lane| std::mem::take(&mut its_lane.batch));
        if batch.is_empty() {
            return done;
        }
        self.statistics.batches += 1;
        done.at += self.config.batch_signal_cycles;
        let owner = Owner { process: number, lane };
        for address in batch {
            done.at += self.config.software_free_cycles;
            let place = locate(start, address).expect("only objects' addresses are put into a batch");
            match self.free(owner, core, address, place, &mut done.at, memory) {
                Ok(_) => self.statistics.batched_frees_done += 1,
                Err(exception) => done.exception = done.exception.or(Some(exception)),
            }
        }
        done
    }
}
