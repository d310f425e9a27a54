//! Calls of malloc and free that lead to either side of one program: which of their instructions are charged.

mod common;
use common::*;
use iced_x86::code_asm::*;
use memento::layout::{REGION_BYTES, REGION_START};
use sim::base::cause::Owner;

const PLT: u64 = CODE + 0x1000;
const FUNCTION: u64 = CODE + 0x2000;
const SOFTWARE: u64 = CODE + 0x3000;
const MEMENTO: u64 = CODE + 0x4000;
const STACK: u64 = 0x7000_0000;
const TURNS: u64 = 1000;

/// A block that begins with a mark and jumps by an address in memory.
fn marked(code: u8) -> Vec<u8> {
    vec![0x0f, 0x1f, 0x84, 0x00, code, 0x00, 0x4d, 0x4d, 0xff, 0x25, 0, 1, 0, 0]
}

/// The blocks of a program that calls an allocator's function, and their numbers.
struct Program {
    bench: Bench,
    call: usize,
    call_by_plt: usize,
    call_by_pointer: usize,
    jump: usize,
    back: usize,
    plt: usize,
    begin: usize,
    replaced: usize,
    beneath: usize,
    software: usize,
    memento: usize,
    memento_ends: usize,
    direct: usize,
    object: u64,
}

/// How the program gets to the function.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Call,
    Plt,
    Pointer,
    Jump,
}

impl Program {
    fn new(machine: &str, overrides: &[&str]) -> Program {
        let mut bench = Bench::of(machine, overrides);
        let of = |target: u64| {
            block(CODE, |a| {
                a.mov(edi, 64)?;
                a.call(target)
            })
        };
        let end = of(FUNCTION).end;
        let mut add = |block| bench.add(block);
        let mut program = Program {
            call: add(of(FUNCTION)),
            call_by_plt: add(of(PLT)),
            direct: add(of(SOFTWARE)),
            call_by_pointer: add(block(CODE, |a| {
                a.mov(edi, 64)?;
                a.call(rax)
            })),
            jump: add(block(CODE, |a| {
                a.mov(edi, 64)?;
                a.jmp(FUNCTION)
            })),
            back: add(block(end, |a| {
                a.add(rbx, rcx)?;
                a.jmp(CODE)
            })),
            plt: add(block(PLT, |a| {
                a.endbr64()?;
                a.jmp(qword_ptr(PLT + 0x100))
            })),
            begin: add(block_of(FUNCTION, &marked(0x17))),
            replaced: add(block_of(FUNCTION + 32, &marked(0x18))),
            beneath: add(block_of(FUNCTION + 64, &marked(0x19))),
            software: add(block(SOFTWARE, |a| {
                a.mov(rax, rdi)?;
                a.ret()
            })),
            memento: add(block(MEMENTO, |a| {
                a.cmp(rdi, 512)?;
                a.ja(FUNCTION + 64)
            })),
            memento_ends: add(block(MEMENTO + 0x100, |a| a.ret())),
            object: 0,
            bench,
        };
        if machine == "memento" {
            let region = (REGION_START, (REGION_START + REGION_BYTES) | 1);
            program.bench.machine.set_region(region.0, region.1).unwrap();
            let wrong = program.bench.machine.allocate(64, 0).unwrap_err();
            program.object = u64::from_str_radix(wrong.rsplit("units' 0x").next().unwrap(), 16).unwrap();
            program.bench.machine.free(program.object, 0, false).unwrap();
        }
        program
    }

    /// To the block of the redirected function's begin.
    fn calls(&mut self, by: By) {
        let block = match by {
            By::Call => self.call,
            By::Plt => self.call_by_plt,
            By::Pointer => self.call_by_pointer,
            By::Jump => self.jump,
        };
        self.bench.enter(block);
        if by != By::Jump {
            self.bench.store(1, STACK);
        }
        if by == By::Plt {
            self.leads(self.plt);
        }
        self.leads(self.begin);
    }

    /// A block that jumps by an address in memory.
    fn leads(&mut self, block: usize) {
        self.bench.enter(block);
        self.bench.load(1, FUNCTION + 0x800);
    }

    fn returns(&mut self, from: usize, index: u16) {
        self.bench.enter(from);
        self.bench.load(index, STACK);
        self.bench.enter(self.back);
    }

    /// malloc or free by Memento; `small`: the request is one of its own.
    fn memento(&mut self, by: By, small: bool) {
        self.calls(by);
        self.leads(self.replaced);
        self.bench.enter(self.memento);
        if small {
            // The shim's own instructions, then the closing mark.
            self.bench.enter(self.memento_ends);
            self.bench.machine.split(0, &self.bench.tables);
            self.bench.machine.stop_charging();
            self.bench.machine.allocate(64, self.object).unwrap();
            self.bench.load(0, STACK);
            self.bench.enter(self.back);
            self.bench.machine.free(self.object, 0, false).unwrap();
        } else {
            self.leads(self.beneath);
            self.returns(self.software, 1);
        }
    }

    /// The baseline's: the same program, whose function leads to its own allocator.
    fn baseline(&mut self, by: By) {
        self.calls(by);
        self.returns(self.software, 1);
    }

    /// The instructions of a turn, and the cycles of all.
    fn measured(mut self, turn: impl Fn(&mut Program)) -> (f64, u64) {
        turn(&mut self);
        self.bench.machine.pause(&self.bench.tables);
        self.bench.machine.start_region();
        for _ in 0..TURNS {
            turn(&mut self);
        }
        self.bench.machine.pause(&self.bench.tables);
        self.bench.statistics();
        (self.bench.machine.instructions() as f64 / TURNS as f64, self.bench.machine.cycles())
    }
}

