//! A sampled run's estimate, and the statistics that it does not have.

use super::Statistics;
use crate::system::machine::Machine;

/// Statistics that depend on time, which passes differently between the windows.
const UNKNOWN: [&str; 5] =
    ["dram.read_row_hits", "dram.write_row_hits", "dram.forwards", "dram.refreshes", "dram.read_latency"];

impl Statistics {
    pub(super) fn of_sample(&mut self, machine: &Machine) {
        let Some(estimate) = machine.estimate() else { return };
        self.list.retain(|one| {
            let is_of_time = one.unit == "cycles" && !one.name.starts_with("cycles");
            !is_of_time
                && !one.name.ends_with(".merges")
                && !UNKNOWN.iter().any(|part| one.name.starts_with(part))
        });
        self.count(
            "sample.windows",
            estimate.windows,
            "windows",
            "that were timed; cycles are estimated by them",
        );
        self.count("sample.instructions", estimate.instructions, "instructions", "of the windows");
        self.ratio(
            "sample.interval_95_percent",
            100.0 * estimate.interval,
            machine.cycles() as f64,
            "percent",
            "the cycles are right within so much with a probability of 95%",
        );
    }
}
