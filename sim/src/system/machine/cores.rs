//! Several cores, one after the other: each runs ahead of the others for a turn, as in the bound phases of
//! zsim (Sanchez and Kozyrakis, ISCA 2013), but nothing is timed anew after a turn. Caches and DRAM see a
//! core's accesses up to a turn before or after the others' of the same time.
//!
//! Each core has its clock. One that has slept continues at the time of those that were awake, since one of
//! these has woken it; while all sleep, no time passes.

use crate::base::cause::{CAUSES, OWNERS, Owner};
use crate::base::description::{CoresDescription, Description};
use crate::core::branch::{BranchCounts, Predictor};
use crate::core::pipeline::Core;
use crate::isa::block::Access;
use crate::memory::tlb::{PageTables, TlbCounts, Tlbs};
use crate::system::machine::Machine;
use crate::system::machine::calls::HeldCall;
use std::iter::once;
use std::mem::swap;
use std::ops::Range;

/// The state of one core alone.
pub(super) struct OneCore {
    pub number: usize,
    pub core: Core,
    pub tlbs: Tlbs,
    pub predictor: Predictor,
    /// The block being executed and the first of its instructions that is not yet timed.
    pub current: Option<(usize, usize)>,
    pub accesses: Vec<Access>,
    /// The page fault or the system call about memory that the kernel works on.
    pub kernel_work: Owner,
    /// The owner of user cycles: the program or its allocator.
    pub user_owner: Owner,
    /// The allocator was called for an object of a size that Memento serves.
    pub is_small: bool,
    /// The code of the allocator's function that the program has called, if it is ideal.
    pub free_of_charge: Range<u64>,
    /// Calls that may be replaced and are not timed yet.
    pub held: Vec<HeldCall>,
    /// The last repetition: its instruction, the line it read and the line it wrote.
    pub repeated: (u64, u64, u64),
    share: Share,
}

/// A core's part in the run.
#[derive(Clone, Copy)]
pub(super) struct Share {
    /// It sleeps, or has not begun.
    sleeps: bool,
    /// Cycles since the region's start in which it slept.
    asleep_cycles: u64,
    /// Instructions since the region's start, without those of its current turn.
    instructions: u64,
}

/// A core's work in the region.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreCounts {
    /// Instructions that it executed.
    pub instructions: u64,
    /// Cycles in which it slept, or had reached the region's end and another core had not.
    pub asleep_cycles: u64,
}

/// The core that has its turn, and until when.
pub(super) struct Turns {
    cycles: u64,
    until: u64,
    /// Of the region when it began.
    instructions: u64,
    /// So many since the region's start.
    many: u64,
    /// Translations that Memento's units make invalid: the core, and the page.
    pub shootdowns: Vec<(usize, u64)>,
}

impl Share {
    pub(super) const NONE: Share = Share { sleeps: true, asleep_cycles: 0, instructions: 0 };
}

impl OneCore {
    pub(super) fn new(number: usize, description: &Description) -> OneCore {
        OneCore {
            number,
            core: Core::new(description),
            tlbs: Tlbs::new(&description.tlb),
            predictor: Predictor::new(&description.branch),
            current: None,
            accesses: Vec::with_capacity(4096),
            kernel_work: Owner::Kernel,
            user_owner: Owner::User,
            is_small: false,
            free_of_charge: 0..0,
            held: Vec::new(),
            repeated: (0, 0, 0),
            share: Share::NONE,
        }
    }
}

impl Turns {
    pub(super) fn new(description: &CoresDescription) -> Turns {
        Turns { cycles: description.turn_cycles, until: 0, instructions: 0, many: 0, shootdowns: Vec::new() }
    }
}

impl Machine {
    fn all(&self) -> impl Iterator<Item = &OneCore> {
        once(&self.own).chain(&self.others)
    }

    /// How many cores it has.
    pub fn cores(&self) -> usize {
        1 + self.others.len()
    }

    /// Execution enters this block on this core of several. Whether its turn is over: then another core
    /// should continue. Hardware's work for it is never split between turns.
    #[inline]
    pub fn enter_on(&mut self, core: usize, number: usize, tables: &impl PageTables) -> bool {
        self.turns.many += u64::from(core != self.own.number);
        self.switch(core);
        self.enter(number, tables);
        let slept = self.own.share.sleeps;
        self.own.share.sleeps = self.blocks[number].halts;
        if slept {
            self.wake();
        }
        if self.own.core.now() < self.turns.until || self.is_uncharged() {
            return false;
        }
        // If no other core continues.
        self.turns.until = self.own.core.now() + self.turns.cycles;
        true
    }

