//! The object allocator: hits and misses, arenas, frees near and far, new lines, switches (Memento §3.1).

use crate::machine::{CONTROLLER_CYCLES, CORE_CYCLES, Plain};
use crate::{PROCESS, REGION, REGION_START, allocate, arena_of, lazy, one_core, touched};
use memento::layout::{arena_bytes, class_range, locate, object_bytes};
use memento::{Access, Config, Exception, NonLocalFree, Port, Units};

#[test]
fn a_hit_takes_two_cycles_and_no_access() {
    let (mut units, mut machine) = one_core(Config::default());
    let first = units.obj_alloc(0, 0, 24, 0, &mut machine);
    machine.recording = true;
    let second = units.obj_alloc(0, 0, 24, 1_000_000, &mut machine);
    assert_eq!((second.at, second.address), (1_000_002, first.address + 24));
    let freed = units.obj_free(0, 0, second.address, 2_000_000, &mut machine);
    assert_eq!((freed.at, freed.exception), (2_000_002, None));
    assert!(machine.accesses.is_empty());
    assert_eq!(units.obj_alloc(0, 0, 17, 0, &mut machine).address, second.address, "the lowest free object");
    units.check().unwrap();
}

#[test]
fn sizes_are_rounded_up_to_eight_bytes_and_refused_beyond_512() {
    let (mut units, mut machine) = one_core(Config::default());
    for size in 1..=512u64 {
        let address = units.obj_alloc(0, 0, size, 0, &mut machine).address;
        assert_eq!(locate(REGION_START, address).unwrap().class as u64, (size - 1) / 8);
    }
    for size in [0, 513, u64::MAX] {
        assert_eq!(units.obj_alloc(0, 0, size, 0, &mut machine).exception, Some(Exception::Size));
    }
    assert_eq!(units.statistics().allocation_exceptions, 3);
    units.check().unwrap();
}

#[test]
fn a_new_thread_gets_an_arena_for_each_class_with_one_page() {
    let (mut units, mut machine) = one_core(Config::default());
    allocate(&mut units, &mut machine, 8, 1);
    assert_eq!(units.statistics().arenas_allocated, 64);
    assert_eq!(units.statistics().pages_allocated, [64, 1, 1], "of the page table, only the root");
    units.check().unwrap();
    let (mut units, mut machine) = one_core(lazy());
    allocate(&mut units, &mut machine, 8, 1);
    assert_eq!(units.statistics().pages_allocated, [1, 1, 1]);
}

#[test]
fn an_untouched_arena_is_mapped_before_the_next_one() {
    let (mut units, mut machine) = one_core(lazy());
    let objects = allocate(&mut units, &mut machine, 48, 300);
    assert_eq!(units.statistics().pages_allocated, [2, 4, 1], "the first one's path");
    assert!(units.lookup(0, objects[0]).is_some() && units.lookup(0, objects[299]).is_none());
    // The second one fills up untouched while the first returns to the HOT; its free finds its header all the
    // same.
    units.obj_free(0, 0, objects[3], 0, &mut machine);
    let rest = allocate(&mut units, &mut machine, 48, 212);
    units.obj_free(0, 0, rest[100], 0, &mut machine);
    assert_eq!(units.statistics().free_misses, 2);
    assert_eq!(units.statistics().pages_allocated[0], 2);
    for address in objects.iter().chain(&rest).filter(|address| ![objects[3], rest[100]].contains(address)) {
        assert_eq!(units.obj_free(0, 0, *address, 0, &mut machine).exception, None);
    }
    assert_eq!(units.statistics().arenas_freed, 1);
    units.check().unwrap();
}

