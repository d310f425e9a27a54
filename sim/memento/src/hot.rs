//! The Hardware Object Table (§3.1, Fig. 5b): one per core, 64 entries, found by size class without a search.
//! An entry caches the header of the arena that its class allocates from, with that arena's physical address
//! and the heads of the class's two lists.

use crate::arena::Header;
use crate::layout::CLASSES;

/// The thread whose arenas a HOT holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its process, by number.
    pub process: usize,
    /// Its lane.
    pub lane: usize,
}

/// An entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// Whether it holds anything.
    pub valid: bool,
    /// Whether the header differs from memory's.
    pub dirty: bool,
    /// When an arena that is being loaded in the background will be here.
    pub ready_at: u64,
    /// The arena's physical address (the paper's PA).
    pub physical: u64,
    /// Head of the available list.
    pub available: u64,
    /// Head of the full list.
    pub full: u64,
    /// Copy of the arena's header.
    pub header: Header,
}

/// A core's table.
#[derive(Debug)]
pub struct Hot {
    /// The thread whose arenas it holds.
    pub owner: Option<Owner>,
    /// By size class.
    pub entries: [Entry; CLASSES],
}

impl Hot {
    /// An empty one.
    pub fn new() -> Hot {
        Hot { owner: None, entries: [Entry::default(); CLASSES] }
    }
}

impl Default for Hot {
    fn default() -> Hot {
        Hot::new()
    }
}
