//! The pages that were taken from the pool since a moment and have not been returned. A page that was taken
//! before does not count, nor does its return.

use crate::statistics::PageKind;
use std::collections::HashSet;

/// Them, and how many of each kind there are.
#[derive(Default)]
pub struct HeldPages {
    pages: HashSet<u64>,
    by_kind: [u64; 3],
}

impl HeldPages {
    /// This page is taken.
    pub fn take(&mut self, page: u64, kind: PageKind) {
        if self.pages.insert(page) {
            self.by_kind[kind as usize] += 1;
        }
    }

    /// This page is returned.
    pub fn give_back(&mut self, page: u64, kind: PageKind) {
        if self.pages.remove(&page) {
            self.by_kind[kind as usize] -= 1;
        }
    }

    /// How many of each kind are held.
    pub fn by_kind(&self) -> [u64; 3] {
        self.by_kind
    }
}
