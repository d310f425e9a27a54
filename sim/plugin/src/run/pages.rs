//! The kernel's pages: which ones its page allocator hands out, and which come back to it.
//!
//! An allocation is seen at the function's entry, with its flags, and where it returns, with its page. The
//! stack pointer is the same at both, which tells calls apart that interrupts and other threads make between
//! them. A page is named by its `struct page`.

use super::Run;
use std::collections::HashMap;

/// The functions of the kernel that the guest's init reports, in its order.
pub const ALLOCATES: u32 = 0;
/// Of many pages at once.
pub const ALLOCATES_MANY: u32 = 1;
const PROCESS_EXITS: u32 = 2;
const FREES_FOLIOS: u32 = 5;
/// How many functions there are.
pub(super) const FUNCTIONS: usize = 6;

/// The bytes of a `struct page` on x86-64; they lie one behind the other, in the order of the pages.
const STRUCT_PAGE: u64 = 64;
/// The kernel's `struct page`s (without 5-level paging, with `nokaslr`).
const STRUCT_PAGES: std::ops::Range<u64> = 0xffff_ea00_0000_0000..0xffff_eb00_0000_0000;
/// A `struct page` is the first of a folio of several pages (PG_head of Linux 6.12).
const HEAD: u64 = 1 << 6;
/// Pages that are allocated or freed at once are at most 2 to the power of this (MAX_PAGE_ORDER).
const MOST_ORDER: u64 = 10;
/// A `struct folio_batch` has no more.
const MOST_FOLIOS: u64 = 31;

/// An allocation that has not returned.
pub(super) struct Allocation {
    flags: u64,
    /// Of one: the order. Of many: where the kernel's array of pages is.
    operand: u64,
}

/// Allocations by the stack pointer at their entry.
pub(super) type Allocations = HashMap<u64, Allocation>;

impl Run {
    /// An observed function of the kernel is entered.
    pub(super) fn kernel_call(&mut self, function: u32) {
        let (first, second) = (self.register(7), self.register(6));
        match function {
            ALLOCATES | ALLOCATES_MANY => self.allocates(function == ALLOCATES_MANY, first, second),
            // A process and its page table, by its address in the map of all memory.
            PROCESS_EXITS => self.machine.process_exited(second.wrapping_sub(super::marks::DIRECT_MAP)),
            FREES_FOLIOS => self.frees_folios(first),
            _ => self.machine.kernel_frees(pages(first, second)),
        }
    }

    /// Flags and order; of many: flags, how many as the fourth argument, and the array as the sixth.
    fn allocates(&mut self, many: bool, flags: u64, order: u64) {
        let order = order & 15;
        let (count, operand) = if many { (self.register(1), self.register(9)) } else { (1 << order, order) };
        self.machine.kernel_allocates(flags, count);
        if self.machine.counts_pages() {
            let stack = self.register(4);
            self.page_calls.insert(stack, Allocation { flags, operand });
        }
    }

    /// A function that allocates pages returns, or jumps elsewhere within its frame.
    pub(super) fn kernel_return(&mut self, function: u32) {
        let (stack, result) = (self.register(4), self.register(0));
        let Some(Allocation { flags, operand }) = self.page_calls.remove(&stack) else { return };
        if function == ALLOCATES {
            self.machine.kernel_holds(flags, pages(result, operand));
        } else if operand != 0 {
            for index in 0..result {
                let Some(page) = self.buffer.memory(operand + 8 * index) else { return };
                self.machine.kernel_holds(flags, pages(page, 0));
            }
        }
    }

    /// A batch: how many in its first byte, then from byte 8 on the folios.
    fn frees_folios(&mut self, batch: u64) {
        let Some(many) = self.buffer.memory(batch) else { return };
        for index in 1..=(many & 0xff).min(MOST_FOLIOS) {
            let Some(folio) = self.buffer.memory(batch + 8 * index) else { return };
            let Some(flags) = self.buffer.memory(folio) else { return };
            // The order is in the lowest byte of the second page's flags.
            let order =
                if flags & HEAD == 0 { 0 } else { self.buffer.memory(folio + STRUCT_PAGE).unwrap_or(0) };
            self.machine.kernel_frees(pages(folio, order & 0xff));
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
