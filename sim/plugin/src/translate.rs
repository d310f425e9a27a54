//! What happens when QEMU translates a block: it is decoded for the machine, and calls are put in.

use crate::qemu::Translation;
use crate::run::{ALLOCATOR, CR3_WRITE, KERNEL_CALL, MARK, RETURN, Run, SYSTEM_CALL};
use sim::decode::mark;

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

/// Puts calls into a block: for marks always, for everything once the machine runs.
pub fn block(run: &mut Run, translation: &Translation) {
    let instructions: Vec<_> = (0..translation.count()).map(|index| translation.instruction(index)).collect();
    for (index, instruction) in instructions.iter().enumerate() {
        if let Some(code) = mark(instruction.bytes()) {
            translation.call_before(index, MARK | u32::from(code));
            run.saw_mark(code, instruction);
        } else if instruction.bytes() == [0x0f, 0x05] {
            translation.call_before(index, SYSTEM_CALL);
        }
    }
    if !run.instruments() || instructions.is_empty() {
        return;
    }
    let number = run.decode(&instructions);
    translation.call_on_entry(number);
    if let Some(function) = run.kernel_function(instructions[0].address) {
        translation.call_before(0, KERNEL_CALL | function);
    }
    if run.may_return_to(number, instructions[0].address) {
        translation.call_before(0, RETURN);
    }
    if let Some(function) = run.allocator_function(&instructions) {
        translation.call_before(0, ALLOCATOR | function);
    }
    for (index, instruction) in instructions.iter().enumerate() {
        translation.call_on_access(index);
        if let Some(register) = cr3_source(instruction.bytes()) {
            translation.call_before(index, CR3_WRITE | register);
        }
    }
}

/// The number of the register that this instruction moves to CR3, if it does.
fn cr3_source(bytes: &[u8]) -> Option<u32> {
    let (high, rest) = match bytes {
        [rex @ 0x40..=0x4f, rest @ ..] => (u32::from(rex & 1) << 3, rest),
        rest => (0, rest),
    };
    match rest {
        [0x0f, 0x22, modrm] if modrm >> 3 & 7 == 3 => Some(high | u32::from(modrm & 7)),
        _ => None,
    }
}
