//! Checks that a machine can be built from a description.

use super::Description;

/// More than a few are slow to simulate: they have their turns one after the other.
const MOST_CORES: usize = 8;

impl Description {
    /// An error of one line, if none can be built.
    pub(super) fn check(&self) -> Result<(), String> {
        let caches = [("l1i", &self.l1i), ("l1d", &self.l1d), ("l2", &self.l2), ("llc", &self.llc)];
        for (name, cache) in caches {
            require(cache.sets.is_power_of_two(), || {
                format!("{name}.sets = {}: a power of two is needed", cache.sets)
            })?;
            require((1..=64).contains(&cache.ways), || format!("{name}.ways = {}: 1 to 64", cache.ways))?;
            require(cache.mshrs > 0, || format!("{name}.mshrs = 0: at least 1 is needed"))?;
        }
        for (inner, outer) in [(&caches[0], &caches[2]), (&caches[1], &caches[2]), (&caches[2], &caches[3])] {
            require(inner.1.latency_cycles <= outer.1.latency_cycles, || {
                format!(
                    "{}.latency_cycles is less than {}.latency_cycles, though it lies behind it",
                    outer.0, inner.0
                )
            })?;
        }
        let core = &self.core;
        let at_least_one = [
            ("core.width", u64::from(core.width)),
            ("core.rob_entries", core.rob_entries as u64),
            ("core.lsq_entries", core.lsq_entries as u64),
            ("core.load_ports", core.load_ports.into()),
            ("core.store_ports", core.store_ports.into()),
            ("core.branch_ports", core.branch_ports.into()),
            ("core.multiply_ports", core.multiply_ports.into()),
            ("core.vector_ports", core.vector_ports.into()),
            ("core.frequency_mhz", core.frequency_mhz),
            ("tlb.l1_sets", self.tlb.l1_sets as u64),
            ("tlb.l1_ways", self.tlb.l1_ways as u64),
            ("tlb.l2_sets", self.tlb.l2_sets as u64),
            ("tlb.l2_ways", self.tlb.l2_ways as u64),
            ("branch.return_entries", self.branch.return_entries as u64),
            ("dram.clock_mhz", self.dram.clock_mhz),
            ("dram.burst", self.dram.burst),
            ("dram.refi", self.dram.refi),
            ("dram.write_queue", self.dram.write_queue as u64),
        ];
        for (name, value) in at_least_one {
            require(value > 0, || format!("{name} = 0: at least 1 is needed"))?;
        }
        if let Some(support) = &self.support {
            require(support.cache_sets.is_power_of_two(), || {
                format!("support.cache_sets = {}: a power of two is needed", support.cache_sets)
            })?;
            require((1..=64).contains(&support.cache_ways), || "support.cache_ways: 1 to 64".to_owned())?;
            require(support.queue_entries > 0, || {
                "support.queue_entries = 0: at least 1 is needed".to_owned()
            })?;
        }
        if let Some(sample) = &self.sample {
            let timed = sample.window_instructions + 2 * sample.filling_instructions;
            require(sample.window_instructions > 0, || {
                "sample.window_instructions = 0: at least 1 is needed".to_owned()
            })?;
            require(timed < sample.period_instructions, || {
                format!(
                    "sample.period_instructions = {}: more than {timed} are needed",
                    sample.period_instructions
                )
            })?;
            require(self.support.is_none(), || "a machine with a support core is not sampled".to_owned())?;
        }
        let cores = &self.cores;
        require((1..=MOST_CORES).contains(&cores.number), || {
            format!("cores.number = {}: 1 to {MOST_CORES}", cores.number)
        })?;
        require(cores.number == 1 || self.support.is_none(), || {
            "a machine with a support core has one other".to_owned()
        })?;
        require(cores.number == 1 || self.sample.is_none(), || {
            "a machine with several cores is not sampled".to_owned()
        })?;
        require(core.width < 16, || format!("core.width = {}: at most 15", core.width))?;
        let powers = [
            ("branch.base_entries", self.branch.base_entries),
            ("branch.tagged_entries", self.branch.tagged_entries),
            ("branch.btb_entries", self.branch.btb_entries),
            ("branch.indirect_entries", self.branch.indirect_entries),
            ("dram.bank_groups", self.dram.bank_groups),
            ("dram.banks_per_group", self.dram.banks_per_group),
            ("dram.row_bytes", self.dram.row_bytes as usize),
        ];
        for (name, value) in powers {
            require(value.is_power_of_two(), || format!("{name} = {value}: a power of two is needed"))?;
        }
        require(self.dram.row_bytes >= 64, || "dram.row_bytes: at least one line of 64".to_owned())
    }
}

fn require(condition: bool, message: impl Fn() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message()) }
}
