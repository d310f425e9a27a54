//! The paper's page simulator (LLAMA §2.1): which pages hold live objects, when the operating system backs
//! addresses with pages of one size.

use std::collections::HashMap;

use rustc_hash::FxBuildHasher;

/// The pages of one size that hold live objects.
pub struct LivePages {
    page_bytes: u64,
    shift: u32,
    /// Objects on each page at which some object begins or ends. Pages in the middle of an object hold no
    /// other, so they are only counted: an object of 1 GiB costs two entries.
    shared: HashMap<u64, u32, FxBuildHasher>,
    pages: u64,
}

impl LivePages {
    /// No live pages yet; `page_bytes` is a power of two.
    pub fn new(page_bytes: u64) -> Self {
        assert!(page_bytes.is_power_of_two(), "a page of {page_bytes} bytes");
        LivePages { page_bytes, shift: page_bytes.trailing_zeros(), shared: HashMap::default(), pages: 0 }
    }

    /// The size of these pages.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Bytes of all pages that hold a live object.
    pub fn bytes(&self) -> u64 {
        self.pages.saturating_mul(self.page_bytes)
    }

    /// First and last page of an object; one of size 0 still has an address of its own.
    fn pages_of(&self, address: u64, size_bytes: u64) -> (u64, u64) {
        (address >> self.shift, (address + size_bytes.max(1) - 1) >> self.shift)
    }

    /// An object of `size_bytes` begins to live at `address`.
    pub fn born(&mut self, address: u64, size_bytes: u64) {
        let (first, last) = self.pages_of(address, size_bytes);
        self.enter(first);
        if last > first {
            self.enter(last);
            self.pages = self.pages.saturating_add(last - first - 1);
        }
    }

    /// The object of `size_bytes` at `address` dies.
    pub fn died(&mut self, address: u64, size_bytes: u64) {
        let (first, last) = self.pages_of(address, size_bytes);
        self.leave(first);
        if last > first {
            self.leave(last);
            self.pages = self.pages.saturating_sub(last - first - 1);
        }
    }

    fn enter(&mut self, page: u64) {
        let objects = self.shared.entry(page).or_insert(0);
        *objects = objects.saturating_add(1);
        if *objects == 1 {
            self.pages = self.pages.saturating_add(1);
        }
    }

    fn leave(&mut self, page: u64) {
        if let Some(objects) = self.shared.get_mut(&page) {
            *objects -= 1;
            if *objects == 0 {
                self.shared.remove(&page);
                self.pages = self.pages.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn one_small_object_keeps_a_huge_page() {
        let mut small = LivePages::new(4096);
        let mut huge = LivePages::new(2 << 20);
        for pages in [&mut small, &mut huge] {
            (0..512).for_each(|i| pages.born((2 << 20) + i * 4096, 64));
            (1..512).for_each(|i| pages.died((2 << 20) + i * 4096, 64));
        }
        assert_eq!((small.bytes(), huge.bytes()), (4096, 2 << 20));
    }

    #[test]
    fn an_object_of_no_size_has_a_page() {
        let mut pages = LivePages::new(4096);
        pages.born(4096, 0);
        assert_eq!(pages.bytes(), 4096);
        pages.died(4096, 0);
        assert_eq!(pages.bytes(), 0);
    }

    proptest! {
        /// Against the plain definition: the set of pages that any live object touches.
        #[test]
        fn agrees_with_the_set_of_touched_pages(
            sizes in prop::collection::vec((1u64..40_000, 0u64..5_000), 1..40),
            kept in prop::collection::vec(any::<bool>(), 40),
        ) {
            // Objects one after another with gaps: live objects never overlap.
            let mut pages = LivePages::new(4096);
            let mut address = 4096;
            let mut touched = HashSet::new();
            for (&(size, gap), &keep) in sizes.iter().zip(&kept) {
                address += gap;
                pages.born(address, size);
                if keep {
                    touched.extend(address / 4096..=(address + size - 1) / 4096);
                }
                address += size;
            }
            let mut address = 4096;
            for (&(size, gap), &keep) in sizes.iter().zip(&kept) {
                address += gap;
                if !keep {
                    pages.died(address, size);
                }
                address += size;
            }
            prop_assert_eq!(pages.bytes(), touched.len() as u64 * 4096);
        }
    }
}
