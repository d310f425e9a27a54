//! The guest's marks, and where QEMU has the guest's memory.

use super::{MOST_MEMORY, RDI, RSI, Run};
use crate::engine::Engine;
use crate::guest::GuestMemory;
use crate::instruction::Instruction;
use crate::model::marks::{BEGIN, END, KERNEL_FUNCTION, READY};
use crate::model::{Event, Phase};
use crate::tables::Tables;

/// The kernel maps all physical memory here (without 5-level paging, with `nokaslr`).
pub(super) const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

impl Run {
    /// QEMU translates a mark.
    pub fn saw_mark(&mut self, code: u16, instruction: &Instruction) {
        if u32::from(code) == KERNEL_FUNCTION {
            self.known = (instruction.address, instruction.host);
        }
    }

    pub(super) fn mark(&mut self, code: u32, index: usize) {
        let operands = [self.register(RDI), self.register(RSI)];
        if self.phase == Phase::Boot
            && let Some(cr3) = self.cr3
        {
            let root = self.buffer.register(cr3);
            if self.saving.is_some() {
                return self.save(code, root, operands);
            }
            self.set_root(0, root);
        }
        if code == KERNEL_FUNCTION {
            self.kernel.set_function(operands);
            self.find_memory();
        }
        self.engine.happens(Event::Mark { code, index, operands });
        let next = match (code, self.phase) {
            (READY, Phase::Boot) => Phase::Warm,
            (BEGIN, Phase::Warm) => Phase::Region,
            (END, Phase::Region) => Phase::Over,
            (_, same) => same,
        };
        if next == self.phase {
            return;
        }
        if next == Phase::Over {
            self.engine.wait();
        }
        self.phase = next;
        // From READY on QEMU calls the plugin for everything, and at the region's end no longer.
        if next != Phase::Region {
            (self.translate_anew)(self.id);
        }
    }

    /// Where QEMU has the guest's memory, from the place of one instruction that is known.
    pub(super) fn find_memory(&mut self) {
        let Some(physical) = self.walk(self.root, self.known.0) else {
            self.fail(
                "the guest's page table is not where Linux keeps it: boot it with nokaslr and without la57",
            );
        };
        self.memory = GuestMemory::learn(self.known.1, physical, MOST_MEMORY);
        if let Engine::Own(model) = &mut self.engine {
            model.tables = Tables::Memory(self.memory);
        }
    }

    /// The physical address, by the kernel's map of all memory: before it is known where QEMU has that
    /// memory.
    fn walk(&mut self, root: u64, address: u64) -> Option<u64> {
        const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
        let mut table = root & ADDRESS;
        for level in (0..4).rev() {
            let entry = self.buffer.memory(DIRECT_MAP + table + 8 * (address >> (12 + 9 * level) & 511))?;
            if entry & 1 == 0 {
                return None;
            }
            let mask = (1 << (12 + 9 * level)) - 1;
            if level == 0 || entry & 0x80 != 0 {
                return Some(entry & ADDRESS & !mask | address & mask);
            }
            table = entry & ADDRESS;
        }
        None
    }
}
