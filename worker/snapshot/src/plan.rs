//! The list of system calls that lays a process out again, and the data that they point to.
//!
//! Operations refer to data by addresses, which are known while the list is made: the restorer's program has
//! a fixed place that the taken process leaves free ([`Window`]).

use std::ops::Range;

use crate::Error;
use crate::restorer::{NO_SLOT, OPERATION_BYTES, special, want};

/// Descriptors from here on are free for the restorer.
pub const FREE: u64 = 512;
/// The most operations of a plan: a mapping is one, and an instance of a function has some hundred.
pub const MOST_OPERATIONS: usize = 4096;
/// The most bytes of data of a plan.
const MOST_DATA: usize = 4 << 20;
/// The most bytes that the kernel reads by one call is some less than 2 GiB: it says that it read less.
const MOST_READ: u64 = 1 << 30;
/// The most slots, the vDSO's among them.
const MOST_SLOTS: usize = 1024;

/// Where the restorer's program lies: `SPAN` bytes that the taken process does not use.
#[derive(Clone, Copy, Debug)]
pub struct Window(pub u64);

impl Window {
    /// Bytes from the program's begin to the end of its scratch.
    pub const SPAN: u64 = 64 << 20;
    const SLOTS: u64 = 1 << 20;
    const LIST: u64 = 2 << 20;
    const DATA: u64 = 8 << 20;
    const SCRATCH: u64 = 32 << 20;

    /// Of the code.
    pub fn code(self) -> u64 {
        self.0
    }

    /// Of the slots.
    pub fn slots(self) -> u64 {
        self.0 + Self::SLOTS
    }

    /// Of the list.
    pub fn list(self) -> u64 {
        self.0 + Self::LIST
    }

    /// Of the data.
    pub fn data(self) -> u64 {
        self.0 + Self::DATA
    }

    /// Where the vDSO waits while all else is unmapped.
    pub fn scratch(self) -> u64 {
        self.0 + Self::SCRATCH
    }

    /// Its end.
    pub fn end(self) -> u64 {
        self.0 + Self::SPAN
    }
}

/// A place that holds the result of an operation, for later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u16);

/// Holds the address of the vDSO from the begin.
pub const VDSO: Slot = Slot(0);

/// A system call or a special operation.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    number: i64,
    arguments: [u64; 6],
    added: [u16; 6],
    store: u16,
    want: u16,
}

impl Operation {
    /// A system call whose result must not be an error.
    pub fn call(number: i64, arguments: &[u64]) -> Operation {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        Operation { number, arguments: all, added: [NO_SLOT; 6], store: NO_SLOT, want: want::NO_ERROR }
    }

    /// Its result may be anything.
    pub fn or_not(mut self) -> Operation {
        self.want = want::ANY;
        self
    }

    /// Its result must be its first argument.
    pub fn at_its_place(mut self) -> Operation {
        self.want = want::SAME;
        self
    }

    /// Adds a slot's number to an argument. The sixth has none.
    pub fn plus(mut self, argument: usize, slot: Slot) -> Operation {
        debug_assert!(argument < 5);
        self.added[argument] = slot.0;
        self
    }

