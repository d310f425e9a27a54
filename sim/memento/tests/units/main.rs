//! Each unit's own promises, one test each: latencies, accesses to memory, returned pages.

mod accesses;
#[path = "../machine/mod.rs"]
mod machine;
mod objects;
mod pages;

use machine::Plain;
use memento::layout::{REGION_BYTES, REGION_START, locate};
use memento::{Config, Units};

const POOL: std::ops::Range<u64> = 1 << 36..1 << 37;
const REGION: std::ops::Range<u64> = REGION_START..REGION_START + REGION_BYTES;
const PROCESS: u64 = 0x1000;

fn one_core(config: Config) -> (Units, Plain) {
    let (mut units, mut machine) = (Units::new(&config, 2, POOL), Plain::default());
    units.set_region(0, PROCESS, REGION, 0, &mut machine).unwrap();
    (units, machine)
}

/// A machine whose classes have no arena before their first object, which is simpler to count.
fn lazy() -> Config {
    Config { initialise_all_classes: false, ..Config::default() }
}

fn arena_of(address: u64) -> u64 {
    locate(REGION_START, address).unwrap().arena
}

/// A first access to an address; the physical one.
fn touched(units: &mut Units, machine: &mut Plain, address: u64) -> u64 {
    units.walk(0, address, 0, machine).unwrap().0
}

fn allocate(units: &mut Units, machine: &mut Plain, size: u64, many: usize) -> Vec<u64> {
    (0..many)
        .map(|_| {
            let done = units.obj_alloc(0, 0, size, 0, machine);
            assert_eq!(done.exception, None);
            done.address
        })
        .collect()
}
