//! Every number of a run with its name, unit and meaning: as JSON for programs and as a table for people.

mod cores;
mod interval;
mod pages;
mod sample;
mod trace;
mod units;

use crate::base::cause::{CAUSE_NAMES, CAUSES, OWNER_NAMES, OWNERS};
use crate::base::description::Description;
use crate::memory::dram::LATENCY_ENDS;
use crate::memory::hierarchy::PURPOSE_NAMES;
use crate::system::allocations::{LIFETIME_ENDS, SIZE_ENDS, SMALL_ENDS};
use crate::system::machine::Machine;
use std::fmt::Write;

/// A statistic's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A ratio or a rate: a number over another one.
    Ratio(f64, f64),
}

impl Value {
    /// As one number; a ratio of nothing is 0.
    pub fn number(self) -> f64 {
        match self {
            Value::Count(count) => count as f64,
            Value::Ratio(_, 0.0) => 0.0,
            Value::Ratio(over, under) => over / under,
        }
    }
}

/// One statistic.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistic {
    /// Dotted, with the unit at its end.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// Its unit in words.
    pub unit: &'static str,
    /// Its meaning.
    pub about: &'static str,
}

/// All of a run, in the order in which people read them.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Them.
    pub list: Vec<Statistic>,
    /// Conservation laws that do not hold; empty unless the simulator is wrong.
    pub broken: Vec<String>,
}

impl Statistics {
    /// Adds a count.
    pub fn count(&mut self, name: impl Into<String>, value: u64, unit: &'static str, about: &'static str) {
        self.list.push(Statistic { name: name.into(), value: Value::Count(value), unit, about });
    }

    fn counts(&mut self, prefix: &str, lines: &[(&str, u64, &'static str, &'static str)]) {
        for (name, value, unit, about) in lines {
            self.count(format!("{prefix}{name}"), *value, unit, about);
        }
    }

    /// Adds a histogram: the upper ends of its parts, and one count more. `words`: the ends' unit, the
    /// counts' unit, and their meaning.
    fn histogram(&mut self, prefix: &str, ends: &[u64], counts: &[u64], words: [&'static str; 3]) {
        let [of_ends, unit, about] = words;
        for (index, count) in counts.iter().enumerate() {
            let name = ends.get(index).map_or("more".to_owned(), |end| format!("to_{end}_{of_ends}"));
            self.count(format!("{prefix}{name}"), *count, unit, about);
        }
    }

    /// Adds a ratio; of nothing, it is 0.
    pub fn ratio(
        &mut self,
        name: impl Into<String>,
        over: f64,
        under: f64,
        unit: &'static str,
        about: &'static str,
    ) {
        self.list.push(Statistic { name: name.into(), value: Value::Ratio(over, under), unit, about });
    }

    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.list.iter().find(|statistic| statistic.name == name).map(|statistic| statistic.value.number())
    }

    /// One flat object with dotted keys.
    pub fn json(&self) -> serde_json::Map<String, serde_json::Value> {
        let value = |value: Value| match value {
            Value::Count(count) => count.into(),
            Value::Ratio(..) => value.number().into(),
        };
        self.list.iter().map(|statistic| (statistic.name.clone(), value(statistic.value))).collect()
    }

    /// As gem5's stats.txt: a line each with name, value, meaning and unit, between gem5's two lines.
    pub fn text(&self) -> String {
        let mut text = String::from("\n---------- Begin Simulation Statistics ----------\n");
        for Statistic { name, value, unit, about } in &self.list {
            let value = match value {
                Value::Count(count) => count.to_string(),
                Value::Ratio(..) => format!("{:.6}", value.number()),
            };
            let _ = writeln!(text, "{name:<44} {value:>16} # {about} ({unit})");
        }
        for law in &self.broken {
            let _ = writeln!(text, "# BROKEN {law}");
        }
        text + "\n---------- End Simulation Statistics   ----------\n"
    }

    fn must(&mut self, law: &str, left: u64, right: u64) {
        if left != right {
            self.broken.push(format!("{law}: {left} and not {right}"));
        }
    }

    /// The machine's counters since the region's start.
    pub fn of(machine: &Machine, description: &Description) -> Statistics {
        let mut all = Statistics::default();
        all.of_program(machine, description);
        all.of_pages(machine);
        all.of_cores(machine);
        all.of_cycles(machine);
        all.of_branches(machine);
        all.of_translation(machine);
        all.of_memory(machine, description);
        all.of_allocations(machine);
        all.of_memento(machine);
        all.of_support(machine);
        all.of_sample(machine);
        all.of_trace(machine);
        all
    }

