//! A run's instructions in the trace format of ChampSim (`input_instr` of its inc/trace_instruction.h).
//!
//! A record has 64 bytes, little endian: address (8), whether it is a branch (1), whether that was taken (1),
//! registers written (2) and read (4), addresses written (2 × 8) and read (4 × 8). 0 is no register and no
//! address.
//!
//! ChampSim tells kinds of branches by the registers: 6 is the stack pointer, 25 the flags, 26 the
//! instruction pointer. All other numbers are only names; here they are the machine's, and [`OTHERS`].

use crate::isa::block::*;
use std::io::{self, BufWriter, Write};
use std::ops::Range;

/// Length of a record.
pub const RECORD_BYTES: usize = 64;

const STACK_POINTER: u8 = 6;
const FLAGS: u8 = 25;
/// The instruction pointer.
const NEXT: u8 = 26;
/// Other registers have the machine's number and this.
const OTHERS: u8 = 64;
/// An indirect branch that reads no register has its target from memory: ChampSim knows it by this one,
/// which nothing writes.
const FROM_MEMORY: u8 = 127;
/// Of the machine's registers.
const RSP: u8 = 5;
const MACHINE_FLAGS: u8 = 17;

/// What a trace has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceCounts {
    /// Records.
    pub records: u64,
    /// Of which for further elements of string instructions, which are no instructions of their own.
    pub repetitions: u64,
    /// Accesses for which a record had no place, beyond two writes and four reads.
    pub left_out_accesses: u64,
}

/// A trace that is being written.
pub struct Trace {
    output: Option<BufWriter<Box<dyn Write + Send>>>,
    failed: Option<io::Error>,
    /// The last record is kept back, since a branch's direction is known later.
    last: Option<[u8; RECORD_BYTES]>,
    /// Counters.
    pub counts: TraceCounts,
}

impl Trace {
    /// An empty one.
    pub fn to(output: Box<dyn Write + Send>) -> Trace {
        Trace {
            output: Some(BufWriter::with_capacity(1 << 16, output)),
            failed: None,
            last: None,
            counts: TraceCounts::default(),
        }
    }

    /// The block's instructions `which` were executed, and made these accesses.
    pub(super) fn executed(&mut self, block: &Block, which: Range<usize>, mut accesses: &[Access]) {
        for index in which {
            let its = accesses.iter().take_while(|access| access.index as usize <= index).count();
            let (first, rest) = accesses.split_at(its);
            if block.operations[index].flags & MARK == 0 {
                accesses = rest;
                self.instruction(block, index, first);
            }
        }
    }

    /// The block's branch, if it is the last instruction so far, was taken or not.
    pub(super) fn branched(&mut self, block: &Block, taken: bool) {
        let last = block.operations.last().map_or(0, |last| u64::from(last.offset));
        if let Some(record) = &mut self.last
            && record[..8] == (block.start + last).to_le_bytes()
        {
            record[9] = u8::from(taken);
        }
    }

    /// Writes what is left, and closes the output.
    ///
    /// # Errors
    /// The output took not all of it.
    pub fn end(&mut self) -> io::Result<()> {
        self.write_last();
        let flushed = self.output.take().map_or(Ok(()), |mut output| output.flush());
        self.failed.take().map_or(flushed, Err)
    }

    fn instruction(&mut self, block: &Block, index: usize, accesses: &[Access]) {
        self.write_last();
        let operation = &block.operations[index];
        let end = if index + 1 == block.operations.len() { block.ends } else { End::Fallthrough };
        let mut record = [0; RECORD_BYTES];
        record[..8].copy_from_slice(&(block.start + u64::from(operation.offset)).to_le_bytes());
        record[8] = u8::from(end != End::Fallthrough);
        record[9] = u8::from(!matches!(end, End::Fallthrough | End::Conditional(_) | End::System));
        let (written, read) = registers(operation, end);
        record[10..12].copy_from_slice(&written);
        record[12..16].copy_from_slice(&read);
        let (mut stores, mut loads) = (16..32, 32..64);
        for access in accesses {
            let places = if access.store { &mut stores } else { &mut loads };
            if places.start == places.end {
                self.counts.left_out_accesses += 1;
                continue;
            }
            record[places.start..places.start + 8].copy_from_slice(&access.address.to_le_bytes());
            places.start += 8;
        }
        self.counts.records += 1;
        self.last = Some(record);
    }

    fn write_last(&mut self) {
        if let (Some(record), Some(output)) = (self.last.take(), &mut self.output)
            && let Err(error) = output.write_all(&record)
        {
            self.failed.get_or_insert(error);
        }
    }
}

/// Registers written and read, as ChampSim wants them for an instruction with this end.
fn registers(operation: &Operation, end: End) -> ([u8; 2], [u8; 4]) {
    let own = || operation.address.into_iter().chain(operation.sources);
    let others = || own().filter(|number| !matches!(*number, RSP | MACHINE_FLAGS));
    let target = || {
        let names: [u8; 2] = first(others().map(named));
        if names[0] == 0 { [FROM_MEMORY, 0] } else { names }
    };
    match end {
        End::Fallthrough => (first(operation.results.into_iter().map(named)), first(own().map(named))),
        End::Conditional(_) => {
            let flags = own().any(|number| number == MACHINE_FLAGS).then_some(FLAGS);
            (first([NEXT]), first([NEXT].into_iter().chain(flags).chain(others().map(named))))
        }
        End::Jump(_) => (first([NEXT]), first([NEXT])),
        End::IndirectJump => (first([NEXT]), first(target())),
        End::Call(_) => (first([NEXT, STACK_POINTER]), first([NEXT, STACK_POINTER])),
        End::IndirectCall => {
            (first([NEXT, STACK_POINTER]), first([NEXT, STACK_POINTER].into_iter().chain(target())))
        }
        End::Return => (first([NEXT, STACK_POINTER]), first([STACK_POINTER])),
        // A branch of no kind that ChampSim knows.
        End::System => (first([NEXT]), first([FLAGS])),
    }
}

/// ChampSim's number for one of the machine's; 0 if that is none.
fn named(number: u8) -> u8 {
    match number {
        NO_REGISTER | TRASH_REGISTER => 0,
        RSP => STACK_POINTER,
        MACHINE_FLAGS => FLAGS,
        other => other + OTHERS,
    }
}

/// The first of these that are registers, each once.
fn first<const N: usize>(numbers: impl IntoIterator<Item = u8>) -> [u8; N] {
    let mut all = [0; N];
    let mut many = 0;
    for number in numbers {
        if number != 0 && many < N && !all[..many].contains(&number) {
            all[many] = number;
            many += 1;
        }
    }
    all
}
