//! The page allocator: walks, tables, pages and shoot-downs, and returned pages (Memento §3.2).

use crate::machine::{CONTROLLER_CYCLES, CORE_CYCLES, Plain};
use crate::{POOL, PROCESS, REGION, allocate, lazy, one_core, touched};
use memento::layout::{PAGE_BYTES, arena_bytes, class_range};
use memento::page_table::READ_WRITE_NO_EXECUTE;
use memento::{Access, Config, Exception, Port, Units};

#[test]
fn the_page_table_is_built_by_walks() {
    let (mut units, mut machine) = one_core(Config::default());
    let objects: Vec<u64> =
        (1..=64).map(|class| allocate(&mut units, &mut machine, class * 8, 1)[0]).collect();
    machine.recording = true;
    let physical = touched(&mut units, &mut machine, objects[7]);
    // The page of the header, which was there: no other is taken.
    assert_eq!(units.statistics().pages_allocated, [64, 4, 1], "a leaf table and those above it");
    assert_eq!((units.statistics().first_touches, physical % PAGE_BYTES), (0, objects[7] % PAGE_BYTES));
    assert_eq!(units.lookup(0, objects[7]), Some(physical));
    assert_eq!(units.lookup(0, objects[6]), None, "the page table has pages that a walk has requested");
    for &object in &objects {
        touched(&mut units, &mut machine, object);
    }
    // A leaf table for each class, four above for all, which are 4 GiB together, one above that; the root.
    assert_eq!(units.statistics().pages_allocated, [64, 64 + 4 + 1 + 1, 1]);
    assert_eq!(units.statistics().first_touches, 0);
    // The header that the HOT writes back is at the physical address that the walk found.
    machine.accesses.clear();
    units.context_switch(0, 0x2000, 0, &mut machine);
    assert!(machine.accesses.contains(&(Port::Core, Access::Write, physical & !0xfff)));
    units.check().unwrap();
}

#[test]
fn an_empty_arena_goes_back_with_its_pages_and_tables() {
    let (mut units, mut machine) = one_core(lazy());
    let first = allocate(&mut units, &mut machine, 512, 256);
    // The arena after it keeps its table from being empty.
    let next = allocate(&mut units, &mut machine, 512, 1)[0];
    touched(&mut units, &mut machine, next);
    for &object in &first {
        units.walk(0, object, 0, &mut machine).unwrap();
        units.walk(0, object + 511, 0, &mut machine).unwrap();
    }
    assert_eq!(units.statistics().first_touches, 32, "all pages of the arena but the first");
    let before = units.statistics().clone();
    for &object in &first {
        units.obj_free(0, 0, object, 0, &mut machine);
    }
    assert_eq!(units.statistics().arenas_freed, 1);
    assert_eq!(units.statistics().pages_freed[0], 33);
    assert_eq!(units.statistics().pages_held(), before.pages_held() - 33);
    assert_eq!(units.lookup(0, first[0]), None);
    assert_eq!(units.obj_free(0, 0, first[0], 0, &mut machine).exception, Some(Exception::NoArena));
    units.check().unwrap();
}

#[test]
fn page_tables_without_valid_entries_are_freed() {
    let (mut units, mut machine) = one_core(lazy());
    // 33 pages an arena: the 16th crosses into the second leaf table.
    let objects = allocate(&mut units, &mut machine, 512, 256 * 40);
    let last = allocate(&mut units, &mut machine, 512, 1)[0];
    touched(&mut units, &mut machine, last);
    let tables = units.statistics().pages_allocated[1];
    for &object in &objects {
        assert_eq!(units.obj_free(0, 0, object, 0, &mut machine).exception, None);
    }
    assert!(tables > 5);
    assert_eq!(tables - units.statistics().pages_freed[1], 4, "a path to the arena in the HOT is left");
    units.check().unwrap();
}

