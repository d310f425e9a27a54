//! Translation of a block by QEMU: it is decoded for the machine, and calls to the plugin are inserted.

use crate::instruction::{
    ALLOCATOR, CR3_WRITE, Instruction, KERNEL_CALL, KERNEL_RETURN, MARK, RETURN, SYSTEM_CALL,
};
use crate::run::Run;
use sim::isa::block::Redirect;
use sim::isa::decode::{mark, redirect_of};

/// A call that QEMU inserts into the block.
pub enum Wish {
    /// [`Run::enter`] with this number, each time the block is entered.
    Entry { block: usize },
    /// [`Run::access`], for each access of the instruction at this place.
    Access { index: usize },
    /// [`Run::special`], before the instruction at this place is executed; it can read registers.
    Before { index: usize, kind: u32 },
}

/// Inserts calls into a block: for marks always, for everything once the machine runs.
pub fn block(run: &mut Run, instructions: &[Instruction], wish: impl Fn(Wish)) {
    let call_before = |index, kind| wish(Wish::Before { index, kind });
    for (index, instruction) in instructions.iter().enumerate() {
        let found = mark(instruction.bytes());
        if redirect_of(found) != Redirect::None {
            continue; // the machine sees these by their blocks
        }
        if let Some(code) = found {
            call_before(index, MARK | u32::from(code));
            run.saw_mark(code, instruction);
        } else if instruction.bytes() == [0x0f, 0x05] {
            call_before(index, SYSTEM_CALL);
        }
    }
    if !run.instruments() || instructions.is_empty() {
        return;
    }
    let decoded = run.decode(instructions);
    wish(Wish::Entry { block: decoded.number });
    if let Some(function) = run.kernel_function(instructions[0].address) {
        call_before(0, KERNEL_CALL | function);
    }
    if let Some(function) = decoded.returns_from {
        call_before(instructions.len() - 1, KERNEL_RETURN | function);
    }
    if decoded.is_returned_to {
        call_before(0, RETURN);
    }
    if let Some(function) = run.allocator_function(instructions) {
        call_before(0, ALLOCATOR | function);
    }
    for (index, instruction) in instructions.iter().enumerate() {
        wish(Wish::Access { index });
        if let Some(register) = cr3_source(instruction.bytes()) {
            call_before(index, CR3_WRITE | register);
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
