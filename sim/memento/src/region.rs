//! A process's Memento region (§3.2): MRS and MRE, the root of its Memento page table (MPTR), its shootdown
//! bit vector, and the reserved memory block. That has each thread's bump pointers and, while its HOT is
//! flushed, its list heads.

use crate::layout::{CLASSES, LANES, PAGE_BYTES, arena_bytes, class_range, lane_and_class};

/// The part of a flushed HOT entry besides the header: 24 bytes in the thread's block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// Physical address of the arena that the class allocates from; 0 before there is one.
    pub current: u64,
    /// Head of the available list.
    pub available: u64,
    /// Head of the full list.
    pub full: u64,
}

/// A thread's part of the reserved block, one page: list heads in its first 1,536 bytes, bump pointers from
/// 2,048, pages that wait for a walk from 2,560.
#[derive(Debug)]
pub struct Lane {
    /// Physical address of the page.
    pub block: u64,
    /// Where the next arena of each class will start.
    pub next: [u64; CLASSES],
    /// Behind the first page of each class's latest arena until a walk requests it; 0: the page table has it.
    pub waiting: [u64; CLASSES],
    /// List heads of entries that no HOT holds.
    pub saved: [Saved; CLASSES],
    /// Frees of other threads' objects that the software handler will execute.
    pub batch: Vec<u64>,
}

impl Lane {
    /// A thread's, with its pointers at the start of its ranges.
    pub fn new(region_start: u64, lane: usize, block: u64) -> Lane {
        Lane {
            block,
            next: std::array::from_fn(|class| region_start + class_range(class, lane).0),
            waiting: [0; CLASSES],
            saved: [Saved::default(); CLASSES],
            batch: Vec::new(),
        }
    }

    /// Physical address of a class's list heads.
    pub fn saved_address(&self, class: usize) -> u64 {
        self.block + class as u64 * 24
    }

    /// Physical address of a class's bump pointer.
    pub fn pointer_address(&self, class: usize) -> u64 {
        self.block + 2048 + class as u64 * 8
    }

    /// Physical address of where a class's waiting page is noted.
    pub fn waiting_address(&self, class: usize) -> u64 {
        self.block + 2560 + class as u64 * 8
    }

    /// Where the latest arena of a class is.
    pub fn latest_arena(&self, class: usize) -> u64 {
        self.next[class] - arena_bytes(class)
    }
}

/// A process that uses Memento.
#[derive(Debug)]
pub struct Process {
    /// The machine's key for it: its CR3.
    pub key: u64,
    /// MRS.
    pub start: u64,
    /// MRE.
    pub end: u64,
    /// MPTR: physical address of the page table's root.
    pub root: u64,
    /// One bit for each core that has walked this table.
    pub shootdown: u64,
    /// Its threads, by lane.
    pub lanes: [Option<Box<Lane>>; LANES],
}

impl Process {
    /// Whether an address lies between MRS and MRE.
    #[inline]
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The lane and class whose latest arena begins on the page of `address`, if that page waits for a walk.
    pub fn waiting(&self, address: u64) -> Option<(usize, usize)> {
        let (lane, class) = lane_and_class(address - self.start);
        let its = self.lanes[lane].as_ref()?;
        let waits = its.waiting[class] != 0 && address / PAGE_BYTES == its.latest_arena(class) / PAGE_BYTES;
        waits.then_some((lane, class))
    }
}
