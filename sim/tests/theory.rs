//! Microkernels whose cycles can be calculated by hand: the machine must agree.

mod common;
use common::*;
use iced_x86::code_asm::*;

const DATA: u64 = 0x1000_0000;

/// Cycles per instruction of a long loop of these instructions, without the loop.
fn cycles_each(count: usize, write: impl Fn(&mut CodeAssembler, usize) -> Assembled) -> f64 {
    let mut bench = Bench::new(&[]);
    let body = block(CODE, |a| {
        for number in 0..count {
            write(a, number)?;
        }
        a.jmp(CODE)
    });
    let body = bench.add(body);
    let turns = 1000;
    let cycles = bench.measure(turns, |bench, _| bench.enter(body));
    cycles as f64 / turns as f64 / (count + 1) as f64
}

#[test]
fn independent_instructions_run_four_a_cycle() {
    let registers = [rax, rbx, rcx, rdx, rsi, rdi, r8, r9];
    assert_near(cycles_each(255, |a, n| a.mov(registers[n % 8], 5u64 + n as u64)), 0.25, 0.03, "mov");
    // lea does not touch the flags.
    assert_near(cycles_each(255, |a, n| a.lea(registers[n % 8], rbp + n as i32)), 0.25, 0.03, "lea");
}

#[test]
fn a_chain_takes_its_latency() {
    assert_near(cycles_each(255, |a, _| a.add(rax, rbx)), 1.0, 0.02, "add");
    assert_near(cycles_each(255, |a, _| a.imul_2(rax, rbx)), 3.0, 0.02, "imul");
    assert_near(cycles_each(255, |a, _| a.addsd(xmm0, xmm1)), 4.0, 0.02, "addsd");
    assert_near(cycles_each(64, |a, _| a.div(rbx)), 26.0, 0.03, "div");
    // Two chains overlap.
    assert_near(cycles_each(254, |a, n| a.imul_2([rax, rcx][n % 2], rbx)), 1.5, 0.03, "two imul chains");
}

#[test]
fn ports_bound_throughput() {
    let vectors = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7];
    assert_near(cycles_each(255, |a, n| a.paddd(vectors[n % 8], vectors[n % 8])), 0.5, 0.03, "paddd");
    let registers = [rax, rbx, rcx, rdx, rsi, rdi, r8, r9];
    assert_near(cycles_each(255, |a, n| a.imul_2(registers[n % 8], registers[n % 8])), 1.0, 0.03, "imul");
}

#[test]
fn clearing_a_register_starts_a_new_chain() {
    let each = cycles_each(254, |a, n| if n % 2 == 0 { a.xor(rax, rax) } else { a.imul_2(rax, rbx) });
    assert!(each < 0.6, "xor rax, rax waits for rax: {each}");
}

/// Cycles of each load of a pointer chase over `bytes`, a line after the other, in random order.
fn chase(overrides: &[&str], bytes: u64, large: bool) -> (f64, Bench) {
    let mut bench = Bench::new(overrides);
    bench.tables.large = large;
    let body = bench.add(block(CODE, |a| {
        a.mov(rax, qword_ptr(rax))?;
        a.jmp(CODE)
    }));
    let lines = bytes / 64;
    let mut order: Vec<u64> = (0..lines).collect();
    let mut random = Random(1);
    for index in (1..order.len()).rev() {
        order.swap(index, random.next() as usize % (index + 1));
    }
    let turns = lines.max(20_000) / lines * lines;
    let cycles = bench.measure(turns, |bench, turn| {
        bench.enter(body);
        bench.load(0, DATA + order[(turn % lines) as usize] * 64);
    });
    (cycles as f64 / turns as f64, bench)
}

#[test]
fn each_level_has_its_latency() {
    assert_near(chase(&[], 16 << 10, true).0, 2.0, 0.01, "L1d");
    assert_near(chase(&[], 128 << 10, true).0, 14.0, 0.16, "L2, of which an eighth is in the L1d");
    assert_near(chase(&[], 1 << 20, true).0, 40.0, 0.16, "LLC, of which a quarter is nearer");
    assert_near(chase(&["l1d.latency_cycles=5"], 16 << 10, true).0, 5.0, 0.01, "a slower L1d");
    // Memory: 40 cycles to miss everywhere, then precharge, activate, read and burst, or less if the row was
    // open.
    let (cycles, bench) = chase(&[], 64 << 20, true);
    let clocks = 22.0 + 22.0 + 22.0 + 4.0 + 1.0;
    assert_near(cycles, 40.0 + clocks * 3000.0 / 1600.0, 0.08, "DRAM");
    assert_near(bench.statistic("dram.read_latency_ns"), clocks / 1.6, 0.08, "DRAM itself");
}

