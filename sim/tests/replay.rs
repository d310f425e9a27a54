//! A trace of allocations on the allocator units, without a guest.

mod common;

use common::Random;
use sim::Description;
use sim::system::replay::{Object, Replay};
use sim::system::statistics::Statistics;

const ALLOCATIONS: u64 = 20_000;
/// Objects that are alive at once.
const ALIVE: usize = 500;

/// A made-up program: it allocates objects of up to `most` bytes, each of which replaces one of those alive.
fn replayed(machine: &str, overrides: &[&str], most: u64) -> Statistics {
    replayed_by(1, machine, overrides, most)
}

/// The same with so many threads, which take turns.
fn replayed_by(threads: u32, machine: &str, overrides: &[&str], most: u64) -> Statistics {
    let overrides: Vec<_> = overrides.iter().map(|one| one.to_string()).collect();
    let mut replay = Replay::new(&Description::load(machine, &overrides).unwrap()).unwrap();
    let mut random = Random(7);
    let mut alive: Vec<Object> = Vec::new();
    for number in 0..ALLOCATIONS {
        if alive.len() == ALIVE {
            let object = alive.swap_remove(random.next() as usize % ALIVE);
            replay.free(&object).unwrap();
        }
        alive.push(replay.allocate(1 + random.next() % most, number as u32 % threads).unwrap());
    }
    let statistics = replay.finish();
    assert!(statistics.broken.is_empty(), "{:?}", statistics.broken);
    statistics
}

fn get(statistics: &Statistics, name: &str) -> f64 {
    statistics.get(name).unwrap_or_else(|| panic!("no statistic {name}"))
}

fn of_allocator(statistics: &Statistics) -> f64 {
    get(statistics, "cycles_by_owner.allocate") + get(statistics, "cycles_by_owner.free")
}

#[test]
fn software_executes_its_code() {
    let found = replayed("table3", &[], 512);
    let frees = ALLOCATIONS - ALIVE as u64;
    assert_eq!(get(&found, "objects.allocations"), ALLOCATIONS as f64);
    assert_eq!(get(&found, "objects.frees"), frees as f64);
    let each = of_allocator(&found) / (ALLOCATIONS + frees) as f64;
    assert!((3.0..60.0).contains(&each), "{each} cycles a call");
    assert_eq!(get(&found, "branch.returns_mispredicted"), 0.0);
    assert_eq!(get(&found, "page_faults") + get(&found, "kernel_instructions"), 0.0);
}

#[test]
fn memento_allocates_the_small_objects() {
    let found = replayed("memento", &[], 512);
    assert_eq!(get(&found, "memento.allocations"), ALLOCATIONS as f64);
    assert_eq!(get(&found, "memento.frees"), (ALLOCATIONS - ALIVE as u64) as f64);
    assert!(found.get("objects.allocations").is_none(), "none by software");
    let (units, software) = (of_allocator(&found), of_allocator(&replayed("table3", &[], 512)));
    assert!(units < software, "{units} cycles, in software {software}");
    // The HOT has an entry a class, and each thread has arenas of its own.
    let three = of_allocator(&replayed_by(3, "memento", &[], 512));
    assert!(three > 1.5 * units, "{three} cycles with three threads");
    // Of sizes up to 1024 bytes, half.
    let found = replayed("memento", &[], 1024);
    let parts = ["memento.allocations", "objects.allocations"].map(|name| get(&found, name));
    assert_eq!(parts.iter().sum::<f64>(), ALLOCATIONS as f64);
    assert!((parts[0] / ALLOCATIONS as f64 - 0.5).abs() < 0.03, "{parts:?}");
}

#[test]
fn an_ideal_mallacc_pays_for_empty_and_full_stacks() {
    let (software, ideal) = (replayed("table3", &[], 512), replayed("mallacc", &[], 512));
    assert!(of_allocator(&ideal) < 0.5 * of_allocator(&software), "stacks that are empty or full");
    assert!(get(&ideal, "uncharged_instructions") > 10.0 * ALLOCATIONS as f64);
    let large =
        [replayed("table3", &[], 1 << 16), replayed("mallacc", &[], 1 << 16)].map(|one| of_allocator(&one));
    assert!(large[1] > 0.9 * large[0], "it has no large objects: {large:?}");
}

#[test]
fn speedmallocs_core_gets_each_call() {
    let found = replayed("speedmalloc", &[], 512);
    let calls = 2 * ALLOCATIONS - ALIVE as u64;
    assert_eq!(get(&found, "support.requests"), calls as f64);
    let software = replayed("table3", &[], 512);
    let executed = get(&software, "instructions") - get(&found, "instructions");
    // A message each for malloc, its answer and free are the program's core's.
    let messages = (calls + ALLOCATIONS) as f64;
    assert_eq!(get(&found, "support.instructions"), executed + messages);
}

#[test]
fn the_same_trace_gives_the_same_numbers_and_another_machine_others() {
    let text = |overrides: &[&str]| replayed("memento", overrides, 700).text();
    assert_eq!(text(&[]), text(&[]));
    assert_ne!(text(&[]), text(&["llc.latency_cycles=80"]));
}

#[test]
fn objects_do_not_overlap() {
    let mut replay = Replay::new(&Description::load("table3", &[]).unwrap()).unwrap();
    let mut random = Random(9);
    let mut alive: Vec<Object> = Vec::new();
    for _ in 0..5_000 {
        if alive.len() > 300 {
            let object = alive.swap_remove(random.next() as usize % 300);
            replay.free(&object).unwrap();
        }
        let new = replay.allocate(1 << (random.next() % 20), 0).unwrap();
        for other in &alive {
            let [a, b] = [&new, other].map(Object::range);
            assert!(a.end <= b.start || b.end <= a.start, "{new:?} and {other:?}");
        }
        alive.push(new);
    }
}

#[test]
fn several_cores_are_refused() {
    let description = Description::load("table3", &["cores.number=2".to_owned()]).unwrap();
    assert!(Replay::new(&description).is_err_and(|line| line.contains("on one core")));
}
