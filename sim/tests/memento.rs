//! Memento's units in the machine: the cost of an operation and of a line that was never used, and the report
//! of a shim whose addresses are wrong.

mod common;
use common::*;
use iced_x86::code_asm::*;
use memento::layout::{REGION_BYTES, REGION_START};
use sim::Access;
use sim::base::cause::Owner;

fn bench(overrides: &[&str]) -> Bench {
    let mut bench = Bench::of("memento", overrides);
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    bench
}

/// The address that the units will give: as the shim would have computed it.
fn shim_allocate(bench: &mut Bench, size: u64) -> u64 {
    let wrong = bench.machine.allocate(size, 0).unwrap_err();
    let text = wrong.rsplit("units' 0x").next().unwrap();
    u64::from_str_radix(text, 16).unwrap()
}

#[test]
fn an_operation_takes_two_cycles_and_a_chain_of_them_adds_up() {
    let mut bench = bench(&[]);
    let first = shim_allocate(&mut bench, 64);
    bench.machine.free(first, 0, false).unwrap();
    bench.machine.start_region();
    // Free and allocate the same object over and over: always a HOT hit.
    for _ in 0..10_000 {
        bench.machine.allocate(64, first).unwrap();
        bench.machine.free(first, 0, false).unwrap();
    }
    assert_eq!(bench.machine.counts.unit_operations, 20_000);
    let cycles = bench.machine.cycles() as f64;
    // They do not depend on one another: bound by the load ports, two a cycle.
    assert!(cycles < 12_000.0, "{cycles}");
    assert_eq!(bench.statistic("memento.free_misses"), 0.0);
    // Counted from the region's start: not the initialisation before.
    assert_eq!(bench.statistic("memento.alloc_cycles"), 2.0 * 10_000.0, "HOT hits");
    assert_eq!(bench.statistic("memento.allocations"), 10_000.0);
}

#[test]
fn an_operation_in_software_takes_its_time_at_commit() {
    // No instruction uses a free's result: as an instruction it would hide behind others, as software it did
    // not.
    let mut bench = bench(&["memento.object_free=false", "memento.software_free_cycles=40"]);
    let first = shim_allocate(&mut bench, 64);
    bench.machine.free(first, 0, false).unwrap();
    bench.machine.start_region();
    for _ in 0..1_000 {
        bench.machine.allocate(64, first).unwrap();
        bench.machine.free(first, 0, false).unwrap();
    }
    let cycles = bench.machine.cycles();
    assert!((40_000..44_000).contains(&cycles), "{cycles}");
}

#[test]
fn a_wrong_address_is_reported() {
    let mut bench = bench(&[]);
    let right = shim_allocate(&mut bench, 100);
    let line = bench.machine.allocate(100, right).unwrap_err();
    assert!(line.contains("obj-alloc of 100 bytes: the shim's address is"), "{line}");
    bench.machine.free(right, 0, false).unwrap();
    let line = bench.machine.free(right, 0, false).unwrap_err();
    assert!(line.contains("obj-free of"), "a double free raises an exception: {line}");
    bench.machine.free(right, 0, true).unwrap();
}

#[test]
fn a_machine_without_memento_says_so() {
    let mut bench = Bench::new(&[]);
    assert!(bench.machine.allocate(8, 0).unwrap_err().contains("take machine memento"));
}

/// Allocates and writes 4 MiB of new objects; DRAM lines read, bypasses.
fn fill(overrides: &[&str]) -> (f64, f64) {
    let mut bench = bench(overrides);
    let body = bench.add(block(CODE, |a| a.mov(qword_ptr(rbx), rax)));
    bench.machine.start_region();
    for _ in 0..8192 {
        let address = shim_allocate(&mut bench, 512);
        for line in 0..8 {
            bench.enter(body);
            let address = address + line * 64;
            bench.machine.access(Access {
                address,
                physical: address & 0xffff_ffff,
                index: 0,
                size: 8,
                store: true,
                device: false,
            });
        }
    }
    bench.machine.pause(&bench.tables);
    (bench.statistic("dram.reads"), bench.statistic("llc.bypasses"))
}

#[test]
fn new_lines_are_not_read_from_memory() {
    let (with, bypasses) = fill(&[]);
    let (without, none) = fill(&["memento.bypass=false"]);
    let lines = 8192.0 * 8.0;
    assert!(without > 0.95 * lines, "without the bypass each line is read: {without} of {lines}");
    assert!(
        with < 0.15 * lines && bypasses > 0.85 * lines,
        "with it hardly any: {with} read, {bypasses} instantiated"
    );
    // The rest are the units' own: headers and page tables.
    assert!(none < 0.2 * lines && none < bypasses / 5.0, "{none}");
}

