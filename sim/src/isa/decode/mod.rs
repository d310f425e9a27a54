//! From bytes to [`Operation`]s: registers by iced-x86, latencies by [`timing`].

mod timing;

use crate::isa::block::*;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo, InstructionInfoFactory,
    InstructionInfoOptions, MemorySize, Mnemonic, OpAccess, OpKind, Register,
};
use timing::{cost_of, is_quick, is_renaming, is_serial, is_slow_vector};

/// Decodes blocks, one after the other.
pub struct BlockDecoder {
    factory: InstructionInfoFactory,
    operations: Vec<Operation>,
}

/// The mark's number, if these are the bytes of a mark: `nopl imm32(%rax,%rax,1)` with 0x4d4d in imm32's
/// upper half.
pub fn mark(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [0x0f, 0x1f, 0x84, 0x00, low, high, 0x4d, 0x4d] => Some(u16::from_le_bytes([*low, *high])),
        _ => None,
    }
}

/// The marks at the begin of blocks that are never charged (sim/shim/redirect.h).
pub fn redirect_of(mark: Option<u16>) -> Redirect {
    match mark {
        Some(0x17) => Redirect::Begin,
        Some(0x18) => Redirect::Replaced,
        Some(0x19) => Redirect::Software,
        _ => Redirect::None,
    }
}

impl BlockDecoder {
    /// A decoder.
    #[allow(clippy::new_without_default)]
    pub fn new() -> BlockDecoder {
        BlockDecoder { factory: InstructionInfoFactory::new(), operations: Vec::new() }
    }

    /// The block of these instructions, which lie one behind the other from `start` on.
    pub fn block<'a>(&mut self, start: u64, instructions: impl Iterator<Item = &'a [u8]>) -> Block {
        self.operations.clear();
        let mut address = start;
        let (mut ends, mut halts) = (End::Fallthrough, false);
        let (mut redirect, mut leads_on) = (Redirect::None, true);
        for bytes in instructions {
            let instruction = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode();
            if address == start {
                redirect = redirect_of(mark(bytes));
            }
            leads_on &= matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Jmp);
            let mut operation = if mark(bytes).is_some() {
                Operation { flags: MARK, ..Operation::default() }
            } else {
                self.operation(&instruction)
            };
            operation.offset = (address - start) as u16;
            self.operations.push(operation);
            ends = end_of(&instruction);
            halts = instruction.mnemonic() == Mnemonic::Hlt;
            address += bytes.len() as u64;
        }
        let certain = self.operations.iter().rposition(|operation| operation.flags & CERTAIN != 0);
        Block {
            start,
            end: address,
            operations: self.operations.as_slice().into(),
            certain: certain.map_or(0, |index| index + 1),
            ends,
            halts,
            redirect,
            leads_on: leads_on && ends == End::IndirectJump,
            ..Block::default()
        }
    }

    fn operation(&mut self, instruction: &Instruction) -> Operation {
        let info = self.factory.info_options(instruction, InstructionInfoOptions::NONE);
        let mut operation = Operation { latency: 1, results: [TRASH_REGISTER; 3], ..Operation::default() };
        let mut fill = Registers::default();
        memory_of(instruction, info, &mut operation, &mut fill);
        registers_of(instruction, info, &mut operation, &mut fill);
        (operation.unit, operation.latency) = cost_of(instruction, &operation);
        if is_serial(instruction) {
            operation.flags |= SERIAL;
        }
        if matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
            || is_slow_vector(instruction.mnemonic())
            || is_quick(instruction)
        {
            operation.flags |= UNPIPELINED;
        }
        if is_renaming(instruction) && operation.results[0] != TRASH_REGISTER {
            operation.flags |= RENAMED;
        }
        let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if repeated && instruction.is_string_instruction() {
            operation.flags |= REPEAT;
            operation.flags &= !CERTAIN;
        }
        operation
    }
}

/// How many of an operation's slots are filled.
#[derive(Default)]
struct Registers {
    address: usize,
    sources: usize,
    results: usize,
}

