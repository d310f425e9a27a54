//! The units, with each operation and all that it changes written down. One call of the units may be several
//! operations of the hardware: a thread that runs on a core for the first time has another's rows flushed,
//! and gets its arenas.

use std::io::Write;

use memento::hot::Entry;
use memento::layout::{
    CLASS_SHIFT, CLASSES, LANES, REGION_BYTES, REGION_START, arena_bytes, class_of, locate,
};
use memento::statistics::Statistics;
use memento::{Access, Config, MemorySystem, Port, Units};

use crate::record::{NewArena, Operation, Outcome, Record};

/// The machine's cores. The AAC has 32 entries: two of these share one.
pub const CORES: [usize; 3] = [0, 1, 33];
const POOL: std::ops::Range<u64> = 1 << 36..1 << 38;
const PAGE: u64 = 4096;

/// A memory system without time, which keeps the HOT's accesses.
#[derive(Default)]
struct Accesses(Vec<u64>);

impl MemorySystem for Accesses {
    fn access(&mut self, _: usize, port: Port, access: Access, physical: u64, at: u64) -> u64 {
        if port == Port::Core {
            self.0.push(physical | u64::from(access != Access::Read));
        }
        at
    }
    fn instantiate(&mut self, core: usize, port: Port, physical: u64, at: u64) -> u64 {
        self.access(core, port, Access::Write, physical, at)
    }
    fn tlb_lookup(&mut self, _: usize, _: u64, at: u64) -> (Option<u64>, u64) {
        (None, at)
    }
    fn tlb_fill(&mut self, _: usize, _: u64, _: u64) {}
    fn shootdown(&mut self, _: usize, _: u64) {}
}

/// The units and the file that their operations go to.
pub struct Observed<'a, W: Write> {
    pub units: Units,
    memory: Accesses,
    out: &'a mut W,
}

/// A thread: its process' key, and its lane.
pub type Thread = (u64, usize);

impl<'a, W: Write> Observed<'a, W> {
    /// New units, without processes.
    pub fn new(config: &Config, out: &'a mut W) -> Result<Self, String> {
        let cores = CORES.iter().max().expect("there are cores") + 1;
        let mut observed =
            Observed { units: Units::new(config, cores, POOL), memory: Accesses::default(), out };
        let begin = Record::new(Operation::Begin, 0, config.eager.into());
        observed.write(&begin)?;
        Ok(observed)
    }

    fn write(&mut self, record: &Record) -> Result<(), String> {
        self.out.write_all(&record.bytes()).map_err(|error| error.to_string())
    }

    /// Gives a process a region; it runs on `core`.
    pub fn start(&mut self, core: usize, key: u64) -> Result<(), String> {
        self.switch(core, key)?;
        let region = REGION_START..REGION_START + REGION_BYTES;
        self.units.set_region(core, key, region, 0, &mut self.memory).map_err(|why| why.to_string())?;
        Ok(())
    }

    /// Another process gets a core.
    pub fn switch(&mut self, core: usize, key: u64) -> Result<(), String> {
        let (before, expected) = (self.units.hot_owner(core), self.flush_of(core));
        self.units.context_switch(core, key, 0, &mut self.memory);
        if before.is_some() && self.units.hot_owner(core).is_none() {
            self.flushed(core, expected)?;
        }
        self.memory.0.clear();
        Ok(())
    }

    /// Writes the end of a process down, and gives it a region again.
    pub fn restart(&mut self, core: usize, key: u64) -> Result<(), String> {
        let number = self.units.thread(key, 0).map(|owner| owner.process);
        let owned = |units: &Units, core: usize| {
            units.hot_owner(core).is_some_and(|owner| Some(owner.process) == number)
        };
        let discarded: Vec<usize> = CORES.into_iter().filter(|&core| owned(&self.units, core)).collect();
        let blocks: Vec<u64> = (0..LANES).filter_map(|lane| self.units.block(key, lane)).collect();
        self.units.process_exit(key, 0, &mut self.memory);
        self.memory.0.clear();
        for core in discarded {
            let mut record = Record::new(Operation::Discard, core, 0);
            record.rows = (0..CLASSES).map(|class| (core, class, Entry::default())).collect();
            self.write(&record)?;
        }
        for (number, &block) in blocks.iter().enumerate() {
            let mut record = Record::new(Operation::Forget, core, 0);
            record.thread = (REGION_START, 0, block);
            if number + 1 == blocks.len() {
                record.pointers = self.pointers();
            }
            self.write(&record)?;
        }
        self.start(core, key)
    }

