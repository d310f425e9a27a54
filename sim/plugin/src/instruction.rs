//! An instruction as QEMU has it, and the instructions that the plugin observes before they are executed.

/// Instructions that the plugin observes before they are executed: the kind, and a number.
pub const MARK: u32 = 1 << 16;
/// `mov REGISTER, %cr3`.
pub const CR3_WRITE: u32 = 2 << 16;
/// `syscall`.
pub const SYSTEM_CALL: u32 = 3 << 16;
/// The first of an observed function of the kernel.
pub const KERNEL_CALL: u32 = 4 << 16;
/// The last of a block from which such a function may return.
pub const KERNEL_RETURN: u32 = 7 << 16;

/// The first of a function of the program's allocator.
pub const ALLOCATOR: u32 = 5 << 16;
/// The first of a block to which a call of it may return.
pub const RETURN: u32 = 6 << 16;

/// An instruction as QEMU has it.
pub struct Instruction {
    /// Its bytes.
    pub bytes: [u8; 16],
    /// How many.
    pub length: usize,
    /// Virtual address.
    pub address: u64,
    /// The host's address of the bytes.
    pub host: u64,
}

impl Instruction {
    /// Its bytes, as many as it has.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
