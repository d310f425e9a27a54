//! The guest's marks: begin and end of the region, and objects.

use super::{MARKS, Model, Phase};
use crate::qemu;
use sim::base::cause::Owner;
use std::time::Instant;

/// The region begins. (`sim/shim/marks.h` has all marks.)
pub const BEGIN: u32 = 1;
/// And ends.
pub const END: u32 = 2;
/// The guest is to be timed.
pub const READY: u32 = 3;
/// What follows is the hardware's work.
pub const STOP_CHARGING: u32 = 0x11;
/// And was nothing.
pub const END_OPERATION: u32 = 0x14;
/// The address of a function of the kernel.
pub const KERNEL_FUNCTION: u32 = 0x40;

impl Model {
    /// A mark's effect on the machine and on the run.
    pub fn act(&mut self, code: u32, [first, second]: [u64; 2]) {
        let timed = self.instruments();
        let outcome = match code {
            _ if self.phase == Phase::Over => Ok(()),
            0x10 => self.machine.set_region(first, second),
            // Before the machine runs, accesses are not seen: a new object counts as used.
            0x12 if !timed => {
                self.machine.allocate(first, second).map(|()| self.machine.touch(first, second))
            }
            0x12 => self.machine.allocate(first, second),
            0x13 => self.machine.free(first, second, false),
            0x15 => self.machine.free_batch(first),
            0x16 => self.machine.free(first, second, true),
            _ => Ok(()),
        };
        if let Err(line) = outcome {
            self.fail(&line);
        }
        match code {
            BEGIN if self.phase == Phase::Warm => {
                self.machine.start_region();
                self.start_trace();
                self.start_intervals();
                self.phase = Phase::Region;
                self.started = Instant::now();
                self.kept = self.started;
                self.started_cpu = qemu::cpu_seconds();
                self.next_progress = 0;
            }
            END if self.phase == Phase::Region => {
                self.machine.pause(&self.tables);
                let lives = self.machine.has_region();
                self.machine.end_region(!lives);
                // A program that ends the region itself, by a system call, has not exited.
                let status = if first >> 16 == MARKS { 0 } else { first };
                self.finish(None, Some(status));
                self.phase = Phase::Over;
            }
            READY if self.phase == Phase::Boot => {
                self.phase = Phase::Warm;
                self.machine.forget_roots();
            }
            STOP_CHARGING => self.machine.stop_charging(),
            END_OPERATION => self.machine.end_operation(),
            0x20 if timed => drop(self.machine.enter_allocator(Owner::Allocate, first, 0)),
            0x21 if timed => self.machine.leave_allocator(Owner::Allocate, first),
            0x22 if timed => drop(self.machine.enter_allocator(Owner::Free, first, 0)),
            0x23 if timed => self.machine.leave_allocator(Owner::Free, 0),
            0x30 => self.events += 1,
            _ => {}
        }
    }
}