    /// How many accesses a flush of a core's HOT makes, and the thread that it is of.
    fn flush_of(&self, core: usize) -> (usize, (u64, usize, u64)) {
        let rows = (0..CLASSES).map(|class| self.units.hot_entry(core, class)).filter(|row| row.valid);
        let accesses = rows.map(|row| 1 + usize::from(row.dirty)).sum();
        let thread = self.units.hot_owner(core).map(|owner| {
            let block = self.units.block_of(owner).expect("a thread with rows has a block");
            (REGION_START, owner.lane, block)
        });
        (accesses, thread.unwrap_or_default())
    }

    /// Writes down that a core's HOT has been flushed; the accesses are the oldest that are noted.
    fn flushed(&mut self, core: usize, expected: (usize, (u64, usize, u64))) -> Result<(), String> {
        let mut record = Record::new(Operation::Flush, core, 0);
        record.thread = expected.1;
        record.accesses = self.memory.0.drain(..expected.0).collect();
        record.rows = (0..CLASSES).map(|class| (core, class, Entry::default())).collect();
        self.write(&record)
    }

    /// Around an instruction of a thread: `execute`, and before it in the file what it needed to begin.
    fn instruction(
        &mut self,
        core: usize,
        thread: Thread,
        class: usize,
        execute: impl FnOnce(&mut Units, &mut Accesses, &mut Record),
        mut record: Record,
    ) -> Result<(), String> {
        let owner = self.units.thread(thread.0, thread.1);
        let before = self.units.hot_owner(core);
        let other = CORES.into_iter().find(|&other| other != core && self.units.hot_owner(other) == owner);
        let flushes: Vec<_> = [before.filter(|_| before != owner).map(|_| core), other]
            .into_iter()
            .flatten()
            .map(|core| (core, self.flush_of(core)))
            .collect();
        let is_new = self.units.block(thread.0, thread.1).is_none();
        let initialises = is_new && self.units.config().initialise_all_classes;
        let counted = self.units.statistics().clone();
        execute(&mut self.units, &mut self.memory, &mut record);

        for (core, expected) in flushes {
            self.flushed(core, expected)?;
        }
        let block = self.units.block(thread.0, thread.1).unwrap_or(0);
        record.thread = (REGION_START, thread.1, block);
        self.since(&counted, &mut record);
        let row = *self.units.hot_entry(core, class);
        if initialises {
            let mut initialise = Record::new(Operation::Initialise, core, 0);
            initialise.thread = record.thread;
            initialise.arenas = (0..CLASSES).map(|class| self.arena_in(core, class)).collect();
            // Counted with it: the instruction itself finds the arenas that it needs.
            initialise.aac_misses = std::mem::take(&mut record.aac_misses);
            initialise.aac_evictions = std::mem::take(&mut record.aac_evictions);
            initialise.pointers = self.pointers();
            self.write(&initialise)?;
            record.rows =
                (0..CLASSES).map(|class| (core, class, *self.units.hot_entry(core, class))).collect();
        } else {
            let now = self.units.statistics();
            let asked = now.aac_hits + now.aac_misses - counted.aac_hits - counted.aac_misses;
            let given = now.arenas_allocated - counted.arenas_allocated;
            for _ in 0..asked {
                let refused = NewArena { class, given: None };
                record.arenas.push(if given > 0 { self.arena_in(core, class) } else { refused });
                record.pointers = self.pointers();
            }
            record.rows = vec![(core, class, row)];
        }
        record.accesses = std::mem::take(&mut self.memory.0);
        self.headers_of(&mut record);
        self.write(&record)
    }

    fn pointers(&self) -> Vec<(usize, Vec<u64>)> {
        CORES.map(|core| (core, self.units.aac_entry(core).to_vec())).to_vec()
    }

    /// The arena in a row is the one that was handed out last.
    fn arena_in(&self, core: usize, class: usize) -> NewArena {
        let row = self.units.hot_entry(core, class);
        NewArena { class, given: Some((row.header.address, row.physical)) }
    }

