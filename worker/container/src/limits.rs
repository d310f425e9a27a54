//! Limits of an instance, as the files of a cgroup of version 1 or 2 have them.

/// Memory that stands for one processor: an instance's share of the processors is proportional to its memory.
const MIB_PER_PROCESSOR: u32 = 1769;

/// The kernel's default period of a processor quota.
const PERIOD_US: u64 = 100_000;

/// The version of the hierarchy, which decides the names of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

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

/// The files with an instance's share of the processors, in version 1 and 2, and the least value that the
/// kernel accepts.
pub const SHARES: &str = "cpu.shares";
pub const LEAST_SHARES: u64 = 2;
pub const WEIGHT: &str = "cpu.weight";
pub const LEAST_WEIGHT: u64 = 1;

/// File, value, and whether instances must not run without it.
pub fn settings(version: Version, of: Limits) -> Vec<(&'static str, String, bool)> {
    let memory = (u64::from(of.memory_mib) << 20).to_string();
    let processes = of.processes.to_string();
    let share = |of_one: u64, least: u64| share(of.share_of_mib, of_one).clamp(least, 10_000).to_string();
    // A quota in each period, as Lambda's own ceiling works.
    let quota = of.processors.map(|processors| (processors * PERIOD_US as f64).max(1000.0) as u64);
    let mut settings = match version {
        Version::One => vec![
            ("memory.limit_in_bytes", memory.clone(), true),
            // Absent where the kernel does not account for swap.
            ("memory.memsw.limit_in_bytes", memory, false),
            ("memory.swappiness", "0".into(), false),
            ("pids.max", processes, true),
            (SHARES, share(1024, LEAST_SHARES), false),
        ],
        Version::Two => vec![
            ("memory.max", memory.clone(), true),
            ("memory.swap.max", if of.may_swap { memory } else { "0".into() }, false),
            ("memory.oom.group", "1".into(), false),
            ("pids.max", processes, true),
            (WEIGHT, share(100, LEAST_WEIGHT), false),
        ],
    };
    settings.extend(quota.map(|quota| match version {
        Version::One => ("cpu.cfs_quota_us", quota.to_string(), true),
        Version::Two => ("cpu.max", format!("{quota} {PERIOD_US}"), true),
    }));
    settings
}

/// An instance's share of the processors, where `of_one` is one whole processor's.
pub fn share(memory_mib: u32, of_one: u64) -> u64 {
    of_one * u64::from(memory_mib) / u64::from(MIB_PER_PROCESSOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_each_version_names_them() {
        let limits = Limits {
            memory_mib: 3000,
            share_of_mib: 1769,
            processes: 10,
            processors: Some(0.5),
            may_swap: false,
        };
        let value = |version, file| {
            settings(version, limits).into_iter().find(|setting| setting.0 == file).map(|setting| setting.1)
        };
        assert_eq!(value(Version::One, "memory.limit_in_bytes").as_deref(), Some("3145728000"));
        assert_eq!(value(Version::Two, "memory.max").as_deref(), Some("3145728000"));
        assert_eq!(value(Version::One, "cpu.shares").as_deref(), Some("1024"));
        assert_eq!(value(Version::Two, "cpu.weight").as_deref(), Some("100"));
        assert_eq!(value(Version::Two, "memory.swap.max").as_deref(), Some("0"));
        let swap = settings(Version::Two, Limits { may_swap: true, ..limits });
        assert!(swap.contains(&("memory.swap.max", "3145728000".into(), false)));
        assert_eq!(value(Version::One, "cpu.cfs_quota_us").as_deref(), Some("50000"));
        assert_eq!(value(Version::Two, "cpu.max").as_deref(), Some("50000 100000"));
    }
}
