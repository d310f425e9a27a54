//! The whole machine, and how it is fed: a block is entered, its accesses and marks follow, the next block is
//! entered.
//!
//! A block is timed when the next one is entered, because only then it is known how far it was executed (an
//! instruction that faults ends it early) and where its branch led.

/// The machine as Memento's units see it.
macro_rules! view {
    ($machine:ident) => {
        View {
            hierarchy: &mut $machine.hierarchy,
            tlbs: &mut $machine.own.tlbs,
            shootdowns: &mut $machine.turns.shootdowns,
        }
    };
}

mod calls;
mod cores;
mod counts;
mod executed;
mod marks;
mod sampled;
mod support;

use crate::base::cause::Owner;
use crate::base::description::Description;
use crate::core::branch::Predictor;
use crate::core::extension::{Extension, View};
use crate::core::pipeline::{Behind, Core};
use crate::core::support::Support;
use crate::isa::block::*;
use crate::memory::hierarchy::Hierarchy;
use crate::memory::tlb::{PageTables, Tlbs};
use crate::system::allocations::Allocations;
use crate::system::pages::Pages;
use crate::system::sampling::Sampler;
use crate::system::trace::Trace;

use calls::ReplacedCall;
use cores::{OneCore, Turns};
pub use counts::ProgramCounts;
use executed::executed;

/// Cores, their memory, and the blocks they are in.
pub struct Machine {
    /// The core that has its turn.
    own: OneCore,
    /// The others.
    others: Vec<OneCore>,
    turns: Turns,
    hierarchy: Hierarchy,
    extension: Option<Extension>,
    support: Option<Support>,
    blocks: Vec<Block>,
    /// The address spaces in which nothing is charged until their closing marks, and on which cores: one may
    /// be interrupted before its own, and another begin such a section too.
    uncharged: Vec<u64>,
    /// An ideal allocator: its functions' own code is not charged.
    ideal_allocator: bool,
    /// Calls of allocators may be replaced by an instruction, or by an ideal allocator.
    replaces_calls: bool,
    replaced: Vec<ReplacedCall>,
    allocations: Allocations,
    pages: Pages,
    sampler: Option<Sampler>,
    trace: Option<Trace>,
    start: u64,
    /// Counters.
    pub counts: ProgramCounts,
}

impl Machine {
    /// With empty caches, at cycle 0.
    pub fn new(description: &Description) -> Machine {
        let mut own = OneCore::new(0, description);
        own.core.set_warming(description.sample.is_some());
        Machine {
            own,
            others: (1..description.cores.number).map(|number| OneCore::new(number, description)).collect(),
            turns: Turns::new(&description.cores),
            hierarchy: Hierarchy::new(description),
            extension: description
                .memento
                .as_ref()
                .map(|config| Extension::new(config, description.cores.number)),
            support: description.support.as_ref().map(|support| Support::new(support, &description.tlb)),
            blocks: Vec::new(),
            uncharged: Vec::new(),
            ideal_allocator: description.core.ideal_allocator,
            replaces_calls: description.core.ideal_allocator
                || description.memento.as_ref().is_some_and(|config| config.replaces_calls),
            replaced: Vec::new(),
            allocations: Allocations::default(),
            pages: Pages::default(),
            sampler: description.sample.as_ref().map(Sampler::new),
            trace: None,
            start: 0,
            counts: ProgramCounts::default(),
        }
    }

