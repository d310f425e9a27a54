//! What all domains together may hold. A segment is memory of the client that handed it in, and its cgroup pays; what the
//! daemon copies it pays for itself, so that is little, and little for each client, unless it was told to pay for all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::page::PAGE_BYTES;

/// Pages that the daemon copies for one client: 8 MiB. What it offers after that is kept as it comes.
pub const MOST_COPIED_BY_CLIENT: usize = 2048;
/// Offers of so few pages are copied as long as all together have not too many: a file for each costs more.
pub const TINY: usize = 32;

/// Whose memory the pages of a store are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Whoever brings them first: his own segment is kept.
    First,
    /// The store's: it copies them.
    Store,
}

/// One for a daemon.
pub struct Budget {
    /// Who pays.
    pub charge: Charge,
    pages: AtomicUsize,
    most_pages: usize,
    copied: AtomicUsize,
    most_copied: usize,
}

impl Budget {
    /// Of so many pages, of which the daemon copies so many for all clients of all domains.
    pub fn new(most_pages: usize, most_copied: usize) -> Budget {
        let (pages, copied) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { charge: Charge::First, pages, most_pages, copied, most_copied }
    }

    /// Of this machine: three quarters of its memory, or what one domain may have if that is more; the daemon copies 1/32, and no
    /// more than a quarter of what its own cgroup may have. One that pays for all holds no more than three quarters of that.
    pub fn of_machine(most_of_one_domain: usize, charge: Charge) -> Budget {
        let memory = rustix::system::sysinfo().totalram as usize / PAGE_BYTES;
        let own = cgroup_limit().map_or(usize::MAX, |bytes| bytes / PAGE_BYTES / 4);
        let most = (memory / 4 * 3).max(most_of_one_domain);
        match charge {
            Charge::First => Budget::new(most, (memory / 32).min(own)),
            Charge::Store => Budget { charge, ..Budget::new(most.min(own.saturating_mul(3)), usize::MAX) },
        }
    }

    /// Pages that all domains may hold, and those that they hold.
    pub fn pages(&self) -> (usize, usize) {
        (self.most_pages, self.pages.load(Ordering::Relaxed))
    }

    /// Takes pages, if there are so many.
    pub fn take(&self, pages: usize) -> bool {
        take(&self.pages, pages, self.most_pages)
    }

    /// Gives pages back.
    pub fn give_back(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

fn take(from: &AtomicUsize, more: usize, most: usize) -> bool {
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |had| {
        had.checked_add(more).filter(|&all| all <= most)
    })
    .is_ok()
}

/// Bytes that this process's cgroup may have, if somebody has said so.
fn cgroup_limit() -> Option<usize> {
    let all = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limits = all.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let file = match controllers {
            "" => format!("/sys/fs/cgroup{path}/memory.max"),
            names if names.split(',').any(|name| name == "memory") => {
                format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes")
            }
            _ => return None,
        };
        std::fs::read_to_string(file).ok()?.trim().parse::<usize>().ok()
    });
    limits.min()
}

/// What the daemon has copied for a domain's clients. A page counts until its common segment is freed.
#[derive(Default)]
pub struct Copied {
    by_client: HashMap<u64, usize>,
    /// The same, for each common segment.
    of_segment: HashMap<u32, HashMap<u64, usize>>,
}

impl Copied {
    /// Whether so many pages may be copied for a client; then they are taken. Where there is no room for another segment only
    /// what all may have is asked.
    pub fn take(&self, budget: &Budget, client: u64, pages: usize, has_room: bool) -> bool {
        let had = self.by_client.get(&client).copied().unwrap_or(0);
        let may = budget.charge == Charge::Store
            || had + pages <= MOST_COPIED_BY_CLIENT
            || pages <= TINY
            || !has_room;
        may && take(&budget.copied, pages, budget.most_copied)
    }

    /// Of those taken, so many were copied to a segment and the rest were not.
    pub fn put(&mut self, budget: &Budget, client: u64, segment: u32, pages: usize, left: usize) {
        budget.copied.fetch_sub(left, Ordering::Relaxed);
        *self.by_client.entry(client).or_default() += pages;
        *self.of_segment.entry(segment).or_default().entry(client).or_default() += pages;
    }

    /// A common segment of so many pages is freed.
    pub fn free(&mut self, budget: &Budget, segment: u32, pages: usize) {
        budget.copied.fetch_sub(pages, Ordering::Relaxed);
        for (client, pages) in self.of_segment.remove(&segment).unwrap_or_default() {
            if let Some(had) = self.by_client.get_mut(&client) {
                *had -= pages;
                if *had == 0 {
                    self.by_client.remove(&client);
                }
            }
        }
    }

    /// None of those taken were copied.
    pub fn give_back(budget: &Budget, pages: usize) {
        budget.copied.fetch_sub(pages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_gets_little_and_all_together_not_much() {
        let budget = Budget::new(100, 3 * MOST_COPIED_BY_CLIENT);
        assert!(budget.take(60) && !budget.take(41) && budget.take(40));
        budget.give_back(60);
        assert!(budget.take(60));
        let mut copied = Copied::default();
        let all = MOST_COPIED_BY_CLIENT;
        assert!(copied.take(&budget, 1, all, true));
        copied.put(&budget, 1, 7, all - 10, 10);
        assert!(!copied.take(&budget, 1, all, true) && copied.take(&budget, 1, 10, true));
        copied.put(&budget, 1, 7, 10, 0);
        assert!(!copied.take(&budget, 1, TINY + 1, true) && copied.take(&budget, 1, TINY + 1, false));
        Copied::give_back(&budget, TINY + 1);
        let mut clients = 1;
        while copied.take(&budget, clients + 1, all, true) {
            clients += 1;
            copied.put(&budget, clients, 8, all, 0);
        }
        assert_eq!(clients, 3);
        copied.free(&budget, 7, all);
        assert!(copied.take(&budget, 1, all, true) && !copied.take(&budget, 2, 1, false));
    }
}
