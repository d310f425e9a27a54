//! What a container's processes take, and what they would take if nothing were shared.

use std::fs;
use std::io::{BufRead, BufReader};

/// Memory of processes that is a store's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// As much as is mapped: so much would be private without the store.
    pub mapped_bytes: u64,
    /// Each page divided by those who map it.
    pub proportional_bytes: u64,
}

/// Sums over processes; those that have ended have nothing.
pub fn shared(processes: &[u32]) -> Shared {
    let mut sum = Shared::default();
    for process in processes {
        if let Ok(file) = fs::File::open(format!("/proc/{process}/smaps")) {
            add(BufReader::new(file), &mut sum);
        }
    }
    sum
}

/// Pages that were written since are private and in both amounts alike, so that their difference is what is saved.
fn add(smaps: impl BufRead, sum: &mut Shared) {
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
    fn only_pages_of_stores_count() {
        let text = "7f00-7f10 r-xp 00000000 fe:00 1 /lib/x.so\nRss:  100 kB\nPss:  50 kB\n\
                    7f20-7f30 rw-p 00000000 00:01 2 /memfd:mayfly-pages (deleted)\nSize: 9 kB\nRss:  64 kB\nPss:  16 kB\n\
                    7f30-7f40 rw-p 00000000 00:00 0 \nRss:  7 kB\n";
        let mut sum = Shared::default();
        add(text.as_bytes(), &mut sum);
        assert_eq!(sum, Shared { mapped_bytes: 64 << 10, proportional_bytes: 16 << 10 });
    }
}
