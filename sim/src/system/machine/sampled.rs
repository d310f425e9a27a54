//! Cycles: all that passed or, for a sampled run, the estimate from its windows.

use crate::base::cause::{CAUSES, OWNERS};
use crate::system::machine::Machine;
use crate::system::sampling::Estimate;

impl Machine {
    /// Cycles since the region's start.
    pub fn cycles(&self) -> u64 {
        match &self.sampler {
            None => self.latest() - self.start,
            Some(_) => self.cycle_table().iter().flatten().sum(),
        }
    }

    /// Cycles by owner and cause, of all cores together.
    pub fn cycle_table(&self) -> [[u64; CAUSES]; OWNERS] {
        self.estimate().map_or_else(|| self.core_cycles(), |estimate| estimate.cycles)
    }

    /// The estimate from the windows, if the run is sampled.
    pub fn estimate(&self) -> Option<Estimate> {
        Some(self.sampler.as_ref()?.estimate(self.instructions(), &self.own.core.waited))
    }

    /// The region starts, and with it the first period.
    pub(super) fn begin_sampling(&mut self) {
        if let Some(sampler) = &mut self.sampler {
            sampler.restart();
            self.own.core.set_warming(true);
        }
    }

    /// Instructions were executed.
    #[inline]
    pub(super) fn sample(&mut self) {
        let instructions = self.instructions();
        if let Some(sampler) = &mut self.sampler
            && instructions >= sampler.next
        {
            sampler.advance(instructions, &mut self.own.core);
        }
    }
}
