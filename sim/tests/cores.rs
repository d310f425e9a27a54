//! Two cores: which core's caches have a line, when each core has its turn, and their clocks.

mod common;
use common::*;
use iced_x86::code_asm::*;
use memento::layout::{REGION_BYTES, REGION_START};
use sim::memory::hierarchy::{Hierarchy, Level};
use sim::{Description, Machine};

const LINE: u64 = 0x4000;

fn two() -> Description {
    Description::load("table3", &["cores.number=2".to_owned()]).unwrap()
}

/// Cycles of this core's access to the line, long after all others.
fn access(hierarchy: &mut Hierarchy, core: usize, write: bool, at: u64) -> u64 {
    hierarchy.switch(core);
    hierarchy.access(Level::L1d, LINE, write, false, at).0 - at
}

#[test]
fn an_unwritten_line_is_in_both_cores_caches() {
    let mut hierarchy = Hierarchy::new(&two());
    access(&mut hierarchy, 0, false, 1000);
    assert_eq!(access(&mut hierarchy, 1, false, 2000), 40, "the LLC has it");
    assert_eq!(access(&mut hierarchy, 0, false, 3000), 2);
    assert_eq!(access(&mut hierarchy, 1, false, 4000), 2);
    assert_eq!((hierarchy.sharing.lines_taken, hierarchy.sharing.lines_invalidated), (0, 0));
    assert_eq!(hierarchy.counts().l1d.misses, 2, "of both cores");
}

#[test]
fn a_written_line_comes_out_of_its_owners_caches() {
    let mut hierarchy = Hierarchy::new(&two());
    access(&mut hierarchy, 0, true, 1000);
    assert_eq!(access(&mut hierarchy, 1, false, 2000), 40 + 20, "by the LLC, and a snoop");
    hierarchy.switch(0);
    assert!(!hierarchy.holds(Level::L1d, LINE) && !hierarchy.holds(Level::L2, LINE));
    assert_eq!(access(&mut hierarchy, 1, true, 3000), 2, "it has the line alone");
    assert_eq!(access(&mut hierarchy, 0, true, 4000), 40 + 20);
    assert_eq!(hierarchy.sharing.lines_taken + hierarchy.sharing.lines_invalidated, 2);
    assert_eq!(hierarchy.counts().dram.reads, 1, "and none for a line that a cache had");
}

#[test]
fn a_store_takes_others_copies() {
    let mut hierarchy = Hierarchy::new(&two());
    access(&mut hierarchy, 0, false, 1000);
    access(&mut hierarchy, 1, false, 2000);
    assert_eq!(access(&mut hierarchy, 0, true, 3000), 40 + 20 + 2, "it asks where the copies are known");
    assert_eq!(access(&mut hierarchy, 0, true, 4000), 2, "and then has the line alone");
    assert_eq!(hierarchy.sharing.lines_invalidated, 1);
    hierarchy.switch(1);
    assert!(!hierarchy.holds(Level::L1d, LINE) && !hierarchy.holds(Level::L2, LINE));
}

#[test]
fn a_line_that_the_llc_has_lost_comes_from_the_core_that_has_it() {
    let mut hierarchy = Hierarchy::new(&two());
    access(&mut hierarchy, 0, false, 1000);
    let (sets, ways) = (two().llc.sets as u64, two().llc.ways as u64);
    // Others of its set of the LLC, which have other sets of the core's caches.
    hierarchy.switch(1);
    for number in 1..=ways {
        hierarchy.access(Level::Llc, LINE + number * sets, false, false, 2000);
    }
    assert!(!hierarchy.holds(Level::Llc, LINE));
    assert_eq!(access(&mut hierarchy, 1, false, 9000), 40 + 20);
    assert_eq!(hierarchy.sharing.lines_taken, 1);
    assert_eq!(access(&mut hierarchy, 0, false, 9500), 2, "it keeps its own, which no core has written");
}

/// A machine, and a block of each core that loads and stores at an address of its own and adds for a while.
struct Pair {
    bench: Bench,
    blocks: [usize; 2],
    halt: usize,
}

impl Pair {
    fn new(overrides: &[&str]) -> Pair {
        let overrides: Vec<&str> = [overrides, &["cores.number=2"]].concat();
        let mut bench = Bench::new(&overrides);
        let blocks = [CODE, CODE + 0x1000].map(|start| {
            bench.add(block(start, |a| {
                a.add(qword_ptr(rbx), rax)?;
                for _ in 0..20 {
                    a.imul_2(rdx, rdx)?;
                }
                a.jmp(start)
            }))
        });
        let halt = bench.add(block_of(CODE + 0x2000, &[0xf4]));
        Pair { bench, blocks, halt }
    }

    /// This core's block once; whether its turn is over.
    fn step(&mut self, core: usize, address: u64) -> bool {
        let is_over = self.bench.machine.enter_on(core, self.blocks[core], &self.bench.tables);
        self.bench.load(0, address);
        self.bench.store(0, address);
        is_over
    }

    fn pause(&mut self) {
        self.bench.machine.pause(&self.bench.tables);
    }

