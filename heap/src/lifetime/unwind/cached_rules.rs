//! Unwinds by cached rules: each return address' rule is kept, so a known frame costs one look-up and two
//! stack reads instead of a table search and an interpreted program.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::instructions;
use super::rule::{Frame, Rule, Saved};
use super::{FoundObject, found_object};

/// Cached rules by return address. An entry is a rule, and the rule combined with its key: a reader of a
/// half-written entry sees that they do not match. A module loaded at another one's addresses has another
/// table, so another key.
const RULES_KEPT: usize = 4096;
static RULES: [[AtomicU64; 2]; RULES_KEPT] = [const { [const { AtomicU64::new(0) }; 2] }; RULES_KEPT];

/// A larger frame is taken for an error.
const MOST_FRAME_BYTES: usize = 1 << 30;

/// The registers that a frame leaves.
#[derive(Clone, Copy)]
struct Registers {
    /// The return address.
    code: usize,
    stack: usize,
    /// The frame pointer; `None` if unknown, which matters only if a caller's frame is measured from it.
    frame: Option<usize>,
}

/// The current ones.
#[inline(always)]
fn current_registers() -> Registers {
    let (code, stack, frame): (usize, usize, usize);
    // SAFETY: reads registers and does nothing else.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "lea {code}, [rip + 1]", // just behind this code, as return addresses are
            "mov {stack}, rsp",
            "mov {frame}, rbp",
            code = out(reg) code, stack = out(reg) stack, frame = out(reg) frame,
            options(nomem, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "adr {code}, #4",
            "mov {stack}, sp",
            "mov {frame}, x29",
            code = out(reg) code, stack = out(reg) stack, frame = out(reg) frame,
            options(nomem, nostack, preserves_flags),
        );
    }
    Registers { code, stack, frame: Some(frame) }
}

/// Walks the calling thread's stack, innermost frame first: passes each return address, and the stack pointer
/// at its frame's end, to `step`, until that returns `false` or the outermost frame is reached. Returns
/// `false` if a rule is missing and libgcc must unwind.
#[inline(never)] // its own frame is the first one that is left
pub fn walk(mut step: impl FnMut(usize, usize) -> bool) -> bool {
    let mut at = current_registers();
    let mut module = FoundObject::NONE;
    loop {
        if !module.has(at.code) {
            match found_object(at.code) {
                Some(found) => module = found,
                None => return false,
            }
        }
        match rule_of(at.code, module.eh_frame) {
            Rule::Outermost => return true,
            Rule::Other => return false,
            Rule::Frame(frame) => match caller_of(at, frame) {
                Some(caller) => at = caller,
                None => return false,
            },
        }
        if at.code == 0 || !step(at.code, at.stack) {
            return true;
        }
    }
}

fn rule_of(return_address: usize, table: usize) -> Rule {
    let key = return_address as u64 ^ (table as u64).rotate_left(24);
    let hash =
        (return_address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - RULES_KEPT.ilog2());
    let [combined, kept] = &RULES[hash as usize];
    let known = kept.load(Relaxed);
    if known != 0 && combined.load(Relaxed) ^ known.rotate_left(32) == key {
        return Rule::unpacked(known);
    }
    if table == 0 {
        return Rule::Other;
    }
    // SAFETY: the C library returned this table for the module, which is on the stack and so stays loaded.
    let rule = unsafe { instructions::at(return_address - 1, table) };
    let packed = rule.packed();
    kept.store(packed, Relaxed);
    combined.store(key ^ packed.rotate_left(32), Relaxed);
    rule
}

/// The caller's registers.
fn caller_of(at: Registers, frame: Frame) -> Option<Registers> {
    const WORD: usize = size_of::<usize>();
    let base = if frame.by_frame_pointer { at.frame? } else { at.stack };
    let end = base.checked_add(frame.bytes as usize)?;
    let is_frame = end > at.stack && end - at.stack <= MOST_FRAME_BYTES && end.is_multiple_of(WORD);
    let word = |below: u16| {
        let place = end.checked_sub(usize::from(below) * WORD)?;
        // SAFETY: within the frame, which is on the calling thread's stack and above its stack pointer: no
        // other thread writes there.
        (is_frame && below > 0 && place >= at.stack).then(|| unsafe { (place as *const usize).read() })
    };
    let pointer = match frame.frame_pointer {
        Saved::InPlace => at.frame,
        Saved::Below(words) => Some(word(words)?),
        Saved::Unknown => None,
    };
    Some(Registers { code: without_signature(word(frame.return_below)?), stack: end, frame: pointer })
}

/// Strips the signature from a return address (aarch64's pointer authentication); other addresses do not
/// change.
#[inline(always)]
fn without_signature(address: usize) -> usize {
    #[cfg(target_arch = "aarch64")]
    let address = {
        let mut address = address;
        // SAFETY: XPACLRI changes only x30; processors without pointer authentication ignore it.
        unsafe {
            core::arch::asm!("hint #7", inout("x30") address, options(pure, nomem, nostack, preserves_flags))
        };
        address
    };
    address
}
