//! The promises of the model's parts, one by one: a line in flight, the least recently used line,
//! write-backs, the cost of a walk and of a flush, and the cause and owner of cycles.

mod common;
use common::*;
use iced_x86::code_asm::*;
use sim::base::cause::Owner;
use sim::core::branch::{Outcome, Predictor};
use sim::memory::cache::Cache;
use sim::memory::dram::Dram;
use sim::memory::hierarchy::{Hierarchy, Level};
use sim::memory::tlb::{Side, Tlbs};
use sim::{Access, Description};

const DATA: u64 = 0x1000_0000;
const KERNEL: u64 = 0xffff_8000_0000_0000;

fn table3() -> Description {
    Description::load("table3", &[]).unwrap()
}

#[test]
fn a_hit_on_a_line_in_flight_waits_for_it() {
    let mut hierarchy = Hierarchy::new(&table3());
    let (done, from) = hierarchy.access(Level::L1d, 1, false, false, 1000);
    assert_eq!(from, Level::Dram);
    let (again, from) = hierarchy.access(Level::L1d, 1, false, false, 1001);
    assert_eq!((again, from), (done, Level::L1d), "the second load has its data when the first has");
    let (later, _) = hierarchy.access(Level::L1d, 1, false, false, done + 10);
    assert_eq!(later, done + 12, "and then it is a hit");
    assert_eq!(hierarchy.counts().l1d.merges, 1);
}

#[test]
fn the_least_recently_used_line_is_evicted() {
    let description = table3();
    let mut cache = Cache::new(&description.l1d, 0);
    let line = |number: u64| number * description.l1d.sets as u64;
    for number in 0..8 {
        assert!(cache.insert(line(number), false, 0).is_none());
    }
    cache.lookup(line(0), false, 0);
    assert_eq!(cache.insert(line(8), false, 0).map(|victim| victim.line), Some(line(1)));
    assert!(cache.holds(line(0)), "it came first, and was used last");
}

#[test]
fn a_line_that_a_store_hits_is_written_back() {
    let description = table3();
    let mut cache = Cache::new(&description.l1d, 0);
    let line = |number: u64| number * description.l1d.sets as u64;
    for number in 0..8 {
        cache.insert(line(number), false, 0);
    }
    cache.lookup(line(0), true, 0);
    for number in 1..8 {
        cache.lookup(line(number), false, 0);
    }
    let victim = cache.insert(line(8), false, 0).unwrap();
    assert_eq!((victim.line, victim.dirty), (line(0), true));
    assert_eq!(cache.counts.writebacks, 1);
}

#[test]
fn a_line_that_the_llc_has_made_is_in_dram_once_all_caches_have_dropped_it() {
    let description = table3();
    let mut hierarchy = Hierarchy::new(&description);
    // Loads alone: no store has written to the new line, and DRAM has never seen it.
    hierarchy.access(Level::L1d, 0, false, true, 0);
    assert_eq!((hierarchy.counts().llc_bypasses, hierarchy.counts().dram.reads), (1, 0));
    let sets = description.llc.sets as u64;
    for other in 1..=64 {
        hierarchy.access(Level::L1d, other * sets, false, false, other * 1000);
    }
    assert!(!hierarchy.holds(Level::Llc, 0));
    assert_eq!(hierarchy.counts().dram.writes, 1, "its zeroes were written");
}

#[test]
fn clean_lines_are_not_written_back() {
    let description = Description::load("memento", &["memento.clean_lines=true".to_owned()]).unwrap();
    let mut hierarchy = Hierarchy::new(&description);
    hierarchy.access(Level::L1d, 0, false, true, 0);
    let sets = description.llc.sets as u64;
    for other in 1..=64 {
        hierarchy.access(Level::L1d, other * sets, false, false, other * 1000);
    }
    assert!(!hierarchy.holds(Level::Llc, 0));
    assert_eq!(hierarchy.counts().dram.writes, 0);
}

