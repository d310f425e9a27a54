//! An instruction's cost: its unit, its latency, and whether others wait for it.
//!
//! Latencies are those of a current x86 core, rounded; the paper does not give them.

use crate::isa::block::{LOAD, Operation, STORE, Unit};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Whether all others wait for it, and it for them.
pub fn is_serial(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    instruction.is_privileged() && !is_quick(instruction)
        || matches!(
            instruction.mnemonic(),
            Syscall
                | Sysret
                | Sysretq
                | Iret
                | Iretd
                | Iretq
                | Cpuid
                | Lfence
                | Mfence
                | Serialize
                | Rdtscp
                | Hlt
                | Swapgs
                | Int
                | Int1
                | Int3
                | Xgetbv
                | Xsetbv
                | Xsave
                | Xsavec
                | Xsaveopt
                | Xsaves
                | Xrstor
                | Xrstors
                | Fxsave
                | Fxsave64
                | Fxrstor
                | Fxrstor64
        )
}

/// Privileged, but no other instruction waits for it: access to user memory and interrupts on and off, and
/// reading a control register. A fault's handler is full of these.
pub fn is_quick(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Stac | Mnemonic::Clac | Mnemonic::Cli | Mnemonic::Sti => true,
        Mnemonic::Mov => instruction.op_kind(1) == OpKind::Register && instruction.op_register(1).is_cr(),
        _ => false,
    }
}

/// A copy of a whole register to another: renaming does it without a unit (move elimination).
pub fn is_renaming(instruction: &Instruction) -> bool {
    let whole = matches!(
        instruction.mnemonic(),
        Mnemonic::Mov
            | Mnemonic::Movaps
            | Mnemonic::Movups
            | Mnemonic::Movapd
            | Mnemonic::Movdqa
            | Mnemonic::Movdqu
            | Mnemonic::Vmovaps
            | Mnemonic::Vmovups
            | Mnemonic::Vmovdqa
            | Mnemonic::Vmovdqu
    );
    let wide = |register: Register| {
        register.is_gpr32() || register.is_gpr64() || register.is_xmm() || register.is_ymm()
    };
    whole
        && (0..2).all(|operand| {
            instruction.op_kind(operand) == OpKind::Register && wide(instruction.op_register(operand))
        })
}

/// Divisions and roots, during which the unit takes no other.
pub fn is_slow_vector(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Divss
            | Divsd
            | Divps
            | Divpd
            | Vdivss
            | Vdivsd
            | Vdivps
            | Vdivpd
            | Sqrtss
            | Sqrtsd
            | Sqrtps
            | Sqrtpd
            | Vsqrtss
            | Vsqrtsd
            | Vsqrtps
            | Vsqrtpd
            | Fdiv
            | Fdivp
            | Fdivr
            | Fdivrp
            | Fsqrt
    )
}

/// The latency of a privileged instruction that does not serialise: stac and clac take about as long on cores
/// of the last ten years.
const QUICK_CYCLES: u8 = 10;

/// The unit and the latency.
pub fn cost_of(instruction: &Instruction, operation: &Operation) -> (Unit, u8) {
    use Mnemonic::*;
    let mnemonic = instruction.mnemonic();
    if is_serial(instruction) {
        let latency = match mnemonic {
            Lfence | Swapgs | Rdtscp => 10,
            Mfence => 30,
            Syscall | Sysret | Sysretq => 40,
            Iret | Iretd | Iretq | Int | Int3 => 100,
            _ => 80,
        };
        return (Unit::Integer, latency);
    }
    if is_quick(instruction) {
        return (Unit::Integer, QUICK_CYCLES);
    }
    if instruction.flow_control() != FlowControl::Next {
        return (Unit::Branch, 1);
    }
    if instruction.has_lock_prefix() || (mnemonic == Xchg && operation.flags & STORE != 0) {
        return (Unit::Store, 18);
    }
    let vector = (0..instruction.op_count()).any(|operand| {
        instruction.op_kind(operand) == OpKind::Register
            && (instruction.op_register(operand).is_vector_register()
                || instruction.op_register(operand).is_st())
    });
    let (unit, latency) = match mnemonic {
        Imul | Mul | Mulx => (Unit::Multiply, 3),
        Div | Idiv => (Unit::Multiply, if instruction.op0_register().is_gpr64() { 26 } else { 20 }),
        Popcnt | Lzcnt | Tzcnt | Bsf | Bsr | Crc32 | Pdep | Pext => (Unit::Multiply, 3),
        Rdtsc => (Unit::Integer, 20),
        Pause => (Unit::Integer, 40),
        _ if is_slow_vector(mnemonic) => (Unit::Vector, 13),
        _ if vector && operation.flags & (LOAD | STORE) != 0 && is_move(mnemonic) => (Unit::Integer, 1),
        _ if vector => (Unit::Vector, vector_latency(mnemonic)),
        _ => (Unit::Integer, 1),
    };
    match unit {
        // A load that only moves is done when the data is there.
        Unit::Integer if operation.flags & LOAD != 0 && is_move(mnemonic) => (Unit::Load, 0),
        Unit::Integer if operation.flags & LOAD != 0 => (Unit::Load, latency),
        Unit::Integer if operation.flags & STORE != 0 => (Unit::Store, latency),
        unit => (unit, latency),
    }
}

fn is_move(mnemonic: Mnemonic) -> bool {
    let name = format!("{mnemonic:?}");
    ["Mov", "Vmov", "Pop", "Lddqu", "Vbroadcast", "Lods"].iter().any(|prefix| name.starts_with(prefix))
        && mnemonic != Mnemonic::Popcnt
}

fn vector_latency(mnemonic: Mnemonic) -> u8 {
    let name = format!("{mnemonic:?}");
    let name = name.strip_prefix('V').unwrap_or(&name).to_ascii_lowercase();
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if starts(&[
        "add", "sub", "mul", "fma", "fm", "cvt", "max", "min", "round", "pmul", "pmadd", "aes", "fadd",
        "fsub", "fmul",
    ]) {
        4
    } else if starts(&["pclmul", "dpp", "psadbw", "pmovmsk", "movmsk", "ucomi", "comi", "ptest"]) {
        3
    } else if starts(&["movd", "movq"]) {
        2
    } else {
        1
    }
}
