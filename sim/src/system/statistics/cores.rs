//! Each core's work, where there are several, and the traffic between them.

use super::Statistics;
use crate::system::machine::Machine;

impl Statistics {
    pub(super) fn of_cores(&mut self, machine: &Machine) {
        if machine.cores() == 1 {
            return;
        }
        let sharing = machine.parts().1.sharing;
        let lines = [
            ("number", machine.cores() as u64, "cores", "their cycles by cause are added up"),
            ("turns", machine.turns(), "turns", "of the simulation"),
            ("lines_taken", sharing.lines_taken, "lines", "that a miss took out of another core's caches"),
            (
                "lines_invalidated",
                sharing.lines_invalidated,
                "lines",
                "that a store took out of other cores' caches",
            ),
        ];
        self.counts("cores.", &lines);
        let all = machine.core_counts();
        for (number, counts) in all.iter().enumerate() {
            let busy = machine.cycles().saturating_sub(counts.asleep_cycles);
            let lines = [
                ("instructions", counts.instructions, "instructions", "it executed"),
                ("busy_cycles", busy, "cycles", "in which it did not sleep"),
            ];
            self.counts(&format!("cores.{number}."), &lines);
        }
        let sum = all.iter().map(|counts| counts.instructions).sum();
        self.must("instructions of the cores are all", sum, machine.instructions());
    }
}