#[test]
fn a_new_line_is_as_far_as_the_llc() {
    let mut hierarchy = Hierarchy::new(&table3());
    for store in [false, true] {
        let (line, at) = if store { (1000, 500) } else { (1001, 700) };
        assert_eq!(hierarchy.access(Level::L1d, line, store, true, at), (at + 40, Level::Llc));
        assert_eq!(hierarchy.access(Level::L1d, line, store, false, at + 100), (at + 102, Level::L1d));
    }
}

#[test]
fn dirty_lines_reach_dram_through_all_levels() {
    let mut hierarchy = Hierarchy::new(&table3());
    let lines = 4 * (2 << 20) / 64;
    for line in 0..lines {
        hierarchy.access(Level::L1d, line, true, false, line * 200);
    }
    let counts = hierarchy.counts();
    let held = (2 << 20) / 64 + (256 << 10) / 64 + (32 << 10) / 64;
    assert!(counts.dram.writes + 64 >= lines - held, "{} of {lines} lines", counts.dram.writes);
    for (name, cache) in [("l1d", counts.l1d), ("l2", counts.l2), ("llc", counts.llc)] {
        assert!(cache.writebacks > lines / 2, "{name}: {} write-backs", cache.writebacks);
    }
}

#[test]
fn writes_wait_in_a_queue_and_none_is_lost() {
    let description = table3();
    let mut dram = Dram::new(&description.dram, description.core.frequency_mhz);
    let queue = description.dram.write_queue as u64;
    for line in 0..2 * queue {
        dram.write_at(line * 1000, 10);
    }
    // Two queues full of row conflicts: a read behind them waits until one has been written.
    let alone = Dram::new(&description.dram, description.core.frequency_mhz).read_at(999, 20) - 20;
    let behind = dram.read_at(999, 20) - 20;
    assert!(behind > alone + queue, "{behind} clocks, {alone} without writes");
    assert_eq!(dram.counts.writes, 2 * queue);
    dram.write_at(7, 100_000);
    assert_eq!(dram.read_at(7, 100_001), 100_002, "the queue answers");
}

#[test]
fn misses_wait_for_a_free_mshr() {
    let mut description = table3();
    description.l1d.mshrs = 2;
    let mut hierarchy = Hierarchy::new(&description);
    let times: Vec<_> =
        (0..3).map(|line| hierarchy.access(Level::L1d, line * 4096, false, false, 0).0).collect();
    assert!(times[2] >= times[0] + 100, "{times:?}");
    assert!(hierarchy.counts().l1d.mshr_wait_cycles > 100);
}

#[test]
fn a_walk_takes_as_long_as_its_reads() {
    let description = table3();
    let mut hierarchy = Hierarchy::new(&description);
    let mut tlbs = Tlbs::new(&description.tlb);
    let tables = Identity { large: false };
    tlbs.set_root(Identity::ROOT);
    let first = tlbs.slow(Side::Data, DATA, DATA, 0, &mut hierarchy, &tables).at;
    assert_eq!(tlbs.counts.walk_reads, 4);
    assert!(first > 7 + 4 * 100, "four entries from DRAM: {first} cycles");
    let at = 100_000;
    let second = tlbs.slow(Side::Data, DATA + 4096, DATA + 4096, at, &mut hierarchy, &tables).at - at;
    assert_eq!(second, 7 + 2, "the leaf table is known, and its line is in the L1d");
    assert_eq!(tlbs.counts.walk_cycles, first - 7 + 2);
}

#[test]
fn another_root_flushes_a_programs_entries_and_not_the_kernels() {
    let description = table3();
    let mut hierarchy = Hierarchy::new(&description);
    let mut tlbs = Tlbs::new(&description.tlb);
    let tables = Identity { large: false };
    tlbs.set_root(Identity::ROOT);
    let kernel = 0xffff_8880_0000_0000;
    tlbs.fill(Side::Data, kernel, DATA, false);
    tlbs.slow(Side::Data, DATA, DATA, 0, &mut hierarchy, &tables);
    assert!(tlbs.quick(Side::Data, DATA, DATA));
    tlbs.set_root(Identity::ROOT);
    assert!(!tlbs.quick(Side::Data, DATA, DATA), "flushed, though it is the same page");
    assert!(tlbs.second_level(Side::Data, DATA, DATA, 0).is_none(), "in both levels");
    assert!(tlbs.quick(Side::Data, kernel, DATA), "the kernel's are global");
}

