//! Sampling (Wunderlich et al., SMARTS, ISCA 2003): of each period of instructions the core times one window.
//! All others only keep warm the state that the window finds: caches, TLBs, branch predictor, DRAM's rows and
//! Memento's units.
//!
//! Counts of events are therefore of all instructions, and exact unless they depend on time (a load that the
//! store queue answers is a hit of the L1d in between). Cycles are those of the windows, scaled by
//! instructions, with the interval in which the whole run's lie with a probability of 95%. Waits for the OS
//! and the units ([`Core::wait`]) are not scaled.

use crate::base::cause::{CAUSES, Cause, OWNERS};
use crate::base::description::SampleDescription;
use crate::core::pipeline::Core;

/// Cycles by owner and cause.
pub type CycleTable = [[u64; CAUSES]; OWNERS];

/// With fewer windows their spread is not significant.
pub const LEAST_WINDOWS: u64 = 30;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Between windows.
    Warming,
    /// Timed, so that the window begins with a full core; not counted.
    Filling,
    /// Timed and counted.
    Window,
}

/// A run's position in its period, and the sums of the windows so far.
pub struct Sampler {
    description: SampleDescription,
    stage: Stage,
    /// The instruction at which the next stage begins.
    pub next: u64,
    /// At the window's begin: instructions, cycles, and those of waits.
    began: (u64, CycleTable, [u64; OWNERS]),
    /// Over all windows.
    cycles: CycleTable,
    windows: u64,
    instructions: u64,
    /// Of cycles², cycles × instructions, instructions².
    products: [f64; 3],
}

/// The estimate for the whole run, from its windows.
pub struct Estimate {
    /// Its cycles.
    pub cycles: CycleTable,
    /// How many windows there were, and their instructions.
    pub windows: u64,
    /// Instructions of the windows.
    pub instructions: u64,
    /// Half of the interval of 95%, in cycles.
    pub interval: f64,
}

impl Sampler {
    /// Before the first period.
    pub fn new(description: &SampleDescription) -> Sampler {
        let mut sampler = Sampler {
            description: description.clone(),
            stage: Stage::Warming,
            next: 0,
            began: (0, [[0; CAUSES]; OWNERS], [0; OWNERS]),
            cycles: [[0; CAUSES]; OWNERS],
            windows: 0,
            instructions: 0,
            products: [0.0; 3],
        };
        sampler.next = sampler.before_window(0);
        sampler
    }

    /// The region begins now.
    pub fn restart(&mut self) {
        *self = Sampler::new(&self.description);
    }

    /// The window is in the middle of its period, and before it the core is filled.
    fn before_window(&self, period_begins: u64) -> u64 {
        let one = &self.description;
        let middle = (one.period_instructions - one.window_instructions) / 2;
        period_begins + middle - one.filling_instructions
    }

    /// `instructions` of the region are executed: the next stage, if it begins now.
    pub fn advance(&mut self, instructions: u64, core: &mut Core) {
        let one = &self.description;
        match self.stage {
            Stage::Warming => {
                self.stage = Stage::Filling;
                self.next += one.filling_instructions;
                core.set_warming(false);
            }
            Stage::Filling => {
                self.stage = Stage::Window;
                self.began = (instructions, core.cycles, core.waited);
                self.next += one.window_instructions;
            }
            Stage::Window => {
                self.end_window(instructions, core);
                self.stage = Stage::Warming;
                self.next = self.before_window(self.windows * self.description.period_instructions);
                core.set_warming(true);
            }
        }
    }

    fn end_window(&mut self, instructions: u64, core: &Core) {
        let (began, cycles, waited) = &self.began;
        let (its, mut passed) = (instructions - began, 0);
        for (owner, sums) in self.cycles.iter_mut().enumerate() {
            let mut more = core.cycles[owner];
            for (one, before) in more.iter_mut().zip(cycles[owner]) {
                *one -= before;
            }
            more[Cause::Memento as usize] -= core.waited[owner] - waited[owner];
            for (sum, one) in sums.iter_mut().zip(more) {
                *sum += one;
                passed += one;
            }
        }
        self.windows += 1;
        self.instructions += its;
        let (c, i) = (passed as f64, its as f64);
        for (sum, product) in self.products.iter_mut().zip([c * c, c * i, i * i]) {
            *sum += product;
        }
    }

    /// The estimate for a region of this many instructions.
    pub fn estimate(&self, instructions: u64, waited: &[u64; OWNERS]) -> Estimate {
        let n = self.windows as f64;
        let (all, sampled) = (instructions as f64, (self.instructions as f64).max(1.0));
        let scale = all / sampled;
        let mut cycles = self.cycles.map(|owner| owner.map(|cycles| (cycles as f64 * scale).round() as u64));
        for (owner, waited) in waited.iter().enumerate() {
            cycles[owner][Cause::Memento as usize] += waited;
        }
        // The variance of a ratio of sums: of the windows' distances from it (Cochran, Sampling Techniques,
        // §6.3), for as many of the run's instructions as no window has.
        let ratio = self.cycles.iter().flatten().sum::<u64>() as f64 / sampled;
        let [cc, ci, ii] = self.products;
        let distances = (cc - 2.0 * ratio * ci + ratio * ratio * ii).max(0.0);
        let variance = (1.0 - sampled / all.max(sampled)) * n * distances / (n - 1.0).max(1.0);
        Estimate {
            cycles,
            windows: self.windows,
            instructions: self.instructions,
            interval: 1.96 * variance.sqrt() * scale,
        }
    }
}
