//! The units' interface to the machine they are part of: its caches, its DRAM, its TLBs.

/// Where a unit's access enters the memory hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The HOT's: next to the L1 data cache.
    Core,
    /// The page allocator's: at the memory controller, on the far side of the LLC.
    Controller,
}

/// A unit's access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read it.
    Read,
    /// To write to it.
    Write,
    /// To own it alone: the BusRdX of a non-local free (§4).
    Exclusive,
}

/// The memory system round the units: a simulated machine's, or a test's. Times are absolute, in core cycles.
pub trait MemorySystem {
    /// Accesses the line at `physical` from time `at`; returns when that is done.
    fn access(&mut self, core: usize, port: Port, access: Access, physical: u64, at: u64) -> u64;
    /// Writes a whole line, which need not be read first: it appears in the cache without an access to DRAM.
    fn instantiate(&mut self, core: usize, port: Port, physical: u64, at: u64) -> u64;
    /// Looks `address` up in the data TLBs: its physical address, if it is there, and when that is known.
    fn tlb_lookup(&mut self, core: usize, address: u64, at: u64) -> (Option<u64>, u64);
    /// Puts a translation that a walk has found into the TLBs.
    fn tlb_fill(&mut self, core: usize, address: u64, physical: u64);
    /// Drops the translation of `page` from a core's TLBs.
    fn shootdown(&mut self, core: usize, page: u64);
}