#[test]
fn pages_are_allocated_at_the_first_touch_and_freed_at_the_exit() {
    let mut bench = bench(&[]);
    let body = bench.add(block(CODE, |a| a.mov(qword_ptr(rbx), rax)));
    let mut addresses = Vec::new();
    for _ in 0..1024 {
        addresses.push(shim_allocate(&mut bench, 512));
    }
    let before = bench.statistic("memento.pages_allocated.data");
    for address in &addresses {
        bench.enter(body);
        bench.machine.access(Access {
            address: *address,
            physical: *address & 0xffff_ffff,
            index: 0,
            size: 8,
            store: true,
            device: false,
        });
    }
    bench.machine.pause(&bench.tables);
    let after = bench.statistic("memento.pages_allocated.data");
    // 1024 objects of 512 bytes: 128 pages, of which the arenas' first ones were there.
    assert!((100.0..140.0).contains(&(after - before)), "{before} pages, then {after}");
    assert!(bench.statistic("tlb.walks") >= after - before);
    bench.machine.end_region(true);
    assert_eq!(bench.statistic("memento.pages_freed.data"), after);
    // As they were before the end: 1024 objects in four arenas that are full and one that is loaded eagerly,
    // if it is.
    let empty = bench.statistic("memento.end.inactive_slots_in_use");
    assert_eq!(empty, 0.0);
    let of_all = bench.statistic("memento.end.inactive_slots");
    assert!((0.93..0.95).contains(&of_all), "63 or 64 other arenas have no object: {of_all}");
}

#[test]
fn pages_are_the_programs_or_the_kernels_and_the_shims_are_not_counted() {
    const USER: u64 = 0x10_0dca;
    const KERNEL: u64 = 0x40_0dc0;
    let mut bench = bench(&[]);
    bench.machine.start_region();
    bench.machine.kernel_allocates(USER, 1);
    bench.machine.kernel_allocates(KERNEL, 4);
    bench.machine.stop_charging();
    bench.machine.kernel_allocates(USER, 512);
    bench.machine.charge_again();
    bench.machine.kernel_allocates(USER, 2);
    assert_eq!((bench.statistic("user_pages"), bench.statistic("kernel_pages")), (3.0, 4.0));
}

#[test]
fn pages_that_are_freed_are_not_held_on_either_side() {
    const USER: u64 = 0x10_0dca;
    const KERNEL: u64 = 0x40_0dc0;
    let mut bench = bench(&[]);
    let earlier = shim_allocate(&mut bench, 512);
    bench.machine.start_region();
    bench.machine.kernel_holds(USER, 1..4);
    bench.machine.kernel_holds(KERNEL, 10..12);
    bench.machine.kernel_frees(2..3);
    let held = |bench: &Bench| {
        ["end.user", "end.kernel", "most.user", "most.kernel"]
            .map(|one| bench.statistic(&format!("held.{one}_pages")) as u64)
    };
    assert_eq!(held(&bench), [2, 2, 3, 2], "the arena of before the region does not count");
    // Two full arenas of the largest class, 32 pages of objects and a header's each, and all of them freed.
    let objects: Vec<u64> = (0..512)
        .map(|_| {
            let object = shim_allocate(&mut bench, 512);
            bench.machine.touch(512, object);
            object
        })
        .collect();
    let with_arenas = held(&bench);
    assert!(with_arenas[0] > 60 && with_arenas[0] == with_arenas[2], "{with_arenas:?}");
    for object in objects.into_iter().chain([earlier]) {
        bench.machine.free(object, 0, false).unwrap();
    }
    let freed = held(&bench);
    assert!(freed[0] < with_arenas[0] - 30, "{freed:?}");
    assert_eq!(freed[2], with_arenas[2]);
    bench.machine.end_region(true);
    assert_eq!(held(&bench)[0], freed[0], "before the exit's frees");
}

#[test]
fn a_section_ends_with_its_own_processs_mark() {
    const OTHER: u64 = 2 << 40;
    let mut bench = bench(&[]);
    let body = bench.add(block(CODE, |a| a.mov(qword_ptr(rbx), rax)));
    bench.machine.set_root(OTHER);
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    bench.machine.set_root(Identity::ROOT);
    bench.machine.stop_charging();
    // Interrupted there; the other process has such a section meanwhile, from its begin to its end.
    bench.machine.set_root(OTHER);
    bench.machine.stop_charging();
    let address = shim_allocate(&mut bench, 64);
    bench.machine.set_root(Identity::ROOT);
    bench.machine.start_region();
    // The shim continues: its writes into its arena are not the program's.
    for page in 0..4 {
        bench.enter(body);
        bench.store(0, address + page * 4096);
    }
    bench.machine.pause(&bench.tables);
    assert_eq!((bench.statistic("uncharged_instructions"), bench.statistic("stores")), (4.0, 0.0));
    assert_eq!(bench.statistic("memento.first_touches"), 0.0);
    bench.machine.charge_again();
    bench.machine.start_region();
    bench.enter(body);
    bench.store(0, address);
    bench.machine.pause(&bench.tables);
    assert_eq!((bench.statistic("uncharged_instructions"), bench.statistic("stores")), (0.0, 1.0));
}

