//! Random programs on several cores, threads and processes: the units give the reference model's addresses
//! and exceptions, count consistently, never leave a stale translation in a TLB, and never bypass a line that
//! holds live data.
//!
//! `MEMENTO_OPERATIONS` is the number of operations of each property, 300 thousand if it is not set.

mod machine;

use std::collections::{BTreeMap, BTreeSet};

use machine::Plain;
use memento::layout::{REGION_BYTES, REGION_START};
use memento::reference::Reference;
use memento::{Config, Exception, NonLocalFree, Units};
use proptest::prelude::*;

const CORES: usize = 3;
const LANES: usize = 4;
const PROCESSES: usize = 2;
const OPERATIONS_PER_CASE: usize = 3000;
const POOL: std::ops::Range<u64> = 1 << 36..1 << 37;

fn cases() -> u32 {
    let operations =
        std::env::var("MEMENTO_OPERATIONS").map_or(300_000, |text| text.parse().expect("a number"));
    (operations / OPERATIONS_PER_CASE).max(1) as u32
}

/// One process as the test sees it: the reference, and the program's state.
struct Program {
    key: u64,
    reference: Reference,
    /// Live objects, and the lines of each that have been accessed.
    live: Vec<(u64, u64, BTreeSet<u64>)>,
    /// Lines that live objects have accessed, with how many of them have.
    used_lines: BTreeMap<u64, usize>,
    freed: Vec<u64>,
    batches: Vec<Vec<u64>>,
}

struct World {
    units: Units,
    machine: Plain,
    programs: Vec<Program>,
    /// By core: process, lane.
    running: [(usize, usize); CORES],
    now: u64,
    batch_size: usize,
}

impl World {
    fn new(config: &Config) -> World {
        let mut machine = Plain::default();
        let mut units = Units::new(config, CORES, POOL);
        let programs = (0..PROCESSES)
            .map(|number| Program {
                key: 0x1000 * (number as u64 + 1),
                reference: Reference::new(REGION_START, config),
                live: Vec::new(),
                used_lines: BTreeMap::new(),
                freed: Vec::new(),
                batches: vec![Vec::new(); LANES],
            })
            .collect::<Vec<_>>();
        for program in &programs {
            units
                .set_region(0, program.key, REGION_START..REGION_START + REGION_BYTES, 0, &mut machine)
                .unwrap();
        }
        let mut world = World {
            units,
            machine,
            programs,
            running: [(0, 0), (0, 1), (0, 2)],
            now: 0,
            batch_size: if config.non_local_free == NonLocalFree::Batch { config.batch_objects } else { 0 },
        };
        for core in 0..CORES {
            world.units.context_switch(core, world.programs[0].key, 0, &mut world.machine);
        }
        world
    }

    fn step(&mut self, choice: u64) {
        let core = (choice >> 8) as usize % CORES;
        let (process, lane) = self.running[core];
        let value = choice >> 16;
        match choice % 256 {
            0 => self.switch(core, value),
            1 => self.exit(process),
            2..=4 => self.free_wrongly(core, value),
            5..=100 => self.free(core, process, lane, value),
            101..=190 => self.allocate(core, process, lane, value),
            _ => self.access(core, process, value),
        }
    }

    /// Few sizes most of the time, so that arenas fill up; sizes that the hardware refuses at times.
    fn size(value: u64) -> u64 {
        match value % 16 {
            0 => value / 16 % 520,
            1..=4 => 512,
            5..=9 => 24,
            _ => 64,
        }
    }

    fn allocate(&mut self, core: usize, process: usize, lane: usize, value: u64) {
        // In runs, as programs do; so whole arenas are used.
        for _ in 0..value / 1024 % 40 {
            let size = World::size(value);
            let program = &mut self.programs[process];
            let expected = program.reference.allocate(lane, size);
            let done = self.units.obj_alloc(core, lane, size, self.now, &mut self.machine);
            assert_eq!(done.exception.map_or(Ok(done.address), Err), expected, "obj-alloc of {size} B");
            assert!(done.at >= self.now);
            if let Ok(address) = expected {
                assert!(
                    program
                        .live
                        .iter()
                        .all(|(other, bytes, _)| { address + size <= *other || *other + bytes <= address })
                );
                program.live.push((address, size, BTreeSet::new()));
            }
        }
    }

