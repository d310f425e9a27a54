//! Checks of the units' contents against their counters, and of the lists' and tables' own rules. Slow: it
//! looks at every arena and every page. The machine runs it at the end of a run, the tests after each few
//! operations.

use std::collections::BTreeMap;

use crate::arena::Header;
use crate::layout::{CLASSES, LANES, OBJECTS, arena_bytes, class_range, lane_and_class, object_bytes};
use crate::region::{Process, Saved};
use crate::statistics::Occupancy;
use crate::units::Units;

impl Units {
    /// All arenas' headers: the HOT's copy where there is one.
    pub(crate) fn arenas(&self) -> impl Iterator<Item = Header> + '_ {
        (0..self.processes.len())
            .filter(|&number| self.processes[number].is_some())
            .flat_map(|number| self.arenas_of(number).into_values().map(|(_, header)| header))
    }

    /// How full the arenas of all processes are (§6.6, Fragmentation).
    pub fn occupancy(&self) -> Occupancy {
        let mut all = Occupancy::default();
        for (number, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            for (address, (_, header)) in self.arenas_of(number) {
                let bytes = object_bytes(lane_and_class(address - process.start).1);
                let (live, slots) = (header.live(), OBJECTS as u64 - u64::from(header.absent));
                all.slots += slots;
                all.slots_in_use += if live > 0 { slots } else { 0 };
                all.objects += live;
                all.slot_bytes += slots * bytes;
                all.object_bytes += live * bytes;
            }
        }
        all
    }

    /// A process's arenas by address, with their headers' physical addresses.
    fn arenas_of(&self, number: usize) -> BTreeMap<u64, (u64, Header)> {
        let process = self.processes[number].as_ref().expect("the number of a live process");
        let mut found = BTreeMap::new();
        for (lane, block) in process.lanes.iter().enumerate() {
            let Some(block) = block else { continue };
            for class in 0..CLASSES {
                let start = process.start + class_range(class, lane).0;
                for arena in (start..block.next[class]).step_by(arena_bytes(class) as usize) {
                    let Some(physical) = self.pages.lookup(process, arena) else { continue };
                    found.insert(arena, (physical, self.objects.headers.read(physical)));
                }
            }
        }
        for hot in self.objects.hots.iter().filter(|hot| hot.owner.is_some_and(|o| o.process == number)) {
            for entry in hot.entries.iter().filter(|entry| entry.valid) {
                found.insert(entry.header.address, (entry.physical, entry.header));
            }
        }
        found
    }

    /// The list heads of a thread's class: its HOT's entry, or the saved part of it.
    fn lists_of(&self, number: usize, process: &Process, lane: usize, class: usize) -> Saved {
        let owner = crate::hot::Owner { process: number, lane };
        for hot in self.objects.hots.iter().filter(|hot| hot.owner == Some(owner)) {
            let entry = hot.entries[class];
            if entry.valid {
                return Saved { current: entry.physical, available: entry.available, full: entry.full };
            }
        }
        process.lanes[lane].as_ref().map_or(Saved::default(), |lane| lane.saved[class])
    }

    /// Compares counters with the units' contents; the error names the sum that does not hold.
    ///
    /// # Errors
    /// The sum that does not hold, with both sides.
    pub fn check(&self) -> Result<(), String> {
        self.statistics.check()?;
        let counted = &self.statistics;
        let live = counted.objects_allocated - counted.objects_freed - counted.objects_released;
        equal("objects allocated - freed = bits set in the arenas", live, self.live_objects())?;
        let arenas = counted.arenas_allocated - counted.arenas_freed - counted.arenas_released;
        equal("arenas allocated - freed = arenas held", arenas, self.live_arenas())?;
        let mut held = [0u64; 3];
        for (number, process) in self.processes.iter().enumerate() {
            let Some(process) = process else { continue };
            let (data, tables) = self.pages.tables.pages_below(process.root, 3);
            let waiting =
                process.lanes.iter().flatten().flat_map(|lane| lane.waiting).filter(|&page| page != 0);
            held[0] += (data.len() + waiting.count()) as u64;
            held[1] += tables.len() as u64 + 1;
            held[2] += process.lanes.iter().flatten().count() as u64;
            self.check_arenas(number, process)?;
        }
        for (kind, held) in held.into_iter().enumerate() {
            equal(
                &format!("pages of kind {kind} allocated - freed = pages held"),
                counted.pages_allocated[kind] - counted.pages_freed[kind],
                held,
            )?;
        }
        equal(
            "pages handed over by the OS = pages used + pages not used yet",
            counted.refilled_pages,
            counted.pages_from_os.iter().sum::<u64>() + self.pages.unused_pages(),
        )?;
        equal(
            "pages handed over by the OS = pages held + pages in the pool",
            counted.refilled_pages,
            held.iter().sum::<u64>() + self.pages.pool_pages(),
        )
    }

    /// Every arena is in its class's HOT entry, in the available or in the full list, as its bitmap requires;
    /// links agree.
    fn check_arenas(&self, number: usize, process: &Process) -> Result<(), String> {
        let arenas = self.arenas_of(number);
        for (&address, (_, header)) in &arenas {
            equal("an arena's header holds its address", header.address, address)?;
        }
        let by_physical: BTreeMap<u64, Header> = arenas.values().copied().collect();
        equal("each arena has a page of its own", by_physical.len() as u64, arenas.len() as u64)?;
        let mut seen = 0;
        for lane in (0..LANES).filter(|&lane| process.lanes[lane].is_some()) {
            for class in 0..CLASSES {
                let lists = self.lists_of(number, process, lane, class);
                seen += u64::from(lists.current != 0);
                for (head, full) in [(lists.available, false), (lists.full, true)] {
                    let (mut before, mut at) = (0, head);
                    while at != 0 {
                        let header = by_physical.get(&at).ok_or("a list leads to a page without an arena")?;
                        let offset = header.address - process.start;
                        if lane_and_class(offset) != (lane, class) {
                            return Err(format!("arena {:#x} is in a list of another class", header.address));
                        }
                        if header.is_full() != full || header.is_empty() || header.prev != before {
                            return Err(format!(
                                "arena {:#x} is in the wrong list, or badly linked",
                                header.address
                            ));
                        }
                        (before, at) = (at, header.next);
                        seen += 1;
                        if seen > arenas.len() as u64 {
                            return Err("an arena is in two lists".to_owned());
                        }
                    }
                }
            }
        }
        equal("arenas in entries and lists = arenas", seen, arenas.len() as u64)
    }
}

fn equal(what: &str, left: u64, right: u64) -> Result<(), String> {
    if left == right { Ok(()) } else { Err(format!("{what}: {left} is not {right}")) }
}