#[test]
fn an_exited_process_returns_its_pages_while_others_run() {
    const OTHER: u64 = 2 << 40;
    let mut bench = bench(&[]);
    let address = shim_allocate(&mut bench, 64);
    let own = bench.statistic("memento.pages_allocated.data");
    bench.machine.set_root(OTHER);
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    shim_allocate(&mut bench, 64);
    bench.machine.stop_charging();
    let before = bench.statistic("cycles");
    bench.machine.set_root(Identity::ROOT);
    bench.machine.process_exited(OTHER);
    assert!(bench.statistic("cycles") > before, "it takes time");
    let both = bench.statistic("memento.pages_allocated.data");
    assert_eq!((both, bench.statistic("memento.pages_freed.data")), (2.0 * own, own));
    bench.machine.free(address, 0, false).unwrap();
    // Another process with a page table in the same place is another process.
    bench.machine.set_root(OTHER);
    assert!(!bench.machine.has_region());
    let body = bench.add(block(CODE, |a| a.nop()));
    bench.machine.start_region();
    bench.enter(body);
    bench.machine.pause(&bench.tables);
    assert_eq!((bench.statistic("instructions"), bench.statistic("uncharged_instructions")), (1.0, 0.0));
    bench.machine.process_exited(3 << 40);
    assert_eq!(bench.statistic("memento.pages_freed.data"), 0.0, "of the region, by one that had none");
}

#[test]
fn an_allocator_that_calls_another_is_one_allocation() {
    let mut bench = bench(&[]);
    bench.machine.start_region();
    bench.machine.enter_allocator(Owner::Allocate, 24, 0);
    bench.machine.enter_allocator(Owner::Allocate, 4096, 0);
    bench.machine.leave_allocator(Owner::Allocate, 0x10_0000);
    bench.machine.leave_allocator(Owner::Allocate, 0x10_0040);
    bench.machine.enter_allocator(Owner::Free, 0x10_0040, 0);
    bench.machine.leave_allocator(Owner::Free, 0);
    assert_eq!((bench.statistic("objects.allocations"), bench.statistic("objects.to_512_bytes")), (1.0, 1.0));
    assert_eq!(bench.statistic("objects.small.freed_within_16"), 1.0);
}

#[test]
fn the_oss_work_for_a_region_is_charged() {
    let mut bench = bench(&[]);
    let refill = 1500.0 + 512.0 * 50.0;
    assert!(bench.statistic("cycles_of.memory_call.memento") >= refill, "the pool's first pages");
    let address = shim_allocate(&mut bench, 64);
    bench.machine.free(address, 0, false).unwrap();
    let before = bench.statistic("cycles");
    bench.machine.end_region(true);
    assert!(bench.statistic("cycles") > before, "so is giving all pages back at an exit");
    assert!(bench.statistic("cycles_of.kernel.memento") > 0.0);
}

#[test]
fn a_flush_at_a_context_switch_is_the_kernels_time() {
    let mut bench = bench(&[]);
    shim_allocate(&mut bench, 64);
    bench.machine.start_region();
    bench.machine.set_root(2 << 40);
    let flush = bench.statistic("memento.hot_flush_cycles");
    assert!(flush > 0.0);
    assert_eq!(bench.statistic("cycles_of.kernel.memento"), flush);
}

#[test]
fn a_thread_that_ends_empties_its_buffer() {
    let mut bench = bench(&["memento.non_local_free=batch"]);
    let mut addresses = Vec::new();
    for _ in 0..3 {
        addresses.push(shim_allocate(&mut bench, 64));
    }
    for address in addresses {
        bench.machine.free(address, 1, false).unwrap();
    }
    assert_eq!(bench.statistic("memento.batched_frees_done"), 0.0);
    bench.machine.free_batch(1).unwrap();
    assert_eq!(bench.statistic("memento.batched_frees_done"), 3.0);
    bench.machine.free_batch(1).unwrap();
    assert_eq!(bench.statistic("memento.batches"), 1.0, "nothing was left");
}
