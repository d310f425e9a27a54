//! The arenas as one would write them down to explain them: vectors and sets, no HOT, no physical memory, no
//! time. The units, and the shim in the guest, must agree with it to the address on any sequence of
//! operations.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::{
    HEADER_BYTES, OBJECTS, absent_objects, arena_bytes, class_of, class_range, locate, object_bytes,
};
use crate::{Config, Exception, Result};

/// One class of one thread.
#[derive(Debug, Default)]
struct Class {
    next: u64,
    current: Option<u64>,
    /// Arenas that can be allocated from next; the last is the first to be.
    available: Vec<u64>,
    /// Objects that an arena has room for.
    room: usize,
    arenas: BTreeMap<u64, BTreeSet<usize>>,
}

/// A process's arenas.
#[derive(Debug)]
pub struct Reference {
    start: u64,
    eager: bool,
    whole_pages: bool,
    classes: BTreeMap<(usize, usize), Class>,
}

impl Reference {
    /// A process whose region starts at `start`.
    pub fn new(start: u64, config: &Config) -> Reference {
        let (eager, whole_pages) = (config.eager, config.whole_pages);
        Reference { start, eager, whole_pages, classes: BTreeMap::new() }
    }

    fn class(&mut self, class: usize, lane: usize) -> &mut Class {
        let next = self.start + class_range(class, lane).0;
        let room = OBJECTS - absent_objects(class, self.whole_pages);
        self.classes.entry((class, lane)).or_insert_with(|| Class { next, room, ..Class::default() })
    }

    /// obj-alloc.
    ///
    /// # Errors
    /// The exception that the units raise: no class of that size, or no room in its range.
    pub fn allocate(&mut self, lane: usize, size: u64) -> Result<u64> {
        let class = class_of(size)?;
        let (end, eager) = (self.start + class_range(class, lane).1, self.eager);
        let its = self.class(class, lane);
        if !its.current_has_room() {
            its.change_arena(class, end)?;
        }
        let arena = its.current.expect("change_arena sets it");
        let live = its.arenas.get_mut(&arena).expect("the current arena exists");
        let index = (0..its.room).find(|index| !live.contains(index)).expect("the current arena has room");
        live.insert(index);
        if eager && live.len() == its.room {
            // Without room the full arena stays, and the next allocation tries again.
            let _ = its.change_arena(class, end);
        }
        Ok(arena + HEADER_BYTES + index as u64 * object_bytes(class))
    }

    /// obj-free, by any thread.
    ///
    /// # Errors
    /// The exception that the units raise: no object there, or one that is free already.
    pub fn free(&mut self, address: u64) -> Result {
        let place = locate(self.start, address)?;
        let its = self.class(place.class, place.lane);
        let live = its.arenas.get_mut(&place.arena).ok_or(Exception::NoArena)?;
        let was_full = live.len() == its.room;
        if !live.remove(&place.index) {
            return Err(Exception::DoubleFree);
        }
        if its.current == Some(place.arena) {
            return Ok(());
        }
        if live.is_empty() {
            its.arenas.remove(&place.arena);
            its.available.retain(|&arena| arena != place.arena);
        } else if was_full {
            its.available.push(place.arena);
        }
        Ok(())
    }

    /// Objects that are allocated.
    pub fn live_objects(&self) -> usize {
        self.classes.values().flat_map(|class| class.arenas.values()).map(BTreeSet::len).sum()
    }

    /// Addresses of the arenas that exist, apart from those that a class has from the start.
    pub fn arenas(&self) -> usize {
        self.classes.values().map(|class| class.arenas.len()).sum()
    }
}

impl Class {
    fn current_has_room(&self) -> bool {
        self.current.is_some_and(|arena| self.arenas[&arena].len() < self.room)
    }

    fn change_arena(&mut self, class: usize, end: u64) -> Result {
        if let Some(arena) = self.available.pop() {
            self.current = Some(arena);
            return Ok(());
        }
        if self.next + arena_bytes(class) > end {
            return Err(Exception::RegionFull);
        }
        self.current = Some(self.next);
        self.arenas.insert(self.next, BTreeSet::new());
        self.next += arena_bytes(class);
        Ok(())
    }
}
