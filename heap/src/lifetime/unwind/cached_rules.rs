//! Unwinding by rules that are known: what the tables say of a return address is kept, so a frame that was met before costs a
//! look-up and two reads of the stack, in place of a search and a program that is interpreted.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::rule::{self, Frame, Rule, Saved};
use super::{FoundObject, found_object};

/// Rules that are kept, by return address. An entry is a rule, and that combined with what it is of: who reads one that is half
/// written finds that they do not fit. A module that is loaded where another one was has its table elsewhere.
const RULES_KEPT: usize = 4096;
static RULES: [[AtomicU64; 2]; RULES_KEPT] = [const { [const { AtomicU64::new(0) }; 2] }; RULES_KEPT];

/// Larger frames are not believed.
const MOST_FRAME_BYTES: usize = 1 << 30;

/// What a frame is left with.
#[derive(Clone, Copy)]
struct Registers {
    /// Where its code goes on.
    code: usize,
    stack: usize,
    /// `None` if it is not known, which matters only to who counts from it.
    frame: Option<usize>,
}

/// Those of here and now.
#[inline(always)]
fn current_registers() -> Registers {
    let (code, stack, frame): (usize, usize, usize);
    // SAFETY: reads registers and does nothing else.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "lea {code}, [rip + 1]", // as return addresses are: behind the code that they are of
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

/// Tells `step` the return addresses of the calling thread's stack, and the stack pointer that each leaves, innermost first, until it wants no more or nothing called the
/// last one. Whether that came so far: `false` if the full unwinder must be asked.
#[inline(never)] // it has a frame of its own, which is the first one that is left
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
    // SAFETY: the C library says that this is the table of the module, which is on the stack and so stays loaded.
    let rule = unsafe { rule::at(return_address - 1, table) };
    let packed = rule.packed();
    kept.store(packed, Relaxed);
    combined.store(key ^ packed.rotate_left(32), Relaxed);
    rule
}

/// The registers of the caller.
fn caller_of(at: Registers, frame: Frame) -> Option<Registers> {
    const WORD: usize = size_of::<usize>();
    let base = if frame.by_frame_pointer { at.frame? } else { at.stack };
    let end = base.checked_add(frame.bytes as usize)?;
    let is_frame = end > at.stack && end - at.stack <= MOST_FRAME_BYTES && end.is_multiple_of(WORD);
    let word = |below: u16| {
        let place = end.checked_sub(usize::from(below) * WORD)?;
        // SAFETY: within the frame, which is on the calling thread's stack and above its stack pointer: nobody else writes there.
        (is_frame && below > 0 && place >= at.stack).then(|| unsafe { (place as *const usize).read() })
    };
    let pointer = match frame.frame_pointer {
        Saved::InPlace => at.frame,
        Saved::Below(words) => Some(word(words)?),
        Saved::Unknown => None,
    };
    Some(Registers { code: without_signature(word(frame.return_below)?), stack: end, frame: pointer })
}

/// A return address as it was before its function signed it (aarch64's pointer authentication); others stay as they are.
#[inline(always)]
fn without_signature(address: usize) -> usize {
    #[cfg(target_arch = "aarch64")]
    let address = {
        let mut address = address;
        // SAFETY: XPACLRI changes x30 alone; processors without signatures pass over it.
        unsafe {
            core::arch::asm!("hint #7", inout("x30") address, options(pure, nomem, nostack, preserves_flags))
        };
        address
    };
    address
}
