//! The cells that a thread freed last, for bins whose spans have few: of 640 B or more each.
//!
//! A bin takes the free cells of a span at a time. Of few cells few are free, so most allocations would take
//! a span, and search the bin's queue for it. So a free notes the cell here while there is room, and
//! allocations take the noted cells, the last one first. A note changes nothing: to its span the cell is free
//! like any other. Meanwhile it may have been allocated, and its span may belong to another bin or heap, so
//! [`crate::thread::bin::Bin::allocate_freed`] checks.
//!
//! A span that becomes empty stays in the queue if the cell is noted, or a bin of which a few objects live
//! would take and leave a span each time. It is settled when the thread flushes its caches, or by the
//! maintenance thread, which may read the notes of a sleeping thread.

use core::cell::Cell;

use crate::pages::region;
use crate::span::cells::Span;

/// The most cells that are noted: with them a [`crate::thread::bin::Bin`] takes three cache lines.
const MOST: usize = 13;
/// The most empty spans that a thread keeps, 1 MiB: see [`crate::thread::refill`].
pub const MOST_KEPT: usize = 64;

/// Field offsets and sizes, for the fast path in assembly; the count comes first.
pub mod layout {
    use super::FreedCells;
    use core::mem::offset_of;

    /// The noted cells.
    pub const CELLS: usize = offset_of!(FreedCells, cells);
    /// The most cells.
    pub const MOST: usize = super::MOST;
    const _: () = assert!(offset_of!(FreedCells, count) == 0);
}

/// The noted cells. All zeros has none.
#[repr(C)]
pub struct FreedCells<const N: usize = MOST> {
    count: Cell<u32>,
    /// Their addresses.
    cells: [Cell<usize>; N],
}

impl<const N: usize> Default for FreedCells<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> FreedCells<N> {
    /// None.
    pub const fn new() -> Self {
        Self { count: Cell::new(0), cells: [const { Cell::new(0) }; N] }
    }

    /// Whether no cell is noted.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// The number of noted cells.
    pub fn count(&self) -> usize {
        self.count.get() as usize
    }

    /// Notes the address of a cell, if there is room.
    pub fn note(&self, cell: usize) -> bool {
        let count = self.count.get();
        let Some(last) = self.cells.get(count as usize) else { return false };
        last.set(cell);
        self.count.set(count + 1);
        true
    }

    /// Takes the cell that was noted last.
    #[inline]
    pub fn take(&self) -> Option<usize> {
        let last = self.count.get().checked_sub(1)?;
        self.count.set(last);
        Some(self.cells[last as usize].get())
    }

    /// The spans of the noted cells.
    pub fn spans(&self) -> impl Iterator<Item = &'static Span> {
        let noted = self.cells.iter().take(self.count.get() as usize);
        noted.map(|noted| region::span(noted.get()))
    }
}
