//! The host's memory: what is available, and what a QEMU process has resident.

use std::fs;

use crate::base::error::Error;

/// The host's memory, from `/proc/meminfo`.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory {
    /// All of it.
    pub total_bytes: u64,
    /// Available without swapping.
    pub available_bytes: u64,
}

impl HostMemory {
    /// Reads it.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> Result<HostMemory, Error> {
        let text = fs::read_to_string("/proc/meminfo")
            .map_err(|error| Error::Failed(format!("/proc/meminfo: {error}")))?;
        let field =
            |name| kib_field(&text, name).ok_or_else(|| Error::Failed(format!("/proc/meminfo: no {name}")));
        Ok(HostMemory { total_bytes: field("MemTotal:")?, available_bytes: field("MemAvailable:")? })
    }

    /// Fails unless this much is available.
    ///
    /// # Errors
    /// `need_bytes` is more than what is available.
    pub fn require(what: &str, need_bytes: u64) -> Result<(), Error> {
        let available_bytes = HostMemory::read()?.available_bytes;
        if need_bytes > available_bytes {
            return Err(Error::HostMemory { what: what.to_string(), need_bytes, available_bytes });
        }
        Ok(())
    }
}

/// The resident memory of a process; 0 when it has ended.
pub fn resident_bytes(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Linux does not count preallocated huge pages in VmRSS.
    kib_field(&text, "VmRSS:").unwrap_or(0) + kib_field(&text, "HugetlbPages:").unwrap_or(0)
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_memory_of_host_and_process() {
        let memory = HostMemory::read().unwrap();
        assert!(memory.available_bytes > 0 && memory.available_bytes <= memory.total_bytes);
        assert!(HostMemory::require("nothing", 0).is_ok());
        let error = HostMemory::require("a partition", 1 << 60).unwrap_err().to_string();
        assert!(error.contains("a partition needs 1099511627776 MiB"), "{error}");
        let before = resident_bytes(std::process::id());
        let block = vec![1u8; 64 << 20];
        let after = resident_bytes(std::process::id());
        assert!(after - before >= 63 << 20, "{before} {after} {}", block[7]);
        assert_eq!(resident_bytes(u32::MAX), 0);
    }
}