#[test]
fn returns_pop_the_addresses_that_calls_push() {
    use sim::isa::block::End;
    let mut predictor = Predictor::new(&table3().branch);
    predictor.resolve(0x100, 0x105, End::Call(0x1000), 0x1000);
    predictor.resolve(0x1000, 0x1005, End::Call(0x2000), 0x2000);
    assert_eq!(predictor.resolve(0x2000, 0x2001, End::Return, 0x1005), Outcome::Right);
    assert_eq!(predictor.resolve(0x1010, 0x1011, End::Return, 0x105), Outcome::Right, "the outer call's");
    // Deeper than it is high, it forgets the outermost.
    for depth in 0..40 {
        predictor.resolve(depth * 16, depth * 16 + 5, End::Call(0), 0);
    }
    let right = (0..40)
        .rev()
        .filter(|depth| predictor.resolve(0x9000, 0x9001, End::Return, depth * 16 + 5) == Outcome::Right);
    assert_eq!(right.count(), 32);
}

/// A block of these instructions, entered so often, with its accesses.
fn repeat(
    turns: u64,
    write: impl Fn(&mut CodeAssembler) -> Assembled,
    accesses: impl Fn(&mut Bench, u64),
) -> (u64, Bench) {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, write));
    let cycles = bench.measure(turns, |bench, turn| {
        bench.enter(body);
        accesses(bench, turn);
    });
    (cycles, bench)
}

#[test]
fn a_store_that_has_left_the_queue_forwards_nothing() {
    // A load of what was stored a thousand cycles ago comes from the L1d.
    let (_, bench) = repeat(
        200,
        |a| {
            a.mov(qword_ptr(rsp), rbx)?;
            for _ in 0..300 {
                a.imul_2(rcx, rcx)?;
            }
            a.mov(rax, qword_ptr(rsp))?;
            a.jmp(CODE)
        },
        |bench, _| {
            bench.store(0, DATA);
            bench.load(301, DATA);
        },
    );
    assert_eq!(bench.machine.parts().0.forwards, 0);
}

#[test]
fn an_access_across_two_lines_needs_both() {
    let count = |offset: u64, store: bool| {
        let mut bench = Bench::new(&[]);
        let body = bench.add(block(CODE, |a| {
            if store { a.mov(qword_ptr(rbx), rax) } else { a.mov(rax, qword_ptr(rbx)) }
        }));
        bench.machine.start_region();
        for turn in 0..64 {
            bench.enter(body);
            bench.machine.access(access(0, DATA + turn * 4096 + offset, store));
        }
        bench.machine.pause(&bench.tables);
        bench.statistic("l1d.hits") + bench.statistic("l1d.misses") - bench.statistic("tlb.walk_reads")
    };
    for store in [false, true] {
        assert_eq!((count(56, store), count(60, store)), (64.0, 128.0), "store: {store}");
    }
}

#[test]
fn cycles_of_a_load_are_the_tlbs_until_it_is_translated_and_then_the_caches() {
    // A chase of 1 MiB, of which each step misses the L1 TLB and hits the LLC: 7 cycles are the L2 TLB's, 40
    // the LLC's.
    let mut bench = Bench::new(&[]);
    bench.tables.large = false;
    let body = bench.add(block(CODE, |a| {
        a.mov(rax, qword_ptr(rax))?;
        a.jmp(CODE)
    }));
    let lines = (1 << 20) / 64;
    let cycles = bench.measure(lines, |bench, turn| {
        bench.enter(body);
        // An odd stride over the pages: always another page, never a line that is still near.
        let line = turn * 64 % lines + turn * 64 / lines;
        bench.load(0, DATA + line * 64);
    }) as f64;
    let (tlb, llc) = (bench.statistic("cycles_by_cause.data_tlb"), bench.statistic("cycles_by_cause.llc"));
    assert_near(bench.statistic("tlb.data_misses"), lines as f64, 0.1, "misses of the L1 TLB");
    assert_near(tlb / lines as f64, 7.0, 0.15, "cycles of the TLB each");
    assert!(llc / cycles > 0.7, "{llc} of {cycles} cycles are the LLC's, {tlb} the TLB's");
}

