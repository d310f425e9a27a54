//! Memory of an instance's processes, as the kernel counts it, with the page store's pages apart.

use std::fs;

use worker_system::processes;

/// Memory of some processes. Pages that several map count in part for each, as in PSS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Proportional set size.
    pub pss_bytes: u64,
    /// Of that, anonymous memory.
    pub private_bytes: u64,
    /// Of that, memory files: the page store's segments.
    pub shared_bytes: u64,
    /// Memory files that are mapped and in memory, not divided.
    pub mapped_shared_bytes: u64,
}

impl Memory {
    /// The memory of these processes together; ended ones count nothing. `user` is their user, if it is not
    /// this process's. `anonymous` is asked for the anonymous memory of all of them if one cannot be read:
    /// process 1 of a sandbox has closed itself, and this process may lack the right to trace.
    pub fn of_processes(
        list: impl IntoIterator<Item = i32>,
        user: Option<u32>,
        anonymous: impl FnOnce() -> Option<u64>,
    ) -> Memory {
        let (mut sum, mut all_read) = (Memory::default(), true);
        for process in list {
            let text = |file| {
                processes::read(process, file, user).map(|text| String::from_utf8_lossy(&text).into_owned())
            };
            let (rollup, status) = (text("smaps_rollup"), text("status"));
            all_read &= rollup.is_ok();
            let (rollup, status) = (rollup.unwrap_or_default(), status.unwrap_or_default());
            sum.pss_bytes += bytes(&rollup, "Pss:");
            sum.private_bytes += bytes(&rollup, "Pss_Anon:");
            sum.shared_bytes += bytes(&rollup, "Pss_Shmem:");
            sum.mapped_shared_bytes += bytes(&status, "RssShmem:");
        }
        if let Some(counted) = (!all_read).then(anonymous).flatten() {
            let missing = counted.saturating_sub(sum.private_bytes);
            sum.pss_bytes += missing;
            sum.private_bytes += missing;
        }
        sum
    }
}

/// The machine's available memory (`MemAvailable`).
pub fn available_bytes() -> u64 {
    bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "MemAvailable:")
}

/// The bytes on the line with this beginning, which has them in kB.
fn bytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_by_name() {
        let text = "Rss:    1 kB\nPss:       12 kB\nPss_Anon:         4 kB\n";
        assert_eq!(
            (bytes(text, "Pss:"), bytes(text, "Pss_Anon:"), bytes(text, "Pss_Shmem:")),
            (12288, 4096, 0)
        );
    }

    #[test]
    fn a_process_has_memory_and_one_that_is_not_there_has_none() {
        let own = Memory::of_processes([std::process::id() as i32], None, || unreachable!("it is read"));
        assert!(own.pss_bytes > 1 << 20 && own.private_bytes > 0 && own.private_bytes < own.pss_bytes);
        assert_eq!(Memory::of_processes([i32::MAX], None, || None), Memory::default());
        let counted = Memory::of_processes([i32::MAX], None, || Some(4096));
        assert_eq!((counted.pss_bytes, counted.private_bytes, counted.shared_bytes), (4096, 4096, 0));
        assert!(available_bytes() > 1 << 20);
    }
}
