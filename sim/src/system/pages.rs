//! Physical pages that are held: allocated in the region and not freed since. A page that is freed and
//! allocated again is held once, and the free of a page from before the region changes nothing.
//!
//! The machine adds those that Memento's units hold out of their pool, so that both sides count alike.

use std::collections::HashMap;

/// Pages of the program, and of the kernel or for the units' own tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The program's.
    pub user: u64,
    /// The kernel's.
    pub kernel: u64,
}

impl Held {
    fn all(self) -> u64 {
        self.user + self.kernel
    }
}

impl std::ops::Add for Held {
    type Output = Held;

    fn add(self, other: Held) -> Held {
        Held { user: self.user + other.user, kernel: self.kernel + other.kernel }
    }
}

/// The kernel's pages, and the most that were held at once.
#[derive(Default)]
pub struct Pages {
    /// Of each page that is held, by what names it: whether it is the program's.
    pages: HashMap<u64, bool>,
    held: Held,
    most: Held,
    /// At the region's end, before the units returned the pages of processes that live on.
    at_end: Option<Held>,
}

impl Pages {
    /// The kernel has allocated this page.
    pub fn allocated(&mut self, page: u64, is_user: bool) {
        if self.pages.insert(page, is_user).is_none() {
            *self.of(is_user) += 1;
        }
    }

    /// The kernel frees this page.
    pub fn freed(&mut self, page: u64) {
        if let Some(is_user) = self.pages.remove(&page) {
            *self.of(is_user) -= 1;
        }
    }

    fn of(&mut self, is_user: bool) -> &mut u64 {
        if is_user { &mut self.held.user } else { &mut self.held.kernel }
    }

    /// Whatever frees pages calls this before: the most are held before a free. `pool`: the units' pages.
    #[inline]
    pub fn note_most(&mut self, pool: Held) {
        let now = self.held + pool;
        if now.all() > self.most.all() {
            self.most = now;
        }
    }

    /// The region ends with those that are held now.
    pub fn end(&mut self, pool: Held) {
        self.note_most(pool);
        self.at_end = Some(self.held + pool);
    }

    /// Those that are held now, or were at the region's end, and those when the most were held.
    pub fn now_and_most(&self, pool: Held) -> (Held, Held) {
        let now = self.at_end.unwrap_or(self.held + pool);
        (now, if now.all() > self.most.all() { now } else { self.most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_POOL: Held = Held { user: 0, kernel: 0 };

    #[test]
    fn a_page_that_is_freed_is_not_held() {
        let mut pages = Pages::default();
        for page in 0..3 {
            pages.allocated(page, page == 0);
        }
        pages.note_most(NO_POOL);
        pages.freed(1);
        pages.freed(1);
        pages.freed(9);
        assert_eq!(pages.now_and_most(NO_POOL), (Held { user: 1, kernel: 1 }, Held { user: 1, kernel: 2 }));
        pages.allocated(1, false);
        pages.allocated(1, false);
        assert_eq!(pages.now_and_most(NO_POOL).0, Held { user: 1, kernel: 2 });
    }

    #[test]
    fn the_most_is_of_both_kinds_and_the_pool_together() {
        let mut pages = Pages::default();
        let pool = Held { user: 5, kernel: 1 };
        pages.allocated(1, false);
        pages.note_most(pool);
        pages.freed(1);
        pages.allocated(2, true);
        pages.allocated(3, true);
        // Three pages of the pool were freed meanwhile: seven at first, five now.
        let less = Held { user: 2, kernel: 1 };
        assert_eq!(pages.now_and_most(less), (Held { user: 4, kernel: 1 }, Held { user: 5, kernel: 2 }));
        pages.end(less);
        pages.freed(2);
        assert_eq!(pages.now_and_most(NO_POOL).0, Held { user: 4, kernel: 1 }, "as the region ended");
    }
}