    fn since(&self, counted: &Statistics, record: &mut Record) {
        let now = self.units.statistics();
        record.aac_misses = now.aac_misses - counted.aac_misses;
        record.aac_evictions = now.aac_write_backs - counted.aac_write_backs;
        if record.outcome == Outcome::Any {
            let hits = now.allocation_hits + now.free_hits - counted.allocation_hits - counted.free_hits;
            let others = now.batched_frees - counted.batched_frees;
            record.outcome = if others > 0 {
                Outcome::NonLocal
            } else if hits > 0 {
                Outcome::Hit
            } else {
                Outcome::Miss
            };
        }
    }

    /// The headers that were accessed, but for those of arenas in a HOT, whose copies in memory mean nothing.
    fn headers_of(&self, record: &mut Record) {
        let in_hot = |page: u64| {
            let rows = CORES.into_iter().flat_map(|core| (0..CLASSES).map(move |class| (core, class)));
            rows.map(|(core, class)| self.units.hot_entry(core, class))
                .any(|row| row.valid && row.physical == page)
        };
        let mut pages: Vec<u64> = record.accesses.iter().map(|access| access & !7).collect();
        pages.retain(|page| page.is_multiple_of(PAGE) && *page != record.thread.2);
        pages.sort_unstable();
        pages.dedup();
        record.headers = pages
            .into_iter()
            .filter(|&page| !in_hot(page))
            .map(|page| (page, self.units.header(page)))
            .collect();
    }

    /// obj-alloc; the object's address.
    pub fn allocate(&mut self, core: usize, thread: Thread, size: u64) -> Result<Option<u64>, String> {
        let mut address = None;
        let mut execute = |units: &mut Units, memory: &mut Accesses, record: &mut Record| {
            let done = units.obj_alloc(core, thread.1, size, 0, memory);
            record.address = done.address;
            match done.exception {
                Some(exception) => record.outcome = Outcome::of(exception),
                None => address = Some(done.address),
            }
        };
        let record = Record::new(Operation::Allocate, core, size);
        match class_of(size) {
            Ok(class) => self.instruction(core, thread, class, execute, record)?,
            Err(_) => {
                let mut record = record;
                execute(&mut self.units, &mut self.memory, &mut record);
                self.write(&record)?;
            }
        }
        Ok(address)
    }

    /// obj-free.
    pub fn free(&mut self, core: usize, thread: Thread, address: u64) -> Result<Outcome, String> {
        let mut record = Record::new(Operation::Free, core, address);
        let mut class = 0;
        let arena = locate(REGION_START, address).ok().map(|place| place.arena);
        if let Ok(place) = locate(REGION_START, address) {
            class = place.class;
            record.translation = self.units.backing(core, place.arena).unwrap_or(0);
        }
        let freed = self.units.statistics().arenas_freed;
        let mut outcome = Outcome::Any;
        let execute = |units: &mut Units, memory: &mut Accesses, record: &mut Record| {
            let done = units.obj_free(core, thread.1, address, 0, memory);
            record.outcome = done.exception.map_or(Outcome::Any, Outcome::of);
            outcome = record.outcome;
            if units.statistics().arenas_freed > freed {
                record.freed = arena.expect("an object's");
            }
        };
        self.instruction(core, thread, class, execute, record)?;
        Ok(outcome)
    }

    /// A load or store: in the core's HOT or, if that does not hold the arena, in those of the process' other
    /// cores.
    pub fn touch(&mut self, core: usize, key: u64, address: u64) -> Result<(), String> {
        let class = (address.wrapping_sub(REGION_START) >> CLASS_SHIFT) as usize % CLASSES;
        let holds = |units: &Units, core: usize| {
            let row = units.hot_entry(core, class);
            row.valid && address.wrapping_sub(row.header.address) < arena_bytes(class)
        };
        let number = self.units.thread(key, 0).map(|owner| owner.process);
        let others = CORES.into_iter().filter(|&other| {
            other != core && self.units.hot_owner(other).is_some_and(|owner| Some(owner.process) == number)
        });
        let own = holds(&self.units, core);
        let cores: Vec<usize> = [core].into_iter().chain(others.filter(|_| !own)).collect();
        let held: Vec<bool> = cores.iter().map(|&core| holds(&self.units, core)).collect();
        let is_new = self.units.touch(core, address);
        for (at, held) in cores.into_iter().zip(held) {
            let mut record = Record::new(Operation::Touch, at, address);
            record.outcome = if held { Outcome::Hit } else { Outcome::Miss };
            record.is_new = (at == core).then_some(is_new);
            record.rows = vec![(at, class, *self.units.hot_entry(at, class))];
            self.write(&record)?;
        }
        Ok(())
    }
}
