//! How far a block was executed, and how often a string instruction.

use crate::isa::block::*;
use crate::memory::tlb::PageTables;
use crate::system::machine::Machine;

impl Machine {
    /// A string instruction's second and later elements: entered as blocks of that one instruction. They
    /// count as part of the first, and cost an access for each line they touch. True if this was one.
    pub(super) fn repetition(
        &mut self,
        number: usize,
        from: usize,
        next: Option<u64>,
        tables: &impl PageTables,
    ) -> bool {
        let block = &self.blocks[number];
        let last = block.operations.len() - 1;
        let at = block.start + u64::from(block.operations[last].offset);
        let again = block.operations.len() == 1 && self.own.repeated.0 == at;
        let (mut read, mut written) =
            if again { (self.own.repeated.1, self.own.repeated.2) } else { (u64::MAX, u64::MAX) };
        // Keep one access a line.
        self.own.accesses.retain(|access| {
            let line = if access.store { &mut written } else { &mut read };
            if usize::from(access.index) != last {
                return true;
            }
            let new = access.physical >> 6 != *line;
            *line = access.physical >> 6;
            new
        });
        self.own.repeated = if next == Some(at) { (at, read, written) } else { (0, 0, 0) };
        if !again {
            return false;
        }
        self.counts.repetitions += 1;
        if !self.own.accesses.is_empty() {
            let before = (self.counts.user_instructions, self.counts.kernel_instructions);
            let records = self.trace_counts().map_or(0, |counts| counts.records);
            self.run(number, from, 1, tables);
            (self.counts.user_instructions, self.counts.kernel_instructions) = before;
            if let Some(trace) = &mut self.trace {
                trace.counts.repetitions += trace.counts.records - records;
            }
        }
        true
    }
}

/// How many of the block's instructions were executed: up to the first that must have touched memory and did
/// not.
#[inline]
pub(super) fn executed(block: &Block, from: usize, accesses: &[Access]) -> usize {
    // Nearly always the last such instruction has accessed memory, so all before it have.
    let reached = accesses.last().map_or(from, |access| access.index as usize + 1);
    if block.certain <= reached {
        return block.operations.len();
    }
    let mut taken = 0;
    for index in from..block.operations.len() {
        let mut touched = false;
        while taken < accesses.len() && accesses[taken].index as usize <= index {
            taken += 1;
            touched = true;
        }
        if block.operations[index].flags & CERTAIN != 0 && !touched {
            return index;
        }
    }
    block.operations.len()
}
