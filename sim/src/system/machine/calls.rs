//! Calls of malloc and free that an instruction replaces (§5).
//!
//! Functions of an allocator that can be either side's are reached by a block that jumps to the side that was
//! chosen, and is never charged (`sim/shim/redirect.h`). A call that leads to such a block, directly or
//! through the table of other files' functions, is held: it is not timed before the block behind it is known.
//! Where that is Memento's, the call is dropped, and nothing up to its return is charged but the instruction.
//! In all other cases it is timed then, before any other instruction. A call by a pointer stays a call.

use crate::base::cause::Owner;
use crate::isa::block::*;
use crate::memory::tlb::PageTables;
use crate::system::machine::Machine;

/// A call, or a jump that leads on, which is not timed yet.
pub struct HeldCall {
    block: usize,
    from: usize,
    accesses: Vec<Access>,
    owner: Owner,
    /// Where it led to.
    target: u64,
}

/// A call that is replaced, until it returns.
pub(super) struct ReplacedCall {
    /// The process, and the core that it is on.
    space: u64,
    held: Vec<HeldCall>,
    /// Where it returns to; `None`: a jump was replaced, and the function that made it returns itself.
    back: Option<u64>,
}

impl Machine {
    /// The first instruction of the end of this block that is held, if that may be a replaced call.
    fn held_from(&self, number: usize, from: usize, next: usize) -> Option<usize> {
        let (block, after) = (&self.blocks[number], &self.blocks[next]);
        let leads = after.redirect == Redirect::Begin || after.leads_on;
        let fits = match block.ends {
            End::Call(target) | End::Jump(target) => target == after.start,
            End::IndirectJump => block.leads_on,
            _ => false,
        };
        let is_charged = !self.is_uncharged() && !self.is_free_of_charge(block.start);
        let holds = leads && fits && is_charged && block.redirect == Redirect::None && !block.is_kernel();
        holds.then_some(if block.leads_on { from } else { block.operations.len() - 1 })
    }

    /// Whether the end of this block, which was executed whole, is held; its other instructions are timed.
    #[inline]
    pub(super) fn holds(
        &mut self,
        number: usize,
        from: usize,
        next: usize,
        tables: &impl PageTables,
    ) -> bool {
        if !self.replaces_calls {
            return false;
        }
        let Some(last) = self.held_from(number, from, next) else { return false };
        if last > from {
            self.run(number, from, last, tables);
        }
        let of_call = |access: &&Access| usize::from(access.index) >= last;
        self.own.held.push(HeldCall {
            block: number,
            from: last,
            accesses: self.own.accesses.iter().filter(of_call).copied().collect(),
            owner: self.own.user_owner,
            target: self.blocks[next].start,
        });
        true
    }

    /// Times the calls that were held: they are calls.
    #[cold]
    pub(super) fn time_held(&mut self, held: Vec<HeldCall>, tables: &impl PageTables) {
        let accesses = std::mem::take(&mut self.own.accesses);
        let owner = self.own.user_owner;
        for call in held {
            self.own.user_owner = call.owner;
            self.own.accesses = call.accesses;
            self.run(call.block, call.from, self.blocks[call.block].operations.len(), tables);
            let block = &self.blocks[call.block];
            self.own.core.control(block, &mut self.own.predictor, call.target);
            if let Some(trace) = &mut self.trace {
                trace.branched(block, call.target != block.end);
            }
        }
        (self.own.accesses, self.own.user_owner) = (accesses, owner);
    }

    /// A block of a redirected function was executed.
    #[cold]
    pub(super) fn redirected(&mut self, redirect: Redirect, tables: &impl PageTables) {
        match redirect {
            Redirect::Replaced if self.replaces_calls && !self.is_uncharged() => {
                let held = std::mem::take(&mut self.own.held);
                self.replace(held);
                self.stop_charging();
            }
            Redirect::Software => {
                let own = self.space();
                if let Some(index) = self.replaced.iter().position(|call| call.space == own) {
                    let call = self.replaced.swap_remove(index);
                    self.charge_again();
                    self.time_held(call.held, tables);
                }
            }
            _ => {}
        }
    }

    /// These calls are an instruction's.
    fn replace(&mut self, held: Vec<HeldCall>) {
        let space = self.space();
        let back = held.first().map(|call| &self.blocks[call.block]);
        let back = back.filter(|block| matches!(block.ends, End::Call(_))).map(|block| block.end);
        self.replaced.retain(|call| call.space != space);
        self.replaced.push(ReplacedCall { space, held, back });
    }

    /// Whether a call that is replaced returns to this address now.
    #[inline]
    pub(super) fn returns_to(&self, address: u64) -> bool {
        !self.replaced.is_empty() && self.replaced_here().is_some_and(|call| call.back == Some(address))
    }

    fn replaced_here(&self) -> Option<&ReplacedCall> {
        let space = self.space();
        self.replaced.iter().find(|call| call.space == space)
    }

    /// An ideal allocator's function does its work in no time: the call of it is replaced as Memento's is.
    /// Where the function ends by a jump to another of the allocator's, the call is still the one that led to
    /// the first.
    pub(super) fn replace_ideal(&mut self) {
        let held = std::mem::take(&mut self.own.held);
        let is_call = held.first().is_some_and(|call| matches!(self.blocks[call.block].ends, End::Call(_)));
        if is_call || self.replaced_here().is_none() {
            self.replace(held);
        }
    }

    /// The call that was replaced has returned.
    pub(super) fn has_returned(&mut self) {
        let space = self.space();
        self.replaced.retain(|call| call.space != space);
        self.charge_again();
    }

    /// The process has exited.
    pub(super) fn forget_replaced(&mut self, root: u64) {
        self.replaced.retain(|call| call.space & !0xfff != root);
    }

    /// Whether the operation that ends here is a call's that was replaced, which has yet to return. A jump's
    /// is over.
    pub(super) fn is_in_replaced_call(&mut self) -> bool {
        let Some(call) = self.replaced_here() else { return false };
        let returns = call.back.is_some();
        if !returns {
            let space = self.space();
            self.replaced.retain(|call| call.space != space);
        }
        returns
    }
}
