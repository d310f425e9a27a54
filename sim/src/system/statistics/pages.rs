//! Pages that are held: allocated since the region's start and not freed, by the kernel or by Memento's pool.

use super::Statistics;
use crate::system::machine::Machine;

impl Statistics {
    pub(super) fn of_pages(&mut self, machine: &Machine) {
        let (end, most) = machine.pages_held();
        let lines = [
            ("end.user_pages", end.user, "pages", "held by processes at the region's end"),
            ("end.kernel_pages", end.kernel, "pages", "held by the kernel and the units' tables at its end"),
            ("most.user_pages", most.user, "pages", "held by processes when the most pages were"),
            ("most.kernel_pages", most.kernel, "pages", "held by the kernel and the units' tables then"),
        ];
        self.counts("held.", &lines);
    }
}
