//! Sampling: a run of which only windows are timed, beside the same run timed as a whole.

mod common;
use common::*;
use iced_x86::code_asm::*;
use memento::layout::{REGION_BYTES, REGION_START};
use sim::Description;

const DATA: u64 = 0x1000_0000;
/// A prime number of loops, so that phases and periods do not keep step.
const TURNS: u64 = 150_001;

fn bench(machine: &str, period: Option<u64>) -> Bench {
    let bench = Bench::on(Description::load(machine, &[]).unwrap().sampled(period).unwrap());
    Bench { tables: Identity { large: false }, ..bench }
}

/// A program of phases: a loop in the L1d, one that misses all caches, and one whose branches are
/// unpredictable. Each phase is longer than a period, and together they touch 4 MiB.
fn run(bench: &mut Bench) {
    let head = bench.add(block(CODE, |a| {
        a.mov(rax, qword_ptr(rbx))?;
        a.imul_2(rcx, rax)?;
        a.add(rdx, rcx)?;
        a.mov(qword_ptr(rsi), rdx)?;
        a.test(rax, rax)?;
        a.je(CODE + 0x100)
    }));
    let next = bench.machine.block(head).end;
    let tail = bench.add(block(next, |a| {
        a.add(rdx, 1)?;
        a.jmp(CODE)
    }));
    let taken = bench.add(block(CODE + 0x100, |a| {
        a.lea(rdx, rdx + 2)?;
        a.lea(rdx, rdx + 3)?;
        a.jmp(CODE)
    }));
    let mut random = Random(7);
    bench.machine.start_region();
    for turn in 0..TURNS {
        let (phase, number) = (turn / 15_000 % 3, random.next());
        let reach = [16 << 10, 4 << 20, 16 << 10][phase as usize];
        bench.enter(head);
        bench.load(0, DATA + number % reach / 8 * 8);
        bench.store(3, DATA + turn * 8 % reach);
        bench.enter(if phase == 2 && number >> 60 < 8 { taken } else { tail });
    }
    bench.machine.pause(&bench.tables);
}

#[test]
fn the_estimate_is_near_the_whole_run_and_within_its_interval() {
    let (mut whole, mut sampled) = (bench("table3", None), bench("table3", Some(13_007)));
    run(&mut whole);
    run(&mut sampled);
    let (right, estimate) = (whole.statistic("cycles"), sampled.statistic("cycles"));
    let interval = sampled.statistic("sample.interval_95_percent");
    assert_eq!(sampled.statistic("instructions"), whole.statistic("instructions"));
    assert!(sampled.statistic("sample.windows") >= 90.0);
    // The phases differ tenfold, which the interval has to tell: it is of samples at random, and these lie
    // evenly.
    assert_near(estimate, right, 0.02, "cycles");
    let error = 100.0 * (estimate / right - 1.0).abs();
    assert!(error < interval && interval < 25.0, "{error}% wrong, estimated to be within {interval}%");
    for owner in ["user", "kernel"] {
        let name = format!("cycles_by_owner.{owner}");
        assert_near(sampled.statistic(&name), whole.statistic(&name), 0.02, &name);
    }
    for cause in ["branch", "dram", "execution"] {
        let name = format!("cycles_by_cause.{cause}");
        assert_near(sampled.statistic(&name), whole.statistic(&name), 0.05, &name);
    }
}

#[test]
fn events_between_the_windows_are_those_of_the_whole_run() {
    let (mut whole, mut sampled) = (bench("table3", None), bench("table3", Some(13_007)));
    run(&mut whole);
    run(&mut sampled);
    let exact = [
        "loads",
        "stores",
        "branch.conditional_mispredicted",
        "branch.btb_misses",
        "tlb.data_misses",
        "tlb.instruction_lookups",
        "tlb.walks",
        "l1i.misses",
    ];
    for name in exact {
        assert_eq!(sampled.statistic(name), whole.statistic(name), "{name}");
    }
    // A load that the store queue answers does not look into the L1d, which changes the order of use.
    for name in ["l1d.misses", "l2.misses", "llc.misses", "dram.reads", "dram.writes"] {
        assert_near(sampled.statistic(name), whole.statistic(name), 0.01, name);
    }
    // Statistics that depend on time are unknown between windows.
    for name in
        ["tlb.walk_cycles", "dram.read_latency_ns", "dram.read_row_hits", "l1d.mshr_wait_cycles", "l2.merges"]
    {
        assert!(sampled.statistics().get(name).is_none() && whole.statistics().get(name).is_some(), "{name}");
    }
}

/// Objects that live for a thousand allocations, each used; the units' counters.
fn allocate(period: Option<u64>) -> Bench {
    let mut bench = bench("memento", period);
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    let body = bench.add(block(CODE, |a| {
        for _ in 0..10 {
            a.mov(qword_ptr(rbx), rax)?;
            a.add(rax, rbx)?;
        }
        Ok(())
    }));
    bench.machine.start_region();
    let mut live = std::collections::VecDeque::new();
    for turn in 0..30_000 {
        let size = 8 + turn % 8 * 8;
        let wrong = bench.machine.allocate(size, 0).unwrap_err();
        let address = u64::from_str_radix(wrong.rsplit("units' 0x").next().unwrap(), 16).unwrap();
        live.push_back(address);
        bench.enter(body);
        for index in 0..10 {
            bench.store(index * 2, address);
        }
        if live.len() > 1000 {
            let oldest = live.pop_front().unwrap();
            bench.machine.free(oldest, 0, false).unwrap();
        }
    }
    bench.machine.pause(&bench.tables);
    bench
}

#[test]
fn the_units_do_the_same_between_the_windows() {
    let (whole, sampled) = (allocate(None), allocate(Some(8_009)));
    for name in ["allocations", "frees", "allocation_hits", "free_hits", "arenas_freed", "new_lines", "walks"]
    {
        let name = format!("memento.{name}");
        assert_eq!(sampled.statistic(&name), whole.statistic(&name), "{name}");
    }
    assert_near(sampled.statistic("cycles"), whole.statistic("cycles"), 0.02, "cycles");
}

#[test]
fn the_oss_work_is_not_scaled() {
    let mut bench = bench("memento", Some(8_009));
    let before = bench.statistic("cycles_of.memory_call.memento");
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    let region = bench.statistic("cycles_of.memory_call.memento") - before;
    assert!(region >= 1500.0 + 512.0 * 50.0, "the pool's first pages: {region}");
    let body = bench.add(block(CODE, |a| {
        (0..99).try_for_each(|_| a.add(rax, rbx))?;
        a.jmp(CODE)
    }));
    for _ in 0..1000 {
        bench.enter(body);
    }
    bench.machine.pause(&bench.tables);
    assert_eq!(bench.statistic("cycles_of.memory_call.memento"), region);
    assert_near(bench.statistic("cycles_by_owner.user"), 100_000.0, 0.02, "a chain of additions");
}

#[test]
fn unfit_machines_and_periods_are_not_sampled() {
    let table3 = |period| Description::load("table3", &[]).unwrap().sampled(Some(period));
    assert!(table3(7_000).unwrap_err().contains("more than 7000 are needed"));
    assert!(table3(7_001).is_ok());
    let speedmalloc = Description::load("speedmalloc", &[]).unwrap().sampled(Some(25_013));
    assert!(speedmalloc.unwrap_err().contains("a support core is not sampled"));
}