    fn of_program(&mut self, machine: &Machine, description: &Description) {
        let counts = &machine.counts;
        let (cycles, instructions) = (machine.cycles(), machine.instructions());
        let mhz = description.core.frequency_mhz as f64;
        self.count("cycles", cycles, "cycles", "core cycles of the region");
        self.ratio("time_us", cycles as f64, mhz, "microseconds", "the same as time");
        self.count(
            "instructions",
            instructions,
            "instructions",
            "executed in the region, by all processes and the kernel",
        );
        self.ratio("ipc", instructions as f64, cycles as f64, "instructions/cycle", "instructions per cycle");
        let lines = [
            ("user_instructions", counts.user_instructions, "instructions", "in user mode"),
            ("kernel_instructions", counts.kernel_instructions, "instructions", "in the kernel"),
            (
                "repetitions",
                counts.repetitions,
                "elements",
                "further elements of string instructions, not counted as instructions",
            ),
            (
                "uncharged_instructions",
                counts.uncharged_instructions,
                "instructions",
                "executed where hardware does the work",
            ),
            ("unit_operations", counts.unit_operations, "instructions", "obj-alloc and obj-free"),
            ("loads", counts.loads, "accesses", "reads of memory"),
            ("stores", counts.stores, "accesses", "writes to memory"),
            ("device_accesses", counts.device_accesses, "accesses", "of which to devices"),
            ("page_faults", counts.faults, "faults", "instructions that faulted on memory"),
            ("interrupts", counts.interrupts, "interrupts", "interrupts and other exceptions"),
            ("system_calls", counts.system_calls, "calls", "system calls"),
            ("user_pages", counts.user_pages, "pages", "allocated by the kernel for processes, freed or not"),
            (
                "kernel_pages",
                counts.kernel_pages,
                "pages",
                "allocated by the kernel for itself, freed or not",
            ),
            ("process_switches", counts.process_switches, "switches", "changes of the address space"),
        ];
        self.counts("", &lines);
    }

    fn of_cycles(&mut self, machine: &Machine) {
        let cycles = &machine.cycle_table();
        let mut total = 0;
        for cause in 0..CAUSES {
            let sum = (0..OWNERS).map(|owner| cycles[owner][cause]).sum();
            total += sum;
            self.count(format!("cycles_by_cause.{}", CAUSE_NAMES[cause]), sum, "cycles", "by cause");
        }
        for owner in 0..OWNERS {
            let sum = cycles[owner].iter().sum();
            self.count(
                format!("cycles_by_owner.{}", OWNER_NAMES[owner]),
                sum,
                "cycles",
                "by owner: the code for which they passed",
            );
        }
        for owner in 0..OWNERS {
            for cause in 0..CAUSES {
                self.count(
                    format!("cycles_of.{}.{}", OWNER_NAMES[owner], CAUSE_NAMES[cause]),
                    cycles[owner][cause],
                    "cycles",
                    "by owner and cause",
                );
            }
        }
        let asleep: u64 = machine.core_counts().iter().map(|core| core.asleep_cycles).sum();
        let of_all_cores = machine.cores() as u64 * machine.cycles();
        self.must("cycles by cause sum to the total", total + asleep, of_all_cores);
    }

    fn of_branches(&mut self, machine: &Machine) {
        let counts = machine.private_counts().1;
        let lines = [
            ("conditional", counts.conditional, "branches", "conditional branches"),
            (
                "conditional_mispredicted",
                counts.conditional_mispredicted,
                "branches",
                "which took the other direction",
            ),
            ("indirect", counts.indirect, "branches", "jumps and calls through a register or memory"),
            ("indirect_mispredicted", counts.indirect_mispredicted, "branches", "which had another target"),
            ("returns", counts.returns, "branches", "returns"),
            ("returns_mispredicted", counts.returns_mispredicted, "branches", "which had another target"),
            ("btb_misses", counts.btb_misses, "branches", "taken branches that missed the BTB"),
        ];
        self.counts("branch.", &lines);
        let wrong =
            counts.conditional_mispredicted + counts.indirect_mispredicted + counts.returns_mispredicted;
        let kilo = machine.instructions() as f64 / 1000.0;
        self.ratio(
            "branch.mispredicted_per_1000",
            wrong as f64,
            kilo,
            "branches",
            "mispredicted, per 1000 instructions",
        );
    }

    fn of_translation(&mut self, machine: &Machine) {
        let counts = machine.private_counts().0;
        let lines = [
            ("instruction_lookups", counts.instruction_lookups, "lookups", "of the L1 instruction TLB"),
            ("instruction_misses", counts.instruction_misses, "misses", "of the L1 instruction TLB"),
            ("data_lookups", counts.data_lookups, "lookups", "of the L1 data TLB"),
            ("data_misses", counts.data_misses, "misses", "of the L1 data TLB"),
            ("walks", counts.walks, "walks", "misses of the L2 TLB"),
            ("walk_reads", counts.walk_reads, "accesses", "page table entries read by walks"),
            ("walk_cycles", counts.walk_cycles, "cycles", "from a walk's start to its end, all walks"),
            (
                "walk_disagreements",
                counts.walk_disagreements,
                "walks",
                "whose address differs from the access's",
            ),
        ];
        self.counts("tlb.", &lines);
    }

