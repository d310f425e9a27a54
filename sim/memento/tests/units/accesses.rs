//! Accesses to memory that hardware cannot do without (`sim/rtl` makes them), in rare cases.

use crate::machine::Plain;
use crate::{PROCESS, REGION, allocate, lazy, one_core};
use memento::layout::{CLASSES, arena_bytes, class_range};
use memento::{Access, Config, Exception, Port, Units};

fn core_accesses(machine: &Plain) -> Vec<(Access, u64)> {
    let of_core = machine.accesses.iter().filter(|access| access.0 == Port::Core);
    of_core.map(|&(_, access, physical)| (access, physical)).collect()
}

/// Where the first thread's block has a class's list heads.
fn list_heads(units: &Units, class: usize) -> u64 {
    units.block(PROCESS, 0).unwrap() + 24 * class as u64
}

#[test]
fn a_full_arena_that_a_flush_wrote_back_is_written_with_its_link() {
    let (mut units, mut machine) = one_core(Config { eager: false, ..Config::default() });
    allocate(&mut units, &mut machine, 64, 256);
    let full = units.hot_entry(0, 7).physical;
    units.context_switch(0, 0, 0, &mut machine);
    units.context_switch(0, PROCESS, 0, &mut machine);
    machine.recording = true;
    allocate(&mut units, &mut machine, 64, 1);
    let heads = list_heads(&units, 7);
    assert_eq!(core_accesses(&machine), [(Access::Read, heads), (Access::Read, full), (Access::Write, full)]);
    units.check().unwrap();
}

#[test]
fn an_empty_entrys_list_heads_are_read_before_a_first_arena() {
    let (mut units, mut machine) = one_core(lazy());
    allocate(&mut units, &mut machine, 8, 1);
    machine.recording = true;
    allocate(&mut units, &mut machine, 64, 1);
    assert_eq!(core_accesses(&machine), [(Access::Read, list_heads(&units, 7))]);
    machine.accesses.clear();
    let nowhere = REGION.start + class_range(9, 0).0 + 64;
    assert_eq!(units.obj_free(0, 0, nowhere, 0, &mut machine).exception, Some(Exception::NoArena));
    assert_eq!(core_accesses(&machine), [(Access::Read, list_heads(&units, 9))]);
}

#[test]
fn a_used_up_class_is_noticed_by_its_pointer() {
    let (mut units, mut machine) = one_core(Config { eager: false, ..lazy() });
    let class = CLASSES - 1;
    let (start, end) = class_range(class, 0);
    let arenas = (end - start) / arena_bytes(class);
    allocate(&mut units, &mut machine, 512, 256 * arenas as usize);
    let hits = units.statistics().aac_hits;
    let refused = units.obj_alloc(0, 0, 512, 0, &mut machine);
    assert_eq!(refused.exception, Some(Exception::RegionFull));
    assert_eq!(units.statistics().aac_hits, hits + 1);
}

#[test]
fn a_pointer_follows_its_thread_to_another_core() {
    let (mut units, mut machine) = one_core(lazy());
    units.context_switch(1, PROCESS, 0, &mut machine);
    allocate(&mut units, &mut machine, 64, 1);
    let pointers = units.aac_entry(0).to_vec();
    assert_eq!(pointers, [units.block(PROCESS, 0).unwrap() + 2048 + 8 * 7]);
    for _ in 0..256 {
        units.obj_alloc(1, 0, 64, 0, &mut machine);
    }
    // The newer value is in one entry alone; the older one would hand an arena out twice.
    assert!(units.aac_entry(0).is_empty());
    assert_eq!(units.aac_entry(1), pointers);
    assert_eq!(units.statistics().aac_write_backs, 1);
    assert_eq!(units.statistics().aac_misses, 2);
    units.check().unwrap();
}
