//! Replays a journal of libmemento.so (MEMENTO_JOURNAL=FILE) through the hardware units and through the
//! reference model. The shim's addresses and outcomes, the units' and the reference's must all be the same;
//! the first difference is shown with the number of its operation, and the exit status is 1.
//!
//! Otherwise it prints how often the HOT was hit, how often by frees of young and of old objects, and which
//! size has the most allocations that change an arena list (Fig. 13). An object is old after as many
//! allocations of its class as an arena has objects.

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

use memento::journal::{Journal, Kind, Record};
use memento::layout::{OBJECTS, REGION_BYTES, REGION_START, locate};
use memento::reference::Reference;
use memento::{Access, Exception, MemorySystem, NonLocalFree, Port, Units};

const PROCESS: u64 = 1;
const CORES: usize = 4;
const POOL: std::ops::Range<u64> = 1 << 36..1 << 40;

/// Latencies do not matter here.
struct Timeless;

impl MemorySystem for Timeless {
    fn access(&mut self, _: usize, _: Port, _: Access, _: u64, at: u64) -> u64 {
        at + 1
    }
    fn instantiate(&mut self, _: usize, _: Port, _: u64, at: u64) -> u64 {
        at + 1
    }
    fn tlb_lookup(&mut self, _: usize, _: u64, at: u64) -> (Option<u64>, u64) {
        (None, at)
    }
    fn tlb_fill(&mut self, _: usize, _: u64, _: u64) {}
    fn shootdown(&mut self, _: usize, _: u64) {}
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        eprintln!(
            "usage: memento-replay JOURNAL   (made by MEMENTO_JOURNAL=FILE LD_PRELOAD=libmemento.so PROGRAM)"
        );
        return ExitCode::from(2);
    };
    match replay(&path) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("memento-replay: {path}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn replay(path: &str) -> Result<String, String> {
    let journal = Journal::open(path)?;
    let (config, records) = (journal.config.clone(), journal.records);
    let mut replay = Replay {
        units: Units::new(&config, CORES, POOL),
        reference: Reference::new(REGION_START, &config),
        batches: vec![Vec::new(); memento::layout::LANES],
        batching: config.non_local_free == NonLocalFree::Batch,
        born: HashMap::new(),
        allocations: HashMap::new(),
        lists: BTreeMap::new(),
        ages: [Age::default(); 2],
    };
    let region = REGION_START..REGION_START + REGION_BYTES;
    replay.units.set_region(0, PROCESS, region, 0, &mut Timeless).map_err(|why| why.to_string())?;
    for core in 1..CORES {
        replay.units.context_switch(core, PROCESS, 0, &mut Timeless);
    }
    for (number, record) in journal.enumerate() {
        record.and_then(|record| replay.one(&record)).map_err(|why| format!("operation {number}: {why}"))?;
    }
    replay.units.check()?;
    let counted = replay.units.statistics();
    let live = replay.reference.live_objects() as u64;
    if live != replay.units.live_objects() {
        return Err(format!("{live} objects are live, the units hold {}", replay.units.live_objects()));
    }
    let (size, most) = replay.lists.iter().max_by_key(|(_, count)| **count).unwrap_or((&0, &0));
    Ok(format!(
        "{records} operations agree: {} allocations ({:.2}% HOT hits; {} change lists, {most} of \
         those of {size} bytes), {} frees ({:.2}% HOT hits, {} non-local; within {OBJECTS} \
         allocations {}, later {}), {live} live",
        counted.allocations,
        100.0 * counted.allocation_hit_rate(),
        counted.allocations_with_list_operations,
        counted.frees,
        100.0 * counted.free_hit_rate(),
        counted.non_local_frees + counted.batched_frees,
        replay.ages[0],
        replay.ages[1],
    ))
}

/// Frees of one age.
#[derive(Clone, Copy, Default)]
struct Age {
    frees: u64,
    hits: u64,
}

impl std::fmt::Display for Age {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(formatter, "{:.2}% of {}", 100.0 * self.hits as f64 / self.frees.max(1) as f64, self.frees)
    }
}

struct Replay {
    units: Units,
    reference: Reference,
    batches: Vec<Vec<u64>>,
    batching: bool,
    /// By object: its size, and the allocations of that size before it; by size: those until now.
    born: HashMap<u64, (u64, u64)>,
    allocations: HashMap<u64, u64>,
    /// By size: allocations with list operations.
    lists: BTreeMap<u64, u64>,
    /// Of frees: young and old.
    ages: [Age; 2],
}

impl Replay {
    fn one(&mut self, record: &Record) -> Result<(), String> {
        let Record { kind, lane, size, outcome, address } = *record;
        let core = lane % CORES;
        match kind {
            Kind::Allocate => {
                let lists = self.units.statistics().allocations_with_list_operations;
                let units = self.units.obj_alloc(core, lane, size, 0, &mut Timeless).address;
                *self.lists.entry(size).or_default() +=
                    self.units.statistics().allocations_with_list_operations - lists;
                let reference = self.reference.allocate(lane, size).unwrap_or(0);
                if [units, reference] != [address; 2] {
                    return Err(format!(
                        "obj-alloc of {size} bytes by lane {lane}: the shim returned {address:#x}, the units {units:#x}, the \
                         reference {reference:#x}"
                    ));
                }
                let before = self.allocations.entry(size).or_default();
                self.born.insert(address, (size, *before));
                *before += 1;
            }
            Kind::Free => {
                let place = locate(REGION_START, address);
                if self.batching && place.is_ok_and(|place| place.lane != lane) {
                    // The free that fills a buffer empties it.
                    self.units.obj_free(core, lane, address, 0, &mut Timeless);
                    self.batches[lane].push(address);
                    let is_full = self.batches[lane].len() == self.units.config().batch_objects;
                    return if is_full { self.empty_batch(lane) } else { Ok(()) };
                }
                let hits = self.units.statistics().free_hits;
                let units = code(self.units.obj_free(core, lane, address, 0, &mut Timeless).exception);
                if let Some((size, before)) = self.born.remove(&address) {
                    let age = &mut self.ages[usize::from(self.allocations[&size] - before > OBJECTS as u64)];
                    age.frees += 1;
                    age.hits += self.units.statistics().free_hits - hits;
                }
                let reference = code(self.reference.free(address).err());
                if [units, reference] != [outcome; 2] {
                    return Err(format!(
                        "obj-free of {address:#x} by lane {lane}: outcomes {outcome} (shim), {units} (units), {reference} \
                         (reference)"
                    ));
                }
            }
            Kind::Batch => {
                self.units.drain(core, lane, 0, &mut Timeless);
                self.empty_batch(lane)?;
            }
        }
        Ok(())
    }

    fn empty_batch(&mut self, lane: usize) -> Result<(), String> {
        for address in std::mem::take(&mut self.batches[lane]) {
            self.reference.free(address).map_err(|why| format!("batched free of {address:#x}: {why}"))?;
        }
        Ok(())
    }
}

/// The shim's number for an outcome.
fn code(exception: Option<Exception>) -> u32 {
    match exception {
        None => 0,
        Some(Exception::NotAnObject | Exception::NotInRegion) => 1,
        Some(Exception::DoubleFree) => 3,
        Some(_) => 2,
    }
}