    fn of_memory(&mut self, machine: &Machine, description: &Description) {
        let counts = machine.parts().1.counts();
        let kilo = machine.instructions() as f64 / 1000.0;
        for (name, cache) in
            [("l1i", counts.l1i), ("l1d", counts.l1d), ("l2", counts.l2), ("llc", counts.llc)]
        {
            let lines = [
                ("hits", cache.hits, "accesses", "found there, or on their way"),
                ("misses", cache.misses, "accesses", "sent on to the next level"),
                ("merges", cache.merges, "accesses", "hits which waited for an earlier miss"),
                ("writebacks", cache.writebacks, "lines", "written to the next level"),
                ("mshr_wait_cycles", cache.mshr_wait_cycles, "cycles", "misses waited for an MSHR"),
            ];
            self.counts(&format!("{name}."), &lines);
            self.ratio(
                format!("{name}.misses_per_1000"),
                cache.misses as f64,
                kilo,
                "accesses",
                "misses per 1000 instructions",
            );
        }
        let dram = counts.dram;
        self.count("llc.bypasses", counts.llc_bypasses, "lines", "made of zeroes instead of read from DRAM");
        let lines = [
            ("reads", dram.reads, "lines", "of 64 bytes"),
            ("writes", dram.writes, "lines", "of 64 bytes"),
            ("read_row_hits", dram.read_row_hits, "lines", "read from an open row"),
            ("write_row_hits", dram.write_row_hits, "lines", "written to an open row"),
            ("forwards", dram.forwards, "lines", "answered from the queue of writes"),
            ("refreshes", dram.refreshes, "refreshes", "of all banks"),
        ];
        self.counts("dram.", &lines);
        let nanoseconds = dram.read_clocks as f64 * 1000.0 / description.dram.clock_mhz as f64;
        self.ratio(
            "dram.read_latency_ns",
            nanoseconds,
            dram.reads as f64,
            "nanoseconds",
            "from a read's arrival to its data",
        );
        self.histogram(
            "dram.read_latency.",
            &LATENCY_ENDS,
            &dram.read_latencies,
            ["ns", "lines", "reads by time from arrival to data"],
        );
        self.must("DRAM reads by latency are all", dram.reads, dram.read_latencies.iter().sum());
        self.count("dram.traffic_bytes", (dram.reads + dram.writes) * 64, "bytes", "read and written");
        let bytes = ((dram.reads + dram.writes) * 64) as f64;
        let seconds = machine.cycles() as f64 / (description.core.frequency_mhz as f64 * 1e6);
        self.ratio("dram.bandwidth_mb_s", bytes / 1e6, seconds, "MB/s", "traffic over time");
        for (name, reads) in PURPOSE_NAMES.iter().zip(counts.reads_for) {
            self.count(format!("dram.reads_for.{name}"), reads, "lines", "read for a miss of these");
        }
        self.must("DRAM reads by purpose sum to all", dram.reads, counts.reads_for.iter().sum());
        self.must(
            "DRAM reads are LLC misses less bypasses",
            dram.reads,
            counts.llc.misses - counts.llc_bypasses,
        );
    }

    /// Only for programs whose allocator is known.
    fn of_allocations(&mut self, machine: &Machine) {
        let all = machine.allocations();
        if all.allocations == 0 {
            return;
        }
        self.count("objects.allocations", all.allocations, "objects", "by the software allocator");
        self.count("objects.frees", all.frees, "objects", "of these, freed by the program");
        for (index, count) in all.sizes.iter().enumerate() {
            let name = SIZE_ENDS
                .get(index)
                .map_or("objects.larger".to_owned(), |end| format!("objects.to_{end}_bytes"));
            self.count(name, *count, "objects", "allocations by size, in steps of 512 bytes (Fig. 2)");
        }
        self.histogram(
            "objects.sizes.",
            &SMALL_ENDS,
            &all.small_sizes(),
            ["bytes", "objects", "allocations by size, up to twice the one before"],
        );
        let mut sum = 0;
        for (kind, counts) in ["small", "large"].iter().zip(all.lifetimes()) {
            for (index, count) in counts.iter().enumerate() {
                let name = match LIFETIME_ENDS.get(index) {
                    Some(end) => format!("within_{end}"),
                    None if index == LIFETIME_ENDS.len() => "longer".to_owned(),
                    None => "never".to_owned(),
                };
                let name = format!("objects.{kind}.freed_{name}");
                self.count(
                    name,
                    *count,
                    "objects",
                    "by allocations of the same class until its free (Fig. 3)",
                );
                sum += count;
            }
        }
        self.must("objects by lifetime are all objects", sum, all.allocations);
        self.must("objects by size are all objects", all.sizes.iter().sum(), all.allocations);
        self.must("objects by small size are all objects", all.small_sizes().iter().sum(), all.allocations);
    }
}