#[test]
fn waits_of_stores_are_not_charged_to_execution() {
    // More stores to new lines than the queue holds: all wait for DRAM.
    let random = std::cell::RefCell::new(Random(3));
    let (cycles, bench) = repeat(
        4000,
        |a| {
            a.mov(qword_ptr(rbx), rax)?;
            a.jmp(CODE)
        },
        |bench, _| bench.store(0, DATA + random.borrow_mut().next() % (1 << 30) / 64 * 64),
    );
    let (dram, execution) =
        (bench.statistic("cycles_by_cause.dram"), bench.statistic("cycles_by_cause.execution"));
    assert!(dram > 0.8 * cycles as f64, "{dram} of {cycles} cycles are DRAM's, {execution} are execution");
}

#[test]
fn cycles_are_counted_by_owner_and_cause() {
    let (_, bench) = repeat(100, |a| a.imul_2(rax, rbx), |_, _| {});
    let statistics = bench.statistics();
    let of = |prefix: &str| -> f64 {
        let all = statistics.list.iter().filter(|one| one.name.starts_with(prefix));
        all.map(|one| statistics.get(&one.name).unwrap()).sum()
    };
    assert_eq!(of("cycles_of."), bench.machine.cycles() as f64);
    assert_eq!(of("cycles_of.user."), bench.statistic("cycles_by_owner.user"));
    let causes = (0..sim::base::cause::OWNERS).map(|owner| {
        bench.statistic(&format!("cycles_of.{}.execution", sim::base::cause::OWNER_NAMES[owner]))
    });
    assert_eq!(causes.sum::<f64>(), bench.statistic("cycles_by_cause.execution"));
}

#[test]
fn copies_between_registers_are_renamed() {
    let chain = |copies: bool| {
        let (cycles, _) = repeat(
            1000,
            |a| {
                for _ in 0..64 {
                    a.add(rax, rbx)?;
                    if copies {
                        a.mov(rcx, rax)?;
                        a.mov(rax, rcx)?;
                    }
                }
                a.jmp(CODE)
            },
            |_, _| {},
        );
        cycles as f64 / 64_000.0
    };
    assert_near(chain(false), 1.0, 0.05, "a chain of additions");
    assert_near(chain(true), 1.0, 0.05, "the same with two copies after each");
}

#[test]
fn opening_user_memory_to_the_kernel_stops_nothing() {
    // stac, clac: ten cycles each, and later instructions do not wait.
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(KERNEL, |a| {
        for _ in 0..16 {
            a.stac()?;
            a.clac()?;
        }
        a.jmp(KERNEL)
    }));
    let cycles = bench.measure(500, |bench, _| bench.enter(body));
    assert_near(cycles as f64 / 500.0 / 32.0, 10.0, 0.05, "cycles each");
}

#[test]
fn exceptions_cost_the_machines_cycles() {
    let run = |cycles: u32| {
        let mut bench = Bench::new(&[&format!("core.exception_cycles={cycles}")]);
        let body = bench.add(block(CODE, |a| a.mov(rax, qword_ptr(rbx))));
        let handler = bench.add(block(KERNEL, |a| a.iretq()));
        bench.measure(100, |bench, _| {
            bench.enter(body); // no access: it has faulted
            bench.enter(handler);
        }) as f64
            / 100.0
    };
    assert_eq!(run(160) - run(60), 100.0);
}

#[test]
fn calls_about_memory_are_known_by_number() {
    for (number, memory) in
        [(9, true), (11, true), (12, true), (25, true), (28, true), (0, false), (1, false)]
    {
        let mut bench = Bench::new(&[]);
        let user = bench.add(block_of(CODE, &[0x0f, 0x05]));
        let kernel = bench.add(block(KERNEL, |a| a.add(rax, rbx)));
        bench.machine.start_region();
        bench.enter(user);
        bench.machine.system_call(number);
        bench.enter(kernel);
        bench.machine.pause(&bench.tables);
        let its = bench.statistic("cycles_by_owner.memory_call") > 0.0;
        assert_eq!(its, memory, "system call {number}");
    }
}

