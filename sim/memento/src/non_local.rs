//! Frees of objects that another thread allocated (§4). In hardware: BusRdX makes the header exclusive, the
//! HOT entry that holds it is written back and supplied, and the bit is cleared as in a regular free. With
//! software's help: such frees wait in a buffer of the thread; when it is full, or at a context switch, a
//! handler executes them all.
//!
//! Left open by the paper, taken here: an arena that changes lists changes its owner's lists; if the owner's
//! HOT has their heads, that entry is invalidated in the same way.

use crate::layout::Location;
use crate::memory_system::{Access, MemorySystem, Port};
use crate::object_allocator::{Caller, ObjectAllocator, translate};
use crate::{Exception, Result, Work};

impl ObjectAllocator {
    /// Frees an object in an arena of the thread `place.lane`, on behalf of `caller`.
    pub fn free_non_local<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        address: u64,
        place: Location,
        work: &mut Work<M>,
    ) -> Result {
        if caller.process.lanes[place.lane].is_none() {
            return Err(Exception::NoArena);
        }
        work.at += work.config.hot_cycles;
        let answered_at = work.at;
        let physical = translate(caller, address, place.arena, work)?;
        work.access(Port::Core, Access::Exclusive, physical);
        self.invalidate(caller, place, Some(physical), work);
        let (was_full, is_empty) = self.clear_in_memory(physical, place, work)?;
        // An arena that its owner allocates from stays, full or empty, in no list.
        if (was_full || is_empty) && !self.is_current(caller, place, physical) {
            work.statistics.frees_with_list_operations += 1;
            self.invalidate(caller, place, None, work);
            let lane = caller.process.lanes[place.lane].as_mut().expect("checked above");
            work.access(Port::Core, Access::Exclusive, lane.saved_address(place.class));
            let mut lists = lane.saved[place.class];
            self.relist(&mut lists, physical, was_full, is_empty, work);
            caller.process.lanes[place.lane].as_mut().expect("checked above").saved[place.class] = lists;
            if is_empty {
                caller.pages.free_arena(caller.process, place.arena, place.class, work);
            }
        }
        if work.config.background_free_misses {
            work.statistics.background_cycles += work.at - answered_at;
            work.at = answered_at;
        }
        Ok(())
    }

    /// The HOT, if any, that holds entries of a thread of the caller's process.
    fn holder(&self, caller: &Caller, lane: usize) -> Option<usize> {
        let wanted = crate::hot::Owner { process: caller.owner.process, lane };
        self.hots.iter().position(|hot| hot.owner == Some(wanted))
    }

    fn is_current(&self, caller: &Caller, place: Location, physical: u64) -> bool {
        let held = self
            .holder(caller, place.lane)
            .map(|core| &self.hots[core].entries[place.class])
            .filter(|entry| entry.valid);
        match held {
            Some(entry) => entry.physical == physical,
            None => {
                caller.process.lanes[place.lane].as_ref().expect("the thread exists").saved[place.class]
                    .current
                    == physical
            }
        }
    }

    /// Another HOT's entry for the class is written back and invalidated; if `physical` is given, only if it
    /// holds that arena.
    fn invalidate<M: MemorySystem>(
        &mut self,
        caller: &mut Caller,
        place: Location,
        physical: Option<u64>,
        work: &mut Work<M>,
    ) {
        let Some(core) = self.holder(caller, place.lane) else { return };
        let entry = &self.hots[core].entries[place.class];
        if entry.valid && physical.is_none_or(|wanted| entry.physical == wanted) {
            let own_core = std::mem::replace(&mut work.core, core);
            self.evict(core, place.class, caller.process, work);
            work.core = own_core;
            work.statistics.hot_invalidations += 1;
        }
    }
}
