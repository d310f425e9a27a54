//! Memento's hardware (Wang et al., MICRO 2023) as a model that a simulated machine calls: an object
//! allocator next to each core with its Hardware Object Table, a page allocator at the memory controller, and
//! the main memory bypass. Section numbers in this crate are the paper's. Every unit is a file of its own;
//! [`Units`] puts them together.
//!
//! The model keeps headers, lists, page tables and pool as the hardware does, so its addresses, hits, misses
//! and pages are exact. Time is what the [`MemorySystem`] returns for accesses, plus the latencies in
//! [`Config`].

mod aac;
pub mod arena;
pub mod bypass;
mod check;
pub mod config;
mod held;
pub mod hot;
mod instructions;
pub mod journal;
pub mod layout;
pub mod memory_system;
mod non_local;
mod object_allocator;
mod observe;
mod page_allocator;
pub mod page_table;
pub mod reference;
pub mod region;
pub mod statistics;
mod units;
mod walk_cache;

pub use config::{Config, NonLocalFree};
pub use memory_system::{Access, MemorySystem, Port};
pub use statistics::{Occupancy, Statistics};
pub use units::{Done, Units};

/// An operation's result, or why the hardware refuses it.
pub type Result<T = (), E = Exception> = std::result::Result<T, E>;

/// Why the hardware refuses an operation and raises an exception to software (§4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// obj-alloc of 0 or of more than 512 bytes.
    Size,
    /// The process has no Memento region, or the thread no lane.
    NoRegion,
    /// The class's range of addresses is used up.
    RegionFull,
    /// The OS has no page left for the pool.
    OutOfMemory,
    /// obj-free of an address outside MRS..MRE.
    NotInRegion,
    /// obj-free of an address at which no object starts.
    NotAnObject,
    /// obj-free into an arena that is not allocated.
    NoArena,
    /// obj-free of an object that is free.
    DoubleFree,
}

impl std::fmt::Display for Exception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Exception::Size => "obj-alloc takes 1 to 512 bytes",
            Exception::NoRegion => "the process has no Memento region, or the thread no lane",
            Exception::RegionFull => "the class's range of addresses is used up",
            Exception::OutOfMemory => "the page pool is empty and the OS has no page left",
            Exception::NotInRegion => "obj-free outside the Memento region",
            Exception::NotAnObject => "obj-free of an address at which no object starts",
            Exception::NoArena => "obj-free into an arena that is not allocated",
            Exception::DoubleFree => "double free",
        })
    }
}

/// A unit at work: the memory system, the clock it advances, and where it counts.
pub(crate) struct Work<'a, M: MemorySystem> {
    memory: &'a mut M,
    config: &'a Config,
    statistics: &'a mut Statistics,
    core: usize,
    at: u64,
}

impl<M: MemorySystem> Work<'_, M> {
    fn access(&mut self, port: Port, access: Access, physical: u64) {
        self.at = self.memory.access(self.core, port, access, physical, self.at);
    }

    /// Writes a whole line.
    fn write_line(&mut self, port: Port, physical: u64) {
        self.at = self.memory.instantiate(self.core, port, physical, self.at);
    }
}
