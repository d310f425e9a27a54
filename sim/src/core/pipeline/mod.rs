//! The out-of-order core, one instruction after the other in program order: when each is fetched, dispatched,
//! issued, completed and committed.
//!
//! *Instruction-window-centric*: what bounds an instruction is the window (its slot of the ROB and LSQ must
//! have been freed), its operands, a port, memory, and the commit of those before. Cycles are attributed as
//! they pass at commit, to the cause for which the awaited instruction was late. So they sum to the total.

mod memory;
mod warming;

use memory::{FORWARDS, QueuedStore, Wait};

use crate::base::calendar::Calendar;
use crate::base::cause::{CAUSES, Cause, OWNERS, Owner};
use crate::base::description::Description;
use crate::core::branch::{Outcome, Predictor};
use crate::core::extension::Extension;
use crate::isa::block::*;
use crate::memory::hierarchy::{Hierarchy, Level, Purpose};
use crate::memory::tlb::{PageTables, Side, Tlbs};

/// The parts behind the core.
pub struct Behind<'a, T: PageTables> {
    /// Caches and memory.
    pub hierarchy: &'a mut Hierarchy,
    /// Translation.
    pub tlbs: &'a mut Tlbs,
    /// The guest's page table.
    pub tables: &'a T,
    /// Memento, if the machine has it.
    pub extension: Option<&'a mut Extension>,
}

/// The core's state, in cycles.
pub struct Core {
    width: u32,
    frontend: u64,
    ahead: u64,
    forward: u64,
    exception: u64,
    late_target: u64,
    l1i_cycles: u64,
    /// Of each unit: how many may start in a cycle.
    ports: [u64; 6],
    fetch: u64,
    fetched: u32,
    fetch_cause: Cause,
    fetch_line: u64,
    dispatch: u64,
    dispatched: u32,
    commit: u64,
    committed: u32,
    serial_until: u64,
    unpipelined_until: u64,
    drained: u64,
    /// The cause for which the last store of the queue waits.
    drained_cause: Cause,
    completed: u64,
    registers: [u64; REGISTERS],
    rob: Box<[u64]>,
    rob_next: usize,
    /// When each slot is free, and the cause of its wait until then.
    lsq: Box<[(u64, Cause)]>,
    lsq_next: usize,
    issue: Calendar,
    stores: Box<[QueuedStore; FORWARDS]>,
    /// Instructions only warm caches, TLBs and predictors.
    warming: bool,
    /// Of each owner and cause: the cycles.
    pub cycles: [[u64; CAUSES]; OWNERS],
    /// Of each owner: those of its `memento` in which the core waited ([`Core::wait`]).
    pub waited: [u64; OWNERS],
    /// Loads that took their data from a store in the queue.
    pub forwards: u64,
}

impl Core {
    /// At cycle 0, with nothing on its way.
    pub fn new(description: &Description) -> Core {
        let core = &description.core;
        let width = u64::from(core.width);
        let ports =
            [core.load_ports, core.store_ports, core.branch_ports, core.multiply_ports, core.vector_ports]
                .map(u64::from);
        Core {
            width: core.width,
            frontend: core.frontend_cycles,
            ahead: core.frontend_cycles + core.fetch_ahead_cycles,
            forward: core.store_forward_cycles,
            exception: core.exception_cycles,
            late_target: description.branch.btb_miss_cycles,
            l1i_cycles: description.l1i.latency_cycles,
            ports: [width, ports[0], ports[1], ports[2], ports[3], ports[4]],
            fetch: 1,
            fetched: 0,
            fetch_cause: Cause::InstructionCache,
            fetch_line: u64::MAX,
            dispatch: 0,
            dispatched: 0,
            commit: 0,
            committed: 0,
            serial_until: 0,
            unpipelined_until: 0,
            drained: 0,
            drained_cause: Cause::Execution,
            completed: 0,
            registers: [0; REGISTERS],
            rob: vec![0; core.rob_entries].into(),
            rob_next: 0,
            lsq: vec![(0, Cause::Execution); core.lsq_entries].into(),
            lsq_next: 0,
            issue: Calendar::new(),
            stores: Box::new([QueuedStore::default(); FORWARDS]),
            warming: false,
            cycles: [[0; CAUSES]; OWNERS],
            waited: [0; OWNERS],
            forwards: 0,
        }
    }

    /// The cycle of the last commit.
    pub fn now(&self) -> u64 {
        self.commit
    }