    /// Cycles of so many blocks on each of these cores, by turns.
    fn run(&mut self, cores: &[usize], addresses: [u64; 2], times: u64) -> u64 {
        self.pause();
        self.bench.machine.start_region();
        let mut left = [0; 2];
        for core in cores {
            left[*core] = times;
        }
        while left != [0; 2] {
            for core in 0..2 {
                while left[core] > 0 {
                    left[core] -= 1;
                    if self.step(core, addresses[core]) {
                        break;
                    }
                }
            }
        }
        self.pause();
        self.bench.machine.cycles()
    }
}

#[test]
fn two_cores_take_as_long_as_one_for_twice_the_work() {
    let mut pair = Pair::new(&[]);
    pair.run(&[0, 1], [0x9000, 0xa000], 100);
    let one = pair.run(&[0], [0x9000, 0xa000], 2000);
    let both = pair.run(&[0, 1], [0x9000, 0xa000], 2000);
    assert_near(both as f64, one as f64, 0.02, "cycles of two thousand blocks on each of two cores");
    let instructions = |core: u64| pair.bench.statistic(&format!("cores.{core}.instructions"));
    assert_eq!((instructions(0), instructions(1)), (2000.0 * 22.0, 2000.0 * 22.0));
    assert_eq!(pair.bench.statistic("cores.lines_taken"), 0.0);
    // 60 cycles a block, and a core is up to 500 ahead.
    let turns = pair.bench.statistic("cores.turns");
    assert_near(turns, 2.0 * 2000.0 * 60.0 / 1000.0, 0.15, "turns of a thousand cycles");
}

#[test]
fn a_line_that_both_cores_write_moves_once_a_turn() {
    let taken = |turn: &str| {
        let mut pair = Pair::new(&[&format!("cores.turn_cycles={turn}")]);
        pair.run(&[0, 1], [0x9000, 0x9008], 100);
        pair.run(&[0, 1], [0x9000, 0x9008], 2000);
        let turns = pair.bench.statistic("cores.turns");
        let taken =
            pair.bench.statistic("cores.lines_taken") + pair.bench.statistic("cores.lines_invalidated");
        assert_near(taken, turns, 0.02, "once a turn");
        taken
    };
    assert!(taken("100") > 3.0 * taken("1000"));
}

#[test]
fn a_core_continues_at_the_time_of_its_waking() {
    let mut pair = Pair::new(&[]);
    pair.run(&[0, 1], [0x9000, 0xa000], 100);
    pair.pause();
    pair.bench.machine.start_region();
    pair.step(1, 0xa000);
    pair.bench.machine.enter_on(1, pair.halt, &pair.bench.tables);
    for _ in 0..1000 {
        pair.step(0, 0x9000);
    }
    pair.step(1, 0xa000);
    pair.pause();
    let cycles = pair.bench.machine.cycles() as f64;
    assert_near(cycles, 1000.0 * 60.0, 0.02, "those of the core that was awake");
    // Two blocks, and what it was woken after is all that they can come late.
    let busy = pair.bench.statistic("cores.1.busy_cycles");
    assert!((100.0..500.0).contains(&busy), "{busy} cycles of two blocks and a halt");
}

#[test]
fn no_turn_ends_in_an_uncharged_section() {
    let mut pair = Pair::new(&["cores.turn_cycles=0"]);
    assert!(pair.step(0, 0x9000), "turns of no cycles end at once");
    pair.bench.machine.stop_charging();
    assert!(!pair.step(0, 0x9000));
    // The thread that began it runs on another core now.
    pair.bench.machine.switch(1);
    pair.bench.machine.charge_again();
    assert!(pair.step(0, 0x9000));
}

#[test]
fn a_thread_frees_an_object_of_another_cores_hot() {
    let mut bench = Bench::of("memento", &["cores.number=2"]);
    bench.machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | 1).unwrap();
    let object = |machine: &mut Machine, lane: u64| {
        let line = machine.allocate(64 | lane << 32, 0).unwrap_err();
        u64::from_str_radix(line.rsplit("units' 0x").next().unwrap(), 16).unwrap()
    };
    let its = object(&mut bench.machine, 0);
    // The other core runs the same process, and the plugin has not seen it load CR3.
    bench.machine.switch(1);
    let own = object(&mut bench.machine, 1);
    assert_ne!(its, own);
    bench.machine.start_region();
    bench.machine.free(its, 1, false).unwrap();
    bench.machine.switch(0);
    assert_eq!(object(&mut bench.machine, 0), its, "free again");
    assert_eq!(bench.statistic("memento.non_local_frees"), 1.0);
    assert_eq!(bench.statistic("memento.hot_invalidations"), 1.0, "of the first core's HOT");
    assert!(bench.statistic("cores.lines_taken") >= 1.0, "the arena's header");
}

#[test]
fn impossible_numbers_of_cores_are_refused() {
    for (machine, overrides, expected) in [
        ("table3", vec!["cores.number=0"], "cores.number = 0: 1 to 8"),
        ("table3", vec!["cores.number=9"], "cores.number = 9: 1 to 8"),
        ("speedmalloc", vec!["cores.number=2"], "a machine with a support core has one other"),
    ] {
        let overrides: Vec<_> = overrides.iter().map(|item| item.to_string()).collect();
        assert!(Description::load(machine, &overrides).unwrap_err().contains(expected));
    }
    assert!(two().sampled(Some(25_013)).unwrap_err().contains("several cores is not sampled"));
}