    fn free(&mut self, core: usize, process: usize, lane: usize, value: u64) {
        // From the newest or from anywhere; sometimes nearly all.
        let many = if value.is_multiple_of(64) { usize::MAX } else { value as usize / 64 % 30 };
        for count in 0..many.min(self.programs[process].live.len()) {
            let program = &mut self.programs[process];
            let length = program.live.len();
            let which =
                if value.is_multiple_of(2) { length - 1 } else { (value as usize / 64 + count * 7) % length };
            let (address, _, lines) = program.live.swap_remove(which);
            for line in lines {
                let users = program.used_lines.get_mut(&line).unwrap();
                *users -= 1;
                if *users == 0 {
                    program.used_lines.remove(&line);
                }
            }
            program.freed.push(address);
            self.free_address(core, process, lane, address, true);
        }
    }

    /// Frees in units and reference; their results must agree, at once or when the batch is done.
    fn free_address(&mut self, core: usize, process: usize, lane: usize, address: u64, valid: bool) {
        let program = &mut self.programs[process];
        let done = self.units.obj_free(core, lane, address, self.now, &mut self.machine);
        let place = memento::layout::locate(REGION_START, address);
        if self.batch_size > 0 && place.is_ok_and(|place| place.lane != lane) {
            program.batches[lane].push(address);
            if program.batches[lane].len() == self.batch_size {
                self.drained(process, lane, done.exception);
            } else {
                assert_eq!(done.exception, None);
            }
            return;
        }
        let expected = program.reference.free(address);
        assert_eq!(done.exception, expected.err(), "obj-free of {address:#x}");
        assert!(!valid || expected.is_ok());
    }

    fn drained(&mut self, process: usize, lane: usize, exception: Option<Exception>) {
        let program = &mut self.programs[process];
        let errors: Vec<Exception> = std::mem::take(&mut program.batches[lane])
            .into_iter()
            .filter_map(|address| program.reference.free(address).err())
            .collect();
        assert_eq!(exception, errors.first().copied());
    }

    fn free_wrongly(&mut self, core: usize, value: u64) {
        let (process, lane) = self.running[core];
        let program = &self.programs[process];
        let pending: BTreeSet<u64> = program.batches.iter().flatten().copied().collect();
        let wrong = match value % 4 {
            0 => program.freed.get(value as usize / 4 % program.freed.len().max(1)).copied(),
            1 => program.live.first().map(|(address, ..)| address + 1),
            2 => Some(REGION_START - 8),
            _ => Some(REGION_START + value % REGION_BYTES),
        };
        let Some(wrong) = wrong else { return };
        // A wrong free that waits in a batch may hit an object that is allocated meanwhile: the program's
        // fault.
        let waits =
            self.batch_size > 0 && memento::layout::locate(REGION_START, wrong).is_ok_and(|p| p.lane != lane);
        // An object that is in use again, or whose free waits in a batch, is not wrong to free yet.
        if !waits && !program.live.iter().any(|(address, ..)| *address == wrong) && !pending.contains(&wrong)
        {
            self.free_address(core, process, lane, wrong, false);
        }
    }

    fn access(&mut self, core: usize, process: usize, value: u64) {
        let program = &mut self.programs[process];
        let Some(last) = program.live.len().checked_sub(1) else { return };
        let which = last - (value as usize % 50).min(last);
        let (address, bytes, lines) = &mut program.live[which];
        let at = *address + value / 64 % *bytes;
        let (found, _) = memento::MemorySystem::tlb_lookup(&mut self.machine, core, at, self.now);
        let mapped = self.units.lookup(core, at);
        match found {
            Some(page) => {
                assert_eq!(Some(page), mapped.map(|physical| physical / 4096), "a stale translation")
            }
            None => {
                let (physical, done) = self.units.walk(core, at, self.now, &mut self.machine).unwrap();
                assert!(done > self.now);
                assert!(mapped.is_none_or(|mapped| mapped == physical));
                assert_eq!(self.units.lookup(core, at), Some(physical));
                memento::MemorySystem::tlb_fill(&mut self.machine, core, at, physical);
            }
        }
        let line = at / 64;
        if self.units.touch(core, at) {
            assert!(!program.used_lines.contains_key(&line), "a bypass would overwrite live data at {at:#x}");
        }
        if lines.insert(line) {
            *program.used_lines.entry(line).or_default() += 1;
        }
        assert!(!self.units.touch(core, at), "a line is new once");
    }

