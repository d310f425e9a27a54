//! How work is divided on a machine with a support core: that core executes the allocator's own code, between
//! the call of malloc or free and its return. The program's core executes the kernel's work for the
//! allocator.

use crate::base::cause::Owner;
use crate::core::support::Support;
use crate::isa::block::{NO_REGISTER, RAX, RDI, TRASH_REGISTER};
use crate::memory::tlb::PageTables;
use crate::system::machine::Machine;

impl Machine {
    /// SpeedMalloc's support core, if the machine has one.
    pub fn support(&self) -> Option<&Support> {
        self.support.as_ref()
    }

    /// Whether the support core executes the next instructions.
    #[inline]
    pub(super) fn is_supported(&self, kernel: bool) -> bool {
        self.support.is_some() && !kernel && self.own.user_owner != Owner::User
    }

    /// The program's core sends the arguments of malloc or free.
    pub(super) fn request(&mut self, owner: Owner, stack: u64) {
        let Some(support) = &mut self.support else { return };
        self.own.core.unit_operation(owner, RDI, TRASH_REGISTER, false, |at| support.request(at, stack));
        self.counts.user_instructions += 1;
        self.counts.unit_operations += 1;
    }

    /// The allocator has returned. After malloc the program's core waits for the address, where it needs it.
    pub(super) fn answer(&mut self, owner: Owner) {
        let Some(support) = &mut self.support else { return };
        // The program's core does not predict its return.
        self.own.predictor.forget_call();
        if owner != Owner::Allocate {
            return support.release();
        }
        let answered = support.answer();
        self.own.core.unit_operation(owner, NO_REGISTER, RAX, false, |at| answered.max(at + 1));
        self.counts.user_instructions += 1;
        self.counts.unit_operations += 1;
    }

    /// The kernel is entered: if the allocator has called it, or touched a page that is not there, not before
    /// the support core has executed that.
    pub(super) fn call_kernel(&mut self) {
        let its = matches!(self.own.kernel_work, Owner::Fault | Owner::MemoryCall);
        if self.own.user_owner != Owner::User
            && its
            && let Some(support) = &mut self.support
            && let Some(until) = support.enter_kernel()
        {
            self.own.core.wait(until, self.own.user_owner);
        }
    }

    /// The support core executes the block's instructions `from..to`.
    pub(super) fn run_supported(&mut self, number: usize, from: usize, to: usize, tables: &impl PageTables) {
        let Some(support) = &mut self.support else { return };
        support.leave_kernel(self.own.core.now());
        let block = &self.blocks[number];
        let mut accesses = &self.own.accesses[..];
        for (index, operation) in block.operations.iter().enumerate().take(to).skip(from) {
            let its = accesses.iter().take_while(|access| access.index as usize <= index).count();
            let (first, rest) = accesses.split_at(its);
            accesses = rest;
            support.operation(block, operation, first, &mut self.hierarchy, tables);
        }
    }
}