#[test]
fn freed_pages_are_the_next_to_be_used() {
    let (mut units, mut machine) = one_core(lazy());
    let objects = allocate(&mut units, &mut machine, 8, 256);
    let page = touched(&mut units, &mut machine, objects[0]) & !0xfff;
    for &object in &objects {
        units.obj_free(0, 0, object, 0, &mut machine);
    }
    let other = allocate(&mut units, &mut machine, 8, 256);
    let reused = allocate(&mut units, &mut machine, 8, 1);
    assert_ne!(other[0], objects[0]);
    assert_eq!(touched(&mut units, &mut machine, reused[0]) & !0xfff, page);
}

#[test]
fn every_page_is_readable_writable_and_not_executable() {
    let (mut units, mut machine) = one_core(lazy());
    let object = allocate(&mut units, &mut machine, 512, 9)[8];
    let (physical, _) = units.walk(0, object, 0, &mut machine).unwrap();
    assert_eq!(physical % PAGE_BYTES, object % PAGE_BYTES);
    let entry = units.leaf_entry(0, object).unwrap();
    assert_eq!(entry, physical & !0xfff | READ_WRITE_NO_EXECUTE);
    assert_eq!(entry >> 63, 1);
}

#[test]
fn only_cores_that_walked_are_shot_down() {
    let (mut units, mut machine) = one_core(lazy());
    units.context_switch(1, PROCESS, 0, &mut machine);
    let objects = allocate(&mut units, &mut machine, 64, 512);
    let page = objects[0] & !0xfff;
    for (core, lane) in [(0, 0), (1, 1)] {
        if core == 1 {
            let (physical, _) = units.walk(core, page, 0, &mut machine).unwrap();
            memento::MemorySystem::tlb_fill(&mut machine, core, page, physical);
            units.obj_alloc(core, lane, 8, 0, &mut machine);
        }
    }
    for &object in &objects[..256] {
        units.obj_free(0, 0, object, 0, &mut machine);
    }
    assert!(!machine.tlbs.contains_key(&(1, page / 4096)));
    // Core 0 walked for its free's translation, core 1 for its access.
    assert_eq!(units.statistics().shootdowns, 2 * units.statistics().pages_freed[0]);
    units.check().unwrap();
}

#[test]
fn a_process_that_exits_gives_everything_back() {
    let (mut units, mut machine) = one_core(Config::default());
    allocate(&mut units, &mut machine, 100, 5000);
    units.process_exit(PROCESS, 0, &mut machine);
    assert_eq!((units.statistics().pages_held(), units.live_objects()), (0, 0));
    assert_eq!(units.statistics().objects_released, 5000);
    assert_eq!(units.obj_alloc(0, 0, 8, 0, &mut machine).exception, Some(Exception::NoRegion));
    units.check().unwrap();
}

#[test]
fn memory_and_addresses_run_out_with_an_exception() {
    let config = lazy();
    let (mut units, mut machine) =
        (Units::new(&config, 1, 1 << 36..(1 << 36) + 8 * PAGE_BYTES), Plain::default());
    units.set_region(0, PROCESS, REGION, 0, &mut machine).unwrap();
    // Besides the root and the thread's block, five arenas of a page, and a page for a table, where a walk
    // needs three.
    let objects: Vec<u64> =
        (1..=5).map(|class| allocate(&mut units, &mut machine, class * 8, 1)[0]).collect();
    assert_eq!(units.walk(0, objects[0], 0, &mut machine), Err(Exception::OutOfMemory));
    assert_eq!(units.obj_alloc(0, 0, 512, 0, &mut machine).exception, Some(Exception::OutOfMemory));
    units.check().unwrap();
    let (mut units, mut machine) = one_core(lazy());
    let (start, end) = class_range(63, 0);
    let arenas = ((end - start) / arena_bytes(63)) as usize;
    allocate(&mut units, &mut machine, 512, arenas * 256);
    assert_eq!(units.obj_alloc(0, 0, 512, 0, &mut machine).exception, Some(Exception::RegionFull));
    assert_eq!(units.set_region(0, 9, 0..4096, 0, &mut machine), Err(Exception::NoRegion));
}