    /// The input from now on is this core's.
    #[inline]
    pub fn switch(&mut self, core: usize) {
        if core != self.own.number {
            self.change_to(core);
        }
    }

    #[inline(never)]
    fn change_to(&mut self, core: usize) {
        let instructions = self.instructions();
        self.own.share.instructions += instructions - self.turns.instructions;
        self.turns.instructions = instructions;
        let root = self.own.tlbs.root();
        let Some(other) = self.others.iter_mut().find(|other| other.number == core) else { return };
        swap(&mut self.own, other);
        self.hierarchy.switch(core);
        self.turns.shootdowns.retain(|(other, page)| {
            let is_its = *other == core;
            if is_its {
                self.own.tlbs.shootdown(*page);
            }
            !is_its
        });
        // A core whose CR3 the plugin has not seen runs the kernel, or another thread of the same process.
        if self.own.tlbs.root() == 0 {
            self.own.tlbs.set_root(root);
        }
        self.load_region();
        self.begin_turn();
    }

    /// The other cores' address spaces are unknown from now on, since the plugin has not seen what they
    /// executed.
    pub fn forget_roots(&mut self) {
        for other in &mut self.others {
            other.tlbs.set_root(0);
        }
    }

    fn begin_turn(&mut self) {
        self.turns.until = self.least_awake().unwrap_or(self.own.core.now()) + self.turns.cycles;
    }

    #[inline(never)]
    fn wake(&mut self) {
        let now = self.least_awake().unwrap_or_else(|| self.latest());
        self.own.share.asleep_cycles += self.own.core.sleep(now);
        self.begin_turn();
    }

    /// The least clock of the other cores that are awake.
    fn least_awake(&self) -> Option<u64> {
        self.others.iter().filter(|other| !other.share.sleeps).map(|other| other.core.now()).min()
    }

    /// The greatest clock of all cores.
    pub(super) fn latest(&self) -> u64 {
        self.all().map(|one| one.core.now()).max().unwrap_or(0)
    }

    /// Does this for all cores, each having its turn for it.
    pub(super) fn each_core(&mut self, work: impl Fn(&mut Machine)) {
        let own = self.own.number;
        work(self);
        for core in (0..self.cores()).filter(|core| *core != own) {
            self.switch(core);
            work(self);
        }
        self.switch(own);
    }

    /// The region starts for all of them at the same time.
    pub(super) fn start_together(&mut self) {
        let start = self.latest();
        self.start = start;
        self.turns.instructions = self.instructions();
        self.each_core(|machine| {
            machine.own.core.sleep(start);
            machine.own.core.reset_counts();
            machine.own.tlbs.counts = TlbCounts::default();
            machine.own.predictor.counts = BranchCounts::default();
            machine.own.share = Share { sleeps: machine.own.share.sleeps, ..Share::NONE };
        });
        self.turns.instructions = 0;
        self.turns.many = 0;
    }

    /// The address space that runs, and its core in the root's low bits, which have no other use.
    #[inline]
    pub fn space(&self) -> u64 {
        self.own.tlbs.root() | self.own.number as u64
    }

    /// How often another core had its turn in the region.
    pub fn turns(&self) -> u64 {
        self.turns.many
    }

    /// Each core's work in the region, which is over or paused.
    pub fn core_counts(&self) -> Vec<CoreCounts> {
        let end = self.latest();
        let mut counts = vec![CoreCounts::default(); self.cores()];
        for one in self.all() {
            counts[one.number] = CoreCounts {
                instructions: one.share.instructions,
                asleep_cycles: one.share.asleep_cycles + (end - one.core.now()),
            };
        }
        counts[self.own.number].instructions += self.instructions() - self.turns.instructions;
        counts
    }

    /// Cycles by owner and cause, of all cores together.
    pub(super) fn core_cycles(&self) -> [[u64; CAUSES]; OWNERS] {
        let mut sums = [[0; CAUSES]; OWNERS];
        for one in self.all() {
            for (sum, cycles) in sums.iter_mut().flatten().zip(one.core.cycles.iter().flatten()) {
                *sum += cycles;
            }
        }
        sums
    }

    /// The counters of all cores' TLBs and predictors.
    pub fn private_counts(&self) -> (TlbCounts, BranchCounts) {
        let mut sums: (TlbCounts, BranchCounts) = Default::default();
        for one in self.all() {
            sums.0 += one.tlbs.counts;
            sums.1 += one.predictor.counts;
        }
        sums
    }
}