    /// Adds a block; returns its number, for [`Machine::enter`].
    pub fn add_block(&mut self, block: Block) -> usize {
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// The block of this number.
    pub fn block(&self, number: usize) -> &Block {
        &self.blocks[number]
    }

    /// Execution enters this block, which ends the one before.
    #[inline]
    pub fn enter(&mut self, number: usize, tables: &impl PageTables) {
        self.finish(Some(number), tables);
        self.own.current = Some((number, 0));
    }

    /// An access of the current block's instruction `access.index`.
    #[inline]
    pub fn access(&mut self, access: Access) {
        self.own.accesses.push(access);
    }

    /// Times the current block's instructions before `index`, so that a change now holds for those from there
    /// on.
    pub fn split(&mut self, index: usize, tables: &impl PageTables) {
        if let Some((number, from)) = self.own.current
            && from < index
        {
            self.run(number, from, index, tables);
            self.own.accesses.clear();
            self.own.current = Some((number, index));
        }
    }

    /// Execution stops here for now: times the remaining instructions of all cores.
    pub fn pause(&mut self, tables: &impl PageTables) {
        self.each_core(|machine| {
            machine.finish(None, tables);
            machine.own.current = None;
        });
    }

    /// Another address space.
    pub fn set_root(&mut self, cr3: u64) {
        if self.own.tlbs.root() != cr3 & 0x000f_ffff_ffff_f000 {
            self.counts.process_switches += 1;
        }
        self.own.tlbs.set_root(cr3);
        if let Some(support) = &mut self.support {
            support.set_root(cr3);
        }
        self.own.user_owner = self.allocations.inside(self.space()).unwrap_or(Owner::User);
        self.load_region();
    }

    /// Memento's registers are those of the process that runs.
    fn load_region(&mut self) {
        let process = self.own.tlbs.root();
        if let Some(extension) = &mut self.extension {
            let mut view = view!(self);
            let done = extension.switch(self.own.number, process, self.own.core.now(), &mut view);
            self.own.core.wait(done, Owner::Kernel);
        }
    }

    /// Memento's units, if the machine has them.
    pub fn extension(&self) -> Option<&Extension> {
        self.extension.as_ref()
    }

    /// The start of the block that is being executed.
    pub fn current_address(&self) -> Option<u64> {
        self.own.current.map(|(number, _)| self.blocks[number].start)
    }

    /// The address space.
    pub fn root(&self) -> u64 {
        self.own.tlbs.root()
    }

    /// The program's requests to its software allocator.
    pub fn allocations(&self) -> &Allocations {
        &self.allocations
    }

    /// Instructions since the region's start.
    pub fn instructions(&self) -> u64 {
        self.counts.user_instructions + self.counts.kernel_instructions
    }

    /// The region starts: everything is counted from zero, and the caches keep what they hold.
    pub fn start_region(&mut self) {
        self.start_together();
        self.begin_sampling();
        self.hierarchy.reset_counts();
        if let Some(extension) = &mut self.extension {
            extension.start_region();
        }
        if let Some(support) = &mut self.support {
            support.counts = Default::default();
        }
        self.counts = ProgramCounts::default();
        self.allocations.reset();
        self.pages = Pages::default();
    }

    /// DRAM's requests of the region are kept, for [`Hierarchy::dram_requests`].
    pub fn record_dram(&mut self) {
        self.hierarchy.record_dram();
    }

    /// The parts, for statistics and tests.
    pub fn parts(&self) -> (&Core, &Hierarchy, &Tlbs, &Predictor) {
        (&self.own.core, &self.hierarchy, &self.own.tlbs, &self.own.predictor)
    }

    fn finish(&mut self, following: Option<usize>, tables: &impl PageTables) {
        let Some((number, from)) = self.own.current else { return };
        let next = following.map(|following| self.blocks[following].start);
        let block = &self.blocks[number];
        let last = block.operations.len() - 1;
        if block.operations[last].flags & REPEAT != 0 && self.repetition(number, from, next, tables) {
            self.own.accesses.clear();
            return;
        }
        let block = &self.blocks[number];
        let kernel = block.is_kernel();
        let executed = executed(block, from, &self.own.accesses);
        let whole = executed == block.operations.len();
        if whole && following.is_some_and(|following| self.holds(number, from, following, tables)) {
            self.own.accesses.clear();
            return;
        }
        self.run(number, from, executed, tables);
        self.own.accesses.clear();
        let Some(next) = next else { return };
        let returns = self.returns_to(next);
        let redirect = self.blocks[number].redirect;
        if whole && redirect != Redirect::None {
            self.redirected(redirect, tables);
        }
        let block = &self.blocks[number];
        let next_is_kernel = next >> 63 == 1;
        let last = block.operations[last];
        let plausible = match block.ends {
            // A string instruction repeats.
            _ if last.flags & REPEAT != 0 && next == block.start + u64::from(last.offset) => return,
            End::Fallthrough => next == block.end,
            End::Conditional(target) => next == target || next == block.end,
            End::Jump(target) | End::Call(target) => next == target,
            End::IndirectJump | End::IndirectCall | End::Return => kernel == next_is_kernel,
            End::System => true,
        };
        let within = self.is_free_of_charge(block.start) && self.is_free_of_charge(next)
            || block.redirect != Redirect::None
            || returns;
        if whole && plausible {
            if self.is_supported(kernel) {
                if let Some(support) = &mut self.support
                    && next != block.end
                {
                    support.branched();
                }
            } else if !self.is_uncharged() && !within {
                self.own.core.control(block, &mut self.own.predictor, next);
                if let Some(trace) = &mut self.trace {
                    trace.branched(block, next != block.end);
                }
            }
        } else if !self.is_uncharged() {
            self.own.core.exception();
            if whole {
                self.counts.interrupts += 1
            } else {
                self.counts.faults += 1
            };
        }
        if !kernel && next_is_kernel && !(whole && block.ends == End::System) {
            self.own.kernel_work = if whole { Owner::Kernel } else { Owner::Fault };
        }
        if returns {
            self.has_returned();
        }
    }

    /// Times the block's instructions `from..to`.
    #[inline]
    fn run(&mut self, number: usize, from: usize, to: usize, tables: &impl PageTables) {
        let block = &self.blocks[number];
        let kernel = block.is_kernel();
        if self.is_uncharged() || self.is_free_of_charge(block.start) || block.redirect != Redirect::None {
            self.counts.uncharged_instructions += to.saturating_sub(from) as u64;
            return;
        }
        if !self.own.held.is_empty() {
            let held = std::mem::take(&mut self.own.held);
            self.time_held(held, tables);
        }
        if self.is_supported(kernel) {
            return self.run_supported(number, from, to, tables);
        }
        if kernel && self.support.is_some() {
            self.call_kernel();
        }
        let block = &self.blocks[number];
        let owner = if kernel { self.own.kernel_work } else { self.own.user_owner };
        let mut behind = Behind {
            hierarchy: &mut self.hierarchy,
            tlbs: &mut self.own.tlbs,
            tables,
            extension: self.extension.as_mut(),
        };
        let mut taken = 0;
        let mut marks = 0;
        for index in from..to {
            let operation = &block.operations[index];
            if operation.flags & MARK != 0 {
                marks += 1;
                continue;
            }
            let first = taken;
            while taken < self.own.accesses.len() && self.own.accesses[taken].index as usize <= index {
                taken += 1;
            }
            let accesses = &self.own.accesses[first..taken];
            self.own.core.operation(block, operation, accesses, owner, &mut behind);
        }
        let (mut stores, mut devices) = (0, 0);
        for access in &self.own.accesses[..taken] {
            stores += usize::from(access.store);
            devices += usize::from(access.device);
        }
        let counts = &mut self.counts;
        counts.stores += stores as u64;
        counts.loads += (taken - stores) as u64;
        counts.device_accesses += devices as u64;
        if let Some(trace) = &mut self.trace {
            trace.executed(block, from..to, &self.own.accesses);
        }
        let instructions = (to.saturating_sub(from) - marks) as u64;
        *(if kernel { &mut counts.kernel_instructions } else { &mut counts.user_instructions }) +=
            instructions;
        self.sample();
    }
}
