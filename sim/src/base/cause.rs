//! The cause of a cycle (why it passed) and its owner (for which code it passed).

/// Why a cycle passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Cause {
    /// Something was committed.
    Commit = 0,
    /// Instructions came late from the caches.
    InstructionCache,
    /// A page walk or the L2 TLB, for an instruction.
    InstructionTlb,
    /// A mispredicted branch.
    Branch,
    /// Operands: chains of dependent instructions, ports, L1d hits.
    Execution,
    /// A load from the L2.
    L2,
    /// From the LLC.
    Llc,
    /// From memory.
    Dram,
    /// The L2 TLB or a page walk, for data.
    DataTlb,
    /// A serialising instruction.
    Serial,
    /// Entering the kernel by exception or interrupt.
    Exception,
    /// obj-alloc and obj-free.
    Memento,
}

/// How many causes there are.
pub const CAUSES: usize = 12;
/// Their names in statistics.
pub const CAUSE_NAMES: [&str; CAUSES] = [
    "commit",
    "instruction_cache",
    "instruction_tlb",
    "branch",
    "execution",
    "l2",
    "llc",
    "dram",
    "data_tlb",
    "serial",
    "exception",
    "memento",
];

/// The code for which a cycle passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Owner {
    /// The program.
    #[default]
    User = 0,
    /// The program's allocator: between the marks of malloc.
    Allocate,
    /// Between the marks of free.
    Free,
    /// The kernel's page fault path.
    Fault,
    /// mmap, munmap, brk, mremap, madvise.
    MemoryCall,
    /// The kernel otherwise.
    Kernel,
}

/// How many owners there are.
pub const OWNERS: usize = 6;
/// Their names in statistics.
pub const OWNER_NAMES: [&str; OWNERS] = ["user", "allocate", "free", "page_fault", "memory_call", "kernel"];
