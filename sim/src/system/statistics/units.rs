//! The counters of Memento's units and SpeedMalloc's support core.

use super::Statistics;
use crate::system::machine::Machine;

impl Statistics {
    pub(super) fn of_memento(&mut self, machine: &Machine) {
        let Some(extension) = machine.extension() else { return };
        let counts = extension.counts();
        for (name, count) in &counts {
            let unit = ["bytes", "cycles", "pages", "arenas", "lines", "walks", "slots", "objects"]
                .into_iter()
                .find(|unit| name.contains(unit));
            let unit = unit.unwrap_or("operations");
            self.count(format!("memento.{name}"), *count, unit, "counted by Memento's units");
        }
        let count =
            |name: &str| counts.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
        let rates = [("allocation", "obj-alloc that hit the HOT"), ("free", "obj-free that hit the HOT")];
        for (operation, about) in rates {
            let (hits, misses) = (count(&format!("{operation}_hits")), count(&format!("{operation}_misses")));
            let all = (hits + misses) as f64;
            self.ratio(format!("memento.{operation}_hit_rate"), hits as f64, all, "part", about);
        }
        let (slots, objects) = (count("slots_by_operation") as f64, count("objects_by_operation") as f64);
        let about = "slots of arenas without an object, on the average of all operations";
        self.ratio("memento.inactive_slots", slots - objects, slots, "part", about);
        let end = extension.occupancy;
        for (name, empty, all, about) in [
            (
                "slots",
                end.slots - end.objects,
                end.slots,
                "of arenas' slots: without an object at the region's end",
            ),
            (
                "slots_in_use",
                end.slots_in_use - end.objects,
                end.slots_in_use,
                "of arenas that have an object",
            ),
            ("bytes", end.slot_bytes - end.object_bytes, end.slot_bytes, "of the memory given to the HOT"),
        ] {
            self.ratio(format!("memento.end.inactive_{name}"), empty as f64, all as f64, "part", about);
        }
        if let Err(law) = extension.units.check() {
            self.broken.push(law);
        }
    }

    /// SpeedMalloc's support core.
    pub(super) fn of_support(&mut self, machine: &Machine) {
        let (Some(support), hierarchy) = (machine.support(), machine.parts().1) else { return };
        let [of_code, of_data] = hierarchy.support_counts().unwrap_or_default();
        let counts = support.counts;
        let lines = [
            ("requests", counts.requests, "calls", "malloc, free and their like"),
            ("instructions", counts.instructions, "instructions", "of the allocator"),
            ("busy_cycles", counts.busy_cycles, "cycles", "in which it works on a request"),
            ("full_queues", counts.full_queues, "calls", "that the program's core had to wait to send"),
            ("l1i_misses", of_code.misses, "lines", "of its own caches"),
            ("l1d_hits", of_data.hits, "accesses", "of its own caches"),
            ("l1d_misses", of_data.misses, "lines", "of its own caches"),
            ("lines_taken", hierarchy.snoops[0], "lines", "out of the program's core's caches"),
            ("lines_given", hierarchy.snoops[1], "lines", "out of its own, to the program's core"),
        ];
        self.counts("support.", &lines);
    }
}
