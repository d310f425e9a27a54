//! The machine's counters of the program itself, and the trace of what it counts.

use crate::system::machine::Machine;
use crate::system::trace::{Trace, TraceCounts};

/// Of all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct ProgramCounts {
    /// Instructions executed in user mode.
    pub user_instructions: u64,
    /// In the kernel.
    pub kernel_instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Accesses to devices.
    pub device_accesses: u64,
    /// Repetitions of string instructions, which count as one instruction.
    pub repetitions: u64,
    /// Instructions that raised a page fault.
    pub faults: u64,
    /// Interrupts and exceptions of other kinds.
    pub interrupts: u64,
    /// System calls.
    pub system_calls: u64,
    /// Changes of the address space.
    pub process_switches: u64,
    /// obj-alloc and obj-free.
    pub unit_operations: u64,
    /// Instructions that were executed but not charged, as hardware does their work.
    pub uncharged_instructions: u64,
    /// Pages that the kernel allocated for processes: movable ones.
    pub user_pages: u64,
    /// And for itself: page tables, slabs.
    pub kernel_pages: u64,
}

impl Machine {
    /// From now on the instructions that are timed go to this trace, too.
    pub fn start_trace(&mut self, trace: Trace) {
        self.trace = Some(trace);
    }

    /// The trace is whole.
    ///
    /// # Errors
    /// Its output took not all of it.
    pub fn end_trace(&mut self) -> std::io::Result<()> {
        self.trace.as_mut().map_or(Ok(()), Trace::end)
    }

    /// What the trace has, if there is one.
    pub fn trace_counts(&self) -> Option<TraceCounts> {
        self.trace.as_ref().map(|trace| trace.counts)
    }
}
