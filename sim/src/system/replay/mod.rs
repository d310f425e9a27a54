//! A trace of allocations and frees on a machine's allocator unit, without a guest.
//!
//! A trace says which objects a program allocates and frees, and nothing of its code. So the code is made
//! up: the program calls malloc, writes each line of the object once, up to [`MOST_LINES`], and calls free;
//! malloc and free are a thread's cache of free objects (`software`). What the machine has in their place is
//! its own: Memento's units, an ideal Mallacc, SpeedMalloc's support core, or nothing. No kernel runs: pages
//! are there, and no page fault and no system call takes time. All threads of the trace take turns on one
//! core, each in a lane of its own for Memento, and an object is freed by the thread that has allocated it.

mod software;
mod tables;

use crate::base::cause::Owner;
use crate::base::description::Description;
use crate::isa::block::*;
use crate::system::machine::Machine;
use crate::system::statistics::Statistics;
use memento::layout::{LANES, LARGEST_BYTES, REGION_BYTES, REGION_START};
use memento::reference::Reference;
use software::{Heap, Step};
use tables::Flat;

/// The program writes no more lines of an object than these.
pub const MOST_LINES: u64 = 64;

const STACK: u64 = 0x2000_0000;
const PROGRAM: u64 = 0x0040_0000;

/// An object of the replay's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    address: u64,
    bytes: u64,
    lane: u64,
    in_hardware: bool,
}

impl Object {
    /// Its bytes' addresses.
    pub fn range(&self) -> std::ops::Range<u64> {
        self.address..self.address + self.bytes
    }
}

/// What the program's code is at: it calls one function after the other.
struct Program {
    /// mov, and the call of malloc; the same for an instruction in its place.
    allocates: usize,
    allocates_by_unit: usize,
    /// Writes a line, and goes on to the next.
    writes: usize,
    /// Then the next call is one of free, or not.
    has_written: usize,
    goes_back: usize,
    frees: usize,
    frees_by_unit: usize,
    has_freed: usize,
}

/// Where the program is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Start,
    Wrote,
    Freed,
}

/// A replay.
pub struct Replay {
    machine: Machine,
    description: Description,
    tables: Flat,
    program: Program,
    heap: Heap,
    /// The addresses that Memento's units give.
    reference: Option<Reference>,
    place: Place,
}

impl Replay {
    /// On this machine.
    ///
    /// # Errors
    /// The machine has several cores, or its units refuse the region.
    pub fn new(description: &Description) -> Result<Replay, String> {
        if description.cores.number > 1 {
            return Err("a trace of allocations is replayed on one core".to_owned());
        }
        let mut machine = Machine::new(description);
        machine.set_root(Flat::ROOT);
        let reference = description.memento.as_ref().map(|config| Reference::new(REGION_START, config));
        if let Some(config) = &description.memento {
            let flags = u64::from(config.eager) | u64::from(config.whole_pages) << 1;
            machine.set_region(REGION_START, (REGION_START + REGION_BYTES) | flags)?;
        }
        let heap = Heap::new(&mut machine);
        let program = Program::new(&mut machine);
        machine.start_region();
        let description = description.clone();
        Ok(Replay { machine, description, tables: Flat, program, heap, reference, place: Place::Start })
    }

    /// malloc of so many bytes by this thread.
    ///
    /// # Errors
    /// The units and the reference do not agree, or the objects take more memory than there is.
    pub fn allocate(&mut self, bytes: u64, thread: u32) -> Result<Object, String> {
        let (bytes, lane) = (bytes.max(1), u64::from(thread) % LANES as u64);
        if self.place == Place::Wrote {
            self.enter(self.program.goes_back);
        }
        let unit = self.reference.as_mut().filter(|_| bytes <= LARGEST_BYTES);
        // Where a class's addresses are used up, software allocates.
        let by_unit = unit.and_then(|reference| reference.allocate(lane as usize, bytes).ok());
        let object = match by_unit {
            Some(address) => {
                self.enter(self.program.allocates_by_unit);
                self.machine.split(1, &self.tables);
                self.machine.allocate(bytes | lane << 32, address)?;
                Object { address, bytes, lane, in_hardware: true }
            }
            None => {
                self.enter(self.program.allocates);
                self.access(1, STACK - 8, true);
                let (address, steps) = self.heap.allocate(bytes)?;
                self.call(Owner::Allocate, bytes, &steps);
                Object { address, bytes, lane, in_hardware: false }
            }
        };
        let lines = bytes.div_ceil(64).min(MOST_LINES);
        for line in 0..lines {
            self.enter(self.program.writes);
            if line == 0 && !object.in_hardware {
                self.machine.return_from_allocator(object.address);
            }
            self.access(0, object.address + 64 * line, true);
        }
        self.enter(self.program.has_written);
        self.place = Place::Wrote;
        Ok(object)
    }

    /// free of this object.
    ///
    /// # Errors
    /// The units refuse it.
    pub fn free(&mut self, object: &Object) -> Result<(), String> {
        if self.place == Place::Start {
            return Err("the trace begins with a free".to_owned());
        }
        if object.in_hardware {
            self.enter(self.program.frees_by_unit);
            self.machine.split(1, &self.tables);
            self.machine.free(object.address, object.lane, false)?;
            let reference = self.reference.as_mut().map_or(Ok(()), |one| one.free(object.address));
            reference.map_err(|exception| format!("free of {:#x}: {exception}", object.address))?;
            self.enter(self.program.has_freed);
        } else {
            self.enter(self.program.frees);
            self.access(1, STACK - 8, true);
            let steps = self.heap.free(object.address, object.bytes);
            self.call(Owner::Free, object.address, &steps);
            self.enter(self.program.has_freed);
            self.machine.return_from_allocator(0);
        }
        self.place = Place::Freed;
        Ok(())
    }