#[test]
fn eager_loading_hides_the_next_arena_from_the_program() {
    for (eager, misses) in [(true, 0), (false, 1)] {
        let (mut units, mut machine) = one_core(Config { eager, ..Config::default() });
        allocate(&mut units, &mut machine, 64, 1);
        let late: u64 = 1 << 40;
        for object in 1..256 {
            let done = units.obj_alloc(0, 0, 64, late + object * 1000, &mut machine);
            assert_eq!(done.at - late - object * 1000, 2, "object {object}");
        }
        let far = late + 1_000_000;
        let next = units.obj_alloc(0, 0, 64, far, &mut machine);
        assert_eq!(next.at - far > 2, !eager, "the 257th object waits only without eager loading");
        assert_eq!(next.address, REGION_START + class_range(7, 0).0 + arena_bytes(7) + 64);
        assert_eq!(units.statistics().allocation_misses, misses);
        units.check().unwrap();
        // Asked for at once, it is not there yet.
        let rest = allocate(&mut units, &mut machine, 64, 254);
        assert_eq!(rest.len(), 254);
        let last = units.obj_alloc(0, 0, 64, far, &mut machine);
        assert_eq!(last.at, far + 2);
        let soon = units.obj_alloc(0, 0, 64, last.at, &mut machine);
        assert!(soon.at > last.at + CONTROLLER_CYCLES, "the page allocator works for some time");
    }
}

#[test]
fn a_free_in_another_arena_works_in_the_background() {
    for (background, waits) in [(true, false), (false, true)] {
        let config = Config { background_free_misses: background, ..Config::default() };
        let (mut units, mut machine) = one_core(config);
        let objects = allocate(&mut units, &mut machine, 32, 300);
        machine.recording = true;
        let done = units.obj_free(0, 0, objects[0], 5_000_000, &mut machine);
        assert_eq!(done.at > 5_000_002, waits);
        let header = touched(&mut units, &mut machine, objects[0] & !0xfff);
        assert!(machine.accesses.contains(&(Port::Core, Access::Read, header)));
        assert!(machine.accesses.contains(&(Port::Core, Access::Write, header)));
        assert_eq!((units.statistics().free_misses, units.statistics().frees_with_list_operations), (1, 1));
        units.check().unwrap();
    }
}

#[test]
fn an_arena_that_was_full_is_allocated_from_before_a_new_one() {
    let (mut units, mut machine) = one_core(Config::default());
    let objects = allocate(&mut units, &mut machine, 48, 512);
    units.obj_free(0, 0, objects[100], 0, &mut machine);
    units.obj_free(0, 0, objects[300], 0, &mut machine);
    let rest = allocate(&mut units, &mut machine, 48, 256);
    let refilled = allocate(&mut units, &mut machine, 48, 2);
    assert!(!rest.contains(&objects[100]));
    assert_eq!(refilled, [objects[300], objects[100]], "the latest in the list comes first");
    units.check().unwrap();
}

#[test]
fn a_context_switch_writes_entries_back_and_loads_them_again() {
    let (mut units, mut machine) = one_core(lazy());
    units.set_region(1, 0x2000, REGION, 0, &mut machine).unwrap();
    let objects = allocate(&mut units, &mut machine, 64, 3);
    let header = touched(&mut units, &mut machine, objects[0]) & !0xfff;
    machine.recording = true;
    assert!(units.context_switch(0, 0x2000, 100, &mut machine) > 100);
    assert!(machine.accesses.contains(&(Port::Core, Access::Write, header)));
    assert_eq!(units.statistics().hot_flushed_entries, 1);
    assert_eq!(units.context_switch(0, 0x2000, 100, &mut machine), 100, "the same process: nothing to do");
    units.context_switch(0, PROCESS, 0, &mut machine);
    machine.accesses.clear();
    let done = units.obj_alloc(0, 0, 64, 1000, &mut machine);
    assert_eq!((done.address, done.at), (objects[2] + 64, 1000 + 2 * CORE_CYCLES + 2));
    assert_eq!(machine.accesses.len(), 2, "list heads, header");
    units.check().unwrap();
}