    /// Executes one instruction of `block`; `accesses` are its own.
    #[inline(always)]
    pub fn operation<T: PageTables>(
        &mut self,
        block: &Block,
        operation: &Operation,
        accesses: &[Access],
        owner: Owner,
        behind: &mut Behind<T>,
    ) {
        if self.warming {
            return self.warm(block, operation, accesses, behind);
        }
        self.fetch(block, operation.offset, behind);
        let memory = operation.flags & (LOAD | STORE) != 0;
        let (dispatch, bound) = self.dispatch(memory, operation.flags & SERIAL != 0);
        let start = dispatch + 1;
        // Not by `map`, which the compiler calls as a function here.
        let ([a, b], [x, y, z]) = (operation.address, operation.sources);
        let ready = |register: u8| self.registers[register as usize];
        let (a, b, x, y, z) = (ready(a), ready(b), ready(x), ready(y), ready(z));
        let operands = start.max(x).max(y).max(z);
        let address = start.max(a).max(b);
        if operation.flags & RENAMED != 0 {
            self.registers[operation.results[0] as usize] = x;
            return self.commit(start, owner, Wait::of(bound));
        }
        let cause = if operands.max(address) == start { bound } else { Cause::Execution };
        let mut wait = Wait::of(cause);
        let latency = u64::from(operation.latency);
        let mut complete;
        let mut store_at = 0;
        if operation.flags & LOAD != 0 {
            let issued = self.issue(address, Unit::Load);
            let (done, late) = self.load(accesses, issued, behind);
            if done >= operands
                && let Some(late) = late
            {
                wait = late;
            }
            complete = done.max(operands) + latency;
            if operation.flags & STORE != 0 {
                store_at = self.issue(complete, Unit::Store);
                complete = complete.max(store_at + 1);
            }
        } else {
            let mut ready = operands.max(address);
            if operation.flags & UNPIPELINED != 0 {
                ready = ready.max(self.unpipelined_until);
            }
            store_at = self.issue(ready, operation.unit);
            complete = store_at + latency;
            if operation.flags & UNPIPELINED != 0 {
                self.unpipelined_until = complete;
            }
        }
        for result in operation.results {
            self.registers[result as usize] = complete;
        }
        if operation.flags & SERIAL != 0 {
            wait = Wait::of(Cause::Serial);
            self.serial_until = complete;
            self.redirect(complete, Cause::Serial);
        }
        self.commit(complete, owner, wait);
        if memory {
            let free = if operation.flags & STORE != 0 {
                self.store(accesses, store_at, behind)
            } else {
                (self.commit, Cause::Execution)
            };
            self.leave_lsq(free);
        }
    }

    /// An instruction of the Memento extension: `work` takes the cycle of its issue and returns that of its
    /// completion. Its operand is in `operand`, its result in `result`. `in_software`: it takes the mean of
    /// the cycles that passed at commit while software did the same, so that much passes again, at commit and
    /// in the front end.
    pub fn unit_operation(
        &mut self,
        owner: Owner,
        operand: u8,
        result: u8,
        in_software: bool,
        work: impl FnOnce(u64) -> u64,
    ) {
        self.count_fetch();
        if self.warming {
            let done = work(self.fetch);
            return self.warmed_until(done);
        }
        let (dispatch, _) = self.dispatch(true, false);
        let issued = self.issue((dispatch + 1).max(self.registers[operand as usize]), Unit::Load);
        let mut complete = work(issued);
        if in_software {
            let cycles = complete - issued;
            complete = self.commit + cycles;
            self.redirect(self.fetch + cycles, Cause::Memento);
        }
        self.registers[result as usize] = complete;
        self.commit(complete, owner, Wait::of(Cause::Memento));
        self.leave_lsq((self.commit, Cause::Memento));
    }

    /// No instruction passes before `until`: the OS and the hardware work for this owner.
    pub fn wait(&mut self, until: u64, owner: Owner) {
        let passed = until.saturating_sub(self.commit);
        if passed > 0 {
            self.cycles[owner as usize][Cause::Memento as usize] += passed;
            self.waited[owner as usize] += passed;
            self.commit = until;
            self.committed = 0;
            self.redirect(until, Cause::Memento);
        }
    }

    /// The core sleeps until `until`, and no owner is charged: how many cycles that are.
    pub fn sleep(&mut self, until: u64) -> u64 {
        let passed = until.saturating_sub(self.commit);
        if passed > 0 {
            self.commit = until;
            self.committed = 0;
            self.redirect(until, Cause::Exception);
        }
        passed
    }

    #[inline(always)]
    fn leave_lsq(&mut self, free: (u64, Cause)) {
        self.lsq[self.lsq_next] = free;
        self.lsq_next = if self.lsq_next + 1 == self.lsq.len() { 0 } else { self.lsq_next + 1 };
    }

