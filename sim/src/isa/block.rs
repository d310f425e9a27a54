//! The machine's input: blocks of decoded instructions, and the memory each one touched.

/// What the core needs to know of one instruction, made once when its block is decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Operation {
    /// Registers that the address is made of; [`NO_REGISTER`] where there are fewer.
    pub address: [u8; 2],
    /// Registers (and flags) that the result is made of.
    pub sources: [u8; 3],
    /// Registers (and flags) written.
    pub results: [u8; 3],
    /// What executes it.
    pub unit: Unit,
    /// Cycles from its operands to its result, without memory.
    pub latency: u8,
    /// [`LOAD`], [`STORE`] and so on.
    pub flags: u16,
    /// Bytes from the block's start.
    pub offset: u16,
}

/// Register numbers: 1–16 general purpose, 17 flags, 18–49 vector, 50–57 mask, 58 x87 and the rest.
pub const REGISTERS: usize = 64;
/// Never written, so always ready.
pub const NO_REGISTER: u8 = 0;
/// Written and never read.
pub const TRASH_REGISTER: u8 = 63;
/// RAX, where obj-alloc puts its result.
pub const RAX: u8 = 1;
/// RDI, where obj-alloc and obj-free have their operand.
pub const RDI: u8 = 8;

/// It reads memory.
pub const LOAD: u16 = 1;
/// It writes memory.
pub const STORE: u16 = 2;
/// If the list of accesses has none of it, it was not executed: it raised a fault.
pub const CERTAIN: u16 = 4;
/// It waits for all instructions before it and delays all after it.
pub const SERIAL: u16 = 8;
/// A string operation under a repeat prefix: the guest executes it once per element.
pub const REPEAT: u16 = 16;
/// A mark: costs nothing.
pub const MARK: u16 = 32;
/// Its unit is taken for the whole latency.
pub const UNPIPELINED: u16 = 64;
/// It only copies a register to another: renaming does that, without a unit.
pub const RENAMED: u16 = 128;

/// Execution units that instructions compete for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Unit {
    /// Integer: as many as the core is wide.
    #[default]
    Integer = 0,
    /// Loads.
    Load,
    /// Stores.
    Store,
    /// Branches.
    Branch,
    /// Multiplication and division.
    Multiply,
    /// Vectors and floating point.
    Vector,
}

/// How a block ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// Execution continues behind it.
    #[default]
    Fallthrough,
    /// A conditional branch to this address.
    Conditional(u64),
    /// A jump to this address.
    Jump(u64),
    /// A call of this address.
    Call(u64),
    /// A jump to an address from a register or memory.
    IndirectJump,
    /// A call likewise.
    IndirectCall,
    /// A return.
    Return,
    /// System call, return from the kernel, halt: anywhere.
    System,
}

/// What a block does for a function of an allocator that is redirected (sim/shim/redirect.h). It is never
/// charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirect {
    /// Nothing: an ordinary block.
    #[default]
    None,
    /// The function's begin: it jumps to the function that was chosen.
    Begin,
    /// Memento's: the call of the function is replaced.
    Replaced,
    /// It was not Memento's after all: the call is one of the software's function.
    Software,
}

/// Instructions that are executed one after the other, unless one faults.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Virtual address of the first instruction.
    pub start: u64,
    /// Virtual address behind the last.
    pub end: u64,
    /// Physical address of the first.
    pub physical: u64,
    /// Physical address of the next page, when the block continues there.
    pub next_page: u64,
    /// The instructions.
    pub operations: Box<[Operation]>,
    /// How many of them there are up to the last [`CERTAIN`] one.
    pub certain: usize,
    /// How it ends.
    pub ends: End,
    /// Behind it the core sleeps until an interrupt.
    pub halts: bool,
    /// Its part in a redirected call.
    pub redirect: Redirect,
    /// It only jumps to an address from memory: a call of another file's function leads through it (PLT).
    pub leads_on: bool,
}

impl Block {
    /// Kernel code: the upper half of the address space.
    pub fn is_kernel(&self) -> bool {
        self.start >> 63 == 1
    }

    /// The physical address of the byte at `offset`.
    #[inline]
    pub fn physical_at(&self, offset: u16) -> u64 {
        let address = (self.physical & 0xfff) + u64::from(offset);
        if address < 4096 { self.physical + u64::from(offset) } else { self.next_page + (address - 4096) }
    }
}

/// One access to memory, by the instruction `index` of the block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// Physical address.
    pub physical: u64,
    /// Which instruction of the block.
    pub index: u16,
    /// Bytes.
    pub size: u8,
    /// A write.
    pub store: bool,
    /// To a device and not to memory.
    pub device: bool,
}