fn memory_of(
    instruction: &Instruction,
    info: &InstructionInfo,
    operation: &mut Operation,
    fill: &mut Registers,
) {
    // Reading ahead and non-operations name memory and do not touch it.
    if matches!(
        instruction.mnemonic(),
        Mnemonic::Nop
            | Mnemonic::Endbr64
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetchw
            | Mnemonic::Lea
            | Mnemonic::Invlpg
            | Mnemonic::Clflush
            | Mnemonic::Clflushopt
            | Mnemonic::Clwb
    ) {
        return;
    }
    for memory in info.used_memory() {
        let (load, store, certain) = match memory.access() {
            OpAccess::Read => (true, false, true),
            OpAccess::Write => (false, true, true),
            OpAccess::ReadWrite => (true, true, true),
            OpAccess::CondRead => (true, false, false),
            OpAccess::CondWrite => (false, true, false),
            OpAccess::ReadCondWrite => (true, true, true),
            _ => continue,
        };
        operation.flags |= if load { LOAD } else { 0 } | if store { STORE } else { 0 };
        // The emulator's large helpers may access memory in another way: their accesses are not relied upon.
        let plain = !instruction.is_string_instruction()
            && !matches!(memory.memory_size(), MemorySize::Unknown)
            && !matches!(instruction.flow_control(), FlowControl::Interrupt | FlowControl::Exception)
            && !is_serial(instruction)
            && instruction.mnemonic() != Mnemonic::Enter
            && instruction.op_mask() == Register::None;
        if certain && plain {
            operation.flags |= CERTAIN;
        }
        for register in [memory.base(), memory.index()] {
            let number = number_of(register);
            if number != NO_REGISTER && fill.address < 2 && !operation.address.contains(&number) {
                operation.address[fill.address] = number;
                fill.address += 1;
            }
        }
    }
}

fn registers_of(
    instruction: &Instruction,
    info: &InstructionInfo,
    operation: &mut Operation,
    fill: &mut Registers,
) {
    let mut source = |number: u8, fill: &mut Registers| {
        if number != NO_REGISTER && fill.sources < 3 && !operation.sources.contains(&number) {
            operation.sources[fill.sources] = number;
            fill.sources += 1;
        }
    };
    if instruction.rflags_read() != 0 {
        source(number_of_flags(), fill);
    }
    for used in info.used_registers() {
        let number = number_of(used.register());
        let access = used.access();
        let reads = matches!(
            access,
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let writes = matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        // Writing 8 or 16 bits, or perhaps writing, keeps the rest of the register: it is read as well.
        let merges = writes
            && (access == OpAccess::CondWrite
                || access == OpAccess::ReadCondWrite
                || used.register().is_gpr8()
                || used.register().is_gpr16());
        // An address register is a source only if it is also an operand of its own.
        if (reads && !only_address(instruction, used.register())) || merges {
            source(number, fill);
        }
        if writes && number != NO_REGISTER && fill.results < 3 && !operation.results.contains(&number) {
            operation.results[fill.results] = number;
            fill.results += 1;
        }
    }
    if instruction.rflags_modified() != 0 && fill.results < 3 {
        operation.results[fill.results] = number_of_flags();
    }
    // The stack pointer's own arithmetic takes no unit and no time (stack engine): push, pop, call and ret
    // depend on what they move alone.
    if instruction.is_stack_instruction() {
        for register in operation.sources.iter_mut().chain(&mut operation.results) {
            if *register == number_of(Register::RSP) {
                *register = TRASH_REGISTER;
            }
        }
    }
}

/// Whether the instruction reads this register to make an address and for nothing else.
fn only_address(instruction: &Instruction, register: Register) -> bool {
    let full = register.full_register();
    let in_address = instruction.memory_base().full_register() == full
        || instruction.memory_index().full_register() == full;
    if !in_address || instruction.mnemonic() == Mnemonic::Lea {
        return false;
    }
    (0..instruction.op_count()).all(|operand| {
        instruction.op_kind(operand) != OpKind::Register
            || instruction.op_register(operand).full_register() != full
    })
}

fn number_of_flags() -> u8 {
    17
}

fn number_of(register: Register) -> u8 {
    let full = register.full_register();
    if full.is_gpr64() {
        1 + full.number() as u8
    } else if full.is_vector_register() {
        18 + full.number() as u8
    } else if full.is_k() {
        50 + full.number() as u8
    } else if full.is_st() || full.is_mm() {
        58
    } else {
        NO_REGISTER // segment, control and instruction registers: renamed or serialising
    }
}

fn end_of(instruction: &Instruction) -> End {
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::Next => End::Fallthrough,
        FlowControl::ConditionalBranch => End::Conditional(target),
        FlowControl::UnconditionalBranch => End::Jump(target),
        FlowControl::IndirectBranch => End::IndirectJump,
        FlowControl::Call if instruction.is_call_near() => End::Call(target),
        FlowControl::IndirectCall => End::IndirectCall,
        FlowControl::Return if instruction.mnemonic() == Mnemonic::Ret => End::Return,
        _ => End::System,
    }
}