    /// The trace has ended: what was counted.
    pub fn finish(mut self) -> Statistics {
        self.machine.pause(&self.tables);
        self.machine.end_region(false);
        Statistics::of(&self.machine, &self.description)
    }

    /// The blocks of a function of the allocator, whose first is its begin.
    fn call(&mut self, owner: Owner, operand: u64, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            self.enter(step.block);
            if index == 0 && self.machine.enter_allocator(owner, operand, STACK - 8) {
                self.machine.allocator_code(self.heap.code(owner));
            }
            for (index, address, store) in step.accesses() {
                self.access(index, address, store);
            }
        }
    }

    fn enter(&mut self, block: usize) {
        self.machine.enter(block, &self.tables);
    }

    fn access(&mut self, index: u16, address: u64, store: bool) {
        self.machine.access(Access { address, physical: address, index, size: 8, store, device: false });
    }
}

impl Program {
    fn new(machine: &mut Machine) -> Program {
        use software::{FREE, MALLOC};
        let mut code = Code { machine, next: PROGRAM };
        let frees = code.block(&[set(RDI), call()], End::Call(FREE));
        let after = code.next;
        let frees_by_unit = code.at(PROGRAM, &[set(RDI)], End::Jump(after));
        // If the next call is one of free, too, the branch is taken.
        let has_freed = code.block(&[test(RDI), branch()], End::Conditional(PROGRAM));
        let begin = code.next;
        let allocates = code.block(&[set(RDI), call()], End::Call(MALLOC));
        let after = code.next;
        let allocates_by_unit = code.at(begin, &[set(RDI)], End::Jump(after));
        let writes = code.block(&[store(RAX), add(RAX), branch()], End::Conditional(after));
        let has_written = code.block(&[test(RDI), branch()], End::Conditional(PROGRAM));
        let goes_back = code.block(&[branch()], End::Jump(begin));
        Program {
            allocates,
            allocates_by_unit,
            writes,
            has_written,
            goes_back,
            frees,
            frees_by_unit,
            has_freed,
        }
    }
}

/// Made-up code: instructions of four bytes, one block behind the other.
struct Code<'a> {
    machine: &'a mut Machine,
    next: u64,
}

impl Code<'_> {
    fn block(&mut self, operations: &[Operation], ends: End) -> usize {
        let number = self.at(self.next, operations, ends);
        self.next += 4 * operations.len() as u64;
        number
    }

    fn at(&mut self, start: u64, operations: &[Operation], ends: End) -> usize {
        let mut operations: Box<[Operation]> = operations.into();
        for (index, operation) in operations.iter_mut().enumerate() {
            operation.offset = 4 * index as u16;
        }
        let certain = operations.iter().rposition(|one| one.flags & CERTAIN != 0);
        self.machine.add_block(Block {
            start,
            end: start + 4 * operations.len() as u64,
            physical: start,
            next_page: (start & !0xfff) + 4096,
            certain: certain.map_or(0, |index| index + 1),
            operations,
            ends,
            ..Block::default()
        })
    }
}

const FLAGS: u8 = 17;

fn plain(sources: [u8; 3], result: u8) -> Operation {
    Operation {
        latency: 1,
        sources,
        results: [result, TRASH_REGISTER, TRASH_REGISTER],
        ..Operation::default()
    }
}

/// A constant to a register.
fn set(result: u8) -> Operation {
    plain([NO_REGISTER; 3], result)
}

/// Arithmetic of a register and a constant.
fn add(register: u8) -> Operation {
    plain([register, NO_REGISTER, NO_REGISTER], register)
}

/// Of two registers, into the first.
fn add_to(register: u8, other: u8) -> Operation {
    plain([register, other, NO_REGISTER], register)
}

fn test(register: u8) -> Operation {
    plain([register, NO_REGISTER, NO_REGISTER], FLAGS)
}

fn branch() -> Operation {
    Operation { unit: Unit::Branch, ..plain([FLAGS, NO_REGISTER, NO_REGISTER], TRASH_REGISTER) }
}

/// Stores the address behind it.
fn call() -> Operation {
    Operation { flags: STORE | CERTAIN, unit: Unit::Store, ..set(TRASH_REGISTER) }
}

/// Loads the address that it goes to.
fn ret() -> Operation {
    Operation { flags: LOAD | CERTAIN, unit: Unit::Load, latency: 0, ..set(TRASH_REGISTER) }
}

fn load(result: u8, address: u8) -> Operation {
    Operation {
        flags: LOAD | CERTAIN,
        unit: Unit::Load,
        latency: 0,
        address: [address, NO_REGISTER],
        ..set(result)
    }
}

/// Of a value that is known.
fn store(address: u8) -> Operation {
    Operation {
        flags: STORE | CERTAIN,
        unit: Unit::Store,
        address: [address, NO_REGISTER],
        ..set(TRASH_REGISTER)
    }
}
