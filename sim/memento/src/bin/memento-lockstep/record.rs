//! A record: an operation of one unit, and what must be so after it. Little-endian words of 64 bits, read by
//! `sim/rtl/lockstep/record.h`: sixteen of fixed meaning, then the lists.

use memento::hot::Entry;
use memento::{Exception, arena::Header};

/// The unit's operation, with the numbers of `operation_t` in `sim/rtl/units/memento.sv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// obj-alloc.
    Allocate = 0,
    /// obj-free.
    Free = 1,
    /// A load or store.
    Touch = 2,
    /// The HOT is emptied before another thread runs.
    Flush = 3,
    /// An arena for each class.
    Initialise = 4,
    /// The HOT's process has exited.
    Discard = 5,
    /// The page allocator's: a thread's block is freed.
    Forget = 6,
    /// New units.
    Begin = 7,
}

/// Its outcome, with the numbers of `outcome_t` there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By the HOT alone.
    Hit = 0,
    /// Otherwise.
    Miss = 1,
    /// [`Exception::Size`].
    WrongSize = 2,
    /// [`Exception::RegionFull`].
    RegionFull = 3,
    /// [`Exception::NotInRegion`].
    NotInRegion = 4,
    /// [`Exception::NotAnObject`].
    NotAnObject = 5,
    /// [`Exception::NoArena`].
    NoArena = 6,
    /// [`Exception::DoubleFree`].
    DoubleFree = 7,
    /// Another thread's object: left to software.
    NonLocal = 8,
    /// Not compared.
    Any = 15,
}

impl Outcome {
    /// An exception's. The lockstep's pool has pages, and its processes a region.
    pub fn of(exception: Exception) -> Outcome {
        match exception {
            Exception::Size => Outcome::WrongSize,
            Exception::RegionFull => Outcome::RegionFull,
            Exception::NotInRegion => Outcome::NotInRegion,
            Exception::NotAnObject => Outcome::NotAnObject,
            Exception::NoArena => Outcome::NoArena,
            Exception::DoubleFree => Outcome::DoubleFree,
            Exception::NoRegion | Exception::OutOfMemory => unreachable!("{exception}"),
        }
    }
}

/// An arena that the page allocator was asked for.
pub struct NewArena {
    /// Of which class.
    pub class: usize,
    /// Its address and its first page, unless the class's addresses were used up.
    pub given: Option<(u64, u64)>,
}

/// An operation with everything around it.
pub struct Record {
    pub operation: Operation,
    pub core: usize,
    pub operand: u64,
    /// The thread's: where its region starts, its lane, its block.
    pub thread: (u64, usize, u64),
    pub outcome: Outcome,
    /// obj-alloc: the object's address.
    pub address: u64,
    /// A load or store: whether the line is new; nothing is compared if another core made it.
    pub is_new: Option<bool>,
    /// A free that misses: where the arena's header is; 0: nowhere.
    pub translation: u64,
    /// The arena that a free returned to the page allocator.
    pub freed: u64,
    /// Look-ups in the AAC that missed, and pointers that had to leave it.
    pub aac_misses: u64,
    pub aac_evictions: u64,
    /// Accesses to headers and list heads in order: the address, and 1 if it is written.
    pub accesses: Vec<u64>,
    pub arenas: Vec<NewArena>,
    /// Rows of HOTs: core, class and content.
    pub rows: Vec<(usize, usize, Entry)>,
    /// Headers in memory.
    pub headers: Vec<(u64, Header)>,
    /// Entries of the AAC: core, and pointers' addresses.
    pub pointers: Vec<(usize, Vec<u64>)>,
}

impl Record {
    /// An operation of which nothing else is known yet.
    pub fn new(operation: Operation, core: usize, operand: u64) -> Record {
        Record {
            operation,
            core,
            operand,
            thread: (0, 0, 0),
            outcome: Outcome::Any,
            address: 0,
            is_new: None,
            translation: 0,
            freed: 0,
            aac_misses: 0,
            aac_evictions: 0,
            accesses: Vec::new(),
            arenas: Vec::new(),
            rows: Vec::new(),
            headers: Vec::new(),
            pointers: Vec::new(),
        }
    }

    /// The record's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut words = vec![
            self.operation as u64,
            self.core as u64,
            self.operand,
            self.thread.0,
            self.thread.1 as u64,
            self.thread.2,
            self.outcome as u64,
            self.address,
            self.is_new.map_or(2, u64::from),
            self.translation,
            self.freed,
            self.aac_misses,
            self.aac_evictions,
        ];
        words.push(self.accesses.len() as u64);
        words.extend(&self.accesses);
        words.push(self.arenas.len() as u64);
        for arena in &self.arenas {
            let (address, page) = arena.given.unwrap_or((0, 0));
            words.extend([arena.class as u64, arena.given.is_none().into(), address, page]);
        }
        words.push(self.rows.len() as u64);
        for (core, class, row) in &self.rows {
            words.extend([*core as u64, *class as u64, row.valid.into(), row.dirty.into()]);
            words.extend([row.physical, row.available, row.full]);
            words.extend(fields(&row.header));
        }
        words.push(self.headers.len() as u64);
        for (page, header) in &self.headers {
            words.push(*page);
            words.extend(fields(header));
            words.extend([header.prev, header.next]);
        }
        words.push(self.pointers.len() as u64);
        for (core, pointers) in &self.pointers {
            words.extend([*core as u64, pointers.len() as u64]);
            words.extend(pointers);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }
}

/// Arena, bitmap and bypass counter.
fn fields(header: &Header) -> [u64; 6] {
    let [a, b, c, d] = header.bitmap;
    [header.address, a, b, c, d, header.bypass_counter.into()]
}