    #[inline(always)]
    fn fetch<T: PageTables>(&mut self, block: &Block, offset: u16, behind: &mut Behind<T>) {
        let physical = block.physical_at(offset);
        let line = physical >> 6;
        if line != self.fetch_line {
            self.fetch_line = line;
            let address = block.start + u64::from(offset);
            if !behind.tlbs.quick(Side::Instruction, address, physical) {
                let (tables, hierarchy) = (behind.tables, &mut *behind.hierarchy);
                let translated =
                    behind.tlbs.slow(Side::Instruction, address, physical, self.fetch, hierarchy, tables);
                self.redirect(translated.at, Cause::InstructionTlb);
                self.fetch_line = line;
            }
            behind.hierarchy.purpose = Purpose::Code;
            let (done, _) = behind.hierarchy.access(Level::L1i, line, false, false, self.fetch);
            // A hit is part of the pipeline's depth; a longer access is a bubble.
            if done > self.fetch + self.l1i_cycles {
                self.redirect(done - self.l1i_cycles, Cause::InstructionCache);
                self.fetch_line = line;
            }
        }
        self.count_fetch();
    }

    #[inline(always)]
    fn count_fetch(&mut self) {
        if self.fetched == self.width {
            self.fetch += 1;
            self.fetched = 0;
        }
        self.fetched += 1;
    }

    /// Fetch continues at `cycle`, and not earlier because of `cause`.
    fn redirect(&mut self, cycle: u64, cause: Cause) {
        if cycle > self.fetch {
            self.fetch = cycle;
            self.fetched = 0;
            self.fetch_cause = cause;
        }
        self.fetch_line = u64::MAX;
    }

    /// The cycle of dispatch, and its cause: fetch, or the wait of an earlier store whose slot is needed.
    #[inline(always)]
    fn dispatch(&mut self, memory: bool, serial: bool) -> (u64, Cause) {
        let by_fetch = self.fetch + self.frontend;
        let mut window = (self.rob[self.rob_next] + 1).max(self.serial_until);
        let (slot, queued) = self.lsq[self.lsq_next];
        if memory {
            window = window.max(slot + 1);
        }
        if serial {
            window = window.max(self.commit + 1);
        }
        let at = by_fetch.max(window);
        if at > self.dispatch {
            self.dispatch = at;
            self.dispatched = 0;
        } else if self.dispatched == self.width {
            self.dispatch += 1;
            self.dispatched = 0;
        }
        self.dispatched += 1;
        // Fetch cannot run further ahead than its buffers.
        if self.fetch + self.ahead < self.dispatch {
            self.fetch = self.dispatch - self.ahead;
            self.fetched = 1;
        }
        let bound = if by_fetch >= self.dispatch {
            self.fetch_cause
        } else if memory && slot + 1 >= self.dispatch {
            queued
        } else {
            Cause::Execution
        };
        (self.dispatch, bound)
    }

    #[inline(always)]
    fn issue(&mut self, ready: u64, unit: Unit) -> u64 {
        self.issue.take(ready, unit as u32, self.ports[unit as usize], u64::from(self.width))
    }

    #[inline(always)]
    fn commit(&mut self, complete: u64, owner: Owner, wait: Wait) {
        self.completed = complete;
        let before = self.commit;
        if complete > self.commit {
            self.commit = complete;
            self.committed = 0;
        } else if self.committed == self.width {
            self.commit += 1;
            self.committed = 0;
        }
        self.committed += 1;
        let passed = self.commit - before;
        if passed > 0 {
            let cycles = &mut self.cycles[owner as usize];
            cycles[Cause::Commit as usize] += 1;
            let before = wait.since.saturating_sub(before).min(passed - 1);
            cycles[wait.before as usize] += before;
            cycles[wait.cause as usize] += passed - 1 - before;
        }
        self.rob[self.rob_next] = self.commit;
        self.rob_next = if self.rob_next + 1 == self.rob.len() { 0 } else { self.rob_next + 1 };
    }

    /// The block's last instruction was executed and the program continued at `target`.
    #[inline(always)]
    pub fn control(&mut self, block: &Block, predictor: &mut Predictor, target: u64) {
        let offset = block.operations.last().map_or(0, |operation| operation.offset);
        match predictor.resolve(block.start + u64::from(offset), block.end, block.ends, target) {
            Outcome::Right if target == block.end => {}
            // A taken branch ends a cycle's fetch.
            Outcome::Right => {
                self.fetched = self.width;
                self.fetch_line = u64::MAX;
            }
            Outcome::LateTarget => self.redirect(self.fetch + self.late_target, Cause::Branch),
            Outcome::Wrong => self.redirect(self.completed + 1, Cause::Branch),
        }
    }

    /// The program was interrupted behind the instruction that was committed last.
    pub fn exception(&mut self) {
        self.redirect(self.commit + self.exception, Cause::Exception);
    }

    /// Counts from zero.
    pub fn reset_counts(&mut self) {
        self.cycles = [[0; CAUSES]; OWNERS];
        self.waited = [0; OWNERS];
        self.forwards = 0;
    }
}
