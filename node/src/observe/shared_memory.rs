//! Page stores' memory that a container's processes map: with sharing, and as it would be without.

use std::fs;
use std::io::{BufRead, BufReader};

/// A store's pages that processes map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// All mapped bytes: private memory without the store.
    pub mapped_bytes: u64,
    /// The same, each page divided by the number of processes that map it.
    pub proportional_bytes: u64,
}

/// The sum over processes; one that has exited adds nothing.
pub fn of_processes(processes: &[i32]) -> SharedMemory {
    let mut sum = SharedMemory::default();
    for process in processes {
        if let Ok(file) = fs::File::open(format!("/proc/{process}/smaps")) {
            add(BufReader::new(file), &mut sum);
        }
    }
    sum
}

/// Pages that a process has written since are private and count alike in both sums, so the difference is the
/// saving.
fn add(smaps: impl BufRead, sum: &mut SharedMemory) {
    let mut counts = false;
    for line in smaps.lines().map_while(Result::ok) {
        let first = line.split(' ').next().unwrap_or_default();
        if !first.ends_with(':') {
            counts = line.contains("/memfd:mayfly-pages");
        } else if counts {
            let bytes =
                || line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
            match first {
                "Rss:" => sum.mapped_bytes += bytes(),
                "Pss:" => sum.proportional_bytes += bytes(),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_pages_of_stores() {
        let text = "7f00-7f10 r-xp 00000000 fe:00 1 /lib/x.so\nRss:  100 kB\nPss:  50 kB\n\
                    7f20-7f30 rw-p 00000000 00:01 2 /memfd:mayfly-pages (deleted)\nSize: 9 kB\nRss:  64 kB\nPss:  16 kB\n\
                    7f30-7f40 rw-p 00000000 00:00 0 \nRss:  7 kB\n";
        let mut sum = SharedMemory::default();
        add(text.as_bytes(), &mut sum);
        assert_eq!(sum, SharedMemory { mapped_bytes: 64 << 10, proportional_bytes: 16 << 10 });
    }
}