    fn bytes(&self) -> [u8; OPERATION_BYTES] {
        let mut bytes = [0; OPERATION_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        for (at, argument) in self.arguments.iter().enumerate() {
            bytes[8 + 8 * at..16 + 8 * at].copy_from_slice(&argument.to_le_bytes());
        }
        let words = self.added.iter().chain([&self.store, &self.want]);
        for (at, word) in words.enumerate() {
            bytes[56 + 2 * at..58 + 2 * at].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The operation whose result is a copy of a descriptor, with a number from [`FREE`] on.
pub fn moved_away(descriptor: u64) -> Operation {
    Operation::call(libc::SYS_fcntl, &[descriptor, libc::F_DUPFD_CLOEXEC as u64, FREE])
}

/// The list and its data.
#[derive(Debug)]
pub struct Plan {
    pub window: Window,
    operations: Vec<Operation>,
    data: Vec<u8>,
    slots: usize,
}

impl Plan {
    /// An empty one.
    pub fn new(window: Window) -> Plan {
        Plan { window, operations: Vec::new(), data: Vec::new(), slots: 1 }
    }

    /// Appends an operation.
    ///
    /// # Errors
    /// It has too many.
    pub fn push(&mut self, operation: Operation) -> Result<(), Error> {
        if self.operations.len() == MOST_OPERATIONS {
            return Err(Error::Unsupported(format!("more than {MOST_OPERATIONS} mappings and files")));
        }
        self.operations.push(operation);
        Ok(())
    }

    /// Appends an operation whose result is kept.
    ///
    /// # Errors
    /// It has too many.
    pub fn push_kept(&mut self, mut operation: Operation) -> Result<Slot, Error> {
        if self.slots == MOST_SLOTS {
            return Err(Error::Unsupported(format!("more than {MOST_SLOTS} files")));
        }
        let slot = Slot(self.slots as u16);
        self.slots += 1;
        operation.store = slot.0;
        self.push(operation)?;
        Ok(slot)
    }

    /// Appends what reads a file from `offset` on into a range.
    ///
    /// # Errors
    /// It has too many.
    pub fn push_read(&mut self, file: u64, into: Range<u64>, offset: u64) -> Result<(), Error> {
        let bytes = into.end - into.start;
        for at in (0..bytes).step_by(MOST_READ as usize) {
            let arguments = [file, into.start + at, MOST_READ.min(bytes - at), offset + at];
            self.push(Operation::call(libc::SYS_pread64, &arguments))?;
        }
        Ok(())
    }

    /// Appends what moves the end of a channel away, which has these flags then. Its number is free.
    ///
    /// # Errors
    /// It has too many.
    pub fn push_away(&mut self, end: u64, flags: i32) -> Result<Slot, Error> {
        if flags & libc::O_NONBLOCK != 0 {
            let set = [end, libc::F_SETFL as u64, libc::O_NONBLOCK as u64];
            self.push(Operation::call(libc::SYS_fcntl, &set))?;
        }
        let away = self.push_kept(moved_away(end))?;
        self.push(Operation::call(libc::SYS_close, &[end]))?;
        Ok(away)
    }

    /// Puts bytes into the data, and returns their address, a multiple of 64.
    ///
    /// # Errors
    /// There is too much.
    pub fn data(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let at = self.data.len().next_multiple_of(64);
        if at + bytes.len() > MOST_DATA {
            return Err(Error::Unsupported(format!(
                "state of more than {MOST_DATA} bytes beside its memory"
            )));
        }
        self.data.resize(at, 0);
        self.data.extend_from_slice(bytes);
        Ok(self.window.data() + at as u64)
    }

    /// A text that ends in zero.
    ///
    /// # Errors
    /// There is too much.
    pub fn text(&mut self, text: &[u8]) -> Result<u64, Error> {
        self.data(&[text, &[0]].concat())
    }

    /// Appends the start of a thread whose own operations follow later; see [`Plan::thread_begins`].
    ///
    /// # Errors
    /// It has too many.
    pub fn push_thread(&mut self, arguments: [u64; 5]) -> Result<Thread, Error> {
        self.push(Operation::call(special::CLONE, &arguments))?;
        Ok(Thread(self.operations.len() - 1))
    }

    /// The next operation is the thread's first.
    pub fn thread_begins(&mut self, thread: &Thread) {
        let first = self.window.list() + (self.operations.len() * OPERATION_BYTES) as u64;
        self.operations[thread.0].arguments[5] = first;
    }

    /// The list as bytes.
    pub fn list(&self) -> Vec<u8> {
        self.operations.iter().flat_map(Operation::bytes).collect()
    }

    /// The data as bytes.
    pub fn data_bytes(&self) -> &[u8] {
        &self.data
    }
}

/// A thread of the plan that has no operations yet.
#[must_use]
#[derive(Debug)]
pub struct Thread(usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ranges_are_read_by_several_calls() {
        let mut plan = Plan::new(Window(1 << 36));
        let (begin, bytes) = (0x1_0000, 2 * MOST_READ + 4096);
        plan.push_read(10, begin..begin + bytes, 512).unwrap();
        let read: Vec<_> = plan.operations.iter().map(|operation| &operation.arguments[..4]).collect();
        assert_eq!(
            read,
            [
                [10, begin, MOST_READ, 512],
                [10, begin + MOST_READ, MOST_READ, 512 + MOST_READ],
                [10, begin + 2 * MOST_READ, 4096, 512 + 2 * MOST_READ],
            ]
        );
    }
}
