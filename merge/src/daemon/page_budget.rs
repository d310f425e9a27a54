//! The limits of all domains together. A segment is memory of the client that uploaded it, and that client's
//! cgroup pays. The daemon's cgroup pays for the pages that the daemon copies, so these are few, and few for
//! each client, unless [`Charge::Store`] makes the daemon pay for all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use cgroups::{Group, Membership};

use crate::base::page::PAGE_BYTES;

/// Pages that the daemon copies for one client: 8 MiB. Later offers become segments as they are.
pub const MAX_COPIED_PER_CLIENT: usize = 2048;
/// Offers of so few pages are copied as long as the total allows: a file for each costs more.
pub const TINY: usize = 32;

/// Whose memory a store's pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Memory of the client that uploads them first: the store keeps that client's segment.
    First,
    /// Memory of the store, which copies them.
    Store,
}

/// The budget of a daemon.
pub struct Budget {
    /// Who pays.
    pub charge: Charge,
    pages: AtomicUsize,
    max_pages: usize,
    copied: AtomicUsize,
    max_copied: usize,
}

impl Budget {
    /// Of so many pages, of which the daemon copies at most `max_copied` for all clients of all domains.
    pub fn new(max_pages: usize, max_copied: usize) -> Budget {
        let (pages, copied) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Budget { charge: Charge::First, pages, max_pages, copied, max_copied }
    }

    /// For this machine: three quarters of its memory, or one domain's limit if that is more. The daemon
    /// copies at most 1/32 of memory, and a quarter of its own cgroup's limit. A daemon that pays for all
    /// pages holds at most three quarters of that limit.
    pub fn of_machine(max_of_one_domain: usize, charge: Charge) -> Budget {
        let memory = rustix::system::sysinfo().totalram as usize / PAGE_BYTES;
        let own = cgroup_limit().map_or(usize::MAX, |bytes| bytes / PAGE_BYTES / 4);
        let most = (memory / 4 * 3).max(max_of_one_domain);
        match charge {
            Charge::First => Budget::new(most, (memory / 32).min(own)),
            Charge::Store => Budget { charge, ..Budget::new(most.min(own.saturating_mul(3)), usize::MAX) },
        }
    }

    /// The limit of all domains, and the pages that they hold.
    pub fn pages(&self) -> (usize, usize) {
        (self.max_pages, self.pages.load(Ordering::Relaxed))
    }

    /// Reserves pages; false if the limit does not allow it.
    pub fn reserve(&self, pages: usize) -> bool {
        reserve(&self.pages, pages, self.max_pages)
    }

    /// Releases pages.
    pub fn release(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

fn reserve(from: &AtomicUsize, more: usize, most: usize) -> bool {
    from.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |had| {
        had.checked_add(more).filter(|&all| all <= most)
    })
    .is_ok()
}

/// The memory limit of this process's cgroup in bytes, if it has one.
fn cgroup_limit() -> Option<usize> {
    Group::of_memory(Membership::of("self").ok()?.memory()?)?.memory_limit()?.try_into().ok()
}

/// Pages that the daemon has copied for a domain's clients. A page counts until its packed segment is freed.
#[derive(Default)]
pub struct Copied {
    by_client: HashMap<u64, usize>,
    /// The same, for each packed segment.
    of_segment: HashMap<u32, HashMap<u64, usize>>,
}

impl Copied {
    /// Reserves so many pages to copy for a client; false if a limit does not allow it. Where there is no
    /// room for another segment, only the total limit counts.
    pub fn reserve(&self, budget: &Budget, client: u64, pages: usize, has_room: bool) -> bool {
        let had = self.by_client.get(&client).copied().unwrap_or(0);
        let may = budget.charge == Charge::Store
            || had + pages <= MAX_COPIED_PER_CLIENT
            || pages <= TINY
            || !has_room;
        may && reserve(&budget.copied, pages, budget.max_copied)
    }

    /// Of the pages reserved, so many were copied to a segment and the rest were not.
    pub fn record(&mut self, budget: &Budget, client: u64, segment: u32, pages: usize, left: usize) {
        budget.copied.fetch_sub(left, Ordering::Relaxed);
        *self.by_client.entry(client).or_default() += pages;
        *self.of_segment.entry(segment).or_default().entry(client).or_default() += pages;
    }

    /// A packed segment of so many pages is freed.
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

    /// Releases reserved pages of which none was copied.
    pub fn release(budget: &Budget, pages: usize) {
        budget.copied.fetch_sub(pages, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_copies_per_client_and_in_total() {
        let budget = Budget::new(100, 3 * MAX_COPIED_PER_CLIENT);
        assert!(budget.reserve(60) && !budget.reserve(41) && budget.reserve(40));
        budget.release(60);
        assert!(budget.reserve(60));
        let mut copied = Copied::default();
        let all = MAX_COPIED_PER_CLIENT;
        assert!(copied.reserve(&budget, 1, all, true));
        copied.record(&budget, 1, 7, all - 10, 10);
        assert!(!copied.reserve(&budget, 1, all, true) && copied.reserve(&budget, 1, 10, true));
        copied.record(&budget, 1, 7, 10, 0);
        assert!(!copied.reserve(&budget, 1, TINY + 1, true) && copied.reserve(&budget, 1, TINY + 1, false));
        Copied::release(&budget, TINY + 1);
        let mut clients = 1;
        while copied.reserve(&budget, clients + 1, all, true) {
            clients += 1;
            copied.record(&budget, clients, 8, all, 0);
        }
        assert_eq!(clients, 3);
        copied.free(&budget, 7, all);
        assert!(copied.reserve(&budget, 1, all, true) && !copied.reserve(&budget, 2, 1, false));
    }
}
