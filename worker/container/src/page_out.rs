//! Pages the memory of an instance that has been frozen for long out to the host's swap. This idle work
//! needs nothing of the runtime: it is for runtimes that cannot share their pages, on hosts whose swap is
//! compressed memory (zram).

use mappings::Area;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use worker_system::processes::{or_as_user, read};

use super::syscalls;

/// Has the kernel page out the processes' own memory, and returns how many bytes of theirs are in the swap
/// then. `user` is their user, if it is not this process's.
pub fn page_out(processes: &[i32], user: Option<u32>) -> u64 {
    let swapped = |process: &i32| {
        // A process that has ended has nothing in the swap.
        let handle =
            Pid::from_raw(*process).and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok());
        if let (Some(handle), Ok(maps)) = (handle, read(*process, "maps", user)) {
            for area in mappings::each(&maps).filter(is_own) {
                // Locked memory, or no swap: it stays where it is.
                let _ = or_as_user(user, || syscalls::page_out(&handle, area.range.clone()));
            }
        }
        swapped_bytes(&String::from_utf8_lossy(&read(*process, "status", user).unwrap_or_default()))
    };
    processes.iter().map(swapped).sum()
}

/// Whether it is memory of no file. Pages of the page store belong to all instances, and the kernel can
/// read those of other files again.
fn is_own(area: &Area<&[u8]>) -> bool {
    area.writable && !area.shared && area.file.is_none()
}

fn swapped_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmSwap:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_no_file_is_paged_out() {
        let maps = b"\
1000-3000 rw-p 00000000 00:00 0
3000-5000 rw-p 00001000 00:01 77                         /memfd:mayfly-pages (deleted)
5000-6000 rw-p 00000000 00:00 0                          [heap]
8000-9000 r--p 00000000 00:00 0
a000-b000 rw-p 00000000 fe:00 9                          /usr/lib/x.so
c000-d000 rw-s 00000000 00:00 0
";
        let own: Vec<usize> = mappings::each(maps).filter(is_own).map(|area| area.range.start).collect();
        assert_eq!(own, [0x1000, 0x5000]);
        assert_eq!(swapped_bytes("VmRSS:\t 9 kB\nVmSwap:\t   12 kB\n"), 12 << 10);
        assert_eq!(page_out(&[i32::MAX], None), 0, "it has ended");
    }
}