/// "From low to tens of MBs" (§5) may be of one class, whose addresses are handed out once.
#[test]
fn a_class_has_addresses_for_a_functions_memory() {
    let (mut units, mut machine) = one_core(lazy());
    allocate(&mut units, &mut machine, 512, (60 << 20) / 512);
    // And of objects that are freed soon, whose arenas are returned.
    for _ in 0..(60 << 20) / 512 / 256 {
        let objects = allocate(&mut units, &mut machine, 480, 257);
        for object in objects {
            assert_eq!(units.obj_free(0, 0, object, 0, &mut machine).exception, None);
        }
    }
}

#[test]
fn walks_go_to_the_page_allocator_or_through_the_cores_caches() {
    for by_allocator in [true, false] {
        let config = Config { walks_by_page_allocator: by_allocator, ..lazy() };
        let (mut units, mut machine) = one_core(config.clone());
        let object = allocate(&mut units, &mut machine, 8, 1)[0];
        touched(&mut units, &mut machine, object);
        machine.recording = true;
        let (_, done) = units.walk(0, object, 1000, &mut machine).unwrap();
        let (port, cycles) = if by_allocator {
            (Port::Controller, config.request_cycles + CONTROLLER_CYCLES)
        } else {
            (Port::Core, CORE_CYCLES)
        };
        assert_eq!(done, 1000 + cycles, "the leaf's entry alone: its table is known");
        assert!(matches!(machine.accesses[..], [(its, Access::Read, _)] if its == port));
    }
}

#[test]
fn an_invalid_entry_costs_a_request_to_the_page_allocator() {
    let walk = |request_cycles: u64| {
        let config = Config { request_cycles, walks_by_page_allocator: false, ..lazy() };
        let (mut units, mut machine) = one_core(config);
        let objects = allocate(&mut units, &mut machine, 512, 9);
        touched(&mut units, &mut machine, objects[0]);
        // Another page of the same arena: its leaf entry is the only one that is invalid.
        units.walk(0, objects[8], 1000, &mut machine).unwrap().1
    };
    assert_eq!(walk(140) - walk(40), 100);
}

#[test]
fn a_walk_cache_forgets_tables_that_are_freed() {
    let (mut units, mut machine) = one_core(lazy());
    // The second arena is not full, so that there is no third, for which its first page would get into the
    // table.
    let objects = allocate(&mut units, &mut machine, 64, 300);
    for &object in &objects[..256] {
        touched(&mut units, &mut machine, object);
        units.obj_free(0, 0, object, 0, &mut machine);
    }
    assert_eq!(units.statistics().pages_freed[1], 3, "the root alone is left");
    // The class's only table with a valid entry was freed with its first arena, and its page is the next to
    // be taken.
    let reused = allocate(&mut units, &mut machine, 512, 600);
    for &object in reused.iter().chain(&objects[256..]) {
        let (physical, _) = units.walk(0, object, 0, &mut machine).unwrap();
        assert_eq!(units.lookup(0, object), Some(physical), "{object:#x}");
    }
    units.check().unwrap();
}

#[test]
fn pages_are_cleared_when_that_is_wanted() {
    for clear_pages in [false, true] {
        let (mut units, mut machine) = one_core(Config { clear_pages, ..lazy() });
        machine.recording = true;
        let object = allocate(&mut units, &mut machine, 8, 1)[0];
        let page = touched(&mut units, &mut machine, object) & !0xfff;
        let cleared = machine.accesses.iter().filter(|(port, access, line)| {
            (*port, *access) == (Port::Controller, Access::Write) && line & !0xfff == page
        });
        assert_eq!(cleared.count(), if clear_pages { 64 } else { 0 });
        assert_eq!(units.statistics().cleared_pages, u64::from(clear_pages));
    }
}

#[test]
fn a_regions_first_pages_take_the_oss_time() {
    let config = lazy();
    let (mut units, mut machine) = (Units::new(&config, 2, POOL), Plain::default());
    let done = units.set_region(0, PROCESS, REGION, 1000, &mut machine).unwrap();
    let refill = config.refill_cycles + config.refill_pages * config.refill_page_cycles;
    assert_eq!(units.statistics().refill_cycles, refill);
    assert!(done >= 1000 + refill, "the root's page is the first from the pool");
    let exit = units.process_exit(PROCESS, 5000, &mut machine);
    assert!(exit >= 5000 + config.request_cycles);
}
