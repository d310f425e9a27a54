//! The host's memory: what is available, and what a QEMU process has resident.

use std::fs;
use std::path::Path;

use crate::base::error::Error;

/// The pool of huge pages of 2 MiB.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const HUGE_PAGE_BYTES: u64 = 2 << 20;

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

/// Fails unless the host's pool of huge pages has this much. A process that touches a page that the pool does
/// not have is killed.
///
/// # Errors
/// `need_bytes` is more than what is free there.
pub fn require_huge_pages(what: &str, need_bytes: u64) -> Result<(), Error> {
    require_pool(Path::new(POOL), what, need_bytes)
}

fn require_pool(pool: &Path, what: &str, need_bytes: u64) -> Result<(), Error> {
    let pages = |name: &str| {
        let text = fs::read_to_string(pool.join(name)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    // Mappings that exist may take the reserved ones.
    let free_bytes = pages("free_hugepages").saturating_sub(pages("resv_hugepages")) * HUGE_PAGE_BYTES;
    if need_bytes > free_bytes {
        let missing_pages = (need_bytes - free_bytes).div_ceil(HUGE_PAGE_BYTES);
        let pages = pages("nr_hugepages") + missing_pages;
        return Err(Error::HugePages { what: what.to_string(), need_bytes, free_bytes, pages });
    }
    Ok(())
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
    #[test]
    fn reserved_huge_pages_are_not_free() {
        let pool = std::env::temp_dir().join(format!("mayfly-pool-{}", std::process::id()));
        fs::create_dir_all(&pool).unwrap();
        for (name, pages) in [("nr_hugepages", 100), ("free_hugepages", 50), ("resv_hugepages", 10)] {
            fs::write(pool.join(name), format!("{pages}\n")).unwrap();
        }
        let fits = require_pool(&pool, "a partition", 80 << 20);
        let error = require_pool(&pool, "a partition", 128 << 20).unwrap_err().to_string();
        fs::remove_dir_all(&pool).unwrap();
        assert!(fits.is_ok());
        assert_eq!(
            error,
            "the pool of huge pages is too small: a partition needs 128 MiB, 80 MiB are free: enlarge it with: \
             sysctl vm.nr_hugepages=124"
        );
        assert!(require_pool(&pool, "a partition", 2 << 20).is_err(), "a host without a pool");
    }
}