#[test]
fn cycles_of_a_chase_are_put_down_to_the_level() {
    for (bytes, cause) in [(128 << 10, "l2"), (1 << 20, "llc"), (32 << 20, "dram")] {
        let (_, bench) = chase(&[], bytes, true);
        let part = bench.statistic(&format!("cycles_by_cause.{cause}")) / bench.statistic("cycles");
        assert!(part > 0.7, "{cause}: {part}");
    }
}

/// Lines a cycle that independent loads get over `bytes`, one line after the other.
fn stream(overrides: &[&str], bytes: u64) -> f64 {
    stream_of(overrides, |line| line % (bytes / 64))
}

/// The same in another order; a line is not read again before 2^18 others.
fn stream_of(overrides: &[&str], order: impl Fn(u64) -> u64) -> f64 {
    let mut bench = Bench::new(overrides);
    let body = bench.add(block(CODE, |a| {
        for _ in 0..16 {
            a.mov(rax, qword_ptr(rbx))?;
        }
        a.jmp(CODE)
    }));
    let turns = (1 << 18) / 16;
    let cycles = bench.measure(turns, |bench, turn| {
        bench.enter(body);
        for index in 0..16 {
            bench.load(index, DATA + order(turn * 16 + u64::from(index)) * 64);
        }
    });
    (turns * 16) as f64 / cycles as f64
}

#[test]
fn each_level_has_its_bandwidth() {
    assert_near(stream(&[], 16 << 10), 2.0, 0.05, "L1d: two load ports");
    assert_near(stream(&["core.load_ports=1"], 16 << 10), 1.0, 0.05, "L1d: one load port");
    assert_near(stream(&["l1d.mshrs=64"], 128 << 10), 1.0, 0.05, "L2: one line a cycle");
    assert_near(stream(&[], 1 << 20), 16.0 / 38.0, 0.1, "LLC: as many as there are MSHRs in the L1d");
    assert_near(
        stream(&["l1d.mshrs=64", "l2.mshrs=64"], 1 << 20),
        0.5,
        0.05,
        "LLC: one line every two cycles",
    );
    // Memory gives 64 bytes every four of its clocks (25.6 GB/s), less refresh (4.5%), if the lines take
    // turns in all bank groups. Lines of one row are in one group, which gives half; the window of 64 misses
    // hides part of that.
    let peak = 1600.0 / 3000.0 / 4.0;
    let many = ["l1d.mshrs=64", "l2.mshrs=64"];
    let all_groups = |line| line / 512 * 512 + line % 4 * 128 + line / 4 % 128;
    let lines = stream_of(&many, all_groups) / peak;
    assert!((0.9..=0.955).contains(&lines), "DRAM, all bank groups: {lines} of the peak");
    let lines = stream(&many, 64 << 20) / peak;
    assert!((0.5..0.9).contains(&lines), "DRAM, one bank group after the other: {lines} of the peak");
    let lines = stream_of(&many, |line| line * 2048 + line / 8192) / peak;
    assert_near(lines, 4.0 / (52.0 + 22.0), 0.06, "DRAM, always another row of one bank: tRC each");
}

#[test]
fn misses_overlap_within_the_window_only() {
    let distant = |gap: usize| {
        let mut bench = Bench::new(&[]);
        let body = bench.add(block(CODE, |a| {
            for _ in 0..8 {
                a.mov(rax, qword_ptr(rbx))?;
                for number in 0..gap {
                    a.mov([rcx, rdx, rsi, rdi][number % 4], 1u64)?;
                }
            }
            a.jmp(CODE)
        }));
        let turns = 400;
        let mut random = Random(7);
        let cycles = bench.measure(turns, |bench, _| {
            bench.enter(body);
            for number in 0..8 {
                bench.load((number * (gap + 1)) as u16, DATA + random.next() % (1 << 30) / 64 * 64);
            }
        });
        cycles as f64 / turns as f64 / 8.0
    };
    let (near, far) = (distant(20), distant(300));
    assert!(near < 30.0, "loads 20 instructions apart overlap: {near} cycles each");
    assert!(far > 130.0, "loads 300 instructions apart do not fit the window of 256: {far} cycles each");
}

