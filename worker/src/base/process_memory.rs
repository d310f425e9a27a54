//! Memory of an instance's processes, as the kernel counts it, with the page store's pages apart.

use std::fs;

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
    /// The memory of these processes together; ended ones count nothing.
    pub fn of_processes(processes: impl IntoIterator<Item = i32>) -> Memory {
        let mut sum = Memory::default();
        for process in processes {
            let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            sum.pss_bytes += bytes(&rollup, "Pss:");
            sum.private_bytes += bytes(&rollup, "Pss_Anon:");
            sum.shared_bytes += bytes(&rollup, "Pss_Shmem:");
            sum.mapped_shared_bytes += bytes(&status, "RssShmem:");
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
        let own = Memory::of_processes([std::process::id() as i32]);
        assert!(own.pss_bytes > 1 << 20 && own.private_bytes > 0 && own.private_bytes < own.pss_bytes);
        assert_eq!(Memory::of_processes([i32::MAX]), Memory::default());
        assert!(available_bytes() > 1 << 20);
    }
}
