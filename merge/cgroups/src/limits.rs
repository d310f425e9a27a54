//! Limits of a group, as the files of version 1 or 2 have them.

use crate::Version;

/// The kernel's default period of a processor quota, microseconds.
pub const PERIOD_US: u64 = 100_000;

/// What a group may use; by default as much as the group above it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Memory.
    pub memory_bytes: Option<u64>,
    /// In version 1, where the kernel accounts for swap: memory and swap together.
    pub memory_and_swap_bytes: Option<u64>,
    /// In version 2 swap. In version 1 memory is swapped only if the host has none left, whatever the number.
    pub swap_bytes: Option<u64>,
    /// On overflow the kernel kills all its processes: version 2 only.
    pub ends_as_one: bool,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Its share of the processors, which counts while they are short.
    pub share: Option<Share>,
    /// Time on processors in each [`PERIOD_US`].
    pub quota_us: Option<u64>,
}

/// A share of the processors: `part` of `whole`, which is that of one processor.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The part.
    pub part: u64,
    /// The whole; not 0.
    pub whole: u64,
}

impl Share {
    /// The file and its value, which the kernel accepts.
    pub(crate) fn setting(self, version: Version) -> (&'static str, String) {
        let (file, of_one, least) = match version {
            Version::One => ("cpu.shares", 1024, 2),
            Version::Two => ("cpu.weight", 100, 1),
        };
        (file, (of_one * self.part / self.whole).clamp(least, 10_000).to_string())
    }
}

impl Limits {
    /// File, value, and whether no group may be without it. The others are absent on some kernels.
    pub(crate) fn settings(&self, version: Version) -> Vec<(&'static str, String, bool)> {
        let number = |file, value: Option<u64>, needed| Some((file, value?.to_string(), needed));
        let quota = self.quota_us;
        let settings = match version {
            Version::One => [
                number("memory.limit_in_bytes", self.memory_bytes, true),
                number("memory.memsw.limit_in_bytes", self.memory_and_swap_bytes, false),
                number("memory.swappiness", self.swap_bytes.and(Some(0)), false),
                number("pids.max", self.processes, true),
                number("cpu.cfs_quota_us", quota, true),
            ],
            Version::Two => [
                number("memory.max", self.memory_bytes, true),
                number("memory.swap.max", self.swap_bytes, false),
                number("memory.oom.group", self.ends_as_one.then_some(1), false),
                number("pids.max", self.processes, true),
                quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_US}"), true)),
            ],
        };
        let share = self.share.map(|share| share.setting(version)).map(|(file, value)| (file, value, false));
        settings.into_iter().chain([share]).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_as_each_version_names_them() {
        let limits = Limits {
            memory_bytes: Some(3 << 30),
            memory_and_swap_bytes: Some(3 << 30),
            swap_bytes: Some(7),
            ends_as_one: true,
            processes: Some(10),
            share: Some(Share { part: 3, whole: 2 }),
            quota_us: Some(50_000),
        };
        let one = [
            ("memory.limit_in_bytes", "3221225472".into(), true),
            ("memory.memsw.limit_in_bytes", "3221225472".into(), false),
            ("memory.swappiness", "0".into(), false),
            ("pids.max", "10".into(), true),
            ("cpu.cfs_quota_us", "50000".into(), true),
            ("cpu.shares", "1536".into(), false),
        ];
        assert_eq!(limits.settings(Version::One), one);
        let two = [
            ("memory.max", "3221225472".into(), true),
            ("memory.swap.max", "7".into(), false),
            ("memory.oom.group", "1".into(), false),
            ("pids.max", "10".into(), true),
            ("cpu.max", "50000 100000".into(), true),
            ("cpu.weight", "150".into(), false),
        ];
        assert_eq!(limits.settings(Version::Two), two);
        assert!(Limits::default().settings(Version::One).is_empty());
        assert!(Limits::default().settings(Version::Two).is_empty());
    }

    #[test]
    fn shares_stay_within_the_kernels_limits() {
        let share = |part, whole, version| Share { part, whole }.setting(version).1;
        assert_eq!(share(1, 1 << 20, Version::One), "2");
        assert_eq!(share(1, 1 << 20, Version::Two), "1");
        assert_eq!(share(1 << 20, 1, Version::One), "10000");
        assert_eq!(share(250, 100, Version::Two), "250");
    }
}