#[test]
fn double_frees_raise_an_exception_hit_or_miss() {
    let (mut units, mut machine) = one_core(Config::default());
    let objects = allocate(&mut units, &mut machine, 40, 300);
    for object in [objects[299], objects[5]] {
        assert_eq!(units.obj_free(0, 0, object, 0, &mut machine).exception, None);
        assert_eq!(units.obj_free(0, 0, object, 0, &mut machine).exception, Some(Exception::DoubleFree));
    }
    for (wrong, why) in [
        (objects[7] + 8, Exception::NotAnObject),
        (REGION_START, Exception::NotAnObject),
        (REGION_START - 1, Exception::NotInRegion),
        (REGION.end, Exception::NotInRegion),
        (objects[7] + 16 * arena_bytes(4), Exception::NoArena),
    ] {
        assert_eq!(units.obj_free(0, 0, wrong, 0, &mut machine).exception, Some(why), "{wrong:#x}");
    }
    assert_eq!(units.statistics().double_frees, 2);
    units.check().unwrap();
}

#[test]
fn another_cores_free_takes_the_header_out_of_the_owners_hot() {
    let (mut units, mut machine) = one_core(Config::default());
    units.context_switch(1, PROCESS, 0, &mut machine);
    let objects = allocate(&mut units, &mut machine, 64, 300);
    machine.recording = true;
    assert_eq!(units.obj_free(1, 1, objects[299], 0, &mut machine).exception, None);
    let exclusive: Vec<_> = machine.accesses.iter().filter(|access| access.1 == Access::Exclusive).collect();
    let header = units.lookup(0, arena_of(objects[299])).expect("the free's walk has mapped it");
    assert_eq!(exclusive, [&(Port::Core, Access::Exclusive, header)]);
    assert_eq!((units.statistics().non_local_frees, units.statistics().hot_invalidations), (1, 1));
    // The owner sees the free.
    assert_eq!(allocate(&mut units, &mut machine, 64, 1)[0], objects[299]);
    // And an arena that was full returns to its owner's list.
    assert_eq!(units.obj_free(1, 1, objects[9], 0, &mut machine).exception, None);
    allocate(&mut units, &mut machine, 64, 212);
    assert_eq!(allocate(&mut units, &mut machine, 64, 1)[0], objects[9]);
    units.check().unwrap();
}

#[test]
fn batched_frees_wait_for_a_full_buffer_or_a_context_switch() {
    let config = Config { non_local_free: NonLocalFree::Batch, batch_objects: 4, ..lazy() };
    let (mut units, mut machine) = one_core(config);
    units.set_region(1, 0x2000, REGION, 0, &mut machine).unwrap();
    units.context_switch(1, PROCESS, 0, &mut machine);
    let objects = allocate(&mut units, &mut machine, 64, 10);
    for &object in &objects[..3] {
        units.obj_free(1, 1, object, 0, &mut machine);
    }
    assert_eq!((units.live_objects(), units.batched(PROCESS, 1)), (10, 3));
    let full = units.obj_free(1, 1, objects[3], 0, &mut machine);
    assert!(full.at > units.config().batch_signal_cycles);
    assert_eq!((units.live_objects(), units.statistics().batches), (6, 1));
    units.obj_free(1, 1, objects[4], 0, &mut machine);
    units.context_switch(1, 0x2000, 0, &mut machine);
    assert_eq!((units.live_objects(), units.statistics().batches), (5, 2));
    // A wrong free is found when the buffer is emptied, and counts once.
    units.context_switch(1, PROCESS, 0, &mut machine);
    let outcomes = [4, 5, 6, 6].map(|index| units.obj_free(1, 1, objects[index], 0, &mut machine).exception);
    assert_eq!(outcomes, [None, None, None, Some(Exception::DoubleFree)]);
    assert_eq!((units.live_objects(), units.statistics().double_frees), (3, 2));
    units.check().unwrap();
}

#[test]
fn new_lines_bypass_memory_once() {
    let (mut units, mut machine) = one_core(Config::default());
    let objects = allocate(&mut units, &mut machine, 64, 4);
    assert!(
        units.touch(0, objects[0]) && !units.touch(0, objects[0] + 63),
        "the first body line is new, once"
    );
    assert!(units.touch(0, objects[2]));
    assert!(!units.touch(0, objects[1]), "lines below the counter do not count as new");
    // Freed and allocated again, the highest line is new again; a lower one is not.
    for object in [objects[2], objects[0]] {
        units.obj_free(0, 0, object, 0, &mut machine);
        allocate(&mut units, &mut machine, 64, 1);
    }
    assert!(units.touch(0, objects[2]));
    assert!(!units.touch(0, objects[0]));
    assert!(!units.touch(0, REGION_START - 64));
}