    /// Another thread, of this or another process, gets the core; its own core, if it has one, gets the
    /// thread that ran here.
    fn switch(&mut self, core: usize, value: u64) {
        let next = (value as usize % PROCESSES, value as usize / PROCESSES % LANES);
        let other = self.running.iter().position(|&running| running == next);
        let before = self.running[core];
        for (core, thread) in other.map(|other| (other, before)).into_iter().chain([(core, next)]) {
            if self.running[core].0 != thread.0 {
                self.units.context_switch(core, self.programs[thread.0].key, self.now, &mut self.machine);
                // No TLB in this machine distinguishes processes.
                self.machine.tlbs.retain(|(of, _), _| *of != core);
                self.follow_drains();
            }
            self.running[core] = thread;
        }
    }

    /// After a context switch: it has emptied the buffer of the thread whose arenas the HOT held, which need
    /// not be the one that ran last, if that did nothing.
    fn follow_drains(&mut self) {
        for program in &mut self.programs {
            for (lane, batch) in program.batches.iter_mut().enumerate() {
                if self.units.batched(program.key, lane) == 0 {
                    for address in std::mem::take(batch) {
                        let _ = program.reference.free(address);
                    }
                }
            }
        }
    }

    fn exit(&mut self, process: usize) {
        let key = self.programs[process].key;
        self.units.process_exit(key, self.now, &mut self.machine);
        self.programs[process] = Program {
            key,
            reference: Reference::new(REGION_START, self.units.config()),
            live: Vec::new(),
            used_lines: BTreeMap::new(),
            freed: Vec::new(),
            batches: vec![Vec::new(); LANES],
        };
        self.machine.tlbs.clear();
        let core = self.running.iter().position(|running| running.0 == process);
        let region = REGION_START..REGION_START + REGION_BYTES;
        match core {
            Some(core) => {
                self.units.set_region(core, key, region, self.now, &mut self.machine).unwrap();
            }
            None => {
                self.units.set_region(0, key, region, self.now, &mut self.machine).unwrap();
                let back = self.programs[self.running[0].0].key;
                self.units.context_switch(0, back, self.now, &mut self.machine);
            }
        }
        for core in (0..CORES).filter(|&core| self.running[core].0 == process) {
            self.units.context_switch(core, key, self.now, &mut self.machine);
        }
        self.follow_drains();
    }

    fn settle(&mut self) {
        self.units.check().unwrap();
        let expected: usize = self.programs.iter().map(|program| program.reference.live_objects()).sum();
        assert_eq!(self.units.live_objects(), expected as u64);
    }
}

fn config() -> impl Strategy<Value = Config> {
    (any::<[bool; 6]>(), 0usize..3).prop_map(
        |([eager, all, batch, background, bypass, whole], walk_cache)| Config {
            eager,
            initialise_all_classes: all,
            non_local_free: if batch { NonLocalFree::Batch } else { NonLocalFree::Hardware },
            background_free_misses: background,
            bypass,
            whole_pages: whole,
            walk_cache_entries: walk_cache * 4,
            batch_objects: 5,
            refill_pages: 70,
            aac_pointers: 2,
            ..Config::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn units_agree_with_the_reference(config in config(), choices in prop::collection::vec(any::<u64>(), OPERATIONS_PER_CASE / 12)) {
        let mut world = World::new(&config);
        for (count, choice) in choices.into_iter().enumerate() {
            world.step(choice);
            world.now += 10;
            if count % 25 == 0 {
                world.settle();
            }
        }
        world.settle();
    }
}
