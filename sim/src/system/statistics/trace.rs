//! What a run's trace for ChampSim has.

use super::Statistics;
use crate::system::machine::Machine;

impl Statistics {
    pub(super) fn of_trace(&mut self, machine: &Machine) {
        let Some(counts) = machine.trace_counts() else { return };
        let lines = [
            ("records", counts.records, "records", "of the trace"),
            ("repetitions", counts.repetitions, "records", "of which for further elements of instructions"),
            (
                "left_out_accesses",
                counts.left_out_accesses,
                "accesses",
                "for which records have no place: beyond two writes and four reads",
            ),
        ];
        self.counts("trace.", &lines);
        let counted = &machine.counts;
        if counted.unit_operations == 0 {
            self.must(
                "records are instructions and further elements",
                counts.records - counts.repetitions,
                counted.user_instructions + counted.kernel_instructions,
            );
        }
    }
}
