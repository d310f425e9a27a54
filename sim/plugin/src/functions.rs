//! The functions of a program's allocator, found in the guest by their offset in a page and the bytes of
//! their first block. So no library's mapping address is needed, and no program is changed to be observed. A
//! call begins at the function's first instruction and ends where it returns to.

use sim::base::cause::Owner;
use std::collections::{HashMap, HashSet};

/// A function's kind, which determines where its operands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// (size)
    Malloc,
    /// (how many, size)
    Calloc,
    /// (object, size)
    Realloc,
    /// (alignment, size)
    Aligned,
    /// (pointer to the result, alignment, size)
    PosixMemalign,
    /// (object)
    Free,
    /// Go's mallocgc: the size is in rax, and so is the result.
    GoMalloc,
    /// Go's sweep of a span.
    GoSweep,
}

/// A function, as the launcher found it in an ELF file.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Function {
    /// Its kind.
    pub kind: Kind,
    /// Its address modulo 4096.
    pub offset: u64,
    /// Its length.
    pub size: u64,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// A call that has not returned.
#[derive(Clone, Copy)]
pub struct Call {
    /// The process, and the core that it is on.
    pub space: u64,
    /// The function.
    pub kind: Kind,
    /// Where it returns to.
    pub back: u64,
}

/// The allocator's functions, as they are found where QEMU translates.
#[derive(Default)]
pub struct Functions {
    known: Vec<Function>,
    by_offset: HashMap<u64, Vec<usize>>,
    /// Return addresses of calls: addresses behind blocks that end in a call.
    behind_calls: HashSet<u64>,
}

/// The outermost calls that are active.
#[derive(Default)]
pub struct Calls {
    /// Blocks at whose first instruction registers are read, since they were known to be behind a call when
    /// they were translated; by number.
    read_at: HashSet<usize>,
    calls: Vec<Call>,
}

impl Functions {
    /// Takes the launcher's list.
    pub fn new(known: Vec<Function>) -> Functions {
        let mut by_offset: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, function) in known.iter().enumerate() {
            by_offset.entry(function.offset).or_default().push(index);
        }
        Functions { known, by_offset, ..Functions::default() }
    }

    /// The number of the function that begins with this block.
    pub fn find(&self, address: u64, mut bytes: impl Iterator<Item = u8>) -> Option<u32> {
        let candidates = self.by_offset.get(&(address & 0xfff))?;
        let first: Vec<u8> = bytes.by_ref().take(64).collect();
        let same = |index: &&usize| {
            let its = &self.known[**index].bytes;
            let length = its.len().min(first.len());
            length > 0 && its[..length] == first[..length]
        };
        candidates.iter().find(same).map(|index| *index as u32)
    }

    /// The function's kind, and its length in bytes.
    pub fn kind_and_size(&self, number: u32) -> (Kind, u64) {
        let function = &self.known[number as usize];
        (function.kind, function.size)
    }

    /// Notes that a block which ends in a call ends at this address: calls may return here.
    pub fn call_ends(&mut self, address: u64) {
        if !self.known.is_empty() {
            self.behind_calls.insert(address);
        }
    }

    /// Whether a call may return to this address: then registers are read there.
    pub fn reads_at(&self, address: u64) -> bool {
        self.behind_calls.contains(&address)
    }
}

impl Calls {
    /// Registers are read at the begin of the block of this number.
    pub fn reads_at(&mut self, number: usize) {
        self.read_at.insert(number);
    }

    /// Whether registers are read at the begin of the block of this number.
    pub fn is_read_at(&self, number: usize) -> bool {
        self.read_at.contains(&number)
    }

    /// The process has entered its allocator.
    pub fn enter(&mut self, call: Call) {
        self.calls.retain(|other| other.space != call.space);
        self.calls.push(call);
    }

    /// Whether a call that is active returns to this address of this process.
    #[inline]
    pub fn is_awaited(&self, space: u64, address: u64) -> bool {
        self.calls.iter().any(|call| call.back == address && call.space == space)
    }

    /// The call that returns to this address of this process.
    pub fn returned(&mut self, space: u64, address: u64) -> Option<Call> {
        let index = self.calls.iter().position(|call| call.back == address && call.space == space)?;
        Some(self.calls.swap_remove(index))
    }
}

impl Kind {
    /// The owner of its cycles.
    pub fn owner(self) -> Owner {
        if matches!(self, Kind::Free | Kind::GoSweep) { Owner::Free } else { Owner::Allocate }
    }
}
