//! SpeedMalloc's support core: the cores' time for an allocation, and which core's caches have a line.

mod common;

use common::*;
use iced_x86::code_asm::*;
use sim::Description;
use sim::base::cause::Owner;

const MALLOC: u64 = CODE + 0x1000;
const STACK: u64 = 0x7ff8;

/// A program on this machine that calls malloc or free, which executes 20 multiplications, one on the other.
struct Program {
    bench: Bench,
    call: usize,
    work: usize,
    end: usize,
    back: usize,
}

impl Program {
    fn new(machine: &str, overrides: &[&str], program: impl Fn(&mut CodeAssembler) -> Assembled) -> Program {
        let mut bench = Bench::of(machine, overrides);
        Program {
            call: bench.add(block(CODE, |a| a.call(MALLOC))),
            work: bench.add(block(MALLOC, |a| {
                for _ in 0..20 {
                    a.imul_2(rdx, rdx)?;
                }
                a.mov(rcx, qword_ptr(rbx))?;
                a.jmp(MALLOC + 0x800)
            })),
            end: bench.add(block_of(MALLOC + 0x800, &[0xc3])),
            back: bench.add(block(CODE + 5, |a| {
                program(a)?;
                a.jmp(CODE)
            })),
            bench,
        }
    }

    /// One call, whose metadata lies at `metadata`, and the program behind it.
    fn turn(&mut self, owner: Owner, metadata: u64) {
        let bench = &mut self.bench;
        bench.enter(self.call);
        bench.store(0, STACK);
        bench.enter(self.work);
        bench.machine.enter_allocator(owner, 24, STACK);
        bench.load(20, metadata);
        bench.enter(self.end);
        bench.load(0, STACK);
        bench.enter(self.back);
        bench.machine.return_from_allocator(0x5000);
    }

    fn cycles_a_turn(&mut self, owner: Owner) -> f64 {
        for _ in 0..1000 {
            self.turn(owner, 0x9000);
        }
        self.bench.machine.pause(&self.bench.tables);
        self.bench.machine.start_region();
        for _ in 0..1000 {
            self.turn(owner, 0x9000);
        }
        self.bench.machine.pause(&self.bench.tables);
        self.bench.machine.cycles() as f64 / 1000.0
    }
}

/// The program uses what malloc has returned.
fn uses_it(assembler: &mut CodeAssembler) -> Assembled {
    assembler.imul_2(rdi, rax)
}

/// It has 200 multiplications of its own to do, one a cycle, independent of malloc.
fn is_busy(assembler: &mut CodeAssembler) -> Assembled {
    (0..200).try_for_each(|_| assembler.imul_3(r10, rsi, 3))
}

#[test]
fn malloc_takes_a_message_each_way_and_its_code() {
    let cycles = |message: u64| {
        let set = format!("support.message_cycles={message}");
        Program::new("speedmalloc", &[&set], uses_it).cycles_a_turn(Owner::Allocate)
    };
    let (near, far) = (cycles(20), cycles(120));
    // 20 times three cycles, a load, two jumps; each turn's size depends on the address of the one before.
    assert!((105.0..125.0).contains(&near), "{near} cycles");
    assert_near(far - near, 200.0, 0.02, "two messages of 100 cycles more");
}

#[test]
fn a_free_passes_beside_the_program() {
    let software = Program::new("table3", &[], is_busy).cycles_a_turn(Owner::Free);
    let mut program = Program::new("speedmalloc", &[], is_busy);
    let beside = program.cycles_a_turn(Owner::Free);
    assert_near(beside, 200.0, 0.02, "the program's own 200, one a cycle");
    assert_near(software, 220.0, 0.02, "on one core, with the allocator's 20");
    assert_eq!(program.bench.statistic("support.requests"), 1000.0);
    assert_eq!(program.bench.statistic("support.instructions"), 23_000.0);
    assert_eq!(program.bench.statistic("support.full_queues"), 0.0);
    assert_eq!(
        program.bench.statistic("loads") + program.bench.statistic("stores"),
        1000.0,
        "those of calls"
    );
    let wrong = program.bench.statistic("branch.returns_mispredicted");
    assert_eq!(wrong, 0.0, "no core predicts returns that the support core executes");
}