#[test]
fn a_load_takes_its_data_from_the_store_before_it() {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| {
        a.mov(qword_ptr(rsp), rax)?;
        a.mov(rax, qword_ptr(rsp))?;
        a.jmp(CODE)
    }));
    let cycles = bench.measure(5000, |bench, _| {
        bench.enter(body);
        bench.store(0, DATA);
        bench.load(1, DATA);
    });
    // Of each turn: the store's data to the load, and the load's data to the next store.
    assert_near(cycles as f64 / 5000.0, 3.0, 0.35, "store to load");
    assert_eq!(bench.machine.parts().0.forwards, 5000);
    let mut apart = Bench::new(&[]);
    let body = block(CODE, |a| {
        a.mov(qword_ptr(rsp), rax)?;
        a.mov(rbx, qword_ptr(rsp))?;
        a.jmp(CODE)
    });
    let body = apart.add(body);
    apart.measure(5000, |bench, turn| {
        bench.enter(body);
        bench.store(0, DATA);
        bench.load(1, DATA + 4096 + 8 * (turn % 8));
    });
    assert_eq!(apart.machine.parts().0.forwards, 0);
}

/// Cycles a turn and mispredictions a turn of a conditional branch that is taken where `taken` returns true.
fn branch(taken: impl Fn(u64) -> bool) -> (f64, f64) {
    let mut bench = Bench::new(&[]);
    let head = bench.add(block(CODE, |a| {
        a.test(rax, rax)?;
        a.je(CODE + 0x100)
    }));
    let end = bench.machine.block(head).end;
    let not_taken = bench.add(block(end, |a| a.jmp(CODE)));
    let there = bench.add(block(CODE + 0x100, |a| a.jmp(CODE)));
    let turns = 20_000;
    let cycles = bench.measure(turns, |bench, turn| {
        bench.enter(head);
        bench.enter(if taken(turn) { there } else { not_taken });
    });
    (cycles as f64 / turns as f64, bench.statistic("branch.conditional_mispredicted") / turns as f64)
}

#[test]
fn branches_cost_their_mispredictions() {
    let (steady, wrong) = branch(|_| true);
    assert!(wrong < 0.001 && steady < 2.5, "always taken: {wrong} wrong, {steady} cycles");
    let (_, wrong) = branch(|turn| turn % 7 < 3);
    assert!(wrong < 0.02, "a pattern of seven is learned: {wrong} wrong");
    let (cycles, wrong) = branch(|turn| Random(turn).next() & 1 == 1);
    assert_near(wrong, 0.5, 0.05, "random: half are wrong");
    // From the branch's execution to the next one's: redirect, front end, dispatch, issue of test and branch.
    assert_near((cycles - steady) / wrong, 14.0, 0.15, "cycles of a misprediction");
}

#[test]
fn calls_return_to_where_they_came_from() {
    let mut bench = Bench::new(&[]);
    let callee = bench.add(block(CODE + 0x400, |a| a.ret()));
    let mut callers = Vec::new();
    for number in 0..4 {
        callers.push(bench.add(block(CODE + number * 5, |a| a.call(CODE + 0x400))));
    }
    let back = bench.add(block(CODE + 20, |a| a.jmp(CODE)));
    bench.measure(1000, |bench, _| {
        for caller in &callers {
            bench.enter(*caller);
            bench.store(0, DATA);
            bench.enter(callee);
            bench.load(0, DATA);
        }
        bench.enter(back);
    });
    assert_eq!(bench.statistic("branch.returns"), 4000.0);
    assert_eq!(bench.statistic("branch.returns_mispredicted"), 0.0);
}

#[test]
fn tlbs_reach_as_far_as_they_have_entries() {
    // 64 pages fit the L1 TLB; 1024 the L2; 16384 neither. One line of each page, all in different sets of
    // the caches.
    let walk = |pages: u64, large: bool| {
        let mut bench = Bench::new(&[]);
        bench.tables.large = large;
        let body = bench.add(block(CODE, |a| {
            a.mov(rax, qword_ptr(rax))?;
            a.jmp(CODE)
        }));
        let turns = pages.max(16384);
        let cycles = bench.measure(turns, |bench, turn| {
            bench.enter(body);
            bench.load(0, DATA + turn % pages * (4096 + 64));
        });
        (
            cycles as f64 / turns as f64,
            bench.statistic("tlb.data_misses") / turns as f64,
            bench.statistic("tlb.walks") / turns as f64,
        )
    };
    let (cycles, misses, _) = walk(60, false);
    assert!(misses < 0.001 && cycles < 2.1, "60 pages: {misses} misses, {cycles} cycles");
    let (cycles, misses, walks) = walk(480, false);
    assert!(misses > 0.99 && walks < 0.001, "480 pages: {misses} misses, {walks} walks");
    assert_near(cycles, 2.0 + 7.0, 0.02, "an L2 TLB hit costs 7 cycles");
    let (_, _, walks) = walk(16384, false);
    assert!(walks > 0.99, "16384 pages: {walks} walks");
    let (_, _, walks) = walk(1024, true);
    assert!(walks < 0.001, "large pages reach 512 times as far: {walks} walks");
}