#[test]
fn a_line_with_a_live_neighbour_is_not_new_after_a_free() {
    let (mut units, mut machine) = one_core(Config::default());
    let objects = allocate(&mut units, &mut machine, 16, 4);
    assert!(units.touch(0, objects[1]));
    units.obj_free(0, 0, objects[1], 0, &mut machine);
    allocate(&mut units, &mut machine, 16, 1);
    assert!(!units.touch(0, objects[1]), "objects 0, 2 and 3 share the line");
}

#[test]
fn the_last_line_of_the_largest_class_never_bypasses() {
    let (mut units, mut machine) = one_core(Config { eager: false, ..Config::default() });
    let objects = allocate(&mut units, &mut machine, 512, 256);
    let end = objects[255] + object_bytes(63);
    assert!(!units.touch(0, end - 64), "line 2048 does not fit 11 bits");
    assert!(units.touch(0, end - 128));
}

#[test]
fn switches_replace_hardware_time_by_softwares() {
    let config = Config { object_alloc: false, object_free: false, bypass: false, ..Config::default() };
    let (mut units, mut machine) = one_core(config.clone());
    let done = units.obj_alloc(0, 0, 64, 100, &mut machine);
    assert_eq!(done.at, 100 + config.software_alloc_cycles);
    assert!(!units.touch(0, done.address));
    assert_eq!(units.obj_free(0, 0, done.address, 100, &mut machine).at, 100 + config.software_free_cycles);
    let (mut units, mut machine) =
        one_core(Config { page_management: false, walks_by_page_allocator: false, ..Config::default() });
    let object = allocate(&mut units, &mut machine, 512, 20)[19];
    let (_, done) = units.walk(0, object, 0, &mut machine).unwrap();
    assert!(
        done >= config.software_page_fault_cycles
            && done < config.software_page_fault_cycles + 10 * CORE_CYCLES
    );
    // The first page of an arena is a page fault too, tables and all; once.
    let first = allocate(&mut units, &mut machine, 8, 1)[0];
    let (_, done) = units.walk(0, first, 0, &mut machine).unwrap();
    assert!(done >= config.software_page_fault_cycles);
    let (_, done) = units.walk(0, first, 0, &mut machine).unwrap();
    assert!(done <= 4 * CORE_CYCLES);
}

#[test]
fn the_aac_holds_the_pointers_in_use() {
    let (mut units, mut machine) = one_core(Config { aac_pointers: 4, ..lazy() });
    for size in [8, 16, 24, 32, 8, 16, 24, 32, 40, 48] {
        allocate(&mut units, &mut machine, size, 256);
    }
    let counted = units.statistics();
    // The first four classes: a miss for the first arena, hits for the eager ones.
    assert_eq!(counted.aac_misses, 6);
    assert_eq!(counted.aac_hits + counted.aac_misses, counted.arenas_allocated);
    assert_eq!(counted.aac_write_backs, 2);
    // By default it has room for seven: eight classes that take turns never hit.
    let (mut units, mut machine) = one_core(Config { eager: false, ..lazy() });
    for _ in 0..4 {
        for class in 1..=8 {
            allocate(&mut units, &mut machine, 8 * class, 256);
        }
    }
    assert_eq!((units.statistics().aac_hits, units.statistics().aac_misses), (0, 32));
}

#[test]
fn entries_are_flushed_side_by_side() {
    let flush = |classes: u64| {
        let (mut units, mut machine) = one_core(lazy());
        units.set_region(1, 0x2000, REGION, 0, &mut machine).unwrap();
        for class in 0..classes {
            units.obj_alloc(0, 0, 8 * (class + 1), 0, &mut machine);
        }
        let done = units.context_switch(0, 0x2000, 1_000_000, &mut machine) - 1_000_000;
        assert_eq!(units.statistics().hot_flushed_entries, classes);
        assert_eq!(units.statistics().hot_flush_cycles, done);
        done
    };
    assert_eq!(flush(1), 2 * CORE_CYCLES, "the header, and the list heads");
    assert_eq!(flush(20), 2 * CORE_CYCLES + 19, "one more entry is issued each cycle");
}

