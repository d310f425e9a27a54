//! The guest's marks: begin and end of the region, objects, and where QEMU has its memory.

use super::{MARKS, Phase, Run};
use crate::guest::GuestMemory;
use crate::qemu;
use sim::base::cause::Owner;
use std::time::Instant;

/// The kernel maps all physical memory here (without 5-level paging, with `nokaslr`).
pub(super) const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The launcher gives the guest no more memory: below the hole for devices.
const MOST_MEMORY: u64 = 2 << 30;

/// Marks that more than one module knows: `sim/shim/marks.h` has all.
pub(super) const READY: u32 = 3;
pub(super) const STOP_CHARGING: u32 = 0x11;
pub(super) const END_OPERATION: u32 = 0x14;
const KERNEL_FUNCTION: u32 = 0x40;

impl Run {
    pub(super) fn mark(&mut self, code: u32, index: usize) {
        if self.instruments() {
            self.machine.split(index, &self.memory);
        }
        let operands = [self.register(7), self.register(6)];
        if self.phase == Phase::Boot
            && let Some(cr3) = self.cr3
        {
            let root = self.buffer.register(cr3);
            if self.saving.is_some() {
                return self.save(code, root, operands);
            }
            self.machine.set_root(root);
        }
        let before = self.phase;
        self.act(code, operands);
        if code == KERNEL_FUNCTION {
            self.find_memory();
        }
        // From READY on QEMU calls the plugin for everything, and at the region's end no longer.
        if self.phase != before && self.phase != Phase::Region {
            (self.translate_anew)(self.id);
        }
    }

    /// A mark's effect on the machine and on the run.
    pub(super) fn act(&mut self, code: u32, [first, second]: [u64; 2]) {
        let timed = self.instruments();
        let outcome = match code {
            _ if self.phase == Phase::Over => Ok(()),
            0x10 => self.machine.set_region(first, second),
            // Before the machine runs, accesses are not seen: a new object counts as used.
            0x12 if !timed => {
                self.machine.allocate(first, second).map(|()| self.machine.touch(first, second))
            }
            0x12 => self.machine.allocate(first, second),
            0x13 => self.machine.free(first, second, false),
            0x15 => self.machine.free_batch(first),
            0x16 => self.machine.free(first, second, true),
            _ => Ok(()),
        };
        if let Err(line) = outcome {
            self.fail(&line);
        }
        match code {
            1 if self.phase == Phase::Warm => {
                self.machine.start_region();
                self.start_trace();
                self.start_intervals();
                self.phase = Phase::Region;
                self.started = Instant::now();
                self.kept = self.started;
                self.started_cpu = qemu::cpu_seconds();
                self.next_progress = 0;
            }
            2 if self.phase == Phase::Region => {
                self.machine.pause(&self.memory);
                let lives = self.machine.has_region();
                self.machine.end_region(!lives);
                // A program that ends the region itself, by a system call, has not exited.
                let status = if first >> 16 == MARKS { 0 } else { first };
                self.finish(None, Some(status));
                self.phase = Phase::Over;
            }
            READY if self.phase == Phase::Boot => {
                self.phase = Phase::Warm;
                self.machine.forget_roots();
            }
            STOP_CHARGING => self.machine.stop_charging(),
            END_OPERATION => self.machine.end_operation(),
            0x20 if timed => drop(self.machine.enter_allocator(Owner::Allocate, first, 0)),
            0x21 if timed => self.machine.leave_allocator(Owner::Allocate, first),
            0x22 if timed => drop(self.machine.enter_allocator(Owner::Free, first, 0)),
            0x23 if timed => self.machine.leave_allocator(Owner::Free, 0),
            0x30 => self.events += 1,
            KERNEL_FUNCTION => {
                let number = second as usize & 0xff;
                if let Some(function) = self.kernel_functions.get_mut(number) {
                    *function = first..first + (second >> 8);
                }
            }
            _ => {}
        }
    }

    /// Where QEMU has the guest's memory, from the place of one instruction that is known.
    pub(super) fn find_memory(&mut self) {
        let Some(physical) = self.walk(self.machine.root(), self.known.0) else {
            self.fail(
                "the guest's page table is not where Linux keeps it: boot it with nokaslr and without la57",
            );
        };
        self.memory = GuestMemory::learn(self.known.1, physical, MOST_MEMORY);
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