#[test]
fn a_return_behind_malloc_is_predicted() {
    let mut program = Program::new("speedmalloc", &[], |_| Ok(()));
    let Program { bench, call, work, end, .. } = &mut program;
    let outer = bench.add(block(CODE - 0x100, |a| a.call(CODE)));
    let back = bench.add(block_of(CODE + 5, &[0xc3]));
    let after = bench.add(block(CODE - 0x100 + 5, |a| a.jmp(CODE - 0x100)));
    for _ in 0..1000 {
        bench.enter(outer);
        bench.store(0, STACK + 8);
        bench.enter(*call);
        bench.store(0, STACK);
        bench.enter(*work);
        bench.machine.enter_allocator(Owner::Allocate, 24, STACK);
        bench.load(20, 0x9000);
        bench.enter(*end);
        bench.load(0, STACK);
        bench.enter(back);
        bench.machine.return_from_allocator(0x5000);
        bench.load(0, STACK + 8);
        bench.enter(after);
    }
    bench.machine.pause(&bench.tables);
    let [returns, wrong] =
        ["branch.returns", "branch.returns_mispredicted"].map(|name| bench.statistic(name));
    assert_eq!((returns, wrong), (1000.0, 0.0), "malloc's own are the support core's");
}

#[test]
fn too_many_frees_stall_the_program() {
    let mut program = Program::new("speedmalloc", &["support.queue_entries=4"], |_| Ok(()));
    let cycles = program.cycles_a_turn(Owner::Free);
    assert!((64.0..80.0).contains(&cycles), "the support core's own pace: {cycles}");
    assert!(program.bench.statistic("support.full_queues") > 990.0);
    let busy = program.bench.statistic("support.busy_cycles");
    assert!(busy <= program.bench.statistic("cycles") + 400.0, "it does one thing at a time: {busy}");
}

#[test]
fn a_line_is_in_one_cores_caches_alone() {
    let mut program = Program::new("speedmalloc", &[], |a| a.mov(qword_ptr(r8), r9));
    let mut snoops = |written: u64| {
        program.bench.machine.start_region();
        for _ in 0..100 {
            program.turn(Owner::Free, 0x9000);
            program.bench.store(0, written);
        }
        program.bench.machine.pause(&program.bench.tables);
        ["lines_taken", "lines_given", "l1d_misses"]
            .map(|name| program.bench.statistic(&format!("support.{name}")))
    };
    let apart = snoops(0x1_0000);
    assert!(apart.iter().all(|count| *count <= 1.0), "not even its stack: {apart:?}");
    for count in snoops(0x9000) {
        assert!((98.0..=100.0).contains(&count), "once a turn: {count}");
    }
}

#[test]
fn the_kernels_work_for_the_allocator_waits_for_it() {
    let mut program = Program::new("speedmalloc", &[], |_| Ok(()));
    let calls = program.bench.add(block(MALLOC + 0x2000, |a| {
        for _ in 0..20 {
            a.imul_2(rdx, rdx)?;
        }
        a.syscall()
    }));
    let kernel = program.bench.add(block(0xffff_ffff_8100_0000, |a| a.iretq()));
    let mut cycles = |number: u64| {
        let Program { bench, call, end, back, .. } = &mut program;
        bench.machine.pause(&bench.tables);
        bench.machine.start_region();
        bench.enter(*call);
        bench.store(0, STACK);
        bench.enter(calls);
        bench.machine.enter_allocator(Owner::Free, 24, STACK);
        bench.machine.system_call(number);
        bench.enter(kernel);
        bench.enter(*end);
        bench.load(0, STACK);
        bench.enter(*back);
        bench.machine.return_from_allocator(0);
        bench.machine.pause(&bench.tables);
        bench.machine.cycles()
    };
    cycles(9);
    let [getpid, mmap] = [39, 9].map(&mut cycles);
    // A message, 20 times three cycles, and a message.
    assert!(mmap > getpid + 80, "the one is about memory: {getpid} and {mmap} cycles");
}

#[test]
fn a_machine_without_one_has_none_of_its_numbers() {
    let load = |machine: &str, set: &str| Description::load(machine, &[set.to_owned()]);
    assert!(load("table3", "support.queue_entries=4").is_err());
    assert_eq!(load("speedmalloc", "support.queue_entries=4").unwrap().support.unwrap().queue_entries, 4);
    let line = load("speedmalloc", "support.queue_entries=0").unwrap_err();
    assert_eq!(line, "machine speedmalloc: support.queue_entries = 0: at least 1 is needed");
    let bench = Bench::new(&[]);
    assert!(bench.statistics().get("support.requests").is_none());
}
