//! Limits of an instance, from the memory of its function.

use cgroups::{PERIOD_US, Share};

/// Memory that stands for one processor: an instance's share of the processors is proportional to its memory.
const MIB_PER_PROCESSOR: u32 = 1769;

/// The limits of one instance.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `MemorySize`.
    pub memory_mib: u32,
    /// Its share of the processors is that of an instance with this much memory.
    pub share_of_mib: u32,
    /// Processes and threads.
    pub processes: u64,
    /// Processors it may use at most, if its function has a limit.
    pub processors: Option<f64>,
    /// Whether any of its memory may be in the host's swap, where it counts as well.
    pub may_swap: bool,
}

impl Limits {
    /// Its share of the processors.
    pub fn share(&self) -> Share {
        Share { part: self.share_of_mib.into(), whole: MIB_PER_PROCESSOR.into() }
    }

    /// The same for its cgroup.
    pub fn of_group(&self) -> cgroups::Limits {
        let memory = u64::from(self.memory_mib) << 20;
        // A quota in each period, as Lambda's own ceiling works.
        let quota = |processors: f64| (processors * PERIOD_US as f64).max(1000.0) as u64;
        cgroups::Limits {
            memory_bytes: Some(memory),
            memory_and_swap_bytes: Some(memory),
            swap_bytes: Some(if self.may_swap { memory } else { 0 }),
            ends_as_one: true,
            processes: Some(self.processes),
            share: Some(self.share()),
            quota_us: self.processors.map(quota),
        }
    }
}

/// An instance's share of the processors, where `of_one` is one whole processor's.
pub fn share(memory_mib: u32, of_one: u64) -> u64 {
    of_one * u64::from(memory_mib) / u64::from(MIB_PER_PROCESSOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_follow_the_memory_of_the_function() {
        let limits = Limits {
            memory_mib: 3000,
            share_of_mib: 1769,
            processes: 10,
            processors: Some(0.5),
            may_swap: false,
        };
        let group = limits.of_group();
        assert_eq!((group.memory_bytes, group.memory_and_swap_bytes), (Some(3000 << 20), Some(3000 << 20)));
        assert_eq!((group.swap_bytes, group.processes, group.quota_us), (Some(0), Some(10), Some(50_000)));
        assert!(group.ends_as_one && group.share.is_some_and(|share| share.part == share.whole));
        let swaps = Limits { may_swap: true, processors: Some(0.001), ..limits }.of_group();
        assert_eq!((swaps.swap_bytes, swaps.quota_us), (Some(3000 << 20), Some(1000)));
        assert_eq!(share(3538, 100), 200);
    }
}