#[test]
fn walks_find_the_address_of_the_access() {
    let (_, mut bench) = chase(&[], 32 << 20, false);
    assert!(bench.statistic("tlb.walks") > 1000.0);
    assert_eq!(bench.statistic("tlb.walk_disagreements"), 0.0);
    // Upper levels come from the walk cache: little more than one entry is read.
    assert!(bench.statistic("tlb.walk_reads") / bench.statistic("tlb.walks") < 1.2);
    // Another address space has none of this one's translations; an access elsewhere than the table maps is
    // counted.
    bench.machine.set_root(common::Identity::ROOT);
    let body = bench.add(block(CODE, |a| a.mov(rax, qword_ptr(rbx))));
    bench.machine.start_region();
    bench.enter(body);
    bench.machine.access(sim::Access { physical: DATA + 0x7000, ..access(0, DATA, false) });
    bench.machine.pause(&bench.tables);
    assert_eq!(bench.statistic("tlb.walk_disagreements"), 1.0);
}

#[test]
fn dirty_lines_are_written_once_and_clean_ones_never() {
    let run = |store: bool| {
        let mut bench = Bench::new(&[]);
        let body = bench.add(block(CODE, |a| {
            if store {
                a.mov(qword_ptr(rbx), rax)?
            } else {
                a.mov(rax, qword_ptr(rbx))?
            }
            a.jmp(CODE)
        }));
        let lines = (16 << 20) / 64;
        bench.measure(lines, |bench, turn| {
            bench.enter(body);
            bench.machine.access(access(0, DATA + turn * 64, store));
        });
        (bench.statistic("dram.reads") / lines as f64, bench.statistic("dram.writes") / lines as f64)
    };
    assert_eq!(run(false), (1.0, 0.0));
    let (reads, writes) = run(true);
    assert_eq!(reads, 1.0);
    assert_near(writes, 1.0, 0.001, "each line is written back once");
}

#[test]
fn an_instruction_that_faults_ends_its_block() {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| {
        a.mov(rax, 1u64)?;
        a.mov(rbx, qword_ptr(rcx))?;
        a.mov(rdx, 2u64)?;
        a.mov(qword_ptr(rcx), rdx)?;
        a.jmp(CODE)
    }));
    let handler = bench.add(block(0xffff_8000_0000_0000, |a| a.iretq()));
    bench.machine.start_region();
    bench.enter(body);
    bench.load(1, DATA);
    bench.enter(handler); // the store at 3 has raised a page fault
    bench.machine.pause(&bench.tables);
    assert_eq!(bench.machine.counts.user_instructions, 3);
    assert_eq!(bench.machine.counts.kernel_instructions, 1);
    assert_eq!(bench.machine.counts.faults, 1);
    assert!(bench.statistic("cycles_by_owner.page_fault") > 0.0);
}

#[test]
fn a_repeated_string_instruction_costs_its_lines() {
    // rep stosq over 64 KiB as the guest executes it: one block of one instruction for each element.
    let mut bench = Bench::new(&[]);
    let stos = [0xf3, 0x48, 0xab];
    let body = bench.add(block_of(CODE, &stos));
    bench.enter(body);
    for turn in 0..65536 / 8 {
        if turn > 0 {
            bench.enter(body);
        }
        bench.store(0, DATA + turn * 8);
    }
    let behind = bench.add(block(CODE + 3, |a| a.nop()));
    bench.enter(behind);
    bench.machine.pause(&bench.tables);
    assert_eq!(bench.machine.counts.user_instructions, 2);
    assert_eq!(bench.machine.counts.repetitions, 65536 / 8 - 1);
    assert_eq!(bench.machine.counts.stores, 1024, "one access for each line");
    assert_eq!(bench.machine.counts.interrupts, 0);
}

#[test]
fn nothing_is_charged_where_hardware_does_the_work() {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| {
        for _ in 0..32 {
            a.add(rax, rbx)?;
        }
        a.jmp(CODE)
    }));
    let cycles = bench.measure(100, |bench, turn| {
        bench.machine.pause(&bench.tables);
        if turn % 2 == 0 {
            bench.machine.stop_charging()
        } else {
            bench.machine.charge_again()
        }
        bench.enter(body);
    });
    assert_eq!(bench.machine.counts.user_instructions, 50 * 33);
    assert_eq!(bench.machine.counts.uncharged_instructions, 50 * 33);
    assert_near(cycles as f64, 50.0 * 32.0, 0.1, "half of the cycles");
}

#[test]
fn the_same_stream_gives_the_same_numbers() {
    let run = || chase(&[], 4 << 20, false).1.statistics().text();
    assert_eq!(run(), run());
}
