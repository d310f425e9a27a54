//! Calls of the program's allocator, as the guest's memory and registers have them.

use super::{RAX, RDI, RDX, RSI, RSP, Run};
use crate::functions::Kind;
use crate::instruction::Instruction;
use crate::model::{Event, Request};

/// Addresses to which calls of the allocator have returned or may yet, and others by chance: a bit each, by
/// the lowest bits.
pub(super) struct Returns(Box<[u64; 1024]>);

impl Default for Returns {
    fn default() -> Returns {
        Returns(Box::new([0; 1024]))
    }
}

impl Returns {
    fn add(&mut self, address: u64) {
        self.0[(address >> 6) as usize % 1024] |= 1 << (address & 63);
    }

    #[inline]
    fn has(&self, address: u64) -> bool {
        self.0[(address >> 6) as usize % 1024] >> (address & 63) & 1 != 0
    }
}

impl Run {
    /// The function of the program's allocator that begins with this block.
    pub fn allocator_function(&self, instructions: &[Instruction]) -> Option<u32> {
        let bytes = instructions.iter().flat_map(|instruction| instruction.bytes().iter().copied());
        self.functions.find(instructions[0].address, bytes)
    }

    /// The program calls its allocator.
    pub(super) fn calls_allocator(&mut self, function: u32) {
        let stack = self.register(RSP);
        let arguments = [RDI, RSI, RDX].map(|number| self.register(number));
        let rax = self.register(RAX);
        let Some(back) = self.buffer.memory(stack) else { return };
        if self.functions.kind_and_size(function).0 == Kind::PosixMemalign {
            self.aligned.push((back, arguments[0]));
        }
        self.requests.add(back);
        self.engine.happens(Event::Request(Request { function, stack, back, arguments, rax }));
    }

    /// The program is behind a call, perhaps of its allocator. Few are, and reading a register takes long.
    pub(super) fn maybe_return(&mut self) {
        if self.requests.has(self.blocks[self.current].0) {
            let result = self.register(RAX);
            self.engine.happens(Event::Returned(result));
        }
    }

    /// A block is entered at this address, to which posix_memalign may return: its result is in memory.
    #[cold]
    pub(super) fn aligned_returns(&mut self, address: u64) {
        let Some(index) = self.aligned.iter().rposition(|(back, _)| *back == address) else { return };
        let (_, result_at) = self.aligned.swap_remove(index);
        let result = self.buffer.memory(result_at).unwrap_or(0);
        self.engine.happens(Event::Aligned(result));
    }
}
