//! The kernel's pages: which ones its page allocator hands out, and which come back to it.
//!
//! An allocation is seen at the function's entry, with its flags, and where it returns, with its page. The
//! stack pointer is the same at both, which tells calls apart that interrupts and other threads make between
//! them. A page is named by its `struct page`.

use super::Model;
use std::collections::HashMap;

/// The bytes of a `struct page` on x86-64; they lie one behind the other, in the order of the pages.
pub const STRUCT_PAGE: u64 = 64;
/// The kernel's `struct page`s (without 5-level paging, with `nokaslr`).
const STRUCT_PAGES: std::ops::Range<u64> = 0xffff_ea00_0000_0000..0xffff_eb00_0000_0000;
/// Pages that are allocated or freed at once are at most 2 to the power of this (MAX_PAGE_ORDER).
const MOST_ORDER: u64 = 10;

/// An allocation that has not returned.
pub(super) struct Allocation {
    flags: u64,
    /// Of one: the order. Of many: where the kernel's array of pages is.
    operand: u64,
}

/// An allocation, as it is asked for.
pub struct Asked {
    /// Its flags.
    pub flags: u64,
    /// How many pages.
    pub count: u64,
    /// Of one: the order. Of many: where the kernel's array of pages is.
    pub operand: u64,
    /// The stack pointer.
    pub stack: u64,
}

/// What the kernel got.
pub enum Got {
    /// One, of the order that it asked for.
    One(u64),
    /// Pages.
    Many(Vec<u64>),
}

/// Allocations by the stack pointer at their entry.
pub(super) type Allocations = HashMap<u64, Allocation>;

impl Model {
    /// An allocation begins.
    pub(super) fn allocates(&mut self, asked: Asked) {
        let Asked { flags, count, operand, stack } = asked;
        self.machine.kernel_allocates(flags, count);
        if self.machine.counts_pages() {
            self.page_calls.insert(stack, Allocation { flags, operand });
        }
    }

    /// A function that allocates pages returns, or jumps elsewhere within its frame.
    pub(super) fn allocated(&mut self, stack: u64, got: Got) {
        let Some(Allocation { flags, operand }) = self.page_calls.remove(&stack) else { return };
        match got {
            Got::One(page) => self.machine.kernel_holds(flags, pages(page, operand)),
            Got::Many(all) => {
                for page in all {
                    self.machine.kernel_holds(flags, pages(page, 0));
                }
            }
        }
    }

    /// Allocations come back: each the first page and the order.
    pub(super) fn frees(&mut self, all: &[(u64, u64)]) {
        for (first, order) in all {
            self.machine.kernel_frees(pages(*first, *order));
        }
    }
}

/// The `struct page`s of an allocation, none if this is no allocation's first.
fn pages(first: u64, order: u64) -> impl Iterator<Item = u64> {
    let is_page = STRUCT_PAGES.contains(&first) && first.is_multiple_of(STRUCT_PAGE);
    let count = if is_page { 1 << order.min(MOST_ORDER) } else { 0 };
    (0..count).map(move |page| first + page * STRUCT_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_values_than_a_struct_page_are_no_pages() {
        let first = STRUCT_PAGES.start + 3 * STRUCT_PAGE;
        assert_eq!(pages(first, 1).collect::<Vec<_>>(), [first, first + STRUCT_PAGE]);
        for other in [0, first + 8, STRUCT_PAGES.end, 0xffff_8880_0000_0000] {
            assert_eq!(pages(other, 2).count(), 0, "{other:#x}");
        }
        assert_eq!(pages(first, 200).count(), 1 << MOST_ORDER);
    }
}