#[test]
fn background_frees_are_limited() {
    let config = Config { background_frees: 2, ..lazy() };
    let (mut units, mut machine) = one_core(config);
    let objects = allocate(&mut units, &mut machine, 64, 600);
    touched(&mut units, &mut machine, objects[0]);
    let at = 1_000_000;
    let free = |units: &mut Units, machine: &mut Plain, object: usize| {
        units.obj_free(0, 0, objects[object], at, machine).at - at
    };
    free(&mut units, &mut machine, 3);
    assert_eq!(free(&mut units, &mut machine, 4), 2, "the second has room");
    assert!(free(&mut units, &mut machine, 5) > 2, "the third waits for the first");
    assert!(units.statistics().background_wait_cycles > 0);
    assert_eq!(units.obj_free(0, 0, objects[6], at + 10_000, &mut machine).at, at + 10_002, "all are done");
}

#[test]
fn an_arena_of_whole_pages_has_its_header_in_place_of_its_last_objects() {
    let pages = |size: u64, whole_pages: bool| {
        let (mut units, mut machine) = one_core(Config { whole_pages, ..lazy() });
        let objects = allocate(&mut units, &mut machine, size, 2560);
        for address in &objects {
            touched(&mut units, &mut machine, *address);
            touched(&mut units, &mut machine, *address + size - 1);
        }
        let taken = units.statistics().pages_allocated[0];
        for address in objects {
            assert_eq!(units.obj_free(0, 0, address, 0, &mut machine).exception, None);
        }
        assert_eq!(units.live_objects(), 0);
        assert_eq!(units.statistics().arenas_freed, 10, "all but the one that is allocated from");
        units.check().unwrap();
        taken
    };
    // Ten arenas of 256: a page and 64 bytes each, or eleven of 252. The last is loaded eagerly, if one is
    // full.
    assert_eq!((pages(16, false), pages(16, true)), (2 * 10 + 1, 11));
    assert_eq!((pages(32, false), pages(32, true)), (3 * 10 + 1, 2 * 10 + 1));
    // Those of 24 bytes leave room for their header.
    assert_eq!((pages(24, false), pages(24, true)), (2 * 10 + 1, 2 * 10 + 1));
}

#[test]
fn an_object_without_room_is_never_allocated() {
    let (mut units, mut machine) = one_core(Config { whole_pages: true, ..lazy() });
    let first = allocate(&mut units, &mut machine, 16, 1)[0];
    let freed = units.obj_free(0, 0, first + 252 * 16, 0, &mut machine);
    assert_eq!(freed.exception, Some(Exception::DoubleFree));
    let rest = allocate(&mut units, &mut machine, 16, 252);
    assert_eq!(rest[250], first + 251 * 16);
    assert_eq!(rest[251], first + arena_bytes(1), "the next arena's first");
}

#[test]
fn how_full_arenas_are_is_counted_in_slots_and_in_bytes() {
    let (mut units, mut machine) = one_core(Config::default());
    assert_eq!(units.occupancy(), memento::Occupancy::default(), "no thread has allocated");
    let small = allocate(&mut units, &mut machine, 8, 300);
    allocate(&mut units, &mut machine, 512, 2);
    units.obj_free(0, 0, small[7], 0, &mut machine);
    let full = units.occupancy();
    // An arena of each of 64 classes, and a second one of the smallest.
    assert_eq!((full.slots, full.slots_in_use, full.objects), (65 * 256, 3 * 256, 301));
    let classes: u64 = (1..=64).map(|class| class * 8 * 256).sum();
    assert_eq!((full.slot_bytes, full.object_bytes), (classes + 8 * 256, 299 * 8 + 2 * 512));
    units.process_exit(PROCESS, 0, &mut machine);
    assert_eq!(units.occupancy(), memento::Occupancy::default());
}
