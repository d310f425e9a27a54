//! A thread's own stack: the base of stack heights, and the part that can be read.

use crate::units::call::Call;
use crate::units::geometry::PAGE_BYTES;

/// The known part of a stack.
#[derive(Clone, Copy)]
pub struct ThreadStack {
    /// Heights are measured from here.
    base: usize,
    /// The part from here up to `top` certainly belongs to the thread.
    sure: usize,
    top: usize,
}

/// A thread's control block is at most this far from its calls.
const FARTHEST: usize = 1 << 30;
/// The least size of a thread's stack: PTHREAD_STACK_MIN, less a guard page.
const LEAST_BYTES: usize = 12 << 10;
/// The kernel maps nothing else this close below the top of a process' first stack.
const LEAST_BYTES_OF_FIRST: usize = 128 << 20;

impl ThreadStack {
    /// Nothing is known of it.
    pub const NONE: Self = Self { base: 0, sure: 0, top: 0 };

    /// The stack of the calling thread, whose first call this is. The C library puts a thread's control
    /// block, to which the thread pointer points, at the top of its stack. So threads that run the same code
    /// have the same heights, and different functions that allocate have different heights. The first
    /// thread's control block is elsewhere: its heights are measured from its first call.
    pub fn of(call: &Call) -> Self {
        let control_block = control_block();
        if control_block.wrapping_sub(call.stack) < FARTHEST {
            return Self { base: control_block, sure: control_block - LEAST_BYTES, top: control_block };
        }
        // SAFETY: always allowed. The kernel puts it behind the first stack's end.
        let top = unsafe { libc::getauxval(libc::AT_RANDOM) } as usize;
        let sure = top.saturating_sub(LEAST_BYTES_OF_FIRST);
        let is_first = (sure..top).contains(&call.stack);
        Self { base: call.stack, sure: if is_first { sure } else { top }, top }
    }

    /// As [`ThreadStack::of`], for heights only.
    pub fn with_base(base: usize) -> Self {
        Self { base, ..Self::NONE }
    }

    /// The stack height at a call.
    #[inline]
    pub fn height(&self, call: &Call) -> usize {
        self.base.wrapping_sub(call.stack)
    }

    /// Whether the call is from this stack, and not a fiber's. (Other calls may be above the first one.)
    pub fn is_of(&self, call: &Call) -> bool {
        self.height(call).wrapping_add(FARTHEST) < 2 * FARTHEST
    }

    /// Whether the word this many words above a call's return address can be read: it lies in the same page,
    /// or both certainly belong to the thread. Fibers' stacks may be unmapped.
    pub fn may_read(&self, call: &Call, word: u8) -> bool {
        let slot = call.stack.wrapping_sub(size_of::<usize>());
        let above = slot.wrapping_add(size_of::<usize>() * usize::from(word));
        slot / PAGE_BYTES == above / PAGE_BYTES || self.sure <= slot && above < self.top
    }
}

/// The thread's control block, which begins with its own address (System V ABI).
pub fn control_block() -> usize {
    let control_block: usize;
    // SAFETY: reads the thread's own control block.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            out(reg) control_block,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: every process may read the register.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "mrs {0}, tpidr_el0",
            out(reg) control_block,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    control_block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_the_page_of_the_call_on_a_stack_that_may_end() {
        let call = |stack| Call { size: 8, caller: 1, stack };
        let top = 0x7000_0000_0000;
        let own = ThreadStack { base: top, sure: top - LEAST_BYTES, top };
        assert!(own.may_read(&call(top - 3 * PAGE_BYTES + 8), 255));
        assert!(own.may_read(&call(top - 3 * PAGE_BYTES + 8), u8::MAX));
        assert!(!own.may_read(&call(top - 16), 3), "behind its end");
        let elsewhere = 0x6000_0000_0000;
        assert!(own.may_read(&call(elsewhere + 8), 255), "in one page");
        assert!(!own.may_read(&call(elsewhere), 1), "the next page may not be there");
        assert!(!own.may_read(&call(elsewhere + PAGE_BYTES - 80), 12));
    }

    #[test]
    fn finds_the_stack_of_a_thread() {
        let is_known = || {
            let here = 0usize;
            let call = Call { size: 8, caller: 1, stack: (&raw const here).addr() };
            let own = ThreadStack::of(&call);
            own.is_of(&call) && own.may_read(&call, 255)
        };
        assert!(std::thread::spawn(is_known).join().expect("no panic"));
    }
}