fn memento(overrides: &[&str], by: By, small: bool) -> f64 {
    Program::new("memento", overrides).measured(|program| program.memento(by, small)).0
}

fn direct(program: &mut Program) {
    program.bench.enter(program.direct);
    program.bench.store(1, STACK);
    program.returns(program.software, 1);
}

/// mov before the call and two instructions behind it; obj-alloc, and obj-free after the return.
const REPLACED: f64 = 3.0 + 2.0;

#[test]
fn the_instruction_takes_the_place_of_the_call() {
    assert_eq!(memento(&[], By::Call, true), REPLACED);
    assert_eq!(memento(&[], By::Plt, true), REPLACED);
    // The function that jumps there returns itself.
    assert_eq!(memento(&[], By::Jump, true), REPLACED + 1.0);
    // Which function a pointer leads to is not known before: the call and its return stay.
    assert_eq!(memento(&[], By::Pointer, true), REPLACED + 2.0);
}

#[test]
fn a_wrapped_instruction_costs_the_call_the_comparison_and_the_return() {
    let wrapped = memento(&["memento.replaces_calls=false"], By::Call, true);
    assert_eq!(wrapped, REPLACED + 4.0, "call, cmp, ja and ret");
}

#[test]
fn a_request_left_to_the_software_costs_as_much_as_on_the_baseline() {
    for by in [By::Call, By::Plt, By::Jump, By::Pointer] {
        let baseline = Program::new("table3", &[]).measured(|program| program.baseline(by));
        let software = Program::new("memento", &[]).measured(|program| program.memento(by, false));
        assert_eq!(software.0, baseline.0);
        // The region's set-up is before what is counted, and leaves other lines in the caches.
        assert!(software.1.abs_diff(baseline.1) < 4, "{software:?}, {baseline:?}");
    }
}

#[test]
fn the_baseline_pays_nothing_for_the_jump_to_its_allocator() {
    let plain = Program::new("table3", &[]).measured(direct);
    let redirected = Program::new("table3", &[]).measured(|program| program.baseline(By::Call));
    assert_eq!(plain, redirected);
    assert_eq!(plain.0, 6.0, "mov and call, mov and ret, add and jmp");
}

#[test]
fn a_held_call_of_another_function_is_timed_in_its_order() {
    // Calls through the table of other files' functions, on the machine that holds them and on the one that
    // does not.
    let turn = |program: &mut Program| {
        program.bench.enter(program.call_by_plt);
        program.bench.store(1, STACK);
        program.leads(program.plt);
        program.returns(program.software, 1);
    };
    let held = Program::new("memento", &[]).measured(turn);
    assert_eq!(held, Program::new("memento", &["memento.replaces_calls=false"]).measured(turn));
    assert_eq!(held.0, 8.0);
}

#[test]
fn the_ideal_allocator_replaces_calls_for_as_large_objects_as_memento() {
    let mallacc = |bytes: u64| {
        Program::new("mallacc", &[]).measured(|program| {
            program.calls(By::Plt);
            program.bench.enter(program.software);
            program.bench.machine.enter_allocator(Owner::Allocate, bytes, STACK);
            program.bench.machine.allocator_code(SOFTWARE..SOFTWARE + 16);
            program.bench.load(1, STACK);
            program.bench.enter(program.back);
            program.bench.machine.return_from_allocator(0x1000);
        })
    };
    assert_eq!(mallacc(512).0, 3.0, "mov, add and jmp");
    assert_eq!(mallacc(513).0, 8.0, "as in software: call, endbr64, jmp, mov and ret");
}

#[test]
fn an_ideal_function_that_jumps_to_another_returns_for_the_first_call() {
    let mut program = Program::new("mallacc", &[]);
    let jump = program.bench.add(block(MEMENTO, |a| a.jmp(FUNCTION)));
    let turn = |program: &mut Program| {
        program.calls(By::Call);
        for (entered, code) in [(jump, MEMENTO), (program.software, SOFTWARE)] {
            program.bench.enter(entered);
            program.bench.machine.enter_allocator(Owner::Allocate, 64, STACK);
            program.bench.machine.allocator_code(code..code + 16);
            if entered == jump {
                program.leads(program.begin);
            }
        }
        program.bench.load(1, STACK);
        program.bench.enter(program.back);
        program.bench.machine.return_from_allocator(0x1000);
    };
    for _ in 0..3 {
        turn(&mut program);
    }
    program.bench.machine.pause(&program.bench.tables);
    assert_eq!(program.bench.statistic("branch.returns"), 0.0, "its call was not seen either");
}

#[test]
fn a_jump_that_is_interrupted_leaves_a_call() {
    let mut program = Program::new("memento", &[]);
    let kernel = program.bench.add(block(0xffff_8000_0000_0000, |a| a.iretq()));
    let (instructions, _) = program.measured(|program| {
        program.bench.enter(program.call);
        program.bench.store(1, STACK);
        program.bench.enter(kernel);
        program.leads(program.begin);
        program.leads(program.replaced);
        program.bench.enter(program.memento_ends);
        program.bench.machine.split(0, &program.bench.tables);
        program.bench.machine.allocate(64, program.object).unwrap();
        program.bench.load(0, STACK);
        program.bench.enter(program.back);
        program.bench.machine.free(program.object, 0, false).unwrap();
    });
    assert_eq!(instructions, REPLACED + 3.0, "the call, iretq and the return");
}