#[test]
fn a_context_switch_does_not_change_the_owner_of_a_processs_cycles() {
    let mut bench = Bench::new(&[]);
    bench.machine.start_region();
    assert!(bench.machine.enter_allocator(Owner::Free, 0x1000, 0x7000));
    bench.machine.set_root(2 << 40);
    bench.machine.set_root(Identity::ROOT);
    let body = bench.add(block(CODE, |a| a.imul_2(rax, rbx)));
    bench.enter(body);
    bench.machine.pause(&bench.tables);
    assert!(bench.statistic("cycles_by_owner.free") > 0.0);
    assert_eq!(bench.statistic("cycles_by_owner.allocate"), 0.0);
}

#[test]
fn an_ideal_allocator_takes_no_time_but_its_callees_do() {
    // The program at CODE calls malloc, whose list may be empty: then it calls the function that fills it.
    let malloc = CODE + 0x1000;
    let cycles_and_reads = |is_ideal: bool, fills: bool| {
        let mut bench = Bench::new(&[&format!("core.ideal_allocator={is_ideal}")]);
        let caller = bench.add(block(CODE, |a| a.call(malloc)));
        let list = bench.add(block(malloc, |a| {
            for _ in 0..20 {
                a.mov(rax, qword_ptr(rbx))?;
            }
            a.jne(malloc + 0x800)
        }));
        let end = bench.add(block_of(malloc + 0x800, &[0xc3]));
        let filling = bench.add(block(malloc + 0x1000, |a| (0..20).try_for_each(|_| a.imul_2(rax, rax))));
        let back = bench.add(block(CODE + 5, |a| a.add(rcx, rax)));
        bench.machine.start_region();
        for _ in 0..1000 {
            bench.enter(caller);
            bench.store(0, 0x7ff8);
            bench.enter(list);
            bench.machine.enter_allocator(Owner::Allocate, 24, 0x7ff8);
            bench.machine.allocator_code(malloc..malloc + 0x900);
            for index in 0..20 {
                bench.load(index, 0x9000);
            }
            if fills {
                bench.enter(filling);
            }
            bench.enter(end);
            bench.load(0, 0x7ff8);
            bench.enter(back);
            bench.machine.return_from_allocator(0x5000);
        }
        bench.machine.pause(&bench.tables);
        let returns = ["branch.returns", "branch.returns_mispredicted"].map(|name| bench.statistic(name));
        (bench.statistic("cycles_by_owner.allocate"), bench.statistic("loads"), returns)
    };
    let (plain, loads, _) = cycles_and_reads(false, false);
    assert!(plain > 9_000.0 && loads == 21_000.0, "two loads a cycle: {plain} cycles, {loads} loads");
    let (ideal, loads, [returns, wrong]) = cycles_and_reads(true, false);
    assert_eq!((ideal, loads, returns), (0.0, 0.0, 1000.0));
    assert!(wrong < 5.0, "its returns are predicted: {wrong}");
    let (filled, ..) = cycles_and_reads(true, true);
    assert!(filled > 55_000.0, "a chain of 20 multiplications a call: {filled} cycles");
}

#[test]
fn a_device_is_no_memory() {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| a.mov(rax, qword_ptr(rbx))));
    bench.machine.start_region();
    for _ in 0..10 {
        bench.enter(body);
        bench.machine.access(Access { device: true, ..access(0, 0xfee0_0000, false) });
    }
    bench.machine.pause(&bench.tables);
    let accesses = bench.statistic("l1d.hits") + bench.statistic("l1d.misses");
    assert_eq!(accesses, bench.statistic("tlb.walk_reads"), "those of the code's page walk");
    assert_eq!(bench.statistic("device_accesses"), 10.0);
}
