//! SpeedMalloc's support core: a small programmable core beside the program's, which executes the allocator
//! for it and keeps the allocator's metadata in its own caches. (Li et al., "SpeedMalloc: Improving
//! Multi-threaded Applications via a Lightweight Core for Memory Allocation", arXiv 2508.20253.)
//!
//! In order, one instruction a cycle. The program's core sends a request and continues; after malloc it waits
//! for the answer where it uses it. The code is the baseline allocator's own. Numbers that the paper's
//! abstract leaves open are in [`SupportDescription`]; these are choices:
//! - The program's core executes the kernel's work, as of a page fault, and its walker does the page walks.
//! - realloc copies and calloc clears on the support core.
//! - The allocator's code would use a stack of the support core's own, so its accesses to the program's stack
//!   cost no more than the instruction.

use crate::base::description::{SupportDescription, TlbDescription};
use crate::isa::block::*;
use crate::memory::cache::Line;
use crate::memory::hierarchy::{Hierarchy, Level, Purpose};
use crate::memory::tlb::{PageTables, Side, Tlbs};
use std::collections::VecDeque;
use std::ops::Range;

/// How far below its caller's the allocator's stack reaches.
const STACK_BYTES: u64 = 64 << 10;

/// The support core's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SupportCounts {
    /// malloc, free and their like.
    pub requests: u64,
    /// Instructions that it executed.
    pub instructions: u64,
    /// Cycles in which it had a request to work on.
    pub busy_cycles: u64,
    /// Requests for which the program's core had to wait, since too many others did.
    pub full_queues: u64,
}

/// The core, in cycles of the program's.
pub struct Support {
    description: SupportDescription,
    tlbs: Tlbs,
    /// When it has executed all requests so far.
    at: u64,
    began: u64,
    stack: Range<u64>,
    code_line: Line,
    /// When each queued free will be done.
    queue: VecDeque<u64>,
    /// The kernel works for the allocator.
    in_kernel: bool,
    /// Counters.
    pub counts: SupportCounts,
}

impl Support {
    /// With nothing to do.
    pub fn new(description: &SupportDescription, tlb: &TlbDescription) -> Support {
        Support {
            description: description.clone(),
            tlbs: Tlbs::new(tlb),
            at: 0,
            began: 0,
            stack: 0..0,
            code_line: Line::MAX,
            queue: VecDeque::new(),
            in_kernel: false,
            counts: SupportCounts::default(),
        }
    }

    /// Another address space.
    pub fn set_root(&mut self, cr3: u64) {
        self.tlbs.set_root(cr3);
    }

    /// A request is sent at `at`, where the program's stack pointer is `stack`: when that core has sent it.
    pub fn request(&mut self, at: u64, stack: u64) -> u64 {
        self.queue.retain(|done| *done > at);
        let sent = if self.queue.len() < self.description.queue_entries {
            at
        } else {
            self.counts.full_queues += 1;
            self.queue.pop_front().unwrap_or(at)
        };
        self.counts.requests += 1;
        self.at = self.at.max(sent + self.description.message_cycles);
        self.began = self.at;
        // With the return address.
        self.stack = stack.saturating_sub(STACK_BYTES)..stack + 8;
        self.code_line = Line::MAX;
        sent + 1
    }

    /// The request is done, and the program's core does not wait for it.
    pub fn release(&mut self) {
        self.queue.push_back(self.at);
        self.counts.busy_cycles += self.at - self.began;
    }

    /// The request is done: when its answer is with the program's core.
    pub fn answer(&mut self) -> u64 {
        self.counts.busy_cycles += self.at - self.began;
        self.at + self.description.message_cycles
    }

    /// The allocator needs the kernel, which the program's core executes: when that has the message. None if
    /// the kernel is at work already.
    pub fn enter_kernel(&mut self) -> Option<u64> {
        let enters = !std::mem::replace(&mut self.in_kernel, true);
        enters.then_some(self.at + self.description.message_cycles)
    }

    /// The allocator continues; if it has waited for the kernel, which is done at `now`, the program's core
    /// sends a message.
    pub fn leave_kernel(&mut self, now: u64) {
        if std::mem::take(&mut self.in_kernel) {
            self.at = self.at.max(now + self.description.message_cycles);
        }
    }

    /// Executes one instruction of `block`; `accesses` are its own.
    pub fn operation(
        &mut self,
        block: &Block,
        operation: &Operation,
        accesses: &[Access],
        hierarchy: &mut Hierarchy,
        tables: &impl PageTables,
    ) {
        self.counts.instructions += 1;
        let physical = block.physical_at(operation.offset);
        if physical >> 6 != self.code_line {
            self.code_line = physical >> 6;
            let address = block.start + u64::from(operation.offset);
            let at = self.translate(Side::Instruction, address, physical, self.at, hierarchy, tables);
            hierarchy.purpose = Purpose::Code;
            // A hit is part of the pipeline's depth.
            let hit = at + self.description.cache_latency_cycles;
            let done = hierarchy.support_access(Level::L1i, physical >> 6, false, at);
            self.at = at + (done - hit.min(done));
        }
        self.at += u64::from(operation.latency.max(1));
        let stack = self.stack.clone();
        for access in accesses.iter().filter(|access| !access.device && !stack.contains(&access.address)) {
            let at = self.translate(Side::Data, access.address, access.physical, self.at, hierarchy, tables);
            hierarchy.purpose = Purpose::Program;
            let last = access.physical + u64::from(access.size) - 1;
            for line in access.physical >> 6..=last >> 6 {
                let done = hierarchy.support_access(Level::L1d, line, access.store, at);
                // Stores wait in a buffer, and the core does not wait for them.
                if !access.store {
                    self.at = self.at.max(done);
                }
            }
        }
    }

    /// Its last block ended with a taken branch.
    pub fn branched(&mut self) {
        self.at += self.description.taken_branch_cycles;
        self.code_line = Line::MAX;
    }

    fn translate(
        &mut self,
        side: Side,
        address: u64,
        physical: u64,
        at: u64,
        hierarchy: &mut Hierarchy,
        tables: &impl PageTables,
    ) -> u64 {
        if self.tlbs.quick(side, address, physical) {
            return at;
        }
        self.tlbs.slow(side, address, physical, at, hierarchy, tables).at
    }
}
